"""A back-test of buffer policies: the promises that each would have made week by week, and how well hardware kept them.

Theory of operation. The test goes through the weeks of a series. At the start of each week a policy sees only the
earlier rows, and promises for the coming weeks. Each known hour of those weeks is then compared with the promise; where
promises are made weekly for four weeks, an hour is compared with each promise made for it. A week without a promise
counts as a buffer of 1, so that refusing never wins.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from models.base import Model
from models.buffers.estimator import SHAPE, WEEK_HOURS, Hours, Shape, derive_buffer
from models.buffers.hourly_health import Series
from models.cluster.derived_buffer import PROMISE_STEPS, TERMS, Derived, HealthTerms, Steps, follow_promise


@dataclass(frozen=True, slots=True)
class View:
    """The data that a policy sees when it decides: the past, the size, and its last promise."""

    down: Hours
    total: int
    node: int
    horizon: timedelta
    standing: int | None
    standing_of: int | None
    """The total at the last decision; None: this is the first decision."""


Decide = Callable[[View], int | None]
"""A policy: returns a promise for the horizon, in the series' unit; None: nothing can be promised."""

_TRAILING_WEEKS = 8
_FIXED = tuple(Fraction(percent, 100) for percent in (5, 10, 15, 20))
_MOST_FIXED = 60
"""The largest fixed buffer that is tried, in percent."""


def fixed_buffer(buffer: Fraction) -> Decide:
    return lambda view: int((1 - buffer) * view.total)


def flat(buffers: Sequence[Fraction]) -> dict[str, Decide]:
    """Return fixed buffers by name: 0.075 is fixed-7.5."""
    return {f"fixed-{float(100 * buffer):g}": fixed_buffer(buffer) for buffer in buffers}


