"""Planning 1,000 clusters x 100 quotas from a file: clusters per second and peak memory, on one core.

Baseline, measured in the same run: reading the same file with `json.loads` and cutting every quota by one
common factor (which respects neither tiers, nor islands, nor whole GPUs). Run: python benchmarks/plan.py
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path

from client.inputs.documents import read_fleet
from models.cluster.snapshot import snapshot_of
from models.planning.plan import make_plan


def fleet_document(clusters: int, quotas: int, seed: int, islands: int) -> dict[str, object]:
    """Return a seeded fleet: every cluster over-promised, a third of the quotas limited to one island."""
    dice = random.Random(seed)
    found = []
    for number in range(clusters):
        names = [f"i{k}" for k in range(islands)]
        totals = [8 * dice.randint(40, 60) for _ in names]
        share = sum(totals) / quotas
        rows = []
        for team in range(quotas):
            gpus = dice.randint(1, int(2 * share))
            scheduled = dice.randint(0, gpus)
            row: dict[str, object] = {
                "team": f"team-{team:03}",
                "gpus": gpus,
                "scheduled_gpus": scheduled,
                "idle_gpus": dice.randint(0, scheduled),
            }
            if islands > 1 and team % 3 == 0:
                row["islands"] = [dice.choice(names)]
            rows.append(row)
        found.append(
            {
                "name": f"cluster-{number:04}",
                "islands": [
                    {"name": n, "total_gpus": t, "healthy_gpus": t - 8 * dice.randint(0, 9)}
                    for n, t in zip(names, totals, strict=True)
                ],
                "quotas": rows,
            }
        )
    return {"clusters": found}


def naive(text: str) -> int:
    """Plan by the baseline: one factor for all quotas."""
    cut = 0
    for cluster in json.loads(text)["clusters"]:
        total = sum(i["total_gpus"] for i in cluster["islands"])
        healthy = sum(i["healthy_gpus"] for i in cluster["islands"])
        assigned = sum(q["gpus"] for q in cluster["quotas"])
        factor = min(1.0, min(0.85 * total, healthy - 8) / assigned)
        cut += sum(q["gpus"] - int(q["gpus"] * factor) for q in cluster["quotas"])
    return cut


def measure(clusters: int, quotas: int, islands: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.json"
        path.write_text(json.dumps(fleet_document(clusters, quotas, 7, islands)))
        start = time.perf_counter()
        naive(path.read_text())
        base = time.perf_counter() - start
        start = time.perf_counter()
        fleet = read_fleet(path)
        read = time.perf_counter() - start
        cut = short = 0
        for cluster in fleet.clusters:
            plan = make_plan(snapshot_of(cluster), fleet.policy_of(cluster))
            cut, short = cut + plan.cut_gpus, short + plan.short_by_gpus
        whole = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{clusters} clusters x {quotas} quotas x {islands} islands, {path.suffix[1:]}:")
    print(f"  read {read:.2f} s, plan {whole - read:.2f} s, in all {whole:.2f} s: {clusters / whole:.0f} clusters/s")
    print(f"  baseline (json.loads and one factor) {base:.2f} s: ratio {whole / base:.1f}")
    print(f"  peak memory {peak:.0f} MiB; cut {cut} GPUs, short {short}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--quotas", type=int, default=100)
    parser.add_argument("--islands", type=int, default=4)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    measure(options.clusters, options.quotas, 1)
    if options.islands > 1:
        measure(options.clusters, options.quotas, options.islands)


if __name__ == "__main__":
    main()
