"""A buffer derived from a cluster's own health history: how much may be promised.

Theory of operation. Unhealthy nodes have two parts. Nodes that stay down (a repair takes days or months) make a level
that the next weeks inherit; on top come surprises: new failures, bursts, a rack. So for each past week the estimator
asks what it would have asked then: the level at that time, and by how much each hour of the following weeks exceeded
that level and today's. The buffer is today's level plus a reserve that covers all surprises but a share of 1 - target.
Nodes that have become part of today's level count once, whether they failed in one night or in twenty weeks. Hours that
no level precedes are compared with the level of the two weeks that they begin: a bad first week is history too.

A short history has seen few surprises, and none of the largest. So it is mixed with a prior that weighs as much as a
quarter of a year: surprises with an exponential tail, whose size grows with the cluster partly as its square root
(independent failures) and partly in proportion (common failures). Where a cluster's own surprises exceed that size,
they are enlarged: the worst one yet to come is usually larger than the worst one so far. The numbers were chosen by
back-test (benchmarks/buffers.py, docs/adr/0017); a broad range of them does equally well.
"""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from models.base import Model
from models.cluster.derived_buffer import TERMS, BufferBasis, Derived, HealthTerms
from models.texts import count_text, verb_of

Hours = npt.NDArray[np.float64]
"""One number for each hour, the oldest first; NaN where it is unknown."""

WEEK_HOURS = 168

_LEVEL_WEEKS = 2
_LAST_HOURS = 24
_OWN_WEEKS = 52
REMEMBERED = timedelta(weeks=_OWN_WEEKS + _LEVEL_WEEKS)
"""The estimator uses no hours older than this."""
_PRIOR_AT = 1000
"""Surprises exceed the prior's size in one hour out of this many."""


class Shape(Model):
    """The estimator's own parameters. They are few, and nobody should need to set them: see docs/adr/0017."""

    level_share: float = 0.5
    """The level is this quantile of what was down in the last two weeks: the median."""
    prior_share: float = 0.02
    """The share of the cluster that fails together in one hour of a thousand, until history shows otherwise."""
    prior_root: float = 0.2
    """Independent failures: this times the square root of the number of nodes, plus one node for rounding."""
    prior_weeks: float = 13
    """The prior weighs as much as this many weeks of history."""
    enlarged: float = 1.25
    """Own surprises are multiplied by the ratio of the largest to the prior's size, if above 1; at most by this."""


SHAPE = Shape()


def derive_buffer(
    down: Hours, total: int, terms: HealthTerms = TERMS, node: int = 1, shape: Shape = SHAPE, unit: str = "GPU"
) -> Derived:
    """Derive how much may be promised for the coming `terms.horizon` from the nodes (or GPUs) that were down.

    Shapes: down (hours,), ending now: the worst instant of each hour, planned absence left out, NaN where unknown.
    Units: `total` and down count nodes or GPUs, which is `unit`; `node` is the size of one node in it.
    Errors: ValueError when total or node is below 1.
    Source: the module's docstring; docs/adr/0017.
    """
    if total < 1 or node < 1:
        raise ValueError(f"total and node must both be at least 1, not {total} and {node}")
    seen = down[~np.isnan(down)]
    floor = total - math.floor((1 - terms.floor) * total)
    if not len(seen):
        return Derived(
            ground=BufferBasis.SHORT,
            terms=terms,
            total=total,
            needed=floor,
            level=0,
            reserve=0,
            known_hours=0,
            worst=0,
            text=f"there is no health history, so the floor of {float(terms.floor):.3g} applies",
        )
    level = _level(down[-_LEVEL_WEEKS * WEEK_HOURS :], shape.level_share)
    # A cluster that has shrunk may have had more down than it has now.
    standing = min(total, math.ceil(seen[-WEEK_HOURS:].max()) if level is None else level)
    reserve = min(total - standing, _reserve(down, standing, total / node, node, terms, shape))
    parts = (
        f"{count_text(standing, unit)} {verb_of(standing, 'has', 'have')} been down most of the time or most of the "
        f"last day, and {reserve} more {verb_of(reserve)} in reserve for new failures"
    )
    ground, needed, text = BufferBasis.HISTORY, standing + reserve, parts
    if gap := _gap_in_history(level, len(seen), terms.history):
        ground, why = gap
        held = f"the floor of {float(terms.floor):.3g}"
        text = (
            f"{why}, and the known hours already ask for more than {held}: {parts}"
            if needed > floor
            else f"{why}, so {held} applies"
        )
        needed = max(floor, needed)
    if needed > terms.most * total:
        size = count_text(total, unit)
        asked = f"{needed} of {size}" if needed < total else f"all {size}"
        most = f"the largest allowed share is {float(terms.most):.3g}"
        text = f"{asked} would have to stay unpromised, and {most}: {text}"
        ground = BufferBasis.WILD
    return Derived(
        ground=ground,
        terms=terms,
        total=total,
        needed=needed,
        level=standing,
        reserve=reserve,
        known_hours=len(seen),
        worst=math.ceil(seen.max()),
        text=text,
    )


