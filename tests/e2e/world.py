"""A small world for stories: a running worker, a ledger of its own, and people who talk to it.

What the code under test claims is never its own witness: quotas, receipts and the archive are read by plain
SQL (`World.sql`). Only stages are waited for through the client, as people do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle, WorkflowHistory, WorkflowQueryFailedError
from temporalio.client import WorkflowExecution as WorkflowExecutionRow
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer

from activities.adapters.http import Reach, networks_of
from activities.adapters.kubernetes.api import KubernetesConnection
from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from activities.clock import utc_now
from activities.ports.quota_systems import QuotaPort
from activities.tickets.warrants import KeysOf
from client.backstop import Backstop
from client.composed import StagePart
from client.connection import NAMESPACE, TemporalTarget
from client.converter import data_converter
from client.front_signer import FrontSigner, SigningKey
from models.access.principals import Principal, Proof
from models.audit_chain import AuditEntry, ChainedEntry, ChainHead, broken_links
from models.cluster.fleet_file import Fleet
from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.errors import Unavailable
from models.fleet.commands import FleetCommand, FleetCommandRequest
from models.fleet.messages import FleetLaunch, FleetPlan, FleetStatus
from models.fleet.state import Pace
from models.notice_digests import MailPace
from models.questions import Pulse
from models.reports.rollout_summary import RolloutSummary
from models.rollout.commands import CommandRequest
from models.rollout.messages import CommandAnswer, LaunchAnswer, LaunchRequest
from models.rollout.stages import Command, Stage
from models.rollout.status_models import RolloutStatus
from models.temporal_names import FLEET_ID, MOVES_ON, WATCH_ID, request_workflow_id, rollout_workflow_id
from tests import waiting
from tests.integration.ledger.world import ForeignTool
from tests.loop.temporal import InMemoryTemporal
from tests.replaying import NO_TIME, replays
from workers.bringups import BringupParts
from workers.front_public_keys import TicketsWanted
from workers.main import FAILURES, Telling, ensure_watch, make_worker, sandbox
from workflows.cluster_rollout import ClusterRollout
from workflows.fleet_rollout import FleetRolloutWorkflow
from workflows.quota_request import QuotaRequest

WATCH_SECONDS = 0.3
PATIENCE = waiting.PATIENCE
RESTS = 3.0
"""Seconds in which nothing happens: a record waits up to two for others."""
CLOCKS: dict[str, Any] = {
    "notice": "0.3s",
    "soak_buffered": "0.3s",
    "soak_enforced": "0.3s",
    "breach_after": "1s",
    "clear_after": "0.5s",
    "recover_after": "1s",
    "max_moved_gpus": 100_000,
}
"""Days as seconds. The safety poll keeps its hour: what happens in time, the watch brought about."""
PACE: dict[str, Any] = {"pilot_soak": "0.5s", "bake": "0.3s", "recheck": "2s", "parallel": 3}
"""Of a fleet rollout, likewise."""

UNPACED = Telling(MailPace(moment=timedelta(0), longest_moment=timedelta(0), most=1_000_000))
"""A story's days are seconds: waiting for companions would be weeks."""

_numbers = itertools.count(1)
_T = TypeVar("_T")


def fresh(name: str) -> str:
    """A cluster's name that no other story has: they share a server."""
    return f"{name}-{next(_numbers)}"


def team(name: str, gpus: int, busy: int | None = None, **more: Any) -> dict[str, Any]:
    """A quota of a fleet file, all of it busy unless said otherwise."""
    return {"team": name, "gpus": gpus, "scheduled_gpus": gpus if busy is None else busy, "idle_gpus": 0, **more}


def cluster(
    name: str, islands: dict[str, tuple[int, int]], quotas: Iterable[dict[str, Any]], **policy: Any
) -> dict[str, Any]:
    """A cluster of a fleet file on compressed clocks. Islands are (total, healthy) by name."""
    return {
        "name": name,
        "gpus_per_node": 8,
        "islands": [{"name": n, "total_gpus": t, "healthy_gpus": h} for n, (t, h) in islands.items()],
        "policy": {**CLOCKS, **policy},
        "quotas": list(quotas),
    }


def worked_case(name: str, **policy: Any) -> dict[str, Any]:
    """docs/design.md, "A worked case": 345 -> 306."""
    return cluster(name, {"main": (361, 319)}, [team("research", 345, busy=310)], **policy)


