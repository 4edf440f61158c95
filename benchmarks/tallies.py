"""The cost of the tallies: one slot of 1,000 clusters, and a curve of four weeks over them.

    python benchmarks/tallies.py [--clusters 1000] [--quotas 8] [--days 28] [--url postgresql://...]

A ledger of its own on SQLite unless an address is given (an empty database: it is filled). A go is what
the shared watch does beside one look at health.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from activities.adapters.ledger.database import upgrade
from activities.adapters.ledger.facade import Ledger
from activities.watch.tallies import Tallier
from models.cluster.fleet_file import Fleet
from models.reports.tallies import Tally, slot_of

HOUR = timedelta(hours=1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--clusters", type=int, default=1000)
    options.add_argument("--quotas", type=int, default=8)
    options.add_argument("--days", type=int, default=28)
    options.add_argument("--url", default="")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{Path(folder) / 'ledger.db'}"
        upgrade(url)
        with Ledger(url) as ledger:
            _fill(ledger, given.clusters, given.quotas)
            _one_slot(ledger)
            _curve(ledger, given.days)


def _fill(ledger: Ledger, clusters: int, quotas: int) -> None:
    quota = {"gpus": 70, "scheduled_gpus": 60, "idle_gpus": 4, "pending_gpus": 12}
    teams = [{"team": f"team-{n}", **quota, **({"islands": ["x"]} if n % 4 == 0 else {})} for n in range(quotas)]
    healthy = 70 * quotas // 2 - 6
    islands = [{"name": name, "total_gpus": healthy + 30, "healthy_gpus": healthy} for name in ("x", "y")]
    document = {"clusters": [{"name": f"c{n:05d}", "islands": islands, "quotas": teams} for n in range(clusters)]}
    packed = zlib.compress(Fleet.model_validate(document).model_dump_json(exclude_unset=True).encode())
    ledger.fleet.stage_import("bench", 0, packed)
    ledger.fleet.commit_import("bench", 1, "bench", datetime.now(UTC))


def _one_slot(ledger: Ledger) -> None:
    tallier = Tallier(ledger.ports, ledger.tallies)
    goes: list[tuple[float, int]] = []
    now = datetime.now(UTC)
    while not goes or goes[-1][1]:
        began = time.perf_counter()
        made = tallier.go_on(now, HOUR)
        goes.append((time.perf_counter() - began, made))
    made = sum(number for _, number in goes)
    seconds = [s for s, number in goes if number]
    print(f"one slot of {made} clusters: {sum(seconds):.2f} s in {len(seconds)} goes, worst go {max(seconds):.2f} s")
    print(f"a round with nothing to tally: {goes[-1][0] * 1e6:.0f} us")


def _curve(ledger: Ledger, days: int) -> None:
    now = slot_of(datetime.now(UTC), HOUR)
    (names,) = [[spec.name for spec, _ in ledger.fleet.clusters("", 100_000)]]
    counts: dict[str, Any] = {
        "total_gpus": 600,
        "healthy_gpus": 540,
        "assigned_gpus": 560,
        "backed_gpus": 530,
        "flex_gpus": 40,
    }
    for hour in range(1, days * 24):
        ledger.tallies.keep([Tally(cluster=n, at=now - hour * HOUR, seen_at=now, **counts) for n in names])
    day = timedelta(days=1)
    times = [now - n * day for n in reversed(range(days))]
    began = time.perf_counter()
    found = ledger.tallies.points("", times, day)
    took = time.perf_counter() - began
    print(f"a curve of {len(found)} points over {days * 24 * len(names)} tallies: {took:.2f} s")
    began = time.perf_counter()
    ledger.tallies.points(names[0], times, day)
    print(f"the same of one cluster: {time.perf_counter() - began:.3f} s")


if __name__ == "__main__":
    main()
