"""Buffer policies on real health history: hours broken, mean buffer, cross-validation; how fast a buffer is derived.

Baselines, measured in the same run on the same weeks: fixed 5, 10, 15 and 20 %, binomial, trailing quantile and
maximum. The aim on each series: hours broken at or below fixed 15 % or 0.1 %, whichever is larger, at a mean buffer
below that of the smallest fixed buffer of which this holds, both after the first 13 weeks: until then the floor holds,
and what that costs and saves is told apart. Cross-validation: the estimator's numbers are chosen on the
other source's series and judged on one's own. Made-up history stands beside the real one by four figures, and `health`
is tried on made-up clusters too. Run: python benchmarks/buffers.py (about four minutes on one core; --quick leaves out
the grid). For a change of the estimator: --json then.json before it, --before then.json after it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import numpy as np

from client.inputs.health_series import read_series
from models.buffers.backtest import Decide, Record, health, policies, promises, record
from models.buffers.estimator import SHAPE, WEEK_HOURS, Hours, Shape, derive_buffer
from models.buffers.health_generator import Recipe, simulate_health
from models.buffers.hourly_health import Series
from models.cluster.derived_buffer import PROMISE_STEPS, TERMS

DATA = Path(__file__).parents[2] / "shared" / "data" / "availability_hourly.csv.gz"
HORIZONS = (1, 4)
MADE = 40
"""Made-up histories of each kind."""
YOUNG_WEEKS = 13
WAYS = tuple(itertools.product((2, 13), (Fraction(1, 100), Fraction(1, 200))))
"""How many weeks of history are short, and the band."""
FIXED = ("fixed-5", "fixed-10", "fixed-15", "fixed-20")
GRID = tuple(
    Shape(level_share=level, prior_share=share, prior_root=root, prior_weeks=weeks)
    for level, (share, root), weeks in itertools.product(
        (0.5, 0.75, 0.9), ((0.01, 0.3), (0.015, 0.2), (0.02, 0.2), (0.025, 0.1), (0.03, 0.3)), (8, 26)
    )
)


class Aim:
    """The target for `health` on one series and horizon: the fixed buffer to compare with, chosen by the whole history,
    and the cost of both in the weeks after the floor."""

    def __init__(self, found: dict[str, Record], later: dict[str, Record]) -> None:
        self.allowed = max(0.001, found["fixed-15"].broken_fraction)
        equal = [later[name] for name in FIXED if found[name].broken_fraction <= self.allowed]
        self.rival = equal[0] if equal else None

    def missed(self, ours: Record) -> str:
        """Say what `ours` missed; empty: nothing."""
        if ours.broken_fraction > self.allowed:
            return "breaks more"
        if self.rival is not None and ours.mean_buffer >= self.rival.mean_buffer:
            return "costs more"
        return ""

    def ratio(self, ours: Record) -> float:
        return ours.mean_buffer / (self.rival.mean_buffer if self.rival else 1.0)


def judged(series: Series, decide: Decide, name: str, horizon: int, since_week: int = 0) -> Record:
    return record(series, name, promises(series, decide, horizon), horizon, since_week)


def table(series: Sequence[Series]) -> tuple[dict[tuple[str, int], Aim], list[Record]]:
    """Print, in each cell, hours broken and mean buffer, both in percent."""
    aims: dict[tuple[str, int], Aim] = {}
    records: list[Record] = []
    names = list(policies())
    for horizon in HORIZONS:
        print(f"\npromised for {horizon} week(s) ahead: hours broken % / mean buffer %")
        print(f"{'series':<12}{'nodes':>6}{'hours':>8}" + "".join(f"{n:>19}" for n in names) + "  aim")
        for one in series:
            found = {name: judged(one, decide, name, horizon) for name, decide in policies().items()}
            records += found.values()
            later = {name: judged(one, decide, name, horizon, YOUNG_WEEKS) for name, decide in policies().items()}
            aim = aims[one.cluster, horizon] = Aim(found, later)
            cells = "".join(f"{100 * r.broken_fraction:>11.3f} /{100 * r.mean_buffer:>6.2f}" for r in found.values())
            rival = (
                f"{aim.ratio(later['health']):.2f} of {aim.rival.policy}" if aim.rival else "no fixed buffer does it"
            )
            mean = f"{100 * later['health'].mean_buffer:.2f} after week {YOUNG_WEEKS}"
            said = f"{mean}, {aim.missed(later['health']) or 'met'}"
            print(f"{one.cluster:<12}{one.total_at(0):>6}{found['health'].hours:>8}{cells}  {said}: {rival}")
    return aims, records


def cross_validated(series: Sequence[Series], aims: dict[tuple[str, int], Aim]) -> list[dict[str, object]]:
    """Choose the numbers on the series of other sources, and judge them on each source's own."""
    records: dict[tuple[int, str, int], Record] = {}
    for n, shape in enumerate(GRID):
        for one, horizon in itertools.product(series, HORIZONS):
            records[n, one.cluster, horizon] = judged(one, health(shape=shape), "health", horizon, YOUNG_WEEKS)
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