def tree(name: str, **policy: Any) -> dict[str, Any]:
    """C = 204 of 240: a gives 18 and org-1 18 (both unscheduled), and org with org-1."""
    quotas = [
        team("a", 100, busy=80, minimum_gpus=10),
        team("b", 80, protected_blocks=[64]),
        {"team": "org", "gpus": 60},
        team("org-1", 30, busy=10, parent="org"),
        team("org-2", 30, parent="org"),
    ]
    return cluster(name, {"main": (240, 232)}, quotas, **policy)


TREE_CUT = {"a": 82, "b": 80, "org": 42, "org-1": 12, "org-2": 30}


def on_postgresql(item: pytest.Item) -> bool:
    """Return whether the test runs on PostgreSQL: at night, except in test_rollout_story.py, which has one by day."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("ledger_url") == "postgresql"


class Sql(ForeignTool):
    """Somebody at the ledger's database with nothing but SQL."""

    def row(self, table: str, **key: str) -> dict[str, Any]:
        """The only row of a table with these values, by column."""
        where = " AND ".join(f"{column} = ?" for column in key)
        cursor = self._execute(f"SELECT * FROM {table} WHERE {where}", *key.values())
        names = [column[0] for column in cursor.description]
        (found,) = cursor.fetchall()
        return dict(zip(names, found, strict=True))

    def dump(self, cluster: str) -> list[tuple[Any, ...]]:
        """The cluster's quota rows, every column."""
        return self.rows("SELECT * FROM quotas WHERE cluster = ? ORDER BY team", cluster)

    def mode(self, cluster: str) -> str:
        """The one mode that all quotas of the cluster are in."""
        (found,) = set(self.modes(cluster).values())
        return found

    def effects(self, rollout: str) -> list[str]:
        """Return the applied effects in the order of their fences, which are 1, 2, 3 and so on without a gap.

        A follow while flex follows already only moves the pool, as health goes: it is left out.
        """
        rows = self.rows("SELECT counter, kind FROM receipts WHERE rollout = ? ORDER BY counter", rollout)
        assert [counter for counter, _ in rows] == list(range(1, len(rows) + 1))
        times = [at for (at,) in self.rows("SELECT at FROM receipts WHERE rollout = ? ORDER BY counter", rollout)]
        assert times == sorted(times), "a later fence landed earlier"
        return without_flex_moves(kind for _, kind in rows)

    def receipt(self, rollout: str, counter: int) -> dict[str, Any]:
        text = self.one("SELECT receipt FROM receipts WHERE rollout = ? AND counter = ?", rollout, counter)
        found: dict[str, Any] = json.loads(text)
        return found

    def archive(self, cluster: str) -> list[dict[str, Any]]:
        rows = self.rows("SELECT entry FROM audit WHERE cluster = ? ORDER BY seq", cluster)
        return [json.loads(entry) for (entry,) in rows]

    def refusals(self, cluster: str) -> list[str]:
        """Return the archive's refused commands, and who gave them."""
        return [f"{e['actor']}: {e['text']}" for e in self.archive(cluster) if e["refused"]]

    def transitions(self, cluster: str) -> list[str]:
        return [e["data"]["after"] for e in self.archive(cluster) if e["kind"] == "transition"]

    def broken_links(self, cluster: str) -> list[str]:
        """Return where the cluster's hash chain is broken; [] if it is whole."""
        query = "SELECT seq, previous_hash, hash, entry FROM audit WHERE cluster = ? ORDER BY seq"
        rows, head = self.rows(query, cluster), self.row("audit_heads", cluster=cluster)
        while (again := self.rows(query, cluster)) != rows:  # something was archived between the two readings
            rows, head = again, self.row("audit_heads", cluster=cluster)
        chain = [
            ChainedEntry(seq=seq, previous_hash=previous, hash=own, entry=AuditEntry.model_validate_json(entry))
            for seq, previous, own, entry in rows
        ]
        assert chain, "nothing is archived"
        return broken_links(chain, ChainHead(cluster=cluster, length=head["length"], hash=head["hash"]))


def without_flex_moves(kinds: Iterable[str]) -> list[str]:
    """Effects but for each follow while flex follows already: it comes and goes with health."""
    left, follows = [], False
    for kind in kinds:
        if not (follows and kind == "follow"):
            left.append(kind)
        follows = kind == "follow" or (follows and kind not in ("unfollow", "close"))
    return left


