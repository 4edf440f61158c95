"""Records the golden histories again, from real runs: `python -m tests.replay.record [name ...]`.

An existing name only when no rollout of the old shape can be in flight; otherwise patch the workflow
(`workflow.patched`), keep the old history, and give the new shape a scene of its own (docs/change-a-workflow.md).
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from temporalio.client import Client, WorkflowHistory

from activities.adapters.ledger.database import upgrade
from activities.adapters.ledger.rollouts import LedgerRegistry
from models.base import parse_duration
from models.fleet.state import Wave
from models.questions import OneRequest
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.state import QuotaAsk, RequestStage
from models.rollout.effects import EffectKind
from models.rollout.messages import RecordRequest
from models.rollout.stages import Command, Stage
from models.rollout.status_models import RolloutStatus
from models.temporal_names import FLEET_ID, request_workflow_id, rollout_workflow_id
from tests.e2e.faults import Fault, Faulty, FaultyQuotas, Way, away, refused
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.late_admission import refused_late
from tests.e2e.world import World, cluster, connected, team, world_of
from tests.integration.notice_servers import web_server
from tests.replay.bringup_scenes import BRINGUPS, story_of
from tests.waiting import eventually
from workers.embedded_temporal import EmbeddedTemporal

_LATER = datetime(2100, 1, 1, tzinfo=UTC)
HISTORIES = Path(__file__).parent / "histories"
LARGEST = 300_000
FEW_EVENTS = 60
"""In the run that is to be continued as new."""


async def import_cluster(world: World, name: str) -> None:
    """C = 306 of 361: b gives 55. A large one has a thousand quotas more, of none."""
    quotas = [team("a", 200), team("b", 161, busy=100)]
    quotas += [team(f"group-{number:04d}", 0) for number in range(1000 * (name == "large"))]
    await world.fleet(cluster(name, {"main": (361, 361)}, quotas, **POLICIES.get(name, {})))


async def close(world: World, name: str) -> None:
    await world.until(name, Stage.MONITORED)
    await finish(world, name)


async def finish(world: World, name: str, command: Command = Command.CLOSE) -> None:
    await world.say(name, command)
    await world.ended(name)


async def noted(world: World, name: str, _: FaultyQuotas) -> None:
    """Hardware fails that the waiting plan does not need: the ledger notes it, and the archive has no word of it."""

    def is_noted(gone: int) -> bool:
        note: dict[str, int] = json.loads(world.sql.row("rollouts", cluster=name)["note"] or "{}")
        return note.get("lacking_gpus") == gone

    await world.launch(name)
    for healthy in (350, 340):
        await world.healthy(name, main=(361, healthy))
        await eventually(partial(is_noted, 361 - healthy), "the loss is noted")
    await finish(world, name, Command.ABORT)


async def straight(world: World, name: str, _: FaultyQuotas) -> None:
    await world.start(name)
    await close(world, name)


async def paused(world: World, name: str, _: FaultyQuotas) -> None:
    await world.launch(name)
    await world.say(name, Command.PAUSE)
    await world.approve(name)
    await asyncio.sleep(0.5)
    await world.say(name, Command.RESUME)
    await world.until(name, Stage.BUFFERED)
    await world.say(name, Command.PAUSE)
    await asyncio.sleep(0.5)
    await world.say(name, Command.RESUME)
    await world.say(name, Command.PROMOTE)
    await close(world, name)


async def objected(world: World, name: str, _: FaultyQuotas) -> None:
    await world.launch(name)
    await world.say(name, Command.OBJECT, actor="bea", team="b")
    await world.approve(name)
    await asyncio.sleep(0.5)
    await world.say(name, Command.RESOLVE, hold="objection-b")
    await world.until(name, Stage.BUFFERED)
    await world.say(name, Command.ACK, actor="bea", team="b")
    await close(world, name)


async def insisted(world: World, name: str, _: FaultyQuotas) -> None:
    """Somebody objects in other words, and each objection that stands is resolved, the last one first."""
    await world.launch(name)
    for words in ("not on Friday", "nor on Monday"):
        await world.say(name, Command.OBJECT, actor="bea", team="b", reason=words)
    await world.approve(name)
    await asyncio.sleep(0.5)
    for hold in reversed((await world.status(name)).holds):
        await asyncio.sleep(0.5)
        await world.say(name, Command.RESOLVE, hold=hold.id)
    await close(world, name)


async def reworded(world: World, name: str, faults: FaultyQuotas) -> None:
    """One objection for each actor: `insisted` was recorded before the patch `one-objection`."""
    await insisted(world, name, faults)


async def undone(world: World, name: str, _: FaultyQuotas) -> None:
    await world.start(name)
    await world.until(name, Stage.ENFORCED)
    await world.say(name, Command.ROLLBACK)
    await world.until(name, Stage.ROLLED_BACK)
    await world.say(name, Command.RETRY)
    await world.until(name, Stage.MONITORED)
    await finish(world, name, Command.ABORT)


async def breached(world: World, name: str, _: FaultyQuotas) -> None:
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await breaks(world, name)


async def breaks(world: World, name: str) -> None:
    await world.healthy(name, main=(361, 300))
    await world.until(name, Stage.ROLLED_BACK)
    await world.healthy(name, main=(361, 361))
    await close(world, name)


async def lean(world: World, name: str, _: FaultyQuotas) -> None:
    """The story of `straight`, since the patch `fewer-events`."""
    await straight(world, name, _)


async def lean_breach(world: World, name: str, _: FaultyQuotas) -> None:
    """The story of `breached`, since the patch `fewer-events`."""
    await breached(world, name, _)


async def shadowed(world: World, name: str, _: FaultyQuotas) -> None:
    await world.start(name, shadow=True)
    await close(world, name)


async def continued(world: World, name: str, _: FaultyQuotas) -> None:
    def in_a_later_run(status: RolloutStatus) -> bool:
        return status.runs > 1

    await world.start(name)
    await world.until(name, Stage.MONITORED)
    for number in range(10):
        await world.say(name, Command.ACK, team="b", reason=f"{number}")
    await world.until(name, in_a_later_run)
    await finish(world, name)


async def left(world: World, name: str, _: FaultyQuotas) -> None:
    """Continues as new in a flood of commands: `continued` was recorded before the patch `leaves-promptly`."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await asyncio.gather(*(world.say(name, Command.ACK, team="b", reason=f"{number}") for number in range(30)))
    await world.until(name, lambda status: status.runs > 1)
    await finish(world, name)


