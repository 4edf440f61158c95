"""Rollouts on one machine: how many a second, what each costs Temporal, how soon a breach is answered, what memory.

Each figure stands beside that of a bare Temporal workflow (benchmarks/bare.py) that makes as many activities and
timers with payloads of the same size, in the same run, on the same kind of server and worker. Everything is real:
the embedded server, the worker as deployed in a process of its own, the ledger. Run: python benchmarks/rollout.py
(about half an hour on two cores; --quick: about two minutes).

Theory of operation. Launches are measured in short turns, ours and bare alternating, each on a fresh server. For
the breaches there is one site with all clusters monitored: in each round hardware fails under a few, and it is
timed, by plain SQL, from just before the sample is written until the quotas are no larger than what is healthy.
Last it fails under all the others within a minute. The bare site does the same with signals and a file of ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHistory
from temporalio.common import WorkflowIDConflictPolicy

from benchmarks.bare import QUEUE, Bare, BareInput, Loops, Script
from benchmarks.sites import Site, note, postgresql, quantile, site
from client.payload_keys import VARIABLE, PayloadKeys, new_key, write_keys
from models.cluster.fleet_file import Fleet
from models.cluster.policy import Policy
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command
from models.temporal_names import rollout_workflow_id

TOTAL, HEALTHY, FAILED = 400, 380, 328
"""GPUs of each cluster: 5 quotas of 70 become 340; with 328 healthy 12 are short."""
QUOTAS = 5
BREACH_SECONDS = 2.0
NO_BRAKE = 10**6
COMMITS = {"open_rollout": 1, "apply_effect": 1, "record": 2}
"""Transactions of one call; every other call only reads."""
LOOPS = {"record": "archive", "tell": "mail"}
SAMPLE = 20
"""Histories that are counted."""
_POLL_SECONDS = 0.02
_GIVE_UP = 120.0
"""Seconds without news until the rest counts as never restored."""


def fleet_of(names: Iterable[str], brake: int) -> Fleet:
    """Return a fleet of clusters that become monitored as fast as they can. `brake`: max_breaching_clusters."""
    policy: dict[str, Any] = {
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
    """An activity call in a history. Sizes in bytes; times in seconds since the epoch."""

    name: str
    question: int
    answer: int
    ended: float


def counted(history: WorkflowHistory) -> Counter[str]:
    """Count what a history has: events of all kinds, and some kinds by name."""
    kinds = Counter(EventType.Name(e.event_type).removeprefix("EVENT_TYPE_").lower() for e in history.events)
    return Counter(
        {
            "events": len(history.events),
            "activities": kinds["activity_task_scheduled"],
            "local activities": kinds["marker_recorded"],
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
    """Return the activities scheduled after that event, in order."""
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
    """Return number and time of each signal."""
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
    """Return the history with the median number of activities."""
    counts = [(counted(h)["activities"], len(h.events), n) for n, h in enumerate(histories)]
    return histories[sorted(counts)[len(counts) // 2][2]]


# --- sides ---------------------------------------------------------------------------------------


@dataclass
class Turn:
    """The launches of one side. CPU seconds by process."""

    count: int
    seconds: float
    cpu: dict[str, float]

    @property
    def rate(self) -> float:
        return self.count / self.seconds


Launch = Callable[[str], Coroutine[Any, Any, None]]
Ended = Callable[[], set[str]]


async def launched(where: Site, names: Sequence[str], at_once: int, launch: Launch, ended: Ended) -> Turn:
    """Launch all and wait until they are at rest; at most `at_once` are under way."""
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
    """Our side: rollouts by way of the client's door."""

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
        """Let hardware fail: by an exporter's SQL, so that the desk's workflow is no part of it."""
        at = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        # An exporter for each: those of one would be taken for its fault, and wait for a person.
        row = (
            "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)"
            f" VALUES ('{{0}}', 'main', '{at}', {TOTAL}, {healthy}, 'exporter of {{0}}')"
        )
        await asyncio.to_thread(self._site.do, *(row.format(name) for name in names))

    def restored(self, names: Sequence[str]) -> set[str]:
        """Return those that promise no more than is healthy."""
        sums = self._site.rows("SELECT cluster FROM quotas GROUP BY cluster HAVING SUM(gpus) <= :most", most=FAILED)
        return {c for (c,) in sums} & set(names)

    def held(self) -> set[str]:
        """Return those that the fleet's brake holds, by the archive."""
        words = "%within an hour after breaches%"
        return {
            c for (c,) in self._site.rows("SELECT DISTINCT cluster FROM audit WHERE entry LIKE :words", words=words)
        }

    async def histories(self, names: Iterable[str]) -> list[WorkflowHistory]:
        return await _histories(self._site.client, map(rollout_workflow_id, names))


