"""A command that no worker takes up is refused or taken back: what failed does not happen later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from client import questions
from client import workflow_calls as calls
from client.backstop import Backstop
from client.connection import TemporalTarget
from models.bringup.commands import BringupOrder
from models.bringup.messages import BringupStart
from models.bringup.stages import BringupCommand
from models.errors import Unavailable
from models.fleet.commands import FleetCommandRequest
from models.fleet.messages import FleetLaunch
from models.questions import EndWindow
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.state import QuotaAsk
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command, Stage
from models.temporal_names import rollout_workflow_id
from tests.e2e.world import World, connected, eventually, fresh, worked_case, world_of
from tests.unit.bringup_world import entry, recipe
from tests.unit.loop_clock import LoopClock
from tests.waiting import PATIENCE
from workers.embedded_temporal import EmbeddedTemporal

ORDER = {"actor": "tpm", "reason": "a story"}
GIVEN: dict[str, Callable[[Backstop], Awaitable[object]]] = {
    "the launch of a": lambda door: door.launch(LaunchRequest(cluster="a", rollout="a/1", owner="tpm", reason="x")),
    "`approve` for a": lambda door: door.command("a", Command.APPROVE, CommandRequest(**ORDER, plan_hash="h")),
    "the launch of the fleet rollout": lambda door: door.launch_fleet(FleetLaunch(fleet="f", owner="tpm", reason="x")),
    "`pause` for the fleet rollout": lambda door: door.fleet_command(
        "pause", FleetCommandRequest(actor="tpm", reason="x")
    ),
    "request r": lambda door: door.request(
        QuotaAsk(request="r", cluster="a", team="t", gpus=8, actor="tpm", reason="x")
    ),
    "`approve` for request r": lambda door: door.decide_request(
        "r", RequestCommand.APPROVE, RequestOrder(actor="tpm", reason="x")
    ),
    "the bring-up of a": lambda door: door.bring_up(
        BringupStart(entry=entry(cluster="a"), recipe=recipe(), actor="tpm", reason="x")
    ),
    "`cancel` for the bring-up of a": lambda door: door.bringup_command(
        "a", BringupCommand.CANCEL, BringupOrder(actor="tpm", reason="x")
    ),
}
"""Everything that starts or updates a workflow for a person, as a sentence names it."""


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check only once whether a worker has come."""
    monkeypatch.setattr(calls, "_LOOKS", 1)
    monkeypatch.setattr(questions, "_SURE_SECONDS", 0)
    monkeypatch.setattr(questions, "_WAITS", (0.1, 3600))


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    loop = asyncio.get_running_loop()
    loop_clock = LoopClock(loop)
    monkeypatch.setattr(loop, "time", loop_clock)
    return loop_clock


@pytest.fixture
async def deserted(tmp_path: Path) -> AsyncIterator[Client]:
    """A Temporal that no worker has ever polled."""
    async with EmbeddedTemporal(tmp_path / "temporal", None, None) as server:
        yield await connected(server.address)


def door_of(client: Client, notes: list[str]) -> Backstop:
    address = client.service_client.config.target_host
    options = {"target_host": address, "namespace": client.namespace}
    door = Backstop(client, "tpm", TemporalTarget(options=options, embedded=True))
    door.note = notes.append
    return door


async def test_without_a_worker_nothing_is_given(deserted: Client, hasty: None) -> None:
    """Temporal itself is the witness: no workflow was ever started."""
    for what, give in GIVEN.items():
        with pytest.raises(Unavailable) as refused:
            await give(door_of(deserted, []))
        assert refused.value.message == (
            f"no worker is running, so {what} was not sent: start one with `backstop up` or `backstop worker`"
        )
    assert await started(deserted) == []


async def test_doctor_without_a_worker_advises_to_start_one(deserted: Client, hasty: None) -> None:
    checks = {check.name: check for check in await door_of(deserted, []).doctor()}
    for name in ("workers", "ledger"):
        assert not checks[name].ok
        assert checks[name].remedy == "backstop up, or backstop worker"
    assert "migrate" not in str(checks)


