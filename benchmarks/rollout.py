"""Rollouts on one machine: how many a second, what each costs Temporal, how soon a breach is answered, what memory.

Each figure stands beside that of a bare Temporal workflow (benchmarks/bare.py) that makes as many activities and
timers with payloads of the same size, in the same run, on the same kind of server and worker. Everything is real:
the embedded server, the worker as deployed in a process of its own, the ledger. Run: python benchmarks/rollout.py
(about a quarter of an hour; --quick: about a minute).

Theory of operation. Launches are measured in short turns, ours and bare alternating, each on a fresh server. For
the breaches there is one site with all clusters monitored: in each round hardware fails under a few, and it is
timed, by plain SQL, from just before the sample is written until the quotas are no larger than what is healthy.
Last it fails under all the others within a minute. The bare site does the same with signals and a file of ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHistory
from temporalio.common import WorkflowIDConflictPolicy

from benchmarks.bare import QUEUE, Bare, BareInput, Loops, Script
from benchmarks.sites import Site, postgresql, quantile, site
from models.capacity import Island
from models.commands import CommandRequest
from models.effects import HealthSample
from models.fleet import Fleet
from models.messages import LaunchRequest, rollout_workflow_id
from models.stages import Command

TOTAL, HEALTHY, FAILED = 400, 380, 328
"""GPUs of each cluster: 5 quotas of 70 become 340; with 328 healthy 12 are short."""
QUOTAS = 5
BREACH_SECONDS = 2.0
COMMITS = {"open_rollout": 1, "apply_effect": 1, "record": 2}
"""Transactions of one call; every other call only reads."""
LOOPS = {"record": "archive", "tell": "mail"}
SAMPLE = 20
"""Histories that are counted."""
_POLL_SECONDS = 0.02
_GIVE_UP = 120.0
"""Seconds without news until the rest counts as never restored."""


def note(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def fleet_of(names: Iterable[str], brake: int) -> Fleet:
    """Clusters that go through to monitored as fast as they can. `brake`: max_breaching_clusters."""
    policy = {
        "notice": "0s",
        "soak_buffered": "0s",
        "soak_enforced": "0s",
        "breach_after": f"{BREACH_SECONDS:g}s",
        "recover_after": "1d",
        "stale_after": "1d",
        "max_moved_gpus": 10**7,
        "max_breaching_clusters": brake,
    }
    quotas = [{"team": f"team-{n}", "gpus": 70, "scheduled_gpus": 60, "idle_gpus": 4} for n in range(QUOTAS)]
    islands = [{"name": "main", "total_gpus": TOTAL, "healthy_gpus": HEALTHY}]
    return Fleet.model_validate(
        {"clusters": [{"name": n, "islands": islands, "policy": policy, "quotas": quotas} for n in names]}
    )


# --- what histories say --------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """One activity of a history. Sizes in bytes; times in seconds since the epoch."""

    name: str
    question: int
    answer: int
    ended: float


def counted(history: WorkflowHistory) -> Counter[str]:
    """How many of what, `events` of all kinds included."""
    kinds = Counter(EventType.Name(e.event_type).removeprefix("EVENT_TYPE_").lower() for e in history.events)
    return Counter(
        {
            "events": len(history.events),
            "activities": kinds["activity_task_scheduled"],
            "workflow tasks": kinds["workflow_task_completed"],
            "timers": kinds["timer_started"],
            "signals": kinds["workflow_execution_signaled"],
            "updates": kinds["workflow_execution_update_accepted"],
            "search attributes": kinds["upsert_workflow_search_attributes"],
            "tasks timed out": kinds["activity_task_timed_out"] + kinds["workflow_task_timed_out"],
            "tasks failed": kinds["activity_task_failed"] + kinds["workflow_task_failed"],
        }
    )


def calls_of(history: WorkflowHistory, since: int = 0) -> list[Made]:
    """The activities scheduled after that event, in their order."""
    scheduled = {e.event_id: e.activity_task_scheduled_event_attributes for e in history.events if _is_call(e)}
    made = {}
    for event in history.events:
        if event.HasField("activity_task_completed_event_attributes"):
            done = event.activity_task_completed_event_attributes
            call = scheduled[done.scheduled_event_id]
            ended = event.event_time.ToMicroseconds() / 1e6
            sizes = call.input.ByteSize(), done.result.ByteSize()
            made[done.scheduled_event_id] = Made(call.activity_type.name, *sizes, ended)
    return [call for number, call in sorted(made.items()) if number > since]


def _is_call(event: Any) -> bool:
    return bool(event.HasField("activity_task_scheduled_event_attributes"))


def signals_of(history: WorkflowHistory) -> list[tuple[int, float]]:
    """Number and time of each."""
    return [
        (e.event_id, e.event_time.ToMicroseconds() / 1e6)
        for e in history.events
        if e.HasField("workflow_execution_signaled_event_attributes")
    ]


def loops_of(calls: Sequence[Made], timers: int) -> Loops:
    by_loop: dict[str, list[tuple[int, int, int]]] = {"steps": [], "archive": [], "mail": []}
    for call in calls:
        sizes = (max(0, call.question - 100), call.answer, COMMITS.get(call.name, 0))
        by_loop[LOOPS.get(call.name, "steps")].append(sizes)
    return Loops(**by_loop, timers=timers)


def middle(histories: Sequence[WorkflowHistory]) -> WorkflowHistory:
    """The one with the median number of events."""
    return sorted(histories, key=lambda h: len(h.events))[len(histories) // 2]


# --- sides ---------------------------------------------------------------------------------------


@dataclass
class Turn:
    """Launches of one side. CPU seconds by process."""

    count: int
    seconds: float
    cpu: dict[str, float]

    @property
    def rate(self) -> float:
        return self.count / self.seconds


Launch = Callable[[str], Awaitable[None]]
Ended = Callable[[], set[str]]


async def launched(where: Site, names: Sequence[str], at_once: int, launch: Launch, ended: Ended) -> Turn:
    """All have been launched and have come to rest, never more than `at_once` on their way."""
    before, began, left, way = where.cpu_seconds(), time.perf_counter(), list(names), set[str]()
    starting: set[asyncio.Task[None]] = set()
    done: set[str] = set()
    told = 0
    while len(done) < len(names):
        while left and len(way) < at_once:
            name = left.pop(0)
            way.add(name)
            starting.add(asyncio.create_task(launch(name)))
        await asyncio.sleep(_POLL_SECONDS)
        for task in [t for t in starting if t.done()]:
            starting.remove(task)
            task.result()
        done = ended() & set(names)
        way -= done
        if len(done) >= told + 100:
            told = len(done)
            note(f"  {told} of {len(names)}, {told / (time.perf_counter() - began):.2f}/s")
    seconds = time.perf_counter() - began
    after = where.cpu_seconds()
    return Turn(len(names), seconds, {k: after[k] - before[k] for k in after})


class Ours:
    """Rollouts by way of the client's door."""

    def __init__(self, where: Site) -> None:
        self._site = where

    async def launch(self, name: str) -> None:
        tpm = self._site.tpm
        request = LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", reason="a benchmark")
        plan = (await tpm.launch(request)).plan
        assert plan is not None
        approval = CommandRequest(actor="tpm", reason="a benchmark", plan_hash=plan.hash)
        await tpm.command(name, Command.APPROVE, approval)

    def ended(self) -> set[str]:
        return {c for (c,) in self._site.rows("SELECT cluster FROM rollouts WHERE stage = 'monitored'")}

    async def fail(self, names: Iterable[str], healthy: int = FAILED) -> None:
        """Hardware fails: by SQL of an exporter, so that the desk's workflow is no part of it."""
        at = datetime.now(UTC)
        island = Island(name="main", total_gpus=TOTAL, healthy_gpus=healthy)
        samples = [HealthSample(cluster=n, at=at, islands=(island,)) for n in names]
        await asyncio.to_thread(self._site.ledger.fleet.add_health, samples, "exporter")

    def restored(self, names: Sequence[str]) -> set[str]:
        """Those that promise no more than is healthy."""
        sums = self._site.rows("SELECT cluster FROM quotas GROUP BY cluster HAVING SUM(gpus) <= :most", most=FAILED)
        return {c for (c,) in sums} & set(names)

    def held(self) -> set[str]:
        """Those that the fleet's brake holds, as the archive says."""
        words = "%clusters are in a breach rollback at once%"
        return {c for (c,) in self._site.rows("SELECT DISTINCT cluster FROM audit WHERE entry LIKE :words", words=words)}

    async def histories(self, names: Iterable[str]) -> list[WorkflowHistory]:
        return await _histories(self._site.client, map(rollout_workflow_id, names))