eventually = waiting.eventually


async def seen(look: Callable[[], Awaitable[_T]], so: Callable[[_T], bool], what: str, seconds: float = PATIENCE) -> _T:
    """Look until the condition holds; return what was seen. Fails with the condition, and with what was seen last."""
    last = list[_T]()

    async def is_so() -> bool:
        last[:] = [await look()]
        return so(last[0])

    try:
        await eventually(is_so, what, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}; seen: {last}") from error
    return last[0]


class World:
    """Everything one story needs. `home` holds what is not in the ledger: notices.jsonl.

    `shaky`: servers and workers die in this story, so that people ask again when nobody answers.
    """

    def __init__(self, client: Client, sql: Sql, home: Path, shaky: bool = False) -> None:
        self.client = client
        self.shaky = shaky
        self.sql = sql
        self.home = home
        self.stage: StagePart | None = None
        """Writes parts of an import into the workers' ledger, as the command line does."""
        self.now: Callable[[], datetime] = utc_now
        self.launched: set[str] = set()
        self.asked: set[str] = set()
        """Requests for more quota."""
        self.fleet_launched = False
        self.fleet_replays = True
        """False: its history was forged, and leads nowhere."""
        self.keys: SigningKey | None = None
        """Of a front: then everybody gives commands with tickets, and who approves is not who launched."""
        self.approver = "tpm"

    def signer(self, name: str, **more: Any) -> FrontSigner | None:
        """Return the signer of a front that has authenticated this person."""
        principal = Principal(name=name, human=name, proof=Proof.PEER, how="this machine")
        return None if self.keys is None else FrontSigner(self.keys, principal, **{"now": self.now, **more})

    def person(self, name: str) -> Backstop:
        """Somebody at the client's door."""
        address = self.client.service_client.config.target_host
        options = {"target_host": address, "namespace": self.client.namespace}
        return Backstop(self.client, name, TemporalTarget(options=options, embedded=True), self.signer(name), self.now)

    @property
    def tpm(self) -> Backstop:
        return self.person("tpm")

    def handle(self, cluster: str) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(rollout_workflow_id(cluster))

    # --- what people do -------------------------------------------------------------------------

    async def fleet(self, *clusters: dict[str, Any], teams: Iterable[dict[str, Any]] = (), by: str = "tpm") -> None:
        document = {"clusters": list(clusters), "teams": list(teams)}
        await self.person(by).import_fleet(Fleet.model_validate(document), self.stage)

    async def healthy(self, cluster: str, **islands: tuple[int, int]) -> None:
        """The health source reports (total, healthy) by island."""
        sample = HealthSample(
            cluster=cluster,
            at=self.now(),
            islands=tuple(Island(name=n, total_gpus=t, healthy_gpus=h) for n, (t, h) in islands.items()),
        )
        # Each cluster's own: falls of several clusters of one source would be taken for its fault.
        assert await self.person(f"exporter of {cluster}").add_health([sample]) == len(islands)

    async def lived(self, cluster: str, total: int, down: Iterable[float]) -> None:
        """The health source has reported island main of so many GPUs: by the hour up to this one how many were down.

        And now none of them is.
        """
        gone = [int(gpus) for gpus in down]
        first = self.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=len(gone))
        samples = [
            HealthSample(
                cluster=cluster,
                at=first + timedelta(hours=n),
                islands=(Island(name="main", total_gpus=total, healthy_gpus=total - gpus),),
            )
            for n, gpus in enumerate(gone)
        ]
        assert await self.person("exporter").add_health(samples) == len(samples)
        await self.healthy(cluster, main=(total, total))

    async def launch(self, cluster: str, rollout: str = "", **more: Any) -> LaunchAnswer:
        request = LaunchRequest(
            cluster=cluster, rollout=rollout or f"{cluster}/1", owner="tpm", reason="a story", **more
        )
        self.launched.add(cluster)
        return await self.tpm.launch(request)

    async def say(self, cluster: str, command: Command, actor: str = "tpm", **fields: str) -> CommandAnswer:
        """One command of one person, with a reason."""
        request = CommandRequest(actor=actor, **{"reason": "as the story goes", **fields})
        return await self.person(actor).command(cluster, command, request)

    async def approve(self, cluster: str) -> str:
        """Approve the present plan; return its hash."""
        plan = (await self.status(cluster)).plan_hash
        assert plan is not None
        await self.say(cluster, Command.APPROVE, self.approver, plan_hash=plan)
        return plan

    async def start(self, cluster: str, rollout: str = "", **more: Any) -> LaunchAnswer:
        """Launch and approve."""
        answer = await self.launch(cluster, rollout, **more)
        await self.approve(cluster)
        return answer

    # --- the fleet rollout ------------------------------------------------------------------------

    async def launch_fleet(self, name: str, pace: dict[str, Any] | None = None, **more: Any) -> FleetPlan:
        """Launch all clusters of the ledger, at a quick pace. `name`: of the fleet rollout."""
        self.fleet_launched = True
        request = FleetLaunch(
            fleet=name, owner="tpm", reason="a story", pace=Pace.model_validate({**PACE, **(pace or {})}), **more
        )
        plan = await self.tpm.launch_fleet(request)
        self.launched |= {p.cluster for p in plan.clusters}
        return plan

    async def say_fleet(self, command: FleetCommand, actor: str = "tpm", **fields: Any) -> str:
        request = FleetCommandRequest(actor=actor, **{"reason": "as the story goes", **fields})
        return (await self.person(actor).fleet_command(command, request)).said

    async def start_fleet(self, name: str, pace: dict[str, Any] | None = None, **more: Any) -> FleetPlan:
        """Launch and approve."""
        plan = await self.launch_fleet(name, pace, **more)
        await self.say_fleet("approve", self.approver, plan_hash=plan.hash)
        return plan

    async def until_fleet(self, reached: Callable[[FleetStatus], bool], seconds: float = PATIENCE) -> FleetStatus:
        """Return the fleet rollout's status once the condition holds. Fails, with its state, if that takes too long."""
        return await seen(
            lambda: self._answered(self.tpm.fleet_status, seconds), reached, "the fleet rollout is so", seconds
        )

    # --- what people see ------------------------------------------------------------------------

    async def _answered(self, ask: Callable[[], Awaitable[_T]], seconds: float) -> _T:
        """Ask again until somebody answers, because servers and workers die here."""
        async for _ in waiting.async_attempts("somebody answers", seconds):
            try:
                return await ask()
            except Unavailable:
                if not self.shaky:
                    raise
        raise AssertionError("attempts end by themselves")

    async def status(self, cluster: str, seconds: float = PATIENCE) -> RolloutStatus:
        return await self._answered(lambda: self.tpm.status(cluster), seconds)

    async def state(self, cluster: str) -> dict[str, Any]:
        """Return the rollout's state as JSON; ask again if its worker has only just replayed it."""
        async for _ in waiting.async_attempts(f"{cluster} tells its state"):
            try:
                found: dict[str, Any] = await self.handle(cluster).query("state")
                return found
            except WorkflowQueryFailedError as error:
                too_slow = NO_TIME in str(error)  # a state is long in copying on a busy machine
                if not (MOVES_ON in str(error) or too_slow):
                    raise
        raise AssertionError("attempts end by themselves")

    async def until(
        self, cluster: str, reached: Stage | Callable[[RolloutStatus], bool], seconds: float = PATIENCE
    ) -> RolloutStatus:
        """Return the status once the condition holds. Fails, with the rollout's state, if that takes too long.

        A stage that the rollout leaves by itself after a fraction of a second may be over before anybody asks.
        """

        def so(status: RolloutStatus) -> bool:
            return status.stage is reached or (callable(reached) and reached(status))

        wanted = f"is {reached}" if isinstance(reached, Stage) else "is so"
        return await seen(lambda: self.status(cluster, seconds), so, f"{cluster} {wanted}", seconds)

    async def ended(self, cluster: str) -> dict[str, Any]:
        """Return how the rollout's workflow ended; the archive is complete then."""
        found: dict[str, Any] = await asyncio.wait_for(self.handle(cluster).result(), PATIENCE)
        return found

    async def calling(self, cluster: str, activity: str) -> None:
        """Wait until this call of the rollout is under way."""

        async def called() -> bool:
            with contextlib.suppress(RPCError):  # there may be no rollout yet
                described = await self.handle(cluster).describe()
                calls = described.raw_description.pending_activities
                return activity in [call.activity_type.name for call in calls]
            return False

        await eventually(called, f"{activity} of {cluster} is under way")

    async def archived(self, cluster: str) -> None:
        """Wait until the archive has what led to the present stage, and the registry shows that stage.

        Known by its time: the rollout may have been in this stage before.
        """
        status = await self.status(cluster)

        def last() -> list[tuple[str, datetime]]:
            reached = [e for e in self.sql.archive(cluster) if e["kind"] == "transition"][-1:]
            return [(e["data"]["after"], datetime.fromisoformat(e["at"])) for e in reached]

        await eventually(
            lambda: (
                last() == [(status.stage, status.entered_at)]
                and self.sql.row("rollouts", id=status.rollout)["stage"] == status.stage
            ),
            f"{status.stage} in the archive of {cluster}",
        )

    async def at_rest(self) -> None:
        """Wait until nothing is under way, and the ledger is quiet for longer than records wait for one another."""
        mark = ""
        async with asyncio.timeout(PATIENCE):
            while (now := await self.tpm.ask(Pulse(since=mark, seconds=RESTS))) != mark or await self._under_way():
                mark = now

    async def _under_way(self) -> bool:
        """Return whether any rollout of the story has a call or a step of its own under way."""
        described = [(await self.handle(c).describe()).raw_description for c in sorted(self.launched)]
        return any(raw.pending_activities or raw.HasField("pending_workflow_task") for raw in described)

    async def listed(self, cluster: str) -> None:
        """Wait until Temporal's list has the rollout, which takes a moment."""

        async def found() -> bool:
            return cluster in [one.cluster for one in await self.tpm.rollouts()]

        await eventually(found, f"{cluster} is listed")

    async def overview(self, cluster: str, true: Callable[[RolloutSummary], bool] = lambda _: True) -> RolloutSummary:
        """Return the cluster's row of the overview once the condition holds: lists and notes are a moment late."""

        async def row() -> RolloutSummary | None:
            return next((one for one in await self.tpm.overview() if one.cluster == cluster), None)

        found = await seen(row, lambda one: one is not None and true(one), f"the row of {cluster} is so")
        assert found is not None
        return found

    def notices(self, cluster: str) -> list[tuple[str, str]]:
        """(kind, audience) of every notice of a cluster, in order."""
        log = self.home / "notices.jsonl"
        text = log.read_text() if log.exists() else ""  # nobody has been told of anything yet
        whole = text[: text.rfind("\n") + 1]  # the last line may be under way
        found = [json.loads(line)["notice"] for line in whole.splitlines()]
        return [(n["kind"], n["audience"]) for n in found if n["cluster"] == cluster]