class Plain:
    """The bare side."""

    def __init__(self, where: Site, script: Script) -> None:
        self._site = where
        self._script = script

    async def launch(self, name: str) -> None:
        await self.start(name)
        await self._site.client.get_workflow_handle(f"bare/{name}").execute_update(Bare.approve, "x" * 150)

    async def start(self, name: str) -> None:
        """Start a workflow, which waits for its approval."""
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
    counts: dict[str, float] = field(default_factory=dict)
    bare_counts: dict[str, float] = field(default_factory=dict)
    by_name: dict[str, float] = field(default_factory=dict)


async def our_turn(options: argparse.Namespace, count: int) -> tuple[Turn, list[WorkflowHistory]]:
    names = [f"cluster-{n:04}" for n in range(count)]
    async with site(options.ledger_url) as where, where.worker(options.watch_seconds):
        ours = Ours(where)
        await where.tpm.import_fleet(fleet_of(names, NO_BRAKE))
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


def medians(counts: Sequence[Counter[str]]) -> dict[str, float]:
    return {k: statistics.median(c[k] for c in counts) for k in sorted({k for c in counts for k in c})}


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
    """Measure both sides; a bare turn repeats the calls that the rollouts of the turn before made."""
    found = Launches()
    ours_seen, bare_seen = list[WorkflowHistory](), list[WorkflowHistory]()
    for number in range(1, options.turns + 1):
        note(f"turn {number} of {options.turns}: {options.rollouts} rollouts, ours")
        turn, histories = await our_turn(options, options.rollouts)
        found.ours.append(turn)
        ours_seen += histories
        script = launch_script(middle(histories))
        note(f"  {turn.rate:.2f}/s; bare")
        turn, histories = await bare_turn(options, options.rollouts, script, ledger=False)
        found.bare.append(turn)
        bare_seen += histories
        note(f"  {turn.rate:.2f}/s; bare with a ledger")
        turn, _ = await bare_turn(options, options.rollouts, script, ledger=True)
        found.with_ledger.append(turn)
        note(f"  {turn.rate:.2f}/s")
    found.counts, found.bare_counts = medians([counted(h) for h in ours_seen]), medians([counted(h) for h in bare_seen])
    found.by_name = medians([Counter(c.name for c in calls_of(h)) for h in ours_seen])
    return found, launch_script(middle(ours_seen))


# --- breaches ------------------------------------------------------------------------------------


@dataclass
class Standing:
    """One side with every cluster monitored. Seconds, and MiB of the worker's own memory."""

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
    """The outcome when everything breaches within `spread` seconds, in seconds since each sample."""

    clusters: int
    spread: float
    restored: list[float]
    held: list[float]
    last: float
    """Since the first sample."""
    troubles: dict[str, int] = field(default_factory=dict)


Side = Ours | Plain


async def standing(where: Site, side: Side, names: Sequence[str], options: argparse.Namespace) -> Standing:
    """Launch all, and wait until they are at rest."""
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
    """Let a few fail at once, round by round; time each by itself."""
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
    """Let all fail, evenly over the time given; end when each is restored or held, or nothing more happens."""
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
        troubles=dict(troubles),
    )


