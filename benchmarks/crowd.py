"""Many monitored clusters without a rollout of each: one is rolled out and copied, in the ledger and in Temporal.

A copy's workflow begins with the state that the first one has reached, as a run that continues as new does; its rows
are those of the first with another name. So the ledger, the registry and the watch find what a rollout would have
left, but for the archive and the booked moves. `verified` asks a sample whether that is so. PostgreSQL only.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from temporalio.client import WorkflowHistory
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from benchmarks.sites import Site
from models.cluster.fleet_file import Fleet
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest, RolloutInput
from models.rollout.stages import Command, Stage
from models.rollout.state import Rollout
from models.temporal_names import (
    ROLLOUT_WORKFLOW,
    TASK_QUEUE,
    WATCH_ID,
    WATCH_WORKFLOW,
    WatchInput,
    rollout_workflow_id,
)

TOTAL, HEALTHY, AT_RISK, BREACHED = 400, 380, 330, 326
"""GPUs of each cluster: quotas of 350 become 340, so with 330 healthy 10 are short."""
PROMISED = 340
QUOTAS = 5
SAMPLE_SECONDS = 60.0
"""How often an exporter writes what it sees of every cluster, changed or not."""
_FIRST = "cluster-00000"
_TABLES = ("clusters", "islands", "quotas", "rollouts", "reserve_limits", "receipts", "usage_samples", "health_samples")
_STARTING = 40
_ASKING = 20
_GIVE_UP = 300.0
_HANDOVER = 50.0
"""Seconds until a terminated watch has heard of it, by the answer to its next heartbeat."""


def name_of(number: int) -> str:
    return f"cluster-{number:05}"


def cluster_document(name: str, scheduled: int, idle: int, gpus: int = 70, **policy: Any) -> dict[str, Any]:
    return {
        "name": name,
        "islands": [{"name": "main", "total_gpus": TOTAL, "healthy_gpus": HEALTHY}],
        "policy": {"max_moved_gpus": 10**7, "max_breaching_clusters": 10**6, **policy},
        "quotas": [
            {"team": f"team-{n}", "gpus": gpus, "scheduled_gpus": scheduled, "idle_gpus": idle} for n in range(QUOTAS)
        ],
    }


class Exporter:
    """The health source: samples of every cluster each minute, and changes as they come."""

    def __init__(self, where: Site) -> None:
        self._site = where
        where.do("CREATE UNLOGGED TABLE bench_seen (cluster text PRIMARY KEY, healthy integer NOT NULL)")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def knows(self, clusters: Iterable[str]) -> None:
        """Report these clusters from now on, healthy."""
        self._site.do(
            "INSERT INTO bench_seen SELECT unnest(CAST(:names AS text[])), :healthy ON CONFLICT DO NOTHING",
            names=list(clusters),
            healthy=HEALTHY,
        )

    async def tell(self, clusters: Sequence[str], healthy: int) -> float:
        """Report a change; return the time just before the sample is written."""
        began = time.time()
        await asyncio.to_thread(
            self._site.do,
            "UPDATE bench_seen SET healthy = :healthy WHERE cluster = ANY(:names)",
            f"{_SAMPLES} WHERE cluster = ANY(:names)",
            names=list(clusters),
            healthy=healthy,
        )
        return began

    async def _run(self) -> None:
        while True:
            await asyncio.to_thread(self._site.do, _SAMPLES)
            await asyncio.sleep(SAMPLE_SECONDS)


_SAMPLES = f"""
INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)
SELECT cluster, 'main', clock_timestamp(), {TOTAL}, healthy, 'exporter of ' || cluster FROM bench_seen
"""


class Crowd:
    """Monitored clusters, by `names`; those in `special` are not at rest, or not for long."""

    def __init__(self, where: Site, exporter: Exporter, watch_seconds: float) -> None:
        self._site = where
        self.exporter = exporter
        self.watch_seconds = watch_seconds
        self.names: list[str] = []
        self.special: set[str] = set()
        self._state = ""

    async def begin(self) -> None:
        """Roll out the first cluster, as any rollout is."""
        quick: dict[str, Any] = {"notice": "0s", "soak_buffered": "0s", "soak_enforced": "0s"}
        document = {"clusters": [cluster_document(_FIRST, 60, 4, **quick)]}
        tpm = self._site.tpm
        await tpm.import_fleet(Fleet.model_validate(document))
        request = LaunchRequest(cluster=_FIRST, rollout=f"{_FIRST}/1", owner="tpm", reason="a benchmark")
        plan = (await tpm.launch(request)).plan
        assert plan is not None
        approval = CommandRequest(actor="tpm", reason="a benchmark", plan_hash=plan.hash)
        await tpm.command(_FIRST, Command.APPROVE, approval)
        handle = self._site.client.get_workflow_handle(rollout_workflow_id(_FIRST))

        async def at_rest() -> bool:
            state: Rollout = await handle.query("state", result_type=Rollout)
            busy = state.post.outbox or state.post.mail or state.look_asked
            self._state = state.model_dump_json()
            return state.stage is state.post.noted is Stage.MONITORED and not busy

        await until(at_rest, "the first rollout is monitored and at rest")
        self.names = [_FIRST]
        self.exporter.knows(self.names)

    async def grow(self, size: int, policies: dict[int, dict[str, str]]) -> float:
        """Copy until so many are monitored; return how many were started a second. `policies`: of some, by number."""
        numbers = range(len(self.names), size)
        names = [name_of(n) for n in numbers]
        await asyncio.to_thread(copy_rows, self._site, numbers.start, numbers.stop)
        began, slots = time.perf_counter(), asyncio.Semaphore(_STARTING)

        async def start(number: int) -> None:
            async with slots:
                await self._start(name_of(number), policies.get(number, {}))

        self.exporter.knows(names)
        await asyncio.gather(*(start(n) for n in numbers))
        self.names += names
        self.special |= {name_of(n) for n in policies}
        return len(names) / (time.perf_counter() - began)

    async def _start(self, name: str, policy: dict[str, str]) -> None:
        state = json.loads(self._state.replace(_FIRST, name))
        state["looked_at"] = datetime.now(UTC).isoformat()
        state["policy"] |= policy
        launch = {"cluster": name, "rollout": f"{name}/1", "owner": "tpm", "reason": "a benchmark"}
        await self._site.client.start_workflow(
            ROLLOUT_WORKFLOW,
            RolloutInput.model_validate({"launch": launch, "state": state, "runs": 2}),
            id=rollout_workflow_id(name),
            task_queue=TASK_QUEUE,
        )

    def resting(self, count: int) -> list[str]:
        """Return some clusters that nothing was done to, from the whole range."""
        found = [n for n in self.names if n not in self.special]
        return found[:: max(1, len(found) // count)][:count]

    def take(self, count: int) -> list[str]:
        """Return some clusters that something will be done to."""
        found = self.resting(count)
        self.special |= set(found)
        return found

    async def lengths(self, names: Sequence[str]) -> list[int]:
        """Return the number of events in each cluster's present run."""

        async def length(name: str) -> int:
            described = await self._site.client.get_workflow_handle(rollout_workflow_id(name)).describe()
            return int(described.history_length)

        return await few_at_once(length, names)

    async def settled(self, looked: bool = True) -> float:
        """Wait until a sample is at rest and each was looked at since it began; return the seconds."""
        began, sample = time.perf_counter(), self.resting(100)
        before: list[int] = []

        async def quiet() -> bool:
            nonlocal before
            earlier, before = before, await self.lengths(sample)
            return earlier == before and (not looked or min(before) > _EVENTS_AT_START)

        every = 10.0 if len(self.names) >= 500 else 3.0
        await until(quiet, "the clusters are at rest", every=every, seconds=2 * _GIVE_UP + len(self.names) / 5)
        return time.perf_counter() - began

    async def events_of_a_safety_poll(self, names: Sequence[str]) -> float:
        """Return the median of events for each safety poll; NaN if no cluster has looked twice in a row by itself."""
        found: list[int] = []
        for name in names:
            history = await self._site.client.get_workflow_handle(rollout_workflow_id(name)).fetch_history()
            looks = [
                (e.event_id, b"safety poll" in e.user_metadata.summary.data)
                for e in history.events
                if e.activity_task_scheduled_event_attributes.activity_type.name == "observe"
            ]
            found += [b - a for (a, unasked), (b, too) in itertools.pairwise(looks) if unasked and too]
        return statistics.median(found) if found else math.nan

    async def verified(self, breaching: Sequence[str]) -> None:
        """Check for no drift, no hold and an equal ledger; and that a breach is undone. Errors: RuntimeError."""
        for name in self.resting(20):
            status = await self._site.tpm.status(name)
            wrong = [w for w in status.waiting_for if not w.met]
            if status.stage != "monitored" or status.holds or status.at_risk or wrong or not status.health_known:
                raise RuntimeError(f"{name} is not as a rollout leaves it: {status.model_dump_json()}")
        await self.exporter.tell(breaching, BREACHED)

        async def restored() -> bool:
            words = {"names": list(breaching)}
            sums = "SELECT sum(gpus) FROM quotas WHERE cluster = ANY(:names) GROUP BY cluster"
            stages = "SELECT stage FROM rollouts WHERE cluster = ANY(:names)"
            within = all(gpus <= BREACHED for (gpus,) in self._site.rows(sums, **words))
            return within and {s for (s,) in self._site.rows(stages, **words)} == {"rolled_back"}

        await until(restored, "breaches are answered")

    async def watch(self, seconds: float) -> None:
        """Let the shared watch look this often from now on; it knows what the one before has reported."""
        self.watch_seconds = seconds
        handle = self._site.client.get_workflow_handle(WATCH_ID)
        described = await handle.describe()
        details = [a.heartbeat_details for a in described.raw_description.pending_activities]
        cursor = await self._site.client.data_converter.decode(details[0].payloads) if details else []
        # In one call: a worker starts a watch that has been ended again.
        await self._site.client.start_workflow(
            WATCH_WORKFLOW,
            WatchInput(interval_seconds=seconds, **({"cursor": cursor[0]} if cursor else {})),
            id=WATCH_ID,
            task_queue=TASK_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
        )
        await asyncio.sleep(_HANDOVER)