async def stuck(world: World, name: str, faults: FaultyQuotas) -> None:
    """A person's undo cannot restore the quotas; retried in vain, and then for good."""
    broken = await becomes_stuck(world, name, faults)
    await world.say(name, Command.RETRY)
    await world.until(name, lambda status: broken.reached == 2 and status.stage is Stage.STUCK)
    await is_undone(world, name, broken)


async def becomes_stuck(world: World, name: str, faults: FaultyQuotas) -> Fault:
    """Become stuck by a person's undo; return the fault."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    broken = Fault(Way.NEVER_LANDED, refused, times=None)
    faults.inject(name, EffectKind.RESTORE, broken)
    await world.say(name, Command.ROLLBACK)
    await world.until(name, Stage.STUCK)
    return broken


async def is_undone(world: World, name: str, broken: Fault) -> None:
    """Mend the fault, and let the undo end."""
    broken.mend()
    await world.say(name, Command.RETRY)
    await world.until(name, Stage.ROLLED_BACK)
    await finish(world, name, Command.ABORT)


async def marked(world: World, name: str, faults: FaultyQuotas) -> None:
    """A stuck one waits for a person alone: what is archived meanwhile leaves a mark, as `slow` and `stuck` did not."""
    broken = await becomes_stuck(world, name, faults)
    await asyncio.sleep(1)
    await is_undone(world, name, broken)


async def trapped(world: World, name: str, faults: FaultyQuotas) -> None:
    """A breach rollback cannot make the limits soft; a person closes the rollout as it is."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    faults.inject(name, EffectKind.SOFTEN, Fault(Way.NEVER_LANDED, refused, times=None))
    await world.healthy(name, main=(361, 300))
    await world.until(name, Stage.STUCK)
    await finish(world, name)