def halves(one: Series, weekly: Sequence[int | None], horizon: int) -> list[tuple[float, int]]:
    """Return mean buffer and hours broken, of promises made in the first 13 weeks and after them."""
    young, after = (
        record(one, "health", promises_of, horizon, since)
        for promises_of, since in ((weekly[:YOUNG_WEEKS], 0), (weekly, YOUNG_WEEKS))
    )
    return [(part.mean_buffer, part.broken_hours) for part in (young, after)]


def while_young(series: Sequence[Series]) -> list[dict[str, object]]:
    """Compare the floor for 2 and 13 weeks and a band of 1 % and 0.5 %: cost and broken hours, young and later."""
    figures: list[dict[str, object]] = []
    made = {
        f"made up, {nodes} nodes": [simulate_health(Recipe(nodes=nodes, weeks=26), seed) for seed in range(MADE)]
        for nodes in (64, 128, 512)
    }
    groups = {one.cluster: [one] for one in series} | made
    print(f"\nyoung clusters: mean buffer % in the first {YOUNG_WEEKS} weeks / after; hours broken in them / after")
    for horizon, (name, group) in itertools.product(HORIZONS, groups.items()):
        cells = []
        for history, band in WAYS:
            decide = health(
                TERMS.model_copy(update={"history": timedelta(weeks=history)}),
                PROMISE_STEPS.model_copy(update={"band": band}),
            )
            each = [halves(one, promises(one, decide, horizon), horizon) for one in group]
            young, after = ([part[n] for part in each] for n in (0, 1))
            means = [100 * sum(mean for mean, _ in part) / len(part) for part in (young, after)]
            broken = [sum(hours for _, hours in part) for part in (young, after)]
            cells.append(f"{history}w, {float(100 * band):g} %: {means[0]:.2f}/{means[1]:.2f}, {broken[0]}/{broken[1]}")
            figures.append(
                {"series": name, "horizon": horizon, "history": history, "band": float(band)}
                | {"young": means[0], "after": means[1], "broken_young": broken[0], "broken_after": broken[1]}
            )
        print(f"  {name:<20} {horizon} week(s)  {'  |  '.join(cells)}")
    return figures


def beside(then: Path, records: Sequence[Record]) -> None:
    """Print what `health` broke and kept, in an earlier run and now. Errors: OSError, ValueError for another file."""
    earlier = {(r["cluster"], r["horizon_weeks"], r["policy"]): r for r in json.loads(then.read_text())["records"]}
    print("\n`health` then and now: hours broken, mean buffer %")
    print(f"{'series':<12}{'weeks':>6}{'broken':>14}{'mean':>18}")
    for row in records:
        was = earlier.get((row.cluster, row.horizon_weeks, row.policy)) if row.policy == "health" else None
        if was is not None:
            broken = f"{was['broken_hours']} -> {row.broken_hours}"
            mean = f"{100 * was['mean_buffer']:.2f} -> {100 * row.mean_buffer:.2f}"
            print(f"{row.cluster:<12}{row.horizon_weeks:>6}{broken:>14}{mean:>18}")