async def connected(address: str) -> Client:
    return await Client.connect(address, namespace=NAMESPACE, data_converter=data_converter)


@asynccontextmanager
async def world_of(
    client: Client,
    ledger_url: str,
    home: Path,
    wrapped: Callable[[QuotaPort], QuotaPort | None] = lambda real: real,
    watch_seconds: float = WATCH_SECONDS,
    touch: Callable[[Ledger, Notifier], None] | None = None,
    replays: bool = True,
    tally_seconds: float = 3600.0,
    telling: Telling = UNPACED,
    keys: tuple[SigningKey, KeysOf] | None = None,
    bringups: BringupParts | None = None,
    wanted: TicketsWanted | None = None,
    kubernetes: Mapping[str, KubernetesConnection] | None = None,
) -> AsyncIterator[World]:
    """A worker serves this ledger, the watch runs; afterwards nothing of the story runs, and all of it replays.

    `wrapped`: puts something between the worker and the ledger's quotas; None: what a worker has there itself.
    `touch`: lays hands on the worker's ports before it starts. `replays`: False where the same stories are replayed
    elsewhere, or cannot be, as encryption never gives the same payload twice. `telling`: how fast people are told.
    `keys`: a front's, and what workers know of them: every command needs a ticket then, or once `wanted`. `bringups`:
    what the worker needs to take part in them. On a server in memory all go by its clock.
    """
    sql = Sql(ledger_url)
    world = World(client, sql, home)
    in_memory = client.service_client if isinstance(client.service_client, InMemoryTemporal) else None
    world.now = utc_now if in_memory is None else in_memory.now
    if keys is not None:
        world.keys, world.approver = keys[0], "sre"
    here = Reach(networks_of("127.0.0.0/8"))
    notify = Notifier(home / "notices.jsonl", world.now, None, reach=here)
    with contextlib.closing(sql), Ledger(ledger_url, now=world.now) as ledger, ThreadPoolExecutor(16) as executor:
        world.stage = ledger.fleet.stage_import
        if touch is not None:
            touch(ledger, notify)
        public = None if keys is None else keys[1]
        quotas = wrapped(ledger.quotas)
        more: dict[str, Any] = {"telling": telling, "bringups": bringups, "keys": public, "wanted": wanted}
        more["kubernetes"] = kubernetes
        async with make_worker(client, ledger, notify, executor, quotas, **more):
            await ensure_watch(client, watch_seconds, tally_seconds=tally_seconds)
            try:
                yield world
                if in_memory is not None and replays:
                    await in_memory.workflows.replay()
            finally:
                rollouts = [rollout_workflow_id(cluster) for cluster in sorted(world.launched)]
                asked = [request_workflow_id(request) for request in sorted(world.asked)]
                await _silence(client, [WATCH_ID, FLEET_ID, *rollouts, *asked])  # a front may have launched a fleet too
    if replays and in_memory is None:
        await replayed(client, [*rollouts, *asked])
        if world.fleet_launched and world.fleet_replays:
            await replayed(client, [FLEET_ID])
    if not world.fleet_replays and in_memory is None:
        await forget_fleet(client)