async def unanswered(world: World, name: str, faults: FaultyQuotas) -> None:
    """A forward effect fails for good, though it has landed: the step is undone by itself."""
    faults.inject(name, EffectKind.HARDEN, Fault(Way.ANSWER_LOST, refused, times=None))
    await world.start(name)
    await world.until(name, Stage.ROLLED_BACK)
    await finish(world, name)


async def drifted(world: World, name: str, _: FaultyQuotas) -> None:
    """Others change a quota; ours is written again."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    world.sql.set("a", 190, name)
    await world.until(name, lambda status: "drift" in [hold.id for hold in status.holds])
    await world.say(name, Command.RESOLVE, hold="drift", how="restore")
    await world.until(name, lambda status: not status.holds)
    await close(world, name)


async def asked(world: World, name: str, _: FaultyQuotas) -> None:
    """Others add a quota and lower another: ours is written again by policy, and a person answers for the new one."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    world.sql.run("INSERT INTO quotas (cluster, team, gpus, mode) VALUES (?, 'z', 0, 'hard')", name)
    world.sql.set("a", 190, name)
    await world.until(name, lambda status: world.sql.gpus(name)["a"] == 200 and bool(status.holds))
    await world.say(name, Command.RESOLVE, hold="drift", how="accept")
    await world.until(name, lambda status: not status.holds)
    await close(world, name)


async def refitted(world: World, name: str, faults: FaultyQuotas) -> None:
    """A quota that others add under a limit above all quotas is accepted: all are Backstop's own, and it is undone."""
    faults.bounds[name] = 306
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    world.sql.set("a", 190, name)
    world.sql.run("INSERT INTO quotas (cluster, team, gpus, mode) VALUES (?, 'z', 5, 'hard')", name)
    await world.until(name, lambda status: len(status.holds) == 1 and "z absent" in status.holds[0].reason)
    await world.say(name, Command.RESOLVE, hold="drift", how="accept")
    await world.until(name, lambda _: world.sql.row("quotas", cluster=name, team="z")["written_gpus"] == 5)
    await finish(world, name, Command.ABORT)


async def aimed_again(world: World, name: str, faults: FaultyQuotas) -> None:
    """Others add a quota between the aim of a breach rollback and its write: it is aimed once more beside that."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    add = "INSERT INTO quotas (cluster, team, gpus, mode) VALUES (?, 'z', 0, 'hard')"
    faults.meanwhile[name, EffectKind.RESTORE] = lambda: world.sql.run(add, name)
    await world.healthy(name, main=(361, 300))
    await world.until(name, Stage.ROLLED_BACK)
    await finish(world, name)


async def realigned(world: World, name: str, _: FaultyQuotas) -> None:
    """Less hardware: once approved, the quotas are cut in place."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.healthy(name, main=(361, 300))
    await world.until(name, lambda status: "approve the plan" in status.needs)
    await world.approve(name)
    await world.until(name, lambda status: status.assigned_gpus <= 300)
    await close(world, name)


async def rederived(world: World, name: str, _: FaultyQuotas) -> None:
    """A buffer from health history: launched by it, derived again once the history is worse, proposed and approved."""
    down = [8.0] * (3 * 168)
    await world.lived(name, 361, down)
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.lived(name, 361, [*down[:-30], *[48.0] * 30])
    status = await world.until(name, lambda status: status.proposal is not None)
    assert status.proposal is not None
    await world.say(name, Command.APPROVE, plan_hash=status.proposal.plan_hash)
    await world.until(name, lambda status: status.proposal is None)
    await close(world, name)


async def cancelled(world: World, name: str, _: FaultyQuotas) -> None:
    """Cancelled in Temporal, which means `abort`."""
    await world.start(name)
    await world.until(name, Stage.BUFFERED)
    await world.handle(name).cancel()
    await world.ended(name)


async def large(world: World, name: str, _: FaultyQuotas) -> None:
    """Payloads that cross compressed."""
    await world.start(name)
    await close(world, name)


