"""A whole fleet on one machine: rolled out end to end, then monitored, as the number of clusters grows.

Everything is real: the embedded Temporal server, workers as deployed in processes of their own, a PostgreSQL ledger.
Beside the shared watch stands the naive way, each cluster's own workflow looking every minute (benchmarks/polling.py),
in the same run. Run: python benchmarks/fleet.py (about an hour on two cores; --quick: about five minutes).

Theory of operation. Rolled out: one FleetRollout takes all clusters through its waves, days as seconds. Monitored: the
clusters are copies of one that was rolled out (benchmarks/crowd.py); at each size nothing changes for a while, then
hardware fails under some, one after another and a few at once, without a breach: it is timed from just before the
sample is written until the rollout's history says that it is at risk. What is counted beside: CPU, memory, events.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from temporalio.client import Client

from activities.clock import utc_now
from benchmarks.crowd import (
    AT_RISK,
    HEALTHY,
    PROMISED,
    QUOTAS,
    Crowd,
    Exporter,
    Reaction,
    anywhere,
    cluster_document,
    copy_rows,
    edges,
    few_at_once,
    name_of,
    until,
)
from benchmarks.polling import QUEUE, Followed, Polling
from benchmarks.sites import Site, note, quantile, site, told
from models.cluster.fleet_file import Fleet
from models.fleet.commands import FleetCommandRequest
from models.fleet.messages import FleetLaunch, FleetStatus
from models.fleet.state import WAVES, FleetStage, Pace, Wave
from models.temporal_names import FLEET_ID, WATCH_ID

CACHED = 5_000
"""Rollouts that one worker keeps in memory."""
SAMPLED = 200
"""Histories that are counted."""
_PILOTS = 2


# --- rolled out ------------------------------------------------------------------------------------


@dataclass
class RolledOut:
    """One fleet rollout. `largest`: events of its longest run."""

    clusters: int
    seconds: float
    runs: int
    events: int
    largest: int
    state_bytes: int
    events_each: float
    cpu: dict[str, float]
    mib: dict[str, float]
    waves: dict[str, int]

    @property
    def rate(self) -> float:
        return self.clusters / self.seconds


WAVE_OF: dict[Wave, tuple[int, int, int]] = {
    Wave.UNALLOCATED: (60, 4, 64),
    Wave.UNSCHEDULED: (60, 4, 70),
    Wave.IDLE: (70, 4, 70),
    Wave.BUSY: (70, 0, 70),
}
"""Scheduled, idle and promised GPUs of each quota, so that a cluster belongs to the wave."""


def wave_of(number: int) -> Wave:
    return WAVES[1 + number % 4]


async def roll_out(options: argparse.Namespace) -> RolledOut:
    """Roll out all clusters, in the order of their waves. Errors: RuntimeError."""
    names = {name_of(n): wave_of(n) for n in range(options.clusters)}
    quick: dict[str, Any] = {"notice": "3s", "soak_buffered": "1s", "soak_enforced": "3s"}  # a second for a day
    documents = [cluster_document(name, *WAVE_OF[wave], **quick) for name, wave in names.items()]
    pilots = tuple(name for name, wave in names.items() if wave is Wave.UNSCHEDULED)[:_PILOTS]
    pace = {
        "parallel": options.parallel,
        "pilot_soak": "3s",
        "bake": "1s",
        "recheck": "1m",
        "budget_per_hour": 10**7,
        "budget_per_day": 10**7,
    }
    async with site(options.ledger_url) as where, where.worker(15.0):
        await where.tpm.import_fleet(Fleet.model_validate({"clusters": documents}))
        exporter = Exporter(where)
        exporter.knows(names)
        async with exporter.running():
            before, began = where.all_cpu_seconds(), time.perf_counter()
            launch = FleetLaunch(
                fleet="bench", owner="tpm", reason="a benchmark", pace=Pace.model_validate(pace), pilots=pilots
            )
            plan = await where.tpm.launch_fleet(launch)
            note(f"  planned after {time.perf_counter() - began:.0f} s")
            approval = FleetCommandRequest(actor="tpm", reason="a benchmark", plan_hash=plan.hash)
            await where.tpm.fleet_command("approve", approval)
            status = await _followed(where, began)
        seconds, after = time.perf_counter() - began, where.all_cpu_seconds()
        if status.stage is not FleetStage.DONE:
            raise RuntimeError(f"the fleet rollout is {status.stage}: {status.ended_because}")
        check_rolled_out(where, names, pilots)
        runs = await _runs(where.client)
        state = await where.client.get_workflow_handle(FLEET_ID).query("state")
        events = await Crowd(where, exporter, 15.0).lengths(list(names)[:: max(1, len(names) // SAMPLED)])
        return RolledOut(
            clusters=len(names),
            seconds=seconds,
            runs=len(runs),
            events=sum(runs),
            largest=max(runs),
            state_bytes=len(json.dumps(state)),
            events_each=statistics.median(events),
            cpu={k: after[k] - before[k] for k in after},
            mib=where.mib(),
            waves={w.wave.value: w.clusters for w in status.waves},
        )


async def _followed(where: Site, began: float) -> FleetStatus:
    told = 0
    while True:
        status = await where.tpm.fleet_status()
        done = sum(w.done for w in status.waves)
        if done >= told + 50:
            told = done
            note(f"  {done} monitored, {done / (time.perf_counter() - began):.2f}/s, wave {status.wave}")
        if status.stage.has_ended:
            return status
        if status.needs:
            raise RuntimeError(f"a person is needed: {status.needs}")
        await asyncio.sleep(2)


def check_rolled_out(where: Site, names: dict[str, Wave], pilots: Sequence[str]) -> None:
    """Check by plain SQL that all are monitored with the right values, pilots first, then wave by wave."""
    opened = where.rows("SELECT cluster, stage, opened_at FROM rollouts ORDER BY opened_at")
    wrong = names.keys() - {c for c, stage, _ in opened if stage == "monitored"}
    if wrong:
        raise RuntimeError(f"{len(wrong)} clusters are not monitored, {min(wrong)} is one")
    order = [0 if c in pilots else names[c].number for c, _, _ in opened]
    if order != sorted(order):
        raise RuntimeError("clusters were not started in the order of their waves")
    for cluster, gpus in where.rows("SELECT cluster, sum(gpus) FROM quotas GROUP BY cluster"):
        if gpus != min(PROMISED, QUOTAS * WAVE_OF[names[cluster]][2]):
            raise RuntimeError(f"{cluster} promises {gpus} GPUs")


async def _runs(client: Client) -> list[int]:
    """Return the number of events of each run of the fleet rollout's workflow."""
    runs = [run async for run in client.list_workflows(f"WorkflowId = '{FLEET_ID}'")]
    described = [await client.get_workflow_handle(FLEET_ID, run_id=run.run_id).describe() for run in runs]
    return [int(d.history_length) for d in described]


