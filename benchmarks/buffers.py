"""Buffer policies on real health history: hours broken, mean buffer, cross-validation; how fast a buffer is derived.

Baselines, measured in the same run on the same weeks: fixed 5, 10, 15 and 20 %, binomial, trailing quantile and
maximum. The aim on each series: hours broken at or below fixed 15 % or 0.1 %, whichever is larger, at a mean buffer
below that of the smallest fixed buffer of which this holds. Cross-validation: the estimator's numbers are chosen on the
other source's series and judged on one's own. Run: python benchmarks/buffers.py (about three minutes on one core;
--quick leaves out the grid)
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from client.inputs.health_series import read_series
from models.buffers.backtest import Decide, Record, health, policies, promises, record
from models.buffers.estimator import SHAPE, Shape, derived
from models.buffers.health_generator import Recipe, simulated
from models.buffers.hourly_health import Series

DATA = Path(__file__).parents[2] / "shared" / "data" / "availability_hourly.csv.gz"
HORIZONS = (1, 4)
FIXED = ("fixed-5", "fixed-10", "fixed-15", "fixed-20")
GRID = tuple(
    Shape(level_share=level, prior_share=share, prior_root=root, prior_weeks=weeks)
    for level, (share, root), weeks in itertools.product(
        (0.5, 0.75, 0.9), ((0.01, 0.3), (0.015, 0.2), (0.02, 0.2), (0.025, 0.1), (0.03, 0.3)), (8, 26)
    )
)


class Aim:
    """What is asked of `health` on one series and horizon."""

    def __init__(self, found: dict[str, Record]) -> None:
        self.allowed = max(0.001, found["fixed-15"].broken_fraction)
        equal = [found[name] for name in FIXED if found[name].broken_fraction <= self.allowed]
        self.rival = equal[0] if equal else None

    def missed(self, ours: Record) -> str:
        """Nothing, or what was missed."""
        if ours.broken_fraction > self.allowed:
            return "breaks more"
        if self.rival is not None and ours.mean_buffer >= self.rival.mean_buffer:
            return "costs more"
        return ""

    def ratio(self, ours: Record) -> float:
        return ours.mean_buffer / (self.rival.mean_buffer if self.rival else 1.0)


def judged(series: Series, decide: Decide, name: str, horizon: int) -> Record:
    return record(series, name, promises(series, decide, horizon), horizon)


def table(series: Sequence[Series]) -> tuple[dict[tuple[str, int], Aim], list[Record]]:
    """Each cell: hours broken, in percent, and mean buffer, in percent."""
    aims: dict[tuple[str, int], Aim] = {}
    records: list[Record] = []
    names = list(policies())
    for horizon in HORIZONS:
        print(f"\npromised for {horizon} week(s) ahead: hours broken % / mean buffer %")
        print(f"{'series':<12}{'nodes':>6}{'hours':>8}" + "".join(f"{n:>19}" for n in names) + "  aim")
        for one in series:
            found = {name: judged(one, decide, name, horizon) for name, decide in policies().items()}
            records += found.values()
            aim = aims[one.cluster, horizon] = Aim(found)
            cells = "".join(f"{100 * r.broken_fraction:>11.3f} /{100 * r.mean_buffer:>6.2f}" for r in found.values())
            rival = (
                f"{aim.ratio(found['health']):.2f} of {aim.rival.policy}" if aim.rival else "no fixed buffer does it"
            )
            said = aim.missed(found["health"]) or "met"
            print(f"{one.cluster:<12}{one.total_at(0):>6}{found['health'].hours:>8}{cells}  {said}: {rival}")
    return aims, records


def cross_validated(series: Sequence[Series], aims: dict[tuple[str, int], Aim]) -> list[dict[str, object]]:
    """Numbers chosen on the series of other sources, judged on each source's own."""
    records: dict[tuple[int, str, int], Record] = {}
    for n, shape in enumerate(GRID):
        for one, horizon in itertools.product(series, HORIZONS):
            records[n, one.cluster, horizon] = judged(one, health(shape=shape), "health", horizon)
        print(f"\r{n + 1} of {len(GRID)} sets of numbers", end="", file=sys.stderr)
    print(file=sys.stderr)

    def score(n: int, clusters: Sequence[str]) -> tuple[int, float]:
        cells = [(aims[c, h], records[n, c, h]) for c, h in itertools.product(clusters, HORIZONS)]
        return sum(bool(aim.missed(r)) for aim, r in cells), sum(aim.ratio(r) for aim, r in cells) / len(cells)

    every = [one.cluster for one in series]
    met = [n for n in range(len(GRID)) if score(n, every)[0] == 0]
    print(f"\ncross-validation over {len(GRID)} sets of numbers; {len(met)} of them meet the aim on every series")
    found: list[dict[str, object]] = []
    for source in sorted({name.split("-")[0] for name in every}):
        own = [c for c in every if c.startswith(source)]
        best = min(range(len(GRID)), key=lambda n: score(n, [c for c in every if c not in own]))
        for cluster, horizon in itertools.product(own, HORIZONS):
            ours, aim = records[best, cluster, horizon], aims[cluster, horizon]
            said = aim.missed(ours) or "met"
            found.append({"cluster": cluster, "horizon": horizon, "aim": said, "ratio": aim.ratio(ours)})
            print(
                f"  {cluster:<12} {horizon} week(s), numbers chosen without {source}: "
                f"{100 * ours.broken_fraction:.3f} % broken, {aim.ratio(ours):.2f} of the fixed buffer: {said}"
            )
    for one in series:
        best = min(range(len(GRID)), key=lambda n: score(n, [c for c in every if c != one.cluster]))
        each = [aims[one.cluster, h].missed(records[best, one.cluster, h]) or "met" for h in HORIZONS]
        print(f"  {one.cluster:<12} numbers chosen on all other series: {', '.join(each)}")
    return found


def speed(clusters: int) -> dict[str, float]:
    """A year of hours each; the baseline is the mean and the maximum of the same arrays."""
    made = [simulated(Recipe(nodes=128, weeks=52), seed) for seed in range(50)]
    began = time.process_time()
    for n in range(clusters):
        derived(made[n % len(made)].down, 128)
    ours = time.process_time() - began
    began = time.process_time()
    for n in range(clusters):
        down = made[n % len(made)].down
        down.mean(), down.max()
    naive = time.process_time() - began
    print(
        f"\nspeed: {clusters} clusters with a year of hours derived in {ours:.1f} s on one core (aim: 60 s); "
        f"mean and maximum alone {naive:.2f} s, ratio {ours / naive:.0f}"
    )
    return {"clusters": clusters, "seconds": ours, "naive_seconds": naive}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="hourly availability, as `backstop backtest` reads it")
    parser.add_argument("--clusters", type=int, default=1000, help="derived for the speed")
    parser.add_argument("--quick", action="store_true", help="no cross-validation")
    parser.add_argument("--json", type=Path, help="where all figures go")
    given = parser.parse_args()
    series = read_series(given.data)
    print(f"the estimator's numbers: {SHAPE.model_dump()}")
    aims, records = table(series)
    crossed = [] if given.quick else cross_validated(series, aims)
    figures = {
        "records": [r.model_dump(mode="json") for r in records],
        "cross_validation": crossed,
        "speed": speed(given.clusters),
    }
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