class Plain:
    """The bare side."""

    def __init__(self, where: Site, script: Script) -> None:
        self._site = where
        self._script = script

    async def launch(self, name: str) -> None:
        client = self._site.client
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            Bare.run,
            BareInput(name=name, script=self._script),
            id=f"bare/{name}",
            task_queue=QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            static_summary=f"{name}, owner tpm",
        )
        await client.execute_update_with_start_workflow(Bare.launched, start_workflow_operation=start)
        await client.get_workflow_handle(f"bare/{name}").execute_update(Bare.approve, "x" * 150)

    def ended(self) -> set[str]:
        return set(self._site.ended())

    async def fail(self, names: Iterable[str]) -> None:
        client = self._site.client
        await asyncio.gather(*(client.get_workflow_handle(f"bare/{n}").signal(Bare.health_changed, "x") for n in names))

    def restored(self, names: Sequence[str]) -> set[str]:
        ended = self.ended()
        return {n for n in names if f"restored {n}" in ended}

    async def histories(self, names: Iterable[str]) -> list[WorkflowHistory]:
        return await _histories(self._site.client, (f"bare/{n}" for n in names))


async def _histories(client: Client, ids: Iterable[str]) -> list[WorkflowHistory]:
    return [await client.get_workflow_handle(workflow_id).fetch_history() for workflow_id in ids]