# --- monitored -------------------------------------------------------------------------------------


@dataclass
class Quiet:
    """The cost when nothing changes: CPU seconds a minute and MiB by process, events an hour by cluster."""

    watch_seconds: float
    seconds: float
    cpu: dict[str, float]
    mib: dict[str, float]
    events: float
    watch_events: float = 0.0


@dataclass
class Monitored:
    """The figures at one size. Reactions by the watch's interval in seconds: to single edges, and to a few at once."""

    clusters: int
    workers: int
    started: float
    settled: float
    quiet: list[Quiet] = field(default_factory=list)
    single: dict[float, list[Reaction]] = field(default_factory=dict)
    at_once: dict[float, list[Reaction]] = field(default_factory=dict)
    safety_events: float = math.nan
    """Of one safety poll."""


async def monitor(options: argparse.Namespace, sizes: Sequence[int]) -> list[Monitored]:
    """Measure in one site that grows. If workers are too few, restart with more and ask about every rollout."""
    found: list[Monitored] = []
    async with site(options.ledger_url) as where:
        exporter = Exporter(where)
        crowd = Crowd(where, exporter, options.watches[0])
        left = list(sizes)
        while left:
            workers = options.workers or -(-left[0] * 10 // (9 * CACHED))
            these = [size for size in left if options.workers or -(-size * 10 // (9 * CACHED)) == workers]
            left = left[len(these) :]
            async with where.worker(options.watches[0], workers), exporter.running():
                if not crowd.names:
                    await crowd.begin()
                else:
                    note(f"  {workers} workers begin; each rollout is replayed by one of them")
                    await few_at_once(where.tpm.status, crowd.names)
                for size in these:
                    note(f"monitored: {size} clusters, {workers} worker processes")
                    found.append(await _grown(options, where, crowd, size, workers))
    return found


async def _grown(options: argparse.Namespace, where: Site, crowd: Crowd, size: int, workers: int) -> Monitored:
    first = len(crowd.names)
    breaching, polling = range(first, first + 3), range(first + 3, first + 3 + options.polling)
    fast = {"safety_poll": f"{options.safety_seconds}s"}
    policies = {n: {"breach_after": "2s"} for n in breaching} | dict.fromkeys(polling, fast)
    if crowd.watch_seconds != options.watches[0]:
        await crowd.watch(options.watches[0])
    started = await crowd.grow(size, policies)
    settled = await crowd.settled()
    found = Monitored(size, workers, started, settled)
    note(f"  {started:.0f} started a second, all looked at {settled:.0f} s later")
    await crowd.verified([name_of(n) for n in breaching])
    few = min(options.edges, size // 8)
    for seconds in options.watches:
        if seconds != crowd.watch_seconds:
            await crowd.watch(seconds)
            await crowd.settled(looked=False)
        found.quiet.append(await _quiet(options, where, crowd, seconds))
        spread = min(1.0, seconds / 4)
        single = [[name] for name in crowd.take(few)]
        found.single[seconds] = await edges(crowd, where, single, anywhere(spread))
        rounds = [crowd.take(options.few) for _ in range(options.rounds if size >= 100 else 1)]
        found.at_once[seconds] = await edges(crowd, where, rounds, anywhere(max(3.0, seconds)))
        quiet = found.quiet[-1]
        note(
            f"  watch {seconds:g} s: {_times(found.single[seconds])}; {options.few} at once "
            f"{_times(found.at_once[seconds])}; CPU {_by_process(quiet.cpu)}"
        )
        await crowd.settled(looked=False)
    found.safety_events = await crowd.events_of_a_safety_poll([name_of(n) for n in polling])
    return found


async def _quiet(options: argparse.Namespace, where: Site, crowd: Crowd, seconds: float) -> Quiet:
    sample = crowd.resting(SAMPLED)
    lengths, watched = await crowd.lengths(sample), await _length(where.client, WATCH_ID)
    before, began = where.all_cpu_seconds(), time.perf_counter()
    await asyncio.sleep(options.quiet_seconds)
    after, took = where.all_cpu_seconds(), time.perf_counter() - began
    mib = where.mib()
    added = [b - a for a, b in zip(lengths, await crowd.lengths(sample), strict=True)]
    return Quiet(
        watch_seconds=seconds,
        seconds=took,
        cpu={k: (after[k] - before[k]) * 60 / took for k in after},
        mib=mib,
        events=sum(added) / len(added) / (took / 3600),
        watch_events=(await _length(where.client, WATCH_ID) - watched) / (took / 3600),
    )


async def _length(client: Client, workflow_id: str) -> int:
    return int((await client.get_workflow_handle(workflow_id).describe()).history_length)


# --- the naive way ---------------------------------------------------------------------------------


@dataclass
class Naive:
    """The figures of a workflow for each cluster that looks every minute."""

    clusters: int
    quiet: Quiet
    single: list[float]
    at_once: list[float]


async def poll(options: argparse.Namespace, size: int) -> Naive:
    note(f"naive: {size} clusters, each looked at every {options.poll_seconds} s")
    every = float(options.poll_seconds)
    names = [name_of(n) for n in range(size)]
    async with site(options.ledger_url) as where, where.polling_worker():
        document = cluster_document(names[0], 60, 4, PROMISED // QUOTAS)
        # No rollout is there, so no worker of ours either: the ledger is written as its import would.
        where.ledger.fleet.stage_import("bench", 0, compressed(document))
        where.ledger.fleet.commit_import("bench", 1, "tpm", utc_now())
        exporter = Exporter(where)
        copy_rows(where, 1, size)
        exporter.knows(names)
        async with exporter.running():

            async def start(name: str) -> None:
                first = every * (int(name[-5:]) % 997) / 997  # spread over the minute
                followed = Followed(cluster=name, every_seconds=every, first_seconds=first)
                await where.client.start_workflow(Polling.run, followed, id=f"polling/{name}", task_queue=QUEUE)

            await few_at_once(start, names)
            await asyncio.sleep(1.2 * every)
            quiet = await _quiet_polling(options, where, names[:: max(1, size // SAMPLED)])
            few = names[1 :: max(1, size // (options.edges + options.few * options.rounds))]
            count = min(options.edges, size // 8)
            single = await _polled_edges(where, exporter, [[n] for n in few[:count]], every / 40)
            left = few[count:]
            rounds = [left[n * options.few : (n + 1) * options.few] for n in range(options.rounds)]
            at_once = await _polled_edges(where, exporter, [r for r in rounds if r], every / 3)
    note(f"  {_seconds(single)}; CPU {_by_process(quiet.cpu)}")
    return Naive(size, quiet, single, at_once)


async def _quiet_polling(options: argparse.Namespace, where: Site, sample: Sequence[str]) -> Quiet:
    async def events(name: str) -> int:
        return await _length(where.client, f"polling/{name}")

    lengths, before, began = await few_at_once(events, sample), where.all_cpu_seconds(), time.perf_counter()
    await asyncio.sleep(max(options.quiet_seconds, options.poll_seconds))
    after, took = where.all_cpu_seconds(), time.perf_counter() - began
    added = [b - a for a, b in zip(lengths, await few_at_once(events, sample), strict=True)]
    cpu = {k: (after[k] - before[k]) * 60 / took for k in after}
    return Quiet(options.poll_seconds, took, cpu, where.mib(), sum(added) / len(added) / (took / 3600))


async def _polled_edges(
    where: Site, exporter: Exporter, groups: Sequence[Sequence[str]], seconds: float
) -> list[float]:
    told, found = dict[str, float](), dict[str, float]()
    pause = anywhere(seconds)
    for group in groups:
        at = await exporter.tell(group, AT_RISK)
        told |= dict.fromkeys(group, at)
        await asyncio.sleep(pause())

    async def look(name: str) -> None:
        history = await where.client.get_workflow_handle(f"polling/{name}").fetch_history()
        seen = False
        for event in history.events:
            at = event.event_time.ToMicroseconds() / 1e6
            done = event.activity_task_completed_event_attributes
            seen = seen or (at >= told[name] and b"team" in b"".join(p.data for p in done.result.payloads))
            if seen and event.HasField("workflow_task_completed_event_attributes"):
                found[name] = at - told[name]
                return

    async def all_said() -> bool:
        await few_at_once(look, [n for n in told if n not in found])
        return len(found) == len(told)

    await until(all_said, "every edge is polled", every=2.0)
    await exporter.tell(list(told), HEALTHY)
    return list(found.values())


def compressed(cluster: dict[str, Any]) -> bytes:
    return zlib.compress(Fleet.model_validate({"clusters": [cluster]}).model_dump_json(exclude_unset=True).encode())


# --- the report ------------------------------------------------------------------------------------


@dataclass
class Figures:
    rolled_out: RolledOut | None = None
    monitored: list[Monitored] = field(default_factory=list)
    naive: Naive | None = None


def report(found: Figures) -> Iterator[str]:
    """Yield the report's lines, in Markdown."""
    if found.rolled_out is not None:
        yield from _rolled_out_lines(found.rolled_out)
    if found.monitored:
        yield from _monitored_lines(found.monitored)
    same = next((m for m in found.monitored if found.naive and m.clusters == found.naive.clusters), None)
    if found.naive is not None and same is not None:
        yield from _naive_lines(same, found.naive)


def _rolled_out_lines(rolled: RolledOut) -> Iterator[str]:
    yield f"\n| {rolled.clusters:,} clusters rolled out end to end | |"
    yield "|---|---|"
    yield f"| seconds, clusters a second | {rolled.seconds:.0f}, {rolled.rate:.2f} |"
    yield f"| clusters by wave | {', '.join(f'{w} {n}' for w, n in rolled.waves.items())} |"
    events = f"{rolled.runs}, {rolled.events:,}, {rolled.largest:,}"
    yield f"| fleet workflow: runs, events in all, in the largest run | {events} |"
    yield f"| its state at the end, kB | {rolled.state_bytes / 1000:.0f} |"
    yield f"| events of a cluster's rollout, median | {rolled.events_each:.0f} |"
    yield f"| CPU s of each cluster: worker, Temporal, PostgreSQL | {_by_process(rolled.cpu, 1 / rolled.clusters)} |"
    yield f"| MiB at the end: worker, Temporal, PostgreSQL | {_by_process(rolled.mib)} |"


def _monitored_lines(sizes: Sequence[Monitored]) -> Iterator[str]:
    yield "\n| monitored clusters | " + " | ".join(f"{m.clusters:,}" for m in sizes) + " |"
    yield "|---" * (len(sizes) + 1) + "|"

    def row(name: str, cells: Iterable[str]) -> str:
        return f"| {name} | " + " | ".join(cells) + " |"

    yield row("worker processes", (str(m.workers) for m in sizes))
    for number, quiet in enumerate(sizes[0].quiet):
        seconds = quiet.watch_seconds
        at = f"watch every {seconds:g} s"
        yield row(
            f"{at}, nothing changes: CPU s a minute of worker, Temporal, PostgreSQL",
            (_by_process(m.quiet[number].cpu) for m in sizes),
        )
        yield row(f"{at}: MiB of the same", (_by_process(m.quiet[number].mib) for m in sizes))
        yield row(f"{at}: history events an hour of each cluster", (f"{m.quiet[number].events:.2g}" for m in sizes))
        yield row(f"{at}: of the watch itself", (f"{m.quiet[number].watch_events:.2g}" for m in sizes))
        for name, kind in (("one edge", "single"), ("a few at once", "at_once")):
            reactions = [getattr(m, kind)[seconds] for m in sizes]
            yield row(f"{at}: {name} to the rollout's state, p50/p99 s", map(_times, reactions))
            signalled = ([r.signalled for r in some] for some in reactions)
            yield row(f"{at}: of it until the watch's signal", map(_seconds, signalled))
            since = ([r.said - r.signalled for r in some] for some in reactions)
            yield row(f"{at}: of it from the signal on", map(_seconds, since))
    yield row("events that one look unasked adds (one a day)", (f"{m.safety_events:.1f}" for m in sizes))
    spans = sorted({f"{q.seconds:.0f}" for m in sizes for q in m.quiet}, key=int)
    yield (
        f"\nEvents an hour: counted over {' to '.join(spans[:: max(1, len(spans) - 1)])} s in which no look unasked of "
        "the counted was due, times what makes an hour of it; its own, once a day, come on top. They are those of "
        "clusters that poll every few seconds."
    )


def _naive_lines(ours: Monitored, naive: Naive) -> Iterator[str]:
    quiet = ours.quiet[0]
    often = f"ours, watch every {quiet.watch_seconds:g} s", f"naive, every {naive.quiet.watch_seconds:g} s"
    yield f"\n| {naive.clusters:,} clusters | {' | '.join(often)} | naive / ours |"
    yield "|---|---|---|---|"

    def row(name: str, here: float, there: float) -> str:
        return f"| {name} | {here:.3g} | {there:.3g} | {f'{there / here:.1f}' if here else '-'} |"

    for process, name in _PROCESSES.items():
        yield row(f"CPU s a minute, {name}", quiet.cpu[process], naive.quiet.cpu[process])
    for process, name in _PROCESSES.items():
        yield row(f"MiB, {name}", quiet.mib[process], naive.quiet.mib[process])
    safety = ours.safety_events if ours.safety_events == ours.safety_events else 0.0
    yield row("events an hour of each, ours with its daily look", quiet.events + safety / 24, naive.quiet.events)
    mine = [r.said for r in ours.single[quiet.watch_seconds]], [r.said for r in ours.at_once[quiet.watch_seconds]]
    for name, here, there in (("one edge", mine[0], naive.single), ("a few at once", mine[1], naive.at_once)):
        for share in (0.5, 0.99):
            yield row(f"{name} to the state, p{share * 100:.0f} s", quantile(here, share), quantile(there, share))


_PROCESSES = {"worker": "worker", "server": "Temporal", "postgresql": "PostgreSQL"}


def _by_process(values: dict[str, float], times: float = 1.0) -> str:
    return ", ".join(f"{values[p] * times:.3g}" if values[p] < 1000 else f"{values[p]:.0f}" for p in _PROCESSES)


def _times(reactions: Sequence[Reaction]) -> str:
    return _seconds([r.said for r in reactions])


def _seconds(values: Sequence[float]) -> str:
    return f"{quantile(values, 0.5):.2f} / {quantile(values, 0.99):.2f} (n {len(values)})"


# --- the whole -------------------------------------------------------------------------------------

PARTS = ("rollout", "monitored", "naive")


def parsed() -> argparse.Namespace:
    parser = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few of everything: does it work, and roughly how fast")
    parser.add_argument("--only", choices=PARTS, help="one part; naive is measured beside ours of the same size")
    parser.add_argument("--clusters", type=_count, help="rolled out end to end (1000)")
    parser.add_argument("--parallel", type=_count, help="clusters on their way at once (100)")
    parser.add_argument("--sizes", type=_sizes, help="monitored clusters, growing (1000,3000,10000)")
    parser.add_argument("--naive", type=_count, help="clusters that are polled (1000)")
    parser.add_argument("--poll-seconds", type=_count, default=60, help="between two looks of the naive way (60)")
    parser.add_argument("--workers", type=_count, help="worker processes (one for every 4,500 clusters)")
    parser.add_argument("--watches", type=_watches, help="intervals of the watch, in seconds (15,1)")
    parser.add_argument("--quiet-seconds", type=_count, help="in which nothing changes (120)")
    parser.add_argument("--edges", type=_count, help="single edges at each size and interval (100)")
    parser.add_argument("--few", type=_count, default=10, help="edges at once")
    parser.add_argument("--rounds", type=_count, help="of a few edges at once (3)")
    parser.add_argument("--ledger-url", default="", help="a PostgreSQL server, in place of a throwaway one")
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    quick: dict[str, Any] = {
        "clusters": 24, "parallel": 12, "sizes": [60], "naive": 60, "watches": [2.0], "quiet_seconds": 30,
        "edges": 6, "rounds": 1,
    }  # fmt: skip
    full: dict[str, Any] = {
        "clusters": 1000, "parallel": 100, "sizes": [1000, 3000, 10000], "naive": 1000, "watches": [15.0, 1.0],
        "quiet_seconds": 120, "edges": 100, "rounds": 3,
    }  # fmt: skip
    for name, value in (quick if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.polling = 3 if options.quick else 20
    options.safety_seconds = 5 if options.quick else 20  # of those few: by default it is a day, at rest
    if options.clusters < 8:
        parser.error("--clusters: at least 8, so that there are two pilots and every wave")
    needed = 40 + options.polling
    if min(*options.sizes, options.naive) < needed:
        parser.error(f"--sizes and --naive: at least {needed} clusters, for those to which something is done")
    steps = zip([0, *options.sizes], options.sizes, strict=False)
    if any(b - a < needed for a, b in steps):
        parser.error(f"--sizes: each at least {needed} larger than the one before")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json: there is no directory {options.json.parent}")
    return options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit with 2."""
        self.exit(2, f"{message}\n")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 100_000):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 100,000, not {text!r}")
    return int(text)


def _sizes(text: str) -> list[int]:
    return [_count(word) for word in text.split(",")]


def _watches(text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0.1 <= seconds <= 600 for seconds in found) or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"must be different seconds from 0.1 to 600, not {text!r}")
    return found


async def measured(options: argparse.Namespace) -> Figures:
    found = Figures()
    if options.only in (None, "rollout"):
        note(f"rolled out end to end: {options.clusters} clusters")
        found.rolled_out = await roll_out(options)
    if options.only in (None, "monitored", "naive"):
        sizes = options.sizes if options.only != "naive" else [options.naive]
        found.monitored = await monitor(options, sizes)
    if options.only in (None, "naive"):
        found.naive = await poll(options, options.naive)
        if all(m.clusters != options.naive for m in found.monitored):
            note(f"no ratios: {options.naive} is none of the sizes")
    return found


def main() -> None:
    told(parsed(), measured, report)


if __name__ == "__main__":
    main()
