"""Where the cost of a rollout goes: from launch to monitored, of one breach, of one day on which nothing happens.

Run: python benchmarks/profile.py (four minutes; --quick: two; --only counts: what no busy machine moves). It prints

- events, and workflow tasks by what came; bytes of history by payload; SQL statements by activity. These are counts;
- calls of Python functions that one rollout's workflow makes, by where they are: its history is replayed under
  cProfile. These are counts, too;
- CPU of the worker by thread and, where py-spy is installed (`pip install py-spy`), by purpose and function;
- what a monitored rollout keeps in memory by file (tracemalloc).

Of the idle day an hour lasts a second or two: the policy's polls are shortened by as much.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    del sys.path[0]  # or the standard library's `profile`, which cProfile imports, would be this file

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import pstats
import re
import shutil
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from benchmarks.crowd import until
from benchmarks.profiled_worker import ALLOCATIONS, VARIABLE
from benchmarks.rollout import BREACH_SECONDS, NO_BRAKE, Ours, fleet_of, launched
from benchmarks.sites import Site, note, site
from client.converter import data_converter
from models.cluster.fleet_file import Fleet
from models.cluster.policy import Policy
from workers.main import _SERVING, FAILURES
from workers.workflow_sandbox import OnTimeRunner
from workflows.cluster_rollout import ClusterRollout

_ROOT = Path(__file__).resolve().parent.parent
_TASK = ("workflow_task_scheduled", "workflow_task_started", "workflow_task_completed")
_TOP = 12
RESTING = Policy().resting_poll


# --- what a history says -------------------------------------------------------------------------


def kind_of(event: Any) -> str:
    return EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower()


def scheduled(history: WorkflowHistory) -> dict[int, Any]:
    """Return the activity calls, by their event's number."""
    return {
        e.event_id: e.activity_task_scheduled_event_attributes
        for e in history.events
        if kind_of(e) == "activity_task_scheduled"
    }


def tasks_of(history: WorkflowHistory, since: int) -> Counter[str]:
    """Count the workflow tasks after that event, by what arrived since the task before."""
    calls, found = scheduled(history), Counter[str]()
    news: list[str] = []
    ended = False
    for event in history.events:
        kind = kind_of(event)
        if kind == "workflow_task_completed":
            if ended and event.event_id > since:
                found[" + ".join(sorted(news)) or "command"] += 1
            news, ended = [], False
            continue
        if kind == "workflow_task_started":
            ended = True
        elif kind == "activity_task_completed":
            call = calls[event.activity_task_completed_event_attributes.scheduled_event_id]
            news.append(f"{call.activity_type.name} answered")
        elif kind == "timer_fired":
            news.append("timer")
        elif kind == "workflow_execution_signaled":
            news.append("signal")
        elif kind == "workflow_execution_started":
            news.append("start")
    return found


def bytes_of(history: WorkflowHistory, since: int) -> Counter[str]:
    """Count the bytes of the events after that one, by their content."""
    calls, found = scheduled(history), Counter[str]()
    for event in history.events:
        if event.event_id <= since:
            continue
        size, kind = event.ByteSize(), kind_of(event)
        if kind == "activity_task_scheduled":
            call = event.activity_task_scheduled_event_attributes
            found[f"{call.activity_type.name}, question"] += call.input.ByteSize()
            size -= call.input.ByteSize()
        elif kind == "activity_task_completed":
            done = event.activity_task_completed_event_attributes
            found[f"{calls[done.scheduled_event_id].activity_type.name}, answer"] += done.result.ByteSize()
            size -= done.result.ByteSize()
        elif "update" in kind or "signal" in kind or kind == "workflow_execution_started":
            found[kind.replace("workflow_execution_", "")] += size
            continue
        found["the rest of its event: " + kind if size > 2_000 else "the rest of all events"] += size
    return found


def events_of(history: WorkflowHistory, since: int) -> Counter[str]:
    kinds = Counter(kind_of(e) for e in history.events if e.event_id > since)
    tasks = sum(kinds.pop(k, 0) for k in _TASK)
    calls = sum(
        kinds.pop(k, 0) for k in ("activity_task_scheduled", "activity_task_started", "activity_task_completed")
    )
    timers = sum(kinds.pop(k, 0) for k in ("timer_started", "timer_canceled", "timer_fired"))
    updates = sum(kinds.pop(k, 0) for k in list(kinds) if "update" in k)
    named = {"of activities": calls, "of workflow tasks": tasks, "of timers": timers, "of updates": updates}
    return Counter({k: n for k, n in named.items() if n}) + kinds