def binomial(terms: HealthTerms = TERMS) -> Decide:
    """Return the policy that takes nodes to fail independently, each as often as in the past."""
    from scipy.stats import binom  # a second and a half to import, which only a back-test needs

    def count_needed(seen: Hours, view: View) -> int:
        nodes = max(1, view.total // view.node)
        return view.node * int(binom.ppf(float(terms.target), nodes, min(1.0, float(seen.mean()) / view.total)))

    return _after_history(terms, count_needed)


def trailing_quantile(terms: HealthTerms = TERMS) -> Decide:
    """Return the policy that keeps back the target quantile of what was down in the last eight weeks' hours."""
    return _after_history(
        terms, lambda seen, _: int(np.ceil(np.quantile(seen[-_TRAILING_WEEKS * WEEK_HOURS :], float(terms.target))))
    )


def trailing_max(terms: HealthTerms = TERMS) -> Decide:
    """Return the policy that keeps back the most that was down in the last eight weeks."""
    return _after_history(terms, lambda seen, _: int(np.ceil(seen[-_TRAILING_WEEKS * WEEK_HOURS :].max())))


def health(terms: HealthTerms = TERMS, steps: Steps = PROMISE_STEPS, shape: Shape = SHAPE) -> Decide:
    """Return the policy `health`, with its weekly steps."""

    def decide(view: View) -> int | None:
        asked = terms.model_copy(update={"horizon": view.horizon})
        derivation = derive_buffer(view.down, view.total, asked, view.node, shape)
        return follow_promise(view.standing, derivation, steps, view.standing_of)

    return decide


def _after_history(terms: HealthTerms, needed: Callable[[Hours, View], int]) -> Decide:
    """Apply the floor while the history is as short as `health` calls short, so that all policies have the same one."""

    def decide(view: View) -> int | None:
        seen = view.down[~np.isnan(view.down)]
        if timedelta(hours=len(seen)) < terms.history:
            return int((1 - terms.floor) * view.total)
        return max(0, view.total - needed(seen, view))

    return decide


def policies(terms: HealthTerms = TERMS) -> dict[str, Decide]:
    """Return all policies that a back-test compares, by name."""
    return {
        **flat(_FIXED),
        "binomial": binomial(terms),
        "trailing-quantile": trailing_quantile(terms),
        "trailing-max": trailing_max(terms),
        "health": health(terms),
    }


class Record(Model):
    """One policy's result on one series. Hours are counted once for each promise made for them."""

    cluster: str
    policy: str
    horizon_weeks: int
    hours: int
    broken_hours: int
    broken_fraction: float
    worst_shortfall_fraction: float
    """The largest shortfall below a promise in the worst instant of an hour, as a fraction of the total."""
    mean_buffer: float
    """The share of the total that was not promised, averaged over the weeks with a known hour."""
    stranded_fraction: float
    """What was healthy and not promised, as a fraction of the total, averaged over hours."""
    changes: int
    refused: float
    """The share of weeks without a promise, among the weeks with a known hour."""


def promises(series: Series, decide: Decide, horizon_weeks: int) -> list[int | None]:
    """Return the promise at the start of each week, each decided on the rows before it."""
    down, horizon = series.down, timedelta(weeks=horizon_weeks)
    weekly: list[int | None] = []
    standing = of = None
    for hour in range(0, len(down), WEEK_HOURS):
        total = series.total_at(hour)
        standing = decide(View(down[:hour], total, series.node, horizon, standing, of))
        of = total
        weekly.append(standing)
    return weekly


def record(series: Series, name: str, weekly: Sequence[int | None], horizon_weeks: int, since_week: int = 0) -> Record:
    """Return how well hardware would have kept these weekly promises; only those of `since_week` or later count."""
    hours = broken = 0
    worst = stranded = 0.0
    buffers: list[float] = []
    refused = 0
    for week, promise in list(enumerate(weekly))[since_week:]:
        start = week * WEEK_HOURS
        span = slice(start, start + horizon_weeks * WEEK_HOURS)
        mask = ~np.isnan(series.worst[span])
        total = series.total[span][mask]
        held = 0 if promise is None else promise
        short = held - (series.worst[span] + series.planned[span])[mask]
        hours += len(short)
        broken += int((short > 0).sum())
        worst = max(worst, float((short / total).max(initial=0.0)))
        stranded += float((np.maximum(series.mean[span][mask] - held, 0) / total).sum())
        if not np.isnan(series.worst[start : start + WEEK_HOURS]).all():
            buffers.append(1 - held / series.total_at(start))
            refused += promise is None
    return Record(
        cluster=series.cluster,
        policy=name,
        horizon_weeks=horizon_weeks,
        hours=hours,
        broken_hours=broken,
        broken_fraction=broken / max(1, hours),
        worst_shortfall_fraction=worst,
        mean_buffer=sum(buffers) / max(1, len(buffers)),
        stranded_fraction=stranded / max(1, hours),
        changes=sum(one != other for one, other in pairwise(weekly[since_week:])),
        refused=refused / max(1, len(buffers)),
    )


# --- one cluster, for a sceptic --------------------------------------------------------------------------


Promised = dict[tuple[str, int, str], list[int | None]]
"""The weekly promises, by cluster, horizon in weeks, and policy."""


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """One cluster's buffer: the promise from now on, and the record of it and of other buffers."""

    series: Series
    horizon_weeks: int
    terms: HealthTerms
    now: Derived
    looser: Derived | None
    """The buffer if ten times as many hours may miss the promise; None: that is the same target."""
    looser_target: Fraction
    records: tuple[Record, ...]
    """The record of `health`, then of fixed buffers of 5, 10, 15 and 20 %."""
    grown_up: Record | None
    """The record of `health` from the week when its history was long enough; None: it is still too short."""
    least: Record | None
    """In hindsight, the smallest fixed buffer (whole percent) that broke no more hours; None: it is above 60 %."""
    below: Record | None
    """The fixed buffer that is one percentage point below `least`; None: there is none."""
    promised: Promised
    today: Today

    def promise(self, derived: Derived) -> int | None:
        """Return the most that may be promised now: by history, and never more than is healthy and not spare."""
        return None if derived.promise is None else min(derived.promise, self.today.most_gpus)


class Today(NamedTuple):
    """The health now, or at the end of a history, and the spare part of it. Units: the series'."""

    healthy: int
    spare: int
    at: datetime | None = None

    @property
    def most_gpus(self) -> int:
        return max(0, self.healthy - self.spare)


def at_the_end(series: Series) -> Today:
    """Return what was healthy in the series' last known hour; one node stays spare."""
    healthy = series.worst[~np.isnan(series.worst)]
    return Today(int(healthy[-1]) if len(healthy) else 0, series.node)


def explain_buffer(
    series: Series, terms: HealthTerms, total: int | None = None, today: Today | None = None
) -> Explained:
    """Return what this cluster can promise from the end of its history on, and the record as evidence.

    `total` and `today`: present values, where they are known better than from the history. Units: the series'.
    """
    looser = terms.model_copy(update={"target": max(Fraction(1, 2), 1 - 10 * (1 - terms.target))})
    total, down = total or series.total_at(len(series.total)), series.down
    weeks = max(1, math.ceil(terms.horizon / timedelta(weeks=1)))
    promised: Promised = {}
    always = flat(_FIXED)

    def record_of(name: str, decide: Decide) -> Record:
        weekly = promises(series, decide, weeks)
        if name == "health" or name in always:
            promised[series.cluster, weeks, name] = weekly
        return record(series, name, weekly, weeks)

    ours = record_of("health", health(terms))
    weekly, young = promised[series.cluster, weeks, "health"], math.ceil(terms.history / timedelta(weeks=1))
    least = _least_fixed(record_of, ours.broken_hours)

    def derive(asked: HealthTerms) -> Derived:
        return derive_buffer(down, total, asked, series.node, unit=series.one)

    return Explained(
        series=series,
        horizon_weeks=weeks,
        terms=terms,
        now=derive(terms),
        looser=None if looser.target == terms.target else derive(looser),
        looser_target=looser.target,
        records=(ours, *(record_of(name, decide) for name, decide in always.items())),
        grown_up=record(series, "health", weekly, weeks, young) if len(weekly) > young else None,
        least=None if least is None else record_of(f"fixed-{least}", fixed_buffer(Fraction(least, 100))),
        below=record_of(f"fixed-{least - 1}", fixed_buffer(Fraction(least - 1, 100))) if least else None,
        promised=promised,
        today=today or at_the_end(series),
    )


def derived_gpus(series: Series, total_gpus: int, gpus_per_node: int, terms: HealthTerms) -> Derived:
    """Derive the buffer of a cluster of this size from a history that counts nodes or GPUs. Units: GPUs."""
    down = series.down * gpus_per_node if series.unit == "nodes" else series.down
    return derive_buffer(down, max(1, total_gpus), terms, gpus_per_node)


def _least_fixed(record_of: Callable[[str, Decide], Record], most_broken: int) -> int | None:
    """Return the smallest whole percent that breaks no more hours; a larger buffer never breaks more."""

    def suffices(percent: int) -> bool:
        return record_of(f"fixed-{percent}", fixed_buffer(Fraction(percent, 100))).broken_hours <= most_broken

    least = bisect_left(range(_MOST_FIXED + 1), True, key=suffices)
    return least if least <= _MOST_FIXED else None