async def swift(world: World, name: str, _: FaultyQuotas) -> None:
    """A breach is answered before it is told: `breached` was recorded before the patch `undo-first`."""
    await breached(world, name, _)


async def slow(world: World, name: str, faults: FaultyQuotas) -> None:
    """A breach is told while the ledger is not there to answer it."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    faults.inject(name, EffectKind.RESTORE, Fault(Way.NEVER_LANDED, away, times=3))
    await world.healthy(name, main=(361, 300))
    await world.until(name, Stage.ROLLED_BACK)
    await finish(world, name)


async def told(world: World, name: str, faults: FaultyQuotas) -> None:
    """Teams are told of a rollback after a look at it: `undone` was recorded before the patch `told-after-a-look`."""
    await undone(world, name, faults)


async def called(world: World, name: str, _: FaultyQuotas) -> None:
    """The owner is told of an objection, of somebody's pause and of a breach: `objected` and others were not."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.say(name, Command.OBJECT, team="a")
    await world.say(name, Command.PAUSE, actor="scheduler-owners")
    while world.notices(name).count(("held", "tpm")) < 2:
        await asyncio.sleep(0.1)
    await world.say(name, Command.RESUME)
    await breaks(world, name)


async def reported(world: World, name: str, _: FaultyQuotas) -> None:
    """The owner is told that a breach was rolled back: in `called` it was only told of the breach."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.healthy(name, main=(361, 300))
    await world.until(name, Stage.ROLLED_BACK)
    await eventually(lambda: ("rolled_back", "tpm") in world.notices(name), "the owner is told")
    await finish(world, name)


async def warned(world: World, name: str, _: FaultyQuotas) -> None:
    """A shortage that passes: the team is told of it, and that it is over."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.healthy(name, main=(361, 300))
    await world.until(name, lambda status: bool(status.at_risk))
    await world.healthy(name, main=(361, 361))
    while world.notices(name).count(("at_risk", "a")) < 2:
        await asyncio.sleep(0.1)
    await close(world, name)


async def digested(world: World, name: str, _: FaultyQuotas) -> None:
    """Teams want digests: a notice waits in the ledger as long as its period, and is asked after until it is sent."""
    with web_server() as web:
        teams = [{"name": "b", "contacts": [f"webhook+http://127.0.0.1:{web.port}/"]}]
        quotas = [team("a", 200), team("b", 161, busy=100)]
        await world.fleet(cluster(name, {"main": (361, 361)}, quotas, **POLICIES[name]), teams=teams)
        await world.start(name)
        await close(world, name)


async def risen(world: World, name: str, _: FaultyQuotas) -> None:
    """Health falls step by step, and comes back at once: that is believed when more samples say so."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.healthy(name, main=(361, 300))
    await world.until(name, lambda status: status.healthy_gpus == 300)
    await world.healthy(name, main=(361, 250))
    await world.until(name, lambda status: status.healthy_gpus == 250)
    await world.healthy(name, main=(361, 361))
    await world.until(name, lambda status: not status.health_known)
    while (await world.status(name)).healthy_gpus != 361:
        await world.healthy(name, main=(361, 361))
        await asyncio.sleep(0.2)
    await world.until(name, lambda status: not status.at_risk)
    await close(world, name)


async def ticketed(world: World, name: str, _: FaultyQuotas) -> None:
    """Play with a ticket for every command: admitted, carried into the next run; a cancel from Temporal is ignored."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    for number in range(8):
        await world.say(name, Command.ACK, team="b", reason=f"{number}")
    await world.until(name, lambda status: status.runs > 1)
    await world.handle(name).cancel()
    while not any("was ignored" in entry["text"] for entry in world.sql.archive(name)):
        await asyncio.sleep(0.1)
    await finish(world, name, Command.ABORT)


async def freed(world: World, name: str, _: FaultyQuotas) -> None:
    """A command is refused after its admission, while the rollout waits for its next run: that begins at once."""
    runs = await refused_late(world, name, FEW_EVENTS)
    await world.until(name, lambda status: status.runs > runs)
    await finish(world, name, Command.ABORT)