def calls_made(history: WorkflowHistory, since: int) -> Counter[str]:
    return Counter(c.activity_type.name for n, c in scheduled(history).items() if n > since)


def middle_of(counts: Sequence[Counter[str]]) -> dict[str, float]:
    """Return each name's mean, the most frequent names first."""
    total: Counter[str] = sum(counts, Counter())
    return {k: n / len(counts) for k, n in total.most_common()}


# --- what a worker counts ------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def profiled(where: Site, watch_seconds: float, *, allocations: bool = False) -> AsyncIterator[Path]:
    path = where.home / "profile.json"
    more = {VARIABLE: str(path)} | ({ALLOCATIONS: "1"} if allocations else {})
    async with where.worker(watch_seconds, more=more, module="benchmarks.profiled_worker"):
        yield path


async def told(where: Site, path: Path) -> dict[str, Any]:
    """Return what the worker has counted so far."""
    return await asyncio.to_thread(_told, where, path)


def _told(where: Site, path: Path) -> dict[str, Any]:
    path.unlink(missing_ok=True)
    os.kill(where.worker_pids[-1], signal.SIGUSR1)
    ends = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > ends:
            raise RuntimeError("the worker does not say what it has counted")
        time.sleep(0.05)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def between(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> Counter[str]:
    return Counter(after[key]) - Counter(before[key])


def threads_of(pid: int) -> Counter[str]:
    """Return CPU seconds by thread name."""
    found = Counter[str]()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            name, fields = stat.read_text().rsplit(")", 1)
            ticks = sum(int(f) for f in fields.split()[11:13])
            found[re.sub(r"[-_ :]*\d+$", "", name.split("(", 1)[1])] += ticks
    return Counter({k: n / os.sysconf("SC_CLK_TCK") for k, n in found.items()})


# --- CPU by function -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def sampled(pid: int, into: Path) -> AsyncIterator[bool]:
    """Sample the stack of the thread with Python's lock, 200 times a second; C code that gives it up is not seen."""
    tool = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if tool is None:
        yield False
        return
    words = [
        "record",
        "--gil",
        "--rate",
        "200",
        "--function",
        "--format",
        "raw",
        "--output",
        str(into),
        "--pid",
        str(pid),
    ]
    process = await asyncio.create_subprocess_exec(
        tool, *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    await asyncio.sleep(1)
    try:
        yield True
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await process.wait()


_CALLS = "observe|open_rollout|draft_plan|aim_rollback|apply_effect|record|tell|watch|answer|_fingerprints|go_on"
_ACTIVITY = re.compile(rf"(?:\w+\.)*({_CALLS}) \(activities/")
_WAITS = re.compile(
    r"(_worker \(concurrent|.*\.(select|wait|__enter__|acquire) \((select|thread|activities/adapters/led)|_wait_for)"
)
"""py-spy takes a thread that waits for one that works where it cannot see its state."""


def purpose(frames: Sequence[str]) -> str:
    """Return the purpose of a stack."""
    for frame in frames:
        if match := _ACTIVITY.match(frame):
            return "activity " + {"_fingerprints": "watch", "go_on": "watch"}.get(match[1], match[1])
    text = ";".join(frames)
    if ".activate (" in text:
        return "workflow tasks: what is ours and the SDK's"
    if "_workflow.py" in text or "bridge" in text:
        return "workflow tasks: to and from the core"
    if "_activity.py" in text:
        return "activities: to and from the core"
    return "the loop, polls and the rest"


def stacks(path: Path) -> Iterator[tuple[list[str], int]]:
    for line in path.read_text().splitlines():
        words, _, count = line.rpartition(" ")
        frames = [_short(f) for f in words.split(";")]
        if not _WAITS.match(frames[-1]):
            yield frames, int(count)


def _short(frame: str) -> str:
    name, _, place = frame.partition(" (")
    place = place.rstrip(")").split(":")[0]
    for mark in ("site-packages/", f"{_ROOT}/", "python3.11/"):
        place = place.rpartition(mark)[2]
    return f"{name} ({place})" if place else name


def where_of(place: str) -> str:
    """Return the library, or our folder."""
    for mark in ("site-packages/", f"{_ROOT}/"):
        if mark in place:
            parts = place.partition(mark)[2].split("/")
            return parts[0] if len(parts) < 3 or mark == "site-packages/" else "/".join(parts[:2])
    return "built in" if place.startswith("~") else "standard library"


# --- calls of one workflow -----------------------------------------------------------------------


async def calls_in_replay(history: WorkflowHistory) -> pstats.Stats:
    """Profile the Python functions that the workflow's tasks call, in a second replay, when all is imported."""
    profile = cProfile.Profile()

    async def play(threads: ThreadPoolExecutor) -> None:
        replayer = Replayer(
            workflows=[ClusterRollout],
            workflow_runner=OnTimeRunner(restrictions=_SERVING, versioned=False),
            workflow_failure_exception_types=FAILURES,
            data_converter=data_converter,
            workflow_task_executor=threads,
        )
        await replayer.replay_workflow(history)

    with ThreadPoolExecutor(1) as threads:
        await play(threads)
    with ThreadPoolExecutor(1, initializer=profile.enable) as threads:
        await play(threads)
    return pstats.Stats(profile)


def calls_by_place(stats: pstats.Stats) -> tuple[int, Counter[str], Counter[str]]:
    """Return the number of calls; calls by folder or library; and by function, for the most frequent ones."""
    places, functions = Counter[str](), Counter[str]()
    for (place, line, name), (_, count, *_) in stats.stats.items():  # type: ignore[attr-defined]
        places[where_of(place)] += count
        functions[f"{name} ({place.rpartition('site-packages/')[2].replace(f'{_ROOT}/', '')}:{line})"] += count
    return sum(places.values()), places, functions


# --- the story -----------------------------------------------------------------------------------


def names_of(count: int) -> list[str]:
    return [f"cluster-{n:04}" for n in range(count)]


def idle_fleet(names: Iterable[str], hour: float) -> Fleet:
    """Return a fleet as `fleet_of` does; safety polls come as soon as if an hour lasted so many seconds."""
    fleet = fleet_of(names, NO_BRAKE)
    shortened = f"{RESTING.total_seconds() / 3600 * hour:.3f}s"
    clusters = [c.model_copy(update={"policy": {**c.policy, "safety_poll": shortened}}) for c in fleet.clusters]
    return fleet.model_copy(update={"clusters": tuple(clusters)})


async def counts(options: argparse.Namespace) -> None:
    names = names_of(options.rollouts)
    async with site(options.ledger_url) as where, profiled(where, options.watch_seconds) as path:
        ours = Ours(where)
        await where.tpm.import_fleet(fleet_of(names, NO_BRAKE))
        await asyncio.sleep(1)
        start, cpu = await told(where, path), where.cpu_seconds()
        await launched(where, names, options.at_once, ours.launch, ours.ended)
        await asyncio.sleep(options.rest)
        stands, after = await told(where, path), where.cpu_seconds()
        histories = await ours.histories(names)
        print_phase("From launch to monitored", histories, [0] * len(names), between(start, stands, "statements"))
        print_texts(between(start, stands, "texts"), len(names))
        print_cpu(between(start, stands, "cpu"), len(names), (after["server"] - cpu["server"]) * 1000)
        print_threads(between(start, stands, "threads"), between(start, stands, "cpu"), len(names))
        lengths = [len(h.events) for h in histories]
        start = await told(where, path)
        for few in (names[n : n + options.few] for n in range(0, len(names), options.few)):
            await ours.fail(few)
            await until(partial(_all_restored, ours, few), "breaches are answered", every=0.1)
        await asyncio.sleep(options.rest)
        histories = await ours.histories(names)
        after_breach = await told(where, path)
        print_phase("One breach, to rolled back", histories, lengths, between(start, after_breach, "statements"))
        stats = await calls_in_replay(histories[0])
        print_calls(stats)


async def _all_restored(ours: Ours, names: Sequence[str]) -> bool:
    return len(ours.restored(names)) == len(names)


async def idle_day(options: argparse.Namespace) -> None:
    names = names_of(options.idle)
    async with site(options.ledger_url) as where, profiled(where, options.watch_seconds) as path:
        ours = Ours(where)
        await where.tpm.import_fleet(idle_fleet(names, options.hour_seconds))
        await launched(where, names, options.at_once, ours.launch, ours.ended)
        await asyncio.sleep(options.rest)
        lengths = [len(h.events) for h in await ours.histories(names)]
        start, began = await told(where, path), time.monotonic()
        await asyncio.sleep(24 * options.hour_seconds)
        hours = (time.monotonic() - began) / options.hour_seconds
        histories, end = await ours.histories(names), await told(where, path)
        made = between(start, end, "statements")
        print_phase(
            f"One idle day ({hours:.1f} h of {options.hour_seconds:g} s, a look unasked each {RESTING})",
            histories,
            lengths,
            Counter({k: n for k, n in made.items() if "watch" not in k and not k.startswith("(")}),
        )
        grown = [len(h.events) - n for h, n in zip(histories, lengths, strict=True)]
        print(f"  events an hour and cluster: {statistics.mean(grown) / hours:.2f} (aim: at most 0.5)")


async def cpu(options: argparse.Namespace) -> None:
    names = names_of(options.cpu_rollouts)
    async with site(options.ledger_url) as where, where.worker(options.watch_seconds):
        ours, pid, into = Ours(where), where.worker_pids[-1], options.stacks or where.home / "stacks"
        await where.tpm.import_fleet(fleet_of(names, NO_BRAKE))
        await asyncio.sleep(1)
        before = threads_of(pid)
        async with sampled(pid, into) as took:
            await launched(where, names, options.at_once, ours.launch, ours.ended)
        used = threads_of(pid) - before
        each = len(names)
        print(f"\n## CPU of a worker, {each} from launch to monitored\n")
        print("  ms of each by thread: " + ", ".join(f"{k} {1000 * s / each:.0f}" for k, s in used.most_common(6)))
        if not took:
            print("  (py-spy is not installed: no CPU by function)")
            return
        print_stacks(into, each)


async def memory(options: argparse.Namespace) -> None:
    names = names_of(2 * options.memory_rollouts)
    first, second = names[: options.memory_rollouts], names[options.memory_rollouts :]
    async with site(options.ledger_url) as where, profiled(where, options.watch_seconds, allocations=True) as path:
        ours = Ours(where)
        await where.tpm.import_fleet(fleet_of(names, NO_BRAKE))
        await launched(where, first, options.at_once, ours.launch, ours.ended)
        await asyncio.sleep(2 * options.rest)
        before = (await told(where, path))["held"]
        await launched(where, second, options.at_once, ours.launch, ours.ended)
        await asyncio.sleep(2 * options.rest)
        after = (await told(where, path))["held"]
    grown, blocks = Counter[str](), Counter[str]()
    for place, (size, count) in after.items():
        earlier = before.get(place, [0, 0])
        grown[_short(f"x ({place})")[3:-1]] += size - earlier[0]
        blocks[_short(f"x ({place})")[3:-1]] += count - earlier[1]
    print(f"\n## What a monitored rollout keeps in a worker's memory ({len(second)} more of them)\n")
    total = sum(grown.values())
    print(f"  {total / len(second) / 1024:.0f} KiB and {sum(blocks.values()) / len(second):.0f} blocks of Python's, in")
    for place, size in grown.most_common(_TOP):
        print(f"  {size / len(second) / 1024:8.1f} KiB {blocks[place] / len(second):8.0f} blocks  {place}")


# --- the report ----------------------------------------------------------------------------------


def print_phase(title: str, histories: Sequence[WorkflowHistory], since: Sequence[int], sql: Counter[str]) -> None:
    pairs = list(zip(histories, since, strict=True))
    print(f"\n## {title}, of each of {len(pairs)}\n")
    _table("events", middle_of([events_of(h, n) for h, n in pairs]))
    _table("workflow tasks, by what came", middle_of([tasks_of(h, n) for h, n in pairs]))
    _table("activities", middle_of([calls_made(h, n) for h, n in pairs]))
    _table("bytes of history", middle_of([bytes_of(h, n) for h, n in pairs]), digits=0)
    statements = Counter({k: n for k, n in sql.items() if ": transactions" not in k})
    transactions = sum(n for k, n in sql.items() if ": transactions" in k)
    each = {k: n / len(pairs) for k, n in statements.most_common()}
    _table(f"SQL statements by activity ({transactions / len(pairs):.1f} transactions)", each)


def _table(name: str, rows: Mapping[str, float], digits: int = 1) -> None:
    total = sum(rows.values())
    print(f"  {name}: {total:.{digits}f}")
    for key, count in list(rows.items())[:_TOP]:
        print(f"    {count:10.{digits}f}  {key}")
    left = sum(list(rows.values())[_TOP:])
    if left:
        print(f"    {left:10.{digits}f}  ({len(rows) - _TOP} others)")


def print_texts(texts: Counter[str], count: int) -> None:
    print("  the statements that are made most often (watch and desk left out):")
    mine = [(t, n) for t, n in texts.most_common() if not t.startswith(("watch", "answer", "("))]
    for text, number in mine[:_TOP]:
        print(f"    {number / count:10.1f}  {text}")


def print_cpu(used: Counter[str], count: int, server_ms: float) -> None:
    """Print the CPU time of each, in ms."""
    total = used.pop("in all")
    used["threads of the core, of mail, and the rest"] = total - sum(used.values())
    print(f"  CPU of each: worker {total / count / 1e6:.0f} ms, server {server_ms / count:.0f} ms; of the worker's")
    for name, nanoseconds in used.most_common(_TOP):
        print(f"    {nanoseconds / count / 1e6:10.1f}  {name}")


def print_threads(used: Counter[str], cpu: Counter[str], count: int) -> None:
    used["Temporal's core"] = cpu["in all"] - sum(used.values())
    shown = (f"{name} {nanoseconds / count / 1e6:.0f}" for name, nanoseconds in used.most_common(_TOP))
    print(f"  CPU ms of each by thread: {', '.join(shown)}")


def print_calls(stats: pstats.Stats) -> None:
    total, places, functions = calls_by_place(stats)
    print(f"\n## Calls of Python functions in the workflow's tasks, launch, breach and rollback: {total:,}\n")
    for place, number in places.most_common(_TOP):
        print(f"    {number:10,}  {place}")
    print("  the functions that are called most often:")
    for function, number in functions.most_common(_TOP):
        print(f"    {number:10,}  {function}")


def print_stacks(path: Path, each: int) -> None:
    by_purpose, own = Counter[str](), Counter[str]()
    inside: Counter[str] = Counter()
    total = 0
    for frames, count in stacks(path):
        total += count
        by_purpose[purpose(frames)] += count
        own[frames[-1]] += count
        for frame in {f for f in frames if f.rpartition("(")[2].split("/")[0] in ("models", "activities", "workflows")}:
            inside[frame] += count
    print(f"  of {total} samples, by what they were for:")
    for name, count in by_purpose.most_common():
        print(f"    {100 * count / total:6.1f} %  {name}")
    print("  in themselves:")
    for name, count in own.most_common(_TOP):
        print(f"    {100 * count / total:6.1f} %  {name}")
    print("  functions of ours, with all that they call:")
    for name, count in inside.most_common(2 * _TOP):
        print(f"    {100 * count / total:6.1f} %  {name}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few of everything")
    parser.add_argument("--only", choices=["counts", "idle", "cpu", "memory"], action="append")
    parser.add_argument("--ledger-url", default="", help="a PostgreSQL server; by default a SQLite file")
    parser.add_argument("--rollouts", type=int, help="whose events, bytes and statements are counted")
    parser.add_argument("--idle", type=int, default=5, help="monitored clusters of the idle day")
    parser.add_argument("--cpu-rollouts", type=int, help="launched while stacks are sampled")
    parser.add_argument("--memory-rollouts", type=int, help="of which memory is taken, twice as many being launched")
    parser.add_argument("--hour-seconds", type=float, help="how long an hour of the idle day lasts")
    parser.add_argument("--stacks", type=Path, help="where py-spy's stacks are kept, for a flame graph")
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--few", type=int, default=5, help="breaches at once")
    parser.add_argument("--watch-seconds", type=float, default=0.5)
    parser.add_argument("--rest", type=float, default=3.0)
    options = parser.parse_args()
    usual = {"rollouts": 20, "cpu_rollouts": 60, "memory_rollouts": 30, "hour_seconds": 2.0}
    quick = {"rollouts": 5, "cpu_rollouts": 15, "memory_rollouts": 10, "hour_seconds": 1.0}
    for name, value in (quick if options.quick else usual).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


async def measured(options: argparse.Namespace) -> None:
    parts = {"counts": counts, "idle": idle_day, "cpu": cpu, "memory": memory}
    for name in options.only or parts:
        note(name)
        await parts[name](options)


def main() -> None:
    options = parsed()
    began = time.perf_counter()
    asyncio.run(measured(options))
    note(f"{time.perf_counter() - began:.0f} s in all, {os.cpu_count()} cores, breach_after {BREACH_SECONDS:g} s")


if __name__ == "__main__":
    main()