# --- launches ------------------------------------------------------------------------------------


@dataclass
class Launches:
    """The turns of each side, and what one rollout and one bare workflow leave in history (medians)."""

    ours: list[Turn] = field(default_factory=list)
    bare: list[Turn] = field(default_factory=list)
    with_ledger: list[Turn] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    bare_counts: Counter[str] = field(default_factory=Counter)
    by_name: Counter[str] = field(default_factory=Counter)


async def our_turn(options: argparse.Namespace, count: int) -> tuple[Turn, list[WorkflowHistory]]:
    names = [f"cluster-{n:04}" for n in range(count)]
    async with site(options.ledger_url) as where, where.worker(options.watch_seconds):
        ours = Ours(where)
        await where.tpm.import_fleet(fleet_of(names, options.brake))
        turn = await launched(where, names, options.at_once, ours.launch, ours.ended)
        await asyncio.sleep(options.rest)
        return turn, await ours.histories(names[:: max(1, count // SAMPLE)])


async def bare_turn(
    options: argparse.Namespace, count: int, script: Script, ledger: bool
) -> tuple[Turn, list[WorkflowHistory]]:
    names = [f"cluster-{n:04}" for n in range(count)]
    script = script.model_copy(update={"ledger": ledger})
    async with site(options.ledger_url) as where, where.bare_worker(ledger):
        bare = Plain(where, script)
        turn = await launched(where, names, options.at_once, bare.launch, bare.ended)
        await asyncio.sleep(options.rest)
        return turn, await bare.histories(names[:: max(1, count // SAMPLE)])


def medians(counts: Sequence[Counter[str]]) -> Counter[str]:
    return Counter({k: statistics.median(c[k] for c in counts) for k in {k for c in counts for k in c}})  # type: ignore[misc]


def launch_script(history: WorkflowHistory) -> Script:
    calls = calls_of(history)
    names = [c.name for c in calls if c.name not in LOOPS]
    planned = names.index("draft_plan") + 1
    plan = next(c for c in calls if c.name == "draft_plan")
    nothing = Loops(steps=[], archive=[], mail=[], timers=0)
    return Script(
        launch=loops_of(calls, counted(history)["timers"]),
        planned_after=planned,
        plan_bytes=plan.answer // 2,
        breach=nothing,
        looks_before=0,
        restored_after=0,
        breach_seconds=BREACH_SECONDS,
    )


async def measure_launches(options: argparse.Namespace) -> tuple[Launches, Script]:
    note("launching a few to see what a rollout consists of")
    _, histories = await our_turn(options, max(10, options.rollouts // 5))
    script = launch_script(middle(histories))
    found = Launches()
    for turn in range(1, options.turns + 1):
        note(f"turn {turn} of {options.turns}: {options.rollouts} rollouts")
        ours, histories = await our_turn(options, options.rollouts)
        note(f"  ours {ours.rate:.2f}/s; bare")
        bare, bare_histories = await bare_turn(options, options.rollouts, script, ledger=False)
        note(f"  bare {bare.rate:.2f}/s; bare with a ledger")
        with_ledger, _ = await bare_turn(options, options.rollouts, script, ledger=True)
        note(f"  bare with a ledger {with_ledger.rate:.2f}/s")
        found.ours.append(ours)
        found.bare.append(bare)
        found.with_ledger.append(with_ledger)
        found.counts = medians([counted(h) for h in histories])
        found.bare_counts = medians([counted(h) for h in bare_histories])
        found.by_name = medians([Counter(c.name for c in calls_of(h)) for h in histories])
    return found, script


# --- breaches ------------------------------------------------------------------------------------


@dataclass
class Standing:
    """One side with everything monitored. Seconds, and MiB of the worker's own memory."""

    clusters: int
    launch: Turn
    memory: float
    memory_before: float
    memory_per_thousand: float
    restored: list[float] = field(default_factory=list)
    """From the sample to the restored quota, of each cluster in a round of a few."""
    from_signal: list[float] = field(default_factory=list)
    storm: Storm | None = None


@dataclass
class Storm:
    """Everything breaches within `spread` seconds: what became of it, in seconds since each sample."""

    clusters: int
    spread: float
    restored: list[float]
    held: list[float]
    last: float
    """Since the first sample."""
    troubles: Counter[str] = field(default_factory=Counter)


Side = Ours | Plain


async def standing(where: Site, side: Side, names: Sequence[str], options: argparse.Namespace) -> Standing:
    """All are launched and at rest."""
    warm, rest = names[: options.warm], names[options.warm :]
    await launched(where, warm, options.at_once, side.launch, side.ended)
    await asyncio.sleep(options.rest)
    before = where.worker_mib()
    turn = await launched(where, rest, options.at_once, side.launch, side.ended)
    await asyncio.sleep(5 * options.rest)
    memory = where.worker_mib()
    note(f"  {len(names)} stand, {turn.rate:.2f}/s; worker {before:.0f} -> {memory:.0f} MiB")
    return Standing(len(names), turn, memory, before, (memory - before) / len(rest) * 1000)


async def breach_rounds(side: Side, names: Sequence[str], options: argparse.Namespace, into: Standing) -> None:
    """A few at once, round by round; each is timed for itself."""
    for number in range(options.rounds):
        few = names[number * options.few : (number + 1) * options.few]
        await asyncio.sleep(options.rest + random.uniform(0, options.watch_seconds))  # at any moment of the watch
        began, seen = time.time(), dict[str, float]()
        await side.fail(few)
        while len(seen) < len(few) and time.time() < began + _GIVE_UP:
            for name in side.restored(few) - seen.keys():
                seen[name] = time.time()
            await asyncio.sleep(_POLL_SECONDS)
        into.restored += [seen.get(name, float("inf")) - began for name in few]
        for name, history in zip(few, await side.histories(few), strict=True):
            signalled = next((at for _, at in signals_of(history) if at >= began), None)
            if signalled is not None and name in seen:
                into.from_signal.append(seen[name] - signalled)
        note(f"  round {number + 1}: last of {len(few)} restored after {max(into.restored[-len(few) :]):.2f} s")


async def storm(side: Side, names: Sequence[str], options: argparse.Namespace, where: Site) -> Storm:
    """All of them fail, evenly over the time given; ends when each is restored or held, or nothing more happens."""
    began, steps = time.time(), max(1, int(options.storm_seconds))
    failed, restored, held = dict[str, float](), dict[str, float](), dict[str, float]()

    async def failing() -> None:
        for step in range(steps):
            few = names[step * len(names) // steps : (step + 1) * len(names) // steps]
            await asyncio.sleep(max(0.0, began + step * options.storm_seconds / steps - time.time()))
            failed.update(dict.fromkeys(few, time.time()))
            await side.fail(few)

    sender, moved, told = asyncio.create_task(failing()), began, began
    while len(restored.keys() | held.keys()) < len(names) and time.time() < max(moved, began + steps) + _GIVE_UP:
        polled = time.time()
        news = {n: polled for n in side.restored(names) if n not in restored}
        restored |= news
        more = {n: polled for n in (side.held() if isinstance(side, Ours) else ()) if n not in held}
        held |= more
        moved = polled if news or more else moved
        if polled > told + 10:
            told = polled
            note(f"  {polled - began:.0f} s: {len(failed)} failed, {len(restored)} restored, {len(held)} held")
        await asyncio.sleep(max(_POLL_SECONDS, 10 * (time.time() - polled)))
    await sender
    troubles: Counter[str] = Counter()
    for history in await side.histories(names[:: max(1, len(names) // 100)]):
        counts = counted(history)
        troubles.update({k: counts[k] for k in ("tasks timed out", "tasks failed")})
    troubles["histories looked at"] = len(names[:: max(1, len(names) // 100)])
    return Storm(
        clusters=len(names),
        spread=options.storm_seconds,
        restored=[restored[n] - failed[n] for n in restored],
        held=[held[n] - failed[n] for n in held],
        last=max([*restored.values(), *held.values()], default=float("nan")) - began,
        troubles=troubles,
    )


def breach_script(script: Script, history: WorkflowHistory, since: int) -> Script:
    """With the calls that the breach after this event made."""
    calls = calls_of(history, since)
    steps = [c.name for c in calls if c.name not in LOOPS]
    effects = [n for n, name in enumerate(steps, 1) if name == "apply_effect"]
    timers = sum(e.event_id > since and e.HasField("timer_started_event_attributes") for e in history.events)
    return script.model_copy(
        update={
            "breach": loops_of(calls, timers),
            "looks_before": steps.index("aim_rollback"),
            "restored_after": effects[2],  # unfollow, soften, restore
        }
    )


async def measure_breaches(options: argparse.Namespace, script: Script) -> tuple[Standing, Storm, Standing]:
    """Ours in rounds and in a storm; ours in a storm with the brake as it is by default; bare."""
    rounds = options.rounds * options.few
    names = [f"cluster-{n:04}" for n in range(options.clusters + rounds)]
    chosen = [names[n * len(names) // rounds] for n in range(rounds)]
    others = [n for n in names if n not in set(chosen)]
    note(f"ours: {len(names)} clusters to be monitored")
    async with site(options.ledger_url) as where, where.worker(options.watch_seconds):
        ours = Ours(where)
        await where.tpm.import_fleet(fleet_of(names, 10**6))
        found = await standing(where, ours, names, options)
        await breach_rounds(ours, chosen, options, found)
        history = middle(await ours.histories(chosen))
        since = signals_of(history)
        script = breach_script(script, history, _first_of_breach(history, since))
        note(f"ours: {len(others)} breach within {options.storm_seconds:g} s, no brake")
        found.storm = await storm(ours, others, options, where)
    note(f"ours: {options.braked} clusters with the brake as it is by default")
    names = [f"cluster-{n:04}" for n in range(options.braked)]
    async with site(options.ledger_url) as where, where.worker(options.watch_seconds):
        ours = Ours(where)
        await where.tpm.import_fleet(fleet_of(names, 3))
        await launched(where, names, options.at_once, ours.launch, ours.ended)
        await asyncio.sleep(options.rest)
        braked = await storm(ours, names, options, where)
    note(f"bare: {options.clusters + rounds} workflows to wait")
    names = [f"cluster-{n:04}" for n in range(options.clusters + rounds)]
    async with site(options.ledger_url) as where, where.bare_worker(False):
        bare = Plain(where, script)
        plain = await standing(where, bare, names, options)
        await breach_rounds(bare, chosen, options, plain)
        note(f"bare: {len(others)} signalled within {options.storm_seconds:g} s")
        plain.storm = await storm(bare, others, options, where)
    return found, braked, plain


def _first_of_breach(history: WorkflowHistory, signals: Sequence[tuple[int, float]]) -> int:
    """The signal before the look that led to the rollback: the last one before the breach clock ran out."""
    aimed = next(e.event_id for e in history.events if _is_call(e) and _name(e) == "aim_rollback")
    return max(number for number, _ in signals if number < aimed)


def _name(event: Any) -> str:
    return str(event.activity_task_scheduled_event_attributes.activity_type.name)


# --- the whole -----------------------------------------------------------------------------------


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rollouts", type=int, help="of each turn")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--at-once", type=int, default=40)
    parser.add_argument("--ledger-url", default="")
    parser.add_argument("--watch-seconds", type=float, default=0.5)
    parser.add_argument("--brake", type=int, default=10**6)
    parser.add_argument("--clusters", type=int)
    parser.add_argument("--braked", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--few", type=int, default=10)
    parser.add_argument("--warm", type=int, default=10)
    parser.add_argument("--storm-seconds", type=float)
    parser.add_argument("--only", choices=["launches", "breaches"])
    parser.add_argument("--rest", type=float, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.rollouts = options.rollouts or (20 if options.quick else 100)
    options.turns = options.turns or (1 if options.quick else 3)
    options.clusters = options.clusters or (20 if options.quick else 1000)
    options.braked = options.braked or (20 if options.quick else 1000)
    options.rounds = options.rounds or (1 if options.quick else 10)
    options.storm_seconds = options.storm_seconds if options.storm_seconds is not None else (2 if options.quick else 60)
    return options


async def measured(options: argparse.Namespace) -> None:
    launches, script = await measure_launches(options)
    for name in ("ours", "bare", "with_ledger"):
        turns = getattr(launches, name)
        print(name, [round(t.rate, 2) for t in turns], [{k: round(v / t.count, 3) for k, v in t.cpu.items()} for t in turns])
    found, braked, plain = await measure_breaches(options, script)
    for side in (found, plain):
        print(side.memory_before, side.memory, side.memory_per_thousand, [quantile(side.restored, q) for q in (.5,.99)], [quantile(side.from_signal, q) for q in (.5,.99)], side.storm)
    print(braked)
    print(dict(launches.counts), dict(launches.bare_counts), dict(launches.by_name), sep="\n")


if __name__ == "__main__":
    asyncio.run(measured(parsed()))