async def overslept(world: World, name: str, _: FaultyQuotas) -> None:
    """A notice is due while the archive keeps the rollout from its next run; then a command comes."""
    with web_server() as web, held_archive() as archive:
        teams = [{"name": "b", "contacts": [f"webhook+http://127.0.0.1:{web.port}/"]}]
        quotas = [team("a", 200), team("b", 161, busy=100)]
        await world.fleet(cluster(name, {"main": (361, 361)}, quotas, **POLICIES[name]), teams=teams)
        await world.start(name)
        unsent = "SELECT 1 FROM notices WHERE message IS NULL"
        await eventually(lambda: bool(world.sql.rows(unsent)), "a notice waits in the ledger")
        archive.clear()
        await asyncio.gather(*(world.say(name, Command.ACK, team="b", reason=f"{number}") for number in range(20)))
        await asyncio.sleep(parse_duration(POLICIES[name]["notice"]).total_seconds() + 2)
        await world.say(name, Command.ACK, team="b", reason="after it was due")
        archive.set()
        await world.until(name, lambda status: status.runs > 1)
        await finish(world, name, Command.ABORT)


@contextmanager
def held_archive() -> Iterator[threading.Event]:
    """Calls to the archive go on while the event is set."""
    goes_on, record = threading.Event(), LedgerRegistry.record
    goes_on.set()

    def late(self: LedgerRegistry, request: RecordRequest) -> None:
        goes_on.wait(120)
        record(self, request)

    with patch.object(LedgerRegistry, "record", late):
        try:
            yield goes_on
        finally:
            goes_on.set()


async def fleet(world: World, name: str, __: FaultyQuotas) -> None:
    """A fleet rollout with a pilot, through all of its commands but an abort."""
    a, b, _, pilot = await import_fleet(world, name)
    await world.start_fleet(name, {"parallel": 1, "pilot_soak": "1h"}, pilots=(pilot,))
    await world.until_fleet(lambda s: s.rests_until is not None)
    await world.say_fleet("pause")
    await world.say_fleet("skip", clusters=(b,))
    await world.say_fleet("move", clusters=(a,), wave=Wave.UNALLOCATED)
    await world.say_fleet("resume")
    await world.say_fleet("promote")
    await world.until_fleet(lambda s: s.stage.has_ended)
    await world.client.get_workflow_handle(FLEET_ID).result()


async def fleet_marked(world: World, name: str, _: FaultyQuotas) -> None:
    """A fleet that is planned waits for a person alone, who takes time."""
    *_others, pilot = await import_fleet(world, name)
    plan = await world.launch_fleet(name, {"pilot_soak": "0s"}, pilots=(pilot,))
    await asyncio.sleep(1)
    await world.say_fleet("approve", plan_hash=plan.hash)
    await world.until_fleet(lambda s: s.stage.has_ended)
    await world.client.get_workflow_handle(FLEET_ID).result()


async def fleet_undone(world: World, name: str, _: FaultyQuotas) -> None:
    """A pilot breaches, which holds the fleet and is told; then all of it is undone."""
    *_others, pilot = await import_fleet(world, name)
    await world.start_fleet(name, {"pilot_soak": "1h"}, pilots=(pilot,))
    await world.until_fleet(lambda s: s.rests_until is not None)
    await world.healthy(pilot, main=(100, 80))
    await world.until_fleet(lambda s: bool(s.holds))
    await world.until(pilot, Stage.ROLLED_BACK)
    await world.say_fleet("abort", undo=True)
    await world.client.get_workflow_handle(FLEET_ID).result()


async def fleet_paced(world: World, name: str, _: FaultyQuotas) -> None:
    """Another pace while the pilot soaks: that soak is over with it, and more go at once."""
    *_others, pilot = await import_fleet(world, name)
    await world.start_fleet(name, {"parallel": 1, "pilot_soak": "1h"}, pilots=(pilot,))
    await world.until_fleet(lambda s: s.rests_until is not None)
    await world.say_fleet("pace", pace={"parallel": 3, "pilot_soak": "0.1s"})
    await world.until_fleet(lambda s: s.stage.has_ended)
    await world.client.get_workflow_handle(FLEET_ID).result()