async def test_doctor_says_that_a_worker_is_slow_and_not_that_none_runs(
    deserted: Client, sqlite_ledger_url: str, tmp_path: Path, clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that hangs holds the check up, and the worker is there."""
    begun, over = threading.Event(), threading.Event()

    def hangs() -> dict[str, str]:
        begun.set()
        over.wait(PATIENCE)
        return {}

    monkeypatch.setattr(questions, "_SURE_SECONDS", 0)
    monkeypatch.setattr(questions, "_WAITS", (0.1,) * 600)
    touch = partial(hang, monkeypatch, hangs)
    async with world_of(deserted, sqlite_ledger_url, tmp_path, touch=touch) as world:
        await world.fleet(worked_case(fresh("slow")))
        door = door_of(deserted, [])
        asking = asyncio.ensure_future(door.doctor())
        try:
            await eventually(begun.is_set, "the check is under way")
            await eventually(door.heard.is_set, "its history says that a worker has it")
            clock.forward(60)
            checks = {check.name: check for check in await asking}
        finally:
            over.set()
    assert checks["workers"].ok
    assert checks["ledger"].text == "a worker asked the ledger and all sources, but did not answer within 60 s"
    assert "no worker" not in str(checks)


def hang(monkeypatch: pytest.MonkeyPatch, hangs: Callable[[], dict[str, str]], ledger: Ledger, _: Notifier) -> None:
    monkeypatch.setattr(ledger.calendar, "faults", hangs)


async def test_a_question_that_changes_something_is_stopped_again(deserted: Client, hasty: None) -> None:
    with pytest.raises(Unavailable, match=r"^no worker is running: start one"):
        await door_of(deserted, []).ask(EndWindow(cluster="a", number=1, reason="x"))

    async def stopped() -> bool:  # Temporal's list is a moment late
        runs = [run async for run in deserted.list_workflows("")]
        return bool(runs) and all(run.status is not WorkflowExecutionStatus.RUNNING for run in runs)

    await eventually(stopped, "it was begun, and does not run any more")


@pytest.mark.parametrize("interrupted", [False, True], ids=["nobody-came", "interrupted"])
async def test_what_a_dead_worker_did_not_take_up_does_not_happen_when_one_comes(
    deserted: Client,
    sqlite_ledger_url: str,
    tmp_path: Path,
    interrupted: bool,
    clock: LoopClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker died a moment ago: Temporal lists it still. The ledger's rows say what came of each command."""
    planned, new, held = fresh("planned"), fresh("new"), fresh("held")
    async with world_of(deserted, sqlite_ledger_url, tmp_path) as world:
        await world.fleet(*map(worked_case, (planned, new, held)))
        for name in (planned, held):
            await world.launch(name)
        plan = (await world.status(planned)).plan_hash
        world.launched.clear()  # they go on

    approval = CommandRequest(**ORDER, plan_hash=plan or "")
    given: list[Callable[[Backstop], Awaitable[object]]] = [
        lambda door: door.command(planned, Command.APPROVE, approval),
        lambda door: door.launch(LaunchRequest(cluster=new, rollout=f"{new}/1", owner="tpm", reason="x")),
    ]
    monkeypatch.setattr(calls, "_SILENT_SECONDS", 0.0)
    for name, give, what in zip(
        (planned, new), given, (f"`approve` for {planned}", f"the launch of {new}"), strict=True
    ):
        notes: list[str] = []
        giving = asyncio.ensure_future(give(door_of(deserted, notes)))
        await eventually(partial(is_open, deserted, name), f"Temporal has what is given to {name}")
        await eventually(partial(bool, notes), "who gave it reads that it waits")
        waits = f"No worker has answered yet: {what} waits for one. Ctrl-C withdraws it."
        if interrupted:
            giving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await giving
            assert notes == [waits, f"Interrupted: {what} was withdrawn: no worker carries it out."]
        else:
            clock.forward(calls.TAKEN_SECONDS)
            with pytest.raises(Unavailable, match=f"no worker took up {what} .*: it was withdrawn, so no worker"):
                await giving
            assert notes == [waits]
    # One that nobody takes back shows that such a command would have happened.
    kept = asyncio.ensure_future(world.handle(held).execute_update("pause", CommandRequest(**ORDER)))

    async with world_of(deserted, sqlite_ledger_url, tmp_path) as world:
        world.launched |= {planned, held}
        await kept
        assert [h.kind for h in (await world.status(held)).holds] == ["paused"]
        assert (await world.status(planned)).stage is Stage.PLANNED
        await eventually(lambda: "pause" in commands(world, held), "what was not taken back is archived")
        assert world.sql.rows("SELECT id FROM rollouts WHERE cluster = ?", new) == []
        assert "approve" not in commands(world, planned)


def commands(world: World, cluster: str) -> set[str]:
    """First words of what the archive says was given."""
    return {e["text"].split()[0] for e in world.sql.archive(cluster) if e["kind"] == "command"}


async def is_open(client: Client, cluster: str) -> bool:
    try:
        described = await client.get_workflow_handle(rollout_workflow_id(cluster)).describe()
    except RPCError:
        return False
    return described.status is WorkflowExecutionStatus.RUNNING


async def started(client: Client) -> list[str]:
    return [run.id async for run in client.list_workflows("")]