_EVENTS_AT_START = 10
"""A copy that nobody has asked to look has fewer."""


def copy_rows(where: Site, first: int, end: int) -> None:
    """Copy the first cluster's rows to clusters of these numbers, under their names."""
    statements = ["SET LOCAL session_replication_role = replica"]  # or triggers would count foreign changes
    for table in _TABLES:
        columns = where.rows(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = :table "
            "AND table_schema = current_schema() ORDER BY ordinal_position",
            table=table,
        )
        names = ", ".join(name for name, _ in columns)
        new = "'cluster-' || lpad(n::text, 5, '0')"
        values = ", ".join(
            f"replace(t.{name}, '{_FIRST}', {new})" if kind == "text" else f"t.{name}" for name, kind in columns
        ).replace("::text", "\\:\\:text")
        key = "name" if table == "clusters" else "cluster"
        newest = "AND t.at = (SELECT max(at) FROM health_samples h WHERE h.cluster = t.cluster)"
        statements.append(
            f"INSERT INTO {table} ({names}) SELECT {values} FROM {table} t, generate_series({first}, {end - 1}) n "
            f"WHERE t.{key} = '{_FIRST}' {newest if table == 'health_samples' else ''}"
        )
    where.do(*statements, *(f"ANALYZE {table}" for table in _TABLES))