def _gap_in_history(level: int | None, known_hours: int, history: timedelta) -> tuple[BufferBasis, str] | None:
    """Return why history is no ground for a buffer; None: it is one."""
    if known_hours < history / timedelta(hours=1):
        return BufferBasis.SHORT, f"only {count_text(known_hours, 'hour')} of health {verb_of(known_hours)} known"
    return (BufferBasis.STALE, "the last two weeks are mostly unknown") if level is None else None


def _level(recent: Hours, share: float) -> int | None:
    """Return this quantile of what was down, over two weeks or the last day if more; None: the two weeks are
    unknown.

    What has been down for most of a day is not over yet, however good the two weeks were.
    """
    samples = recent[~np.isnan(recent)]
    if len(samples) < _LEVEL_WEEKS * WEEK_HOURS // 2:
        return None
    return math.ceil(max(quantile_of(part, share) for part in (samples, samples[-_LAST_HOURS:])))


def quantile_of(samples: Hours, share: float) -> float:
    """Return this quantile, of two middle hours the worse: a value between them occurred in no hour.

    It is numpy's with method="higher", which takes five times as long.
    """
    place = math.ceil((len(samples) - 1) * share)
    return float(np.partition(samples, place)[place])


def _surprises(down: Hours, standing: int, horizon: timedelta, shape: Shape) -> Hours:
    """Return by how much each hour exceeded today's level and that of each weekly decision whose horizon covers it.

    Decisions whose horizon has not ended count with the part that has passed. A decision without history takes the
    level of the two weeks after it, also one before the first hour, so that the first hours weigh as much as others.
    Unordered.
    """
    ahead, memory = max(1, round(horizon / timedelta(hours=1))), _LEVEL_WEEKS * WEEK_HOURS
    weekly = []
    for back in range(WEEK_HOURS, min(len(down) + ahead - 1, _OWN_WEEKS * WEEK_HOURS) + 1, WEEK_HOURS):
        at, first = len(down) - back, max(0, len(down) - back)
        level = _level(down[max(0, first - memory) : first], shape.level_share)
        if level is None:
            level = _level(down[first : first + memory], shape.level_share)
        if level is not None:
            weekly.append(down[first : at + ahead] - max(level, standing))
    surprises = np.concatenate(weekly) if weekly else np.empty(0)
    return np.maximum(surprises[~np.isnan(surprises)], 0)


def _reserve(down: Hours, standing: int, nodes: float, node: int, terms: HealthTerms, shape: Shape) -> int:
    """Return the fewest whole nodes that cover all but 1 - target of the surprises, its own and the prior's."""
    prior = node * (shape.prior_share * nodes + shape.prior_root * math.sqrt(nodes) + 1)
    scale = prior / math.log(_PRIOR_AT)
    misses = float(1 - terms.target)
    own = _surprises(down, standing, terms.horizon, shape)
    own = np.ceil(own * min(shape.enlarged, max(1.0, own.max(initial=0) / prior)))
    weeks = len(own) / max(1, round(terms.horizon / timedelta(hours=1)))
    most = max(int(own.max(initial=0)), math.ceil(scale * math.log(1 / misses)) + 1)
    sizes = np.arange(0, most + node, node)
    seen = np.bincount(np.ceil(own / node).astype(np.int64), minlength=len(sizes))
    beyond = 1 - np.cumsum(seen) / max(1, len(own))
    expected = (weeks * beyond + shape.prior_weeks * np.exp(-sizes / scale)) / (weeks + shape.prior_weeks)
    return int(sizes[np.argmax(expected <= misses)])