def figures_of(down: Hours, nodes: int) -> dict[str, float]:
    """Return four figures of a history of so many nodes. Shape of down: (hours,)."""
    days = down[: len(down) // 24 * 24].reshape(-1, 24)
    mean, worst = np.nanmean(days, axis=1), np.nanmax(days, axis=1)
    return {
        "variance to mean, of the daily mean": float(mean.var() / mean.mean()),
        "correlation with the same day a week later": float(np.corrcoef(mean[:-7], mean[7:])[0, 1]),
        "largest rise from day to day, % of the nodes": float(100 * np.diff(worst).max() / nodes),
        "down in one hour of a thousand, % of the nodes": float(100 * np.nanquantile(down, 0.999) / nodes),
    }


def alike(one: Series) -> Recipe:
    """Return a recipe with the series' nodes and weeks, and with failures as frequent and as long; else the default."""
    down, nodes = one.down[~np.isnan(one.down)], one.total_at(0)
    recipe = Recipe(nodes=nodes, weeks=max(1, len(one.down) // WEEK_HOURS))
    failures = 24_000 * float(np.maximum(np.diff(down), 0).mean()) / nodes
    together = 1000 * (recipe.bursts * recipe.burst_size / nodes + recipe.waves * recipe.wave_share)
    recipe = recipe.model_copy(update={"failures": max(0.1, failures - together)})
    longer = float(down.mean() / np.median([simulate_health(recipe, seed).down.mean() for seed in range(MADE)]))
    lasting = ("repair_hours", "burst_hours", "wave_hours")
    return recipe.model_copy(update={name: longer * getattr(recipe, name) for name in lasting})


def made_up(series: Sequence[Series]) -> list[dict[str, object]]:
    """Compare each series' four figures with made-up ones: their median, and the range of eight in ten."""
    found: list[dict[str, object]] = []
    print(f"\nmade-up history beside real: the median of {MADE} seeds, and what eight of ten lie within")
    for one in series:
        nodes, real = one.total_at(0), figures_of(one.down, one.total_at(0))
        print(f"{one.cluster}, {nodes} nodes, {len(one.down) // WEEK_HOURS} weeks")
        ways = {
            "by default": Recipe(nodes=nodes, weeks=max(1, len(one.down) // WEEK_HOURS)),
            "as often, as long": alike(one),
        }
        made = {
            way: [figures_of(simulate_health(r, seed).down, nodes) for seed in range(MADE)] for way, r in ways.items()
        }
        for figure, value in real.items():
            cells = {way: np.quantile([m[figure] for m in rows], (0.5, 0.1, 0.9)) for way, rows in made.items()}
            said = "; ".join(f"{way} {c[0]:.2f} ({c[1]:.2f} to {c[2]:.2f})" for way, c in cells.items())
            print(f"  {figure:<48} real {value:5.2f}; {said}")
            found.append(
                {"cluster": one.cluster, "figure": figure, "real": value} | {w: list(c) for w, c in cells.items()}
            )
    return found


def on_made_up(seeds: int = 20) -> list[dict[str, float]]:
    """Judge `health` on made-up clusters of two years, four weeks ahead; also with sixfold rates in the second year."""
    print(
        "\n`health` on made-up clusters, two years, four weeks ahead: hours broken %, mean buffer %, clusters that miss"
    )
    found = []
    for nodes, change in itertools.product((64, 128, 512), (1.0, 6.0)):
        recipe = Recipe(nodes=nodes, weeks=104, change=change, change_week=52 if change > 1 else 0)
        records = [judged(simulate_health(recipe, seed), health(), "health", 4) for seed in range(seeds)]
        broken = 100 * sum(r.broken_hours for r in records) / sum(r.hours for r in records)
        kept = 100 * sum(r.mean_buffer for r in records) / seeds
        missed, refused = sum(r.broken_fraction > 0.001 for r in records), 100 * sum(r.refused for r in records) / seeds
        print(
            f"  {nodes:>4} nodes, rates x {change:g}: {broken:.3f} at {kept:.1f}, {missed} of {seeds} miss 99.9 %, "
            f"{refused:.1f} % of weeks refused"
        )
        found.append({"nodes": nodes, "change": change, "broken": broken, "mean": kept, "missed": missed})
    return found


def speed(clusters: int) -> dict[str, float]:
    """Time a year of hours for each cluster; the baseline is the mean and the maximum of the same arrays."""
    made = [simulate_health(Recipe(nodes=128, weeks=52), seed) for seed in range(50)]
    began = time.process_time()
    for n in range(clusters):
        derive_buffer(made[n % len(made)].down, 128)
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
    parser.add_argument("--before", type=Path, help="figures of an earlier run (its --json), to stand beside these")
    parser.add_argument("--json", type=Path, help="where all figures go")
    given = parser.parse_args()
    series = read_series(given.data)
    print(f"the estimator's numbers: {SHAPE.model_dump()}")
    aims, records = table(series)
    if given.before:
        beside(given.before, records)
    crossed = [] if given.quick else cross_validated(series, aims)
    figures = {
        "records": [r.model_dump(mode="json") for r in records],
        "cross_validation": crossed,
        "young": while_young(series),
        "made_up": made_up(series),
        "on_made_up": [] if given.quick else on_made_up(),
        "speed": speed(given.clusters),
    }
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