async def _silence(client: Client, ids: Iterable[str]) -> None:
    """None of these runs any more."""
    for workflow_id in ids:
        with contextlib.suppress(RPCError):  # it had ended
            await client.get_workflow_handle(workflow_id).terminate(reason="the story is over")


async def forget_fleet(client: Client) -> None:
    """The server knows of no run of a fleet rollout: one of an earlier story answers what is asked, or cannot.

    What it lists is a moment late, and what it lists no more it may know still.
    """

    async def forgotten() -> bool:
        runs = await _fleets(client)
        for run in runs:
            execution = WorkflowExecution(workflow_id=run.id, run_id=run.run_id)
            with contextlib.suppress(RPCError):  # it is on its way out
                await client.workflow_service.delete_workflow_execution(
                    DeleteWorkflowExecutionRequest(namespace=NAMESPACE, workflow_execution=execution)
                )
        return not runs and not await _known(client, FLEET_ID)

    await eventually(forgotten, "no run of a fleet rollout is known")


async def _fleets(client: Client) -> list[WorkflowExecutionRow]:
    return [run async for run in client.list_workflows(f"WorkflowId = '{FLEET_ID}'")]


async def _known(client: Client, workflow_id: str) -> bool:
    try:
        await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


async def replayed(client: Client, ids: Iterable[str]) -> None:
    """Every rollout of the story leads to the same commands when its history is played again."""

    def replayer() -> Replayer:
        return Replayer(
            workflows=[ClusterRollout, FleetRolloutWorkflow, QuotaRequest],
            workflow_runner=sandbox(),
            workflow_failure_exception_types=FAILURES,
            data_converter=client.data_converter,
        )

    for workflow_id in ids:
        quoted = workflow_id.replace("\\", "\\\\").replace("'", "\\'")
        async for run in client.list_workflows(f"WorkflowId = '{quoted}'"):
            history = await client.get_workflow_handle(workflow_id, run_id=run.run_id).fetch_history()
            assert led_to_nothing(history) == [], workflow_id
            await replays(replayer, history)


def led_to_nothing(history: WorkflowHistory) -> list[int]:
    """Ids of the events with which workflow tasks ended that led to nothing, and which the next one followed at once.

    Playing a history, Temporal's core takes both for one: a command of the next is then obeyed before what came with
    the first is heard, and the two may part ways (TMPRL1100). A signal is no harm: it is heard before the command.
    """
    kinds = [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events]
    found, answered = list[int](), False
    for number, (kind, then) in enumerate(itertools.pairwise(kinds), start=1):
        if kind == "WORKFLOW_TASK_COMPLETED":
            found += [number] * (answered and then == "WORKFLOW_TASK_SCHEDULED")
            answered = False
        answered |= kind in _ANSWERS
    return found


_ANSWERS = {"TIMER_FIRED", *(f"ACTIVITY_TASK_{end}" for end in ("COMPLETED", "FAILED", "TIMED_OUT", "CANCELED"))}