async def fleet_continued(world: World, name: str, _: FaultyQuotas) -> None:
    await import_fleet(world, name)
    await world.start_fleet(name, {"parallel": 1})
    status = await world.until_fleet(lambda s: s.stage.has_ended)
    assert status.runs > 1
    await world.client.get_workflow_handle(FLEET_ID).result()


async def granted(world: World, name: str, _: FaultyQuotas) -> None:
    """A request is written by the rollout that is monitored, and taken back by it."""
    quotas = [team("a", 200), team("b", 90, busy=50)]
    await world.fleet(cluster(name, {"main": (361, 361)}, quotas, owners=["tpm"]))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    await _granted_and_returned(world, name)
    await finish(world, name)


async def requested(world: World, name: str, _: FaultyQuotas) -> None:
    """The same where no rollout is open; the history is the request's."""
    await world.fleet(cluster(name, {"main": (361, 361)}, [team("a", 200)], owners=["tpm"]))
    await _granted_and_returned(world, name)


async def unheard(world: World, name: str, _: FaultyQuotas) -> None:
    """Its notices reach nobody: one contact is dead, another one is none. As builds had it that tried for ever."""
    contacts = ["webhook+http://127.0.0.1:9/dead", "nonsense"]
    teams = [{"name": "a", "contacts": contacts[:1]}, {"name": "b", "contacts": contacts[1:]}]
    await world.fleet(
        cluster(name, {"main": (361, 361)}, [team("a", 200), team("b", 10)], owners=["tpm", "b"]), teams=teams
    )
    await _granted_and_returned(world, name)
    await asyncio.sleep(3)


async def untold(world: World, name: str, _: FaultyQuotas) -> None:
    """The same, but what can never be delivered is given up, and a cancel gives the grant back."""
    await unheard(world, f"{name}-lent", _)
    lent = world.client.get_workflow_handle(request_workflow_id(name))
    asked = QuotaAsk(request=name, team="a", cluster=f"{name}-lent", gpus=8, until=_LATER, actor="tpm")
    await world.tpm.request(asked)
    await world.tpm.decide_request(name, RequestCommand.APPROVE, RequestOrder(actor="tpm", reason="as the story goes"))
    while (await world.tpm.ask(OneRequest(request=name))).stage is not RequestStage.GRANTED:
        await asyncio.sleep(0.05)
    await lent.cancel()
    while (await world.tpm.ask(OneRequest(request=name))).stage is not RequestStage.RETURNED:
        await asyncio.sleep(0.05)
    await asyncio.sleep(3)


async def _granted_and_returned(world: World, name: str) -> None:
    asked = await world.tpm.request(QuotaAsk(request=name, team="a", cluster=name, gpus=8, until=_LATER, actor="tpm"))
    order = RequestOrder(actor="tpm", reason="as the story goes")
    for command, stage in (
        (RequestCommand.APPROVE, RequestStage.GRANTED),
        (RequestCommand.WITHDRAW, RequestStage.RETURNED),
    ):
        await world.tpm.decide_request(asked.ask.request, command, order)
        while (await world.tpm.ask(OneRequest(request=name))).stage is not stage:
            await asyncio.sleep(0.05)


async def import_fleet(world: World, name: str) -> list[str]:
    """Four clusters, 95 promised at 100: at most 85 may be."""
    names = [f"{name}-{letter}" for letter in ("a", "b", "c", "pilot")]
    await world.fleet(*(cluster(n, {"main": (100, 98)}, [team("a", 95, busy=60)]) for n in names))
    return names


async def rested(world: World, name: str, _: FaultyQuotas) -> None:
    """Rest: the rollout waits for a day; a pause ends that, and so does hardware that is short for a while."""
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    await world.say(name, Command.PAUSE)
    await world.say(name, Command.RESUME)
    await world.healthy(name, main=(361, 300))
    await world.until(name, lambda s: bool(s.at_risk))
    await world.healthy(name, main=(361, 361))
    await world.until(name, lambda s: not s.at_risk)
    await finish(world, name)