# --- reactions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reaction:
    """Seconds from a sample's insertion until the watch's signal is in history, and until the state says so."""

    signalled: float
    said: float


def reaction(history: WorkflowHistory, since: float) -> Reaction | None:
    """Return the reaction to the change that was written at that time; None: there is none yet."""
    signalled = None
    for event in history.events:
        at = event.event_time.ToMicroseconds() / 1e6
        if at < since:
            continue
        if signalled is None and event.HasField("workflow_execution_signaled_event_attributes"):
            signalled = at
        if event.HasField("activity_task_scheduled_event_attributes"):
            call = event.activity_task_scheduled_event_attributes.activity_type.name
            if call == "record" and b"at risk" in event.user_metadata.summary.data:
                return Reaction((signalled or at) - since, at - since)
    return None


async def edges(
    crowd: Crowd, where: Site, groups: Sequence[Sequence[str]], pause: Callable[[], float]
) -> list[Reaction]:
    """Let each group's hardware fail at once, with a pause between groups; heal all afterwards."""
    told: dict[str, float] = {}
    for group in groups:
        at = await crowd.exporter.tell(group, AT_RISK)
        told |= dict.fromkeys(group, at)
        await asyncio.sleep(pause())
    found: dict[str, Reaction] = {}

    async def look(name: str) -> None:
        history = await where.client.get_workflow_handle(rollout_workflow_id(name)).fetch_history()
        seen = reaction(history, told[name])
        if seen is not None:
            found[name] = seen

    async def all_said() -> bool:
        await few_at_once(look, [n for n in told if n not in found])
        return len(found) == len(told)

    await until(all_said, "every edge is answered", every=1.0)
    await archived(where, list(told))
    await crowd.exporter.tell(list(told), HEALTHY)
    return list(found.values())


async def archived(where: Site, names: Sequence[str]) -> None:
    """Wait until the archive, too, says that each is at risk."""
    said = "SELECT count(DISTINCT cluster) FROM audit WHERE cluster = ANY(:names) AND entry LIKE '%at risk: %'"

    async def all_there() -> bool:
        return bool(where.rows(said, names=list(names))[0][0] == len(names))

    await until(all_there, "the archive says so too")


def anywhere(seconds: float) -> Callable[[], float]:
    """Return pauses of about this length, so that edges fall on any moment of the watch."""
    return lambda: random.uniform(0.5 * seconds, 1.5 * seconds)


# --- small ---------------------------------------------------------------------------------------


_Answer = TypeVar("_Answer")


async def few_at_once(ask: Callable[[str], Awaitable[_Answer]], names: Iterable[str]) -> list[_Answer]:
    """Return the answers in the order of the names."""
    slots = asyncio.Semaphore(_ASKING)

    async def asked(name: str) -> _Answer:
        async with slots:
            return await ask(name)

    return await asyncio.gather(*map(asked, names))


async def until(
    reached: Callable[[], Awaitable[bool]], what: str, every: float = 0.2, seconds: float = _GIVE_UP
) -> None:
    """Wait for a condition. Errors: RuntimeError if that takes too long."""
    ends = time.monotonic() + seconds
    while True:
        with contextlib.suppress(RPCError):  # a server under load may be late with one answer
            if await reached():
                return
        if time.monotonic() > ends:
            raise RuntimeError(f"not within {seconds:.0f} s: {what}")
        await asyncio.sleep(every)