def breach_script(script: Script, history: WorkflowHistory, since: int) -> Script:
    """Return the script with the calls that the breach after this event made."""
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
    """Measure our side in rounds and in a storm, and in a storm with the default brake; then the bare side."""
    rounds = options.rounds * options.few
    names = [f"cluster-{n:04}" for n in range(options.clusters + rounds)]
    chosen = [names[n * len(names) // rounds] for n in range(rounds)]
    others = [n for n in names if n not in set(chosen)]
    note(f"ours: {len(names)} clusters to be monitored")
    async with site(options.ledger_url) as where, where.worker(options.watch_seconds):
        ours = Ours(where)
        await where.tpm.import_fleet(fleet_of(names, NO_BRAKE))
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
        await where.tpm.import_fleet(fleet_of(names, Policy().max_breaching_clusters))
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
    """Return the signal before the look that led to the rollback: the last one before the breach clock ran out."""
    aimed = next(e.event_id for e in history.events if _is_call(e) and _name(e) == "aim_rollback")
    return max(number for number, _ in signals if number < aimed)


def _name(event: Any) -> str:
    return str(event.activity_task_scheduled_event_attributes.activity_type.name)


# --- the report ----------------------------------------------------------------------------------


def report_launches(found: Launches, options: argparse.Namespace) -> None:
    print(
        f"\nLaunches to monitored: {options.turns} turns of {options.rollouts}, {options.at_once} at once, "
        f"{QUOTAS} quotas each, no waits in the policy"
    )
    _head()
    ours, bare, ledger = found.ours, found.bare, found.with_ledger
    _rates("a second", ours, bare)
    _rates("a second (bare making as many commits)", ours, ledger)
    for process in ("worker", "server", "client"):
        _line(
            f"CPU s of the {process}", *(sum(t.cpu[process] for t in s) / sum(t.count for t in s) for s in (ours, bare))
        )
    for name, count in found.counts.items():
        _line(f"{name} of each", count, found.bare_counts[name])
    print("  activities: " + ", ".join(f"{name} {count:g}" for name, count in found.by_name.items()))


def report_breaches(found: Standing, plain: Standing, options: argparse.Namespace) -> None:
    print(
        f"\nBreaches: {found.clusters} clusters monitored, {options.few} at once, {len(found.restored)} in all; "
        f"breach_after {BREACH_SECONDS:g} s, the watch looks every {options.watch_seconds:g} s"
    )
    _head()
    for share in (0.5, 0.99):
        name = f"p{share * 100:.0f}"
        _line(f"sample to restored {name}, s", *(quantile(s.restored, share) for s in (found, plain)))
        _line(f"  less breach_after {name}, s", *(quantile(s.restored, share) - BREACH_SECONDS for s in (found, plain)))
        _line(
            f"  signal to restored, less breach_after {name}, s",
            *(quantile(s.from_signal, share) - BREACH_SECONDS for s in (found, plain)),
        )
    print("\nMemory of the worker (its own, resident; both keep all workflows in their cache), MiB")
    _head()
    _line(f"with {options.warm}", found.memory_before, plain.memory_before)
    _line(f"with {found.clusters}", found.memory, plain.memory)
    _line("for each 1,000", found.memory_per_thousand, plain.memory_per_thousand)


def report_storm(title: str, found: Storm | None, plain: Storm | None) -> None:
    if found is None:
        return
    print(f"\n{title}: {found.clusters} clusters, samples over {found.spread:g} s")
    _head()
    sides = (found, plain or Storm(0, 0, [], [], float("nan")))
    _line("restored", *(len(s.restored) for s in sides))
    for name, share in (("first", 0.0), ("median", 0.5), ("p99", 0.99), ("last", 1.0)):
        _line(f"  {name}, s after its sample", *(quantile(s.restored, share) for s in sides))
    if found.held:
        _line("held by the brake", *(len(s.held) for s in sides))
        for name, share in (("median", 0.5), ("p99", 0.99)):
            _line(f"  {name}, s after its sample", *(quantile(s.held, share) for s in sides))
    _line("neither", *(s.clusters - len(s.restored) - len(s.held) for s in sides))
    _line("the last answer, s after the first sample", *(s.last for s in sides))
    seen = found.troubles["histories looked at"]
    print(f"  in {seen} histories: {_text(found.troubles)}" + (f"; bare {_text(plain.troubles)}" if plain else ""))


def _text(troubles: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in troubles.items() if name.startswith("tasks"))


def _head() -> None:
    print(f"  {'':52}{'ours':>10}{'bare':>10}{'ratio':>8}")


def _line(name: str, ours: float, bare: float, *, spread: str = "") -> None:
    ratio = f"{ours / bare:.2f}" if bare and bare == bare else "-"
    print(f"  {name:52}{_number(ours):>10}{_number(bare):>10}{ratio:>8}{spread}")


def _number(value: float) -> str:
    if value != value:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 or isinstance(value, int) else f"{value:.3g}"


def _rates(name: str, ours: Sequence[Turn], bare: Sequence[Turn]) -> None:
    """Print the ratios of neighbouring turns: the machine is the same for both."""
    ratios = [a.rate / b.rate for a, b in zip(ours, bare, strict=True)]
    spread = f"   (by turns: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f})"
    _line(name, statistics.median(t.rate for t in ours), statistics.median(t.rate for t in bare), spread=spread)


# --- the whole -----------------------------------------------------------------------------------


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few of everything: does it work, and roughly how fast")
    parser.add_argument("--only", choices=["launches", "breaches"])
    parser.add_argument("--postgresql", action="store_true", help="the ledger in a throwaway PostgreSQL server")
    parser.add_argument(
        "--ledger-url",
        default="",
        help="a PostgreSQL server: fresh databases are made beside the named one, and dropped",
    )
    parser.add_argument("--turns", type=int, help="of launches, ours and bare")
    parser.add_argument("--rollouts", type=int, help="launched in each turn")
    parser.add_argument("--at-once", type=int, default=40, help="rollouts on their way to monitored")
    parser.add_argument("--clusters", type=int, help="monitored while a few breach; then they all do")
    parser.add_argument("--rounds", type=int, help="of a few breaches at once")
    parser.add_argument("--few", type=int, default=10, help="breaches at once")
    parser.add_argument("--braked", type=int, help="clusters that breach with max_breaching_clusters at its default")
    parser.add_argument("--storm-seconds", type=float, help="in which all breach")
    parser.add_argument("--watch-seconds", type=float, default=0.5, help="between two looks of the shared watch")
    parser.add_argument(
        "--encrypted", action="store_true", help="launches with their payloads encrypted beside launches without"
    )
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    options.warm, options.rest = 10, 2.0
    quick = {"turns": 1, "rollouts": 20, "clusters": 20, "rounds": 1, "braked": 10, "storm_seconds": 2.0}
    full = {"turns": 3, "rollouts": 60, "clusters": 1000, "rounds": 10, "braked": 300, "storm_seconds": 60.0}
    for name, value in (quick if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


async def measure_beside_bare(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if options.only != "breaches":
        launches, script = await measure_launches(options)
        report_launches(launches, options)
        figures["launches"] = asdict(launches)
    else:
        _, histories = await our_turn(options, 10)
        script = launch_script(middle(histories))
    if options.only != "launches":
        found, braked, plain = await measure_breaches(options, script)
        report_breaches(found, plain, options)
        report_storm("All breach, no brake", found.storm, plain.storm)
        report_storm("All breach, max_breaching_clusters 3 (the default)", braked, None)
        figures |= {"ours": asdict(found), "braked": asdict(braked), "bare": asdict(plain)}
    return figures


async def measured(options: argparse.Namespace) -> None:
    figures: dict[str, Any] = {k: v for k, v in vars(options).items() if k not in ("json", "ledger_url")}
    if options.encrypted:
        figures |= await measure_encryption(options)
    else:
        figures |= await measure_beside_bare(options)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


@contextlib.contextmanager
def encryption() -> Iterator[None]:
    """Encrypt in this process, and in the workers that it starts."""
    with tempfile.TemporaryDirectory() as folder:
        now = datetime.now(UTC)
        keys = Path(folder) / "payload.json"
        write_keys(keys, PayloadKeys(since=now, keys=(new_key(now, now),)))
        os.environ[VARIABLE] = str(keys)
        try:
            yield
        finally:
            del os.environ[VARIABLE]


async def measure_encryption(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the same launches in turns, in clear and encrypted; every other turn begins with the encrypted ones."""
    turns: dict[bool, list[Turn]] = {False: [], True: []}
    for number in range(1, options.turns + 1):
        for encrypted in (False, True) if number % 2 else (True, False):
            with encryption() if encrypted else contextlib.nullcontext():
                turn, _ = await our_turn(options, options.rollouts)
            turns[encrypted].append(turn)
            how = "encrypted" if encrypted else "in clear"
            note(f"turn {number} of {options.turns}: {options.rollouts} rollouts, {how}: {turn.rate:.2f}/s")
    clear, hidden = turns[False], turns[True]
    print(
        f"\nLaunches to monitored, payloads encrypted and in clear: {options.turns} turns of {options.rollouts}, "
        f"{options.at_once} at once, {QUOTAS} quotas each, no waits in the policy"
    )
    print(f"  {'':50} {'encrypted':>9} {'clear':>9} {'ratio':>7}")
    _rates("a second", hidden, clear)
    for process in ("worker", "server", "client"):
        means = (sum(t.cpu[process] for t in s) / sum(t.count for t in s) for s in (hidden, clear))
        _line(f"CPU s of the {process}", *means)
    return {"encrypted": [asdict(t) for t in hidden], "clear": [asdict(t) for t in clear]}


def main() -> None:
    options = parsed()
    with contextlib.ExitStack() as stack:
        if options.postgresql:
            options.ledger_url = stack.enter_context(postgresql())
        began = time.perf_counter()
        asyncio.run(measured(options))
        note(f"{time.perf_counter() - began:.0f} s in all, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