async def together(world: World, name: str, faults: FaultyQuotas) -> None:
    """Archive entries together, except where an effect takes longer than they may wait."""
    faults.inject(name, EffectKind.SET_SOFT, Fault(Way.NEVER_LANDED, away, times=3))
    await world.start(name)
    await close(world, name)


Scene = Callable[[World, str, FaultyQuotas], Awaitable[None]]
SCENES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        *(straight, paused, objected, undone, told, breached, shadowed, continued),
        *(left, stuck, trapped, unanswered, drifted, realigned, cancelled, large),
        *(swift, slow, called, warned, digested, risen, rederived, granted, requested, unheard, untold),
        *(insisted, reworded, reported, marked, ticketed, rested, together, freed, asked, refitted, aimed_again, noted),
        *(lean, lean_breach, overslept),
        *(fleet, fleet_undone, fleet_paced, fleet_continued, fleet_marked),
    )
}
FLEETS = ("fleet", "fleet_undone", "fleet_paced", "fleet_continued", "fleet_marked")
REQUESTS = ("requested", "unheard", "untold")
FORGETFUL = ("continued", "left", "fleet_continued", "unmade", "ticketed", "freed", "overslept")
TICKETED = ("ticketed", "freed")
POLICIES: dict[str, dict[str, Any]] = {
    "realigned": {"on_breach": "realign"},
    "warned": {"breach_after": "1h", "safety_poll": "0.7s"},
    "digested": {"notify": "digest", "notice": "3s"},
    "overslept": {"notify": "digest", "notice": "8s"},
    "risen": {"breach_after": "1h", "safety_poll": "0.7s"},
    "cancelled": {"soak_buffered": "1h"},
    "rested": {"breach_after": "1h"},
    "asked": {"on_drift": "restore"},
    "freed": {"soak_enforced": "5s", "safety_poll": "1d"},
    "rederived": {"buffer": {"health": {}}, "safety_poll": "0.7s", "replan_window": "2s"},
}


async def record(names: list[str]) -> None:
    """The named scenes have been played, and their runs saved."""
    few = f"limit.historyCount.suggestContinueAsNew={FEW_EVENTS}"
    for name in names:
        with tempfile.TemporaryDirectory(prefix="backstop-record-") as folder:
            home, faulty = Path(folder), Faulty()
            url = f"sqlite:///{home / 'ledger.db'}"
            upgrade(url)

            async with AsyncExitStack() as stack:
                settings = [few] if name in FORGETFUL else []
                server = EmbeddedTemporal(home / "temporal", None, None, dynamic_config=settings)
                await stack.enter_async_context(server)
                client = await connected(server.address)
                if name in BRINGUPS:
                    story = await stack.enter_async_context(story_of(client, url, home, name))
                    await BRINGUPS[name](story)
                    await save(client, story.id, name)
                    continue
                keys = (FRONT_KEY, public_keys) if name in TICKETED else None
                world = await stack.enter_async_context(world_of(client, url, home, faulty, keys=keys))
                if name not in FLEETS:
                    await import_cluster(world, name)
                await SCENES[name](world, name, faulty.quotas)
                await save(client, workflow_id(name), name)


def workflow_id(name: str) -> str:
    """Return the id of the workflow that the scene is about."""
    if name in FLEETS:
        return FLEET_ID
    return request_workflow_id(name) if name in REQUESTS else rollout_workflow_id(name)


async def save(client: Client, workflow_id: str, name: str) -> None:
    described = await client.get_workflow_handle(workflow_id).describe()
    run, histories = described.raw_info.first_run_id, list[WorkflowHistory]()
    while run:
        histories.append(await client.get_workflow_handle(workflow_id, run_id=run).fetch_history())
        last = histories[-1].events[-1]
        run = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    for number, history in enumerate(histories, 1):
        data = gzip.compress(history.to_json().encode(), mtime=0)
        assert len(data) < LARGEST, f"{name} is too large to keep: {len(data)} bytes"
        path = HISTORIES / f"{name}{'' if len(histories) == 1 else f'-{number}'}.json.gz"
        path.write_bytes(data)
        print(f"{path.name}: {len(history.events)} events, {len(data)} bytes")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or [*SCENES, *BRINGUPS]))
