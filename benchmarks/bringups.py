"""Bring-ups beside monitored rollouts, on one worker: what each costs while its step runs and nothing else happens.

Everything is real: the embedded Temporal server, a worker as deployed in a process of its own, a PostgreSQL ledger, and
a service that is asked over HTTP how each run stands. The baseline is taken in the same run: the same worker with as
many monitored rollouts, before the first bring-up is entered. Run: python benchmarks/bringups.py (25 minutes; --quick:
three).

Theory of operation. A bring-up is at its longest in a step of hours: its worker asks every 15 s how that stands, and
every 10 minutes history hears of it. So a quiet time of 10 minutes has one such piece of news of each. The rollouts are
copies of one that was rolled out (benchmarks/crowd.py). The service counts: each run must have been begun once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.crowd import Crowd, Exporter, few_at_once, until
from benchmarks.sites import Site, note, site, told
from models.bringup.entry import BringupEntry
from models.bringup.messages import BringupStart
from models.bringup.recipe import ClusterRecipe
from models.temporal_names import bringup_workflow_id

WATCH_SECONDS = 15.0
ROUND_SECONDS = 15.0
"""Between two looks at a run."""
NEWS_SECONDS = 600.0
"""Between two events that say it runs still, of a step whose limit is no more than a hundred times that."""


class Service:
    """A service that provisions: a POST begins a run, which never ends; GET says that it runs. Thread-safe."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        """By Idempotency-Key."""
        self.asked: Counter[str] = Counter()
        """By the run's id."""
        self._lock = threading.Lock()

    def took(self, key: str) -> str:
        with self._lock:
            self.begun[key] += 1
        return key.replace("/", "-")

    def was_asked(self, run: str) -> None:
        with self._lock:
            self.asked[run] += 1

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve, and yield the URL's origin."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self._answer({"id": service.took(self.headers["Idempotency-Key"]), "status": "running"})

            def do_GET(self) -> None:
                service.was_asked(self.path.rpartition("/")[2])
                self._answer({"status": "running"})

            def _answer(self, document: dict[str, str]) -> None:
                body = json.dumps(document).encode()
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Log nothing: there are thousands of requests."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()


@dataclass
class Rest:
    """The cost at rest: CPU seconds a minute and MiB by process; events an hour of each history."""

    seconds: float
    cpu: dict[str, float]
    mib: dict[str, float]
    rollout_events: float
    bringup_events: float
    requests: float
    """Of one run in one round."""


@dataclass
class Figures:
    count: int
    entered: float
    """Bring-ups a second, until each one's step runs."""
    events: float
    """Of one history by then."""
    alone: Rest
    beside: Rest


def recipe_of(origin: str) -> ClusterRecipe:
    """Return a recipe with one long step that a service does."""
    step = {
        "name": "nodes",
        "with": "http",
        "url": f"{origin}/runs",
        "status_url": f"{origin}/runs/{{id}}",
        "limit": "16h",
    }
    return ClusterRecipe.model_validate({"name": "bench", "provision": [step]})


async def measured(options: argparse.Namespace) -> Figures:
    service = Service()
    with service.serving() as origin:
        async with site(options.ledger_url) as where:
            settings = where.home / "runners.yaml"
            settings.write_text(f"hosts: [{{origin: '{origin}'}}]\nnetworks: [127.0.0.0/8]\n")
            exporter = Exporter(where)
            crowd = Crowd(where, exporter, WATCH_SECONDS)
            async with where.worker(WATCH_SECONDS, more={"BACKSTOP_RUNNERS": str(settings)}), exporter.running():
                await crowd.begin()
                await crowd.grow(options.count, {})
                await crowd.settled()
                note(f"{options.count} rollouts are monitored; at rest for {options.quiet_seconds} s")
                alone = await _rest(options, where, crowd, [], service)
                names = [f"new-{number:05}" for number in range(options.count)]
                entered = await _enter(where, names, recipe_of(origin), service)
                note(f"{options.count} bring-ups run, {entered:.1f} entered a second; at rest again")
                events = sum(await _lengths(where, names)) / len(names)
                beside = await _rest(options, where, crowd, names, service)
                if set(service.begun.values()) != {1} or len(service.begun) != len(names):
                    raise RuntimeError(f"runs were not begun once each: {service.begun.most_common(3)}")
                return Figures(options.count, entered, events, alone, beside)


