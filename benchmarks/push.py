"""How soon a rollout learns that hardware has failed: pushed to the front, beside the watch's next poll.

Clusters are monitored as benchmarks/crowd.py makes them, the watch looks every 15 s, and hardware of one cluster after
another fails: first untold, so that the watch has to find it, then with a `POST /api/v1/health` behind each sample, to
a front in this process that asks the workers as any front does. Timed is from just before the sample is written until
the rollout's history has what it says of it. Run:

    PYTHONPATH=. python benchmarks/push.py --quick        # 100 clusters, about four minutes
    PYTHONPATH=. python benchmarks/push.py                # 1,000 clusters, half an hour
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client

from benchmarks.crowd import Crowd, Exporter, Reaction, anywhere, edges
from benchmarks.sites import Site, note, quantile, site, told
from client.backstop import Backstop
from client.connection import NAMESPACE, TemporalTarget
from client.http_door import http_door
from client.http_exchange import AtSocket
from models.health_pushes import HealthPush
from web.callers import Callers
from web.front import Front
from web.server import listening
from web.settings import FrontSettings
from web.temporal_connection import Doors

POLL_SECONDS = 15.0


@dataclass
class Figures:
    """Seconds from a sample until the rollout says so."""

    clusters: int
    polled: list[Reaction] = field(default_factory=list)
    pushed: list[Reaction] = field(default_factory=list)


class PushingExporter(Exporter):
    """An exporter that tells the front what it has written, once it has a door."""

    door: Backstop | None = None

    async def tell(self, clusters: Sequence[str], healthy: int) -> float:
        began = await super().tell(clusters, healthy)
        if self.door is not None:
            await self.door.push_health(HealthPush(clusters=tuple(clusters), word="a benchmark"))
        return began


@asynccontextmanager
async def front_of(where: Site) -> AsyncIterator[Backstop]:
    """Yield a door to a front at a socket."""
    target = TemporalTarget(options={"target_host": where.server.address, "namespace": NAMESPACE}, embedded=True)

    async def connected() -> tuple[Client, TemporalTarget]:
        return where.client, target

    socket = Path(where.home) / "front.sock"
    async with listening(Front(Doors(connected), Callers()), FrontSettings(socket=socket), {}):
        yield http_door(AtSocket(socket))


async def measured(options: argparse.Namespace) -> Figures:
    found = Figures(options.clusters)
    async with site(options.ledger_url) as where:
        exporter = PushingExporter(where)
        crowd = Crowd(where, exporter, POLL_SECONDS)
        async with where.worker(POLL_SECONDS), exporter.running(), front_of(where) as door:
            await crowd.begin()
            note(f"{options.clusters} clusters")
            await crowd.grow(options.clusters, {})
            await crowd.settled()
            note(f"  polled every {POLL_SECONDS:g} s: {options.edges} edges")
            found.polled = await edges(crowd, where, [[n] for n in crowd.take(options.edges)], anywhere(2.0))
            await asyncio.sleep(2 * POLL_SECONDS)  # all is well again, and told
            exporter.door = door
            note(f"  pushed: {options.edges} edges")
            found.pushed = await edges(crowd, where, [[n] for n in crowd.take(options.edges)], anywhere(2.0))
    return found


def report(found: Figures) -> Iterator[str]:
    """Yield the report: p50 and p99 in seconds, and how many times sooner."""
    yield f"{found.clusters} clusters monitored; seconds from a sample until the rollout says that it is at risk"
    yield f"{'':24}{'edges':>8}{'p50':>10}{'p99':>10}{'slowest':>10}"
    for name, reactions in ((f"polled every {POLL_SECONDS:g} s", found.polled), ("pushed", found.pushed)):
        for part, times in (("", [r.said for r in reactions]), ("until signalled", [r.signalled for r in reactions])):
            cells = (quantile(times, 0.5), quantile(times, 0.99), max(times))
            yield f"{(part and f'  {part}') or name:24}{len(times):>8}" + "".join(f"{cell:>10.2f}" for cell in cells)
    ratios = [
        quantile([r.said for r in found.polled], share) / quantile([r.said for r in found.pushed], share)
        for share in (0.5, 0.99)
    ]
    yield f"{'times sooner':32}" + "".join(f"{ratio:>10.1f}" for ratio in ratios)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 clusters, and few edges")
    parser.add_argument("--clusters", type=int, help="that are monitored (1000)")
    parser.add_argument("--edges", type=int, help="each way (100)")
    parser.add_argument("--ledger-url", default="", help="a PostgreSQL server, in place of a throwaway one")
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    options.clusters = options.clusters or (100 if options.quick else 1000)
    options.edges = options.edges or (20 if options.quick else 100)
    return options


def main() -> None:
    told(parsed(), measured, report)


if __name__ == "__main__":
    main()