async def _enter(where: Site, names: Sequence[str], recipe: ClusterRecipe, service: Service) -> float:
    """Enter all; wait until each step runs and was looked at; return how many were entered a second."""
    began = time.perf_counter()

    async def enter(name: str) -> None:
        entry = BringupEntry(cluster=name, recipe=recipe.name, owner="tpm", nodes=8)
        await where.tpm.bring_up(BringupStart(entry=entry, recipe=recipe, actor="tpm", reason="a benchmark"))

    async def looked_at() -> bool:
        return len(service.asked) == len(names)

    await few_at_once(enter, names)
    await until(looked_at, "every run is looked at")
    rate = len(names) / (time.perf_counter() - began)
    before: list[int] = []

    async def quiet() -> bool:
        nonlocal before
        earlier, before = before, await _lengths(where, names)
        return earlier == before

    await until(quiet, "the bring-ups are at rest", every=3.0)
    return rate


async def _rest(
    options: argparse.Namespace, where: Site, crowd: Crowd, bringups: Sequence[str], service: Service
) -> Rest:
    rollouts = crowd.resting(200)
    lengths, events = await crowd.lengths(rollouts), await _lengths(where, bringups)
    asked, before, began = service.asked.total(), where.all_cpu_seconds(), time.perf_counter()
    await asyncio.sleep(options.quiet_seconds)
    after, took = where.all_cpu_seconds(), time.perf_counter() - began
    asked, mib = service.asked.total() - asked, where.mib()

    def hourly(earlier: Sequence[int], later: Sequence[int]) -> float:
        return (sum(later) - sum(earlier)) / max(1, len(later)) / (took / 3600)

    return Rest(
        seconds=took,
        cpu={k: (after[k] - before[k]) * 60 / took for k in after},
        mib=mib,
        rollout_events=hourly(lengths, await crowd.lengths(rollouts)),
        bringup_events=hourly(events, await _lengths(where, bringups)),
        requests=asked / max(1, len(bringups)) / (took / ROUND_SECONDS),
    )


async def _lengths(where: Site, names: Sequence[str]) -> list[int]:
    async def length(name: str) -> int:
        return int((await where.client.get_workflow_handle(bringup_workflow_id(name)).describe()).history_length)

    return await few_at_once(length, names)


# --- the report ------------------------------------------------------------------------------------


def report(found: Figures) -> Iterator[str]:
    """Yield the report's lines, in Markdown."""
    alone, beside = found.alone, found.beside
    yield f"\n| {found.count:,} bring-ups beside as many monitored rollouts | rollouts alone | with bring-ups | ratio |"
    yield "|---|---|---|---|"
    for what, one, other in (
        ("CPU s a minute", alone.cpu, beside.cpu),
        ("MiB", alone.mib, beside.mib),
    ):
        for process, name in (("worker", "worker"), ("server", "Temporal"), ("postgresql", "PostgreSQL")):
            first, second = one[process], other[process]
            yield (
                f"| {what}, {name} | {first:.2f} | {second:.2f} | {second / first:.1f} |"
                if first
                else f"| {what}, {name} | 0 | {second:.2f} | |"
            )
    yield f"| history events an hour of each rollout | {alone.rollout_events:.1f} | {beside.rollout_events:.1f} | |"
    if beside.seconds >= NEWS_SECONDS:
        yield f"| history events an hour of each bring-up | | {beside.bringup_events:.1f} | |"
    yield f"| requests of each run in a round of {ROUND_SECONDS:g} s | | {beside.requests:.2f} | |"
    entered = f"{found.entered:.1f}; {found.events:.0f}"
    yield f"| entered a second, until each one's step runs; events of each by then | | {entered} | |"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="30 of each, for a minute: three minutes")
    parser.add_argument("--count", type=int, help="bring-ups, and rollouts (300)")
    parser.add_argument("--quiet-seconds", type=int, help="how long nothing happens, twice (600)")
    parser.add_argument("--ledger-url", default="", help="a PostgreSQL server, in place of a throwaway one")
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    count, quiet = (30, 45) if options.quick else (300, int(NEWS_SECONDS))
    options.count, options.quiet_seconds = options.count or count, options.quiet_seconds or quiet
    if not 1 <= options.count <= 2000:
        parser.error("--count: from 1 to 2,000, which one worker follows at once")
    return options


def main() -> None:
    told(parsed(), measured, report)


if __name__ == "__main__":
    main()
