"""The hourly health of a cluster, from looks at its islands at any times.

Theory of operation. A look counts until the next look at its island, for an hour at most. So each island is a step
function with holes, and the cluster is their sum wherever none of them has a hole. An hour's worst instant is the
lowest value of this sum; an hour of which less than half is known is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from models.buffers.estimator import Hours
from models.cluster.windows import Window, WindowKind, covered_gpus

STANDS = 3600
"""The number of seconds for which a look at an island counts, unless a later look replaces it."""
_HOUR = 3600


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """One island's state over time, in stretches `since` to `until`, ordered and without overlap.

    The last one ends `STANDS` after the last look. Shapes: (stretches,) each. Units: seconds since 1970; nodes or GPUs.
    `planned`: unhealthy as declared.
    """

    since: Hours
    until: Hours
    total: Hours
    healthy: Hours
    planned: Hours


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Hourly health of one cluster, the oldest first. Each array has the shape (hours,); NaN where an hour is unknown.

    Units: nodes, or GPUs with `node` of them in a node. `worst`: healthy at the hour's worst instant; `mean`: healthy
    on average; `planned`: unhealthy as declared (maintenance), which is nobody's failure. `first`: hours since 1970, or
    as a file without times counts them.
    """

    cluster: str
    total: Hours
    worst: Hours
    mean: Hours
    planned: Hours
    node: int = 1
    unit: Literal["nodes", "gpus"] = "nodes"
    first: int = 0

    @property
    def one(self) -> str:
        """The unit of the counts, in the singular."""
        return "node" if self.unit == "nodes" else "GPU"

    @property
    def down(self) -> Hours:
        """The nodes or GPUs that were unhealthy beyond what was declared, at the worst instant."""
        return np.maximum(self.total - self.worst - self.planned, 0)

    def total_at(self, hour: int) -> int:
        """Return the last size known before the hour; a series' first size counts from its start."""
        sizes = self.total[: max(1, hour)]
        sizes = sizes[~np.isnan(sizes)]
        return int(sizes[-1] if len(sizes) else self.total[~np.isnan(self.total)][0])

    def up_to(self, hour: int) -> Series:
        """Append unknown hours up to this one (hours since 1970)."""
        more = max(0, hour - self.first - len(self.total))
        unknown = np.full(more, np.nan)
        total, worst, mean = (np.append(row, unknown) for row in (self.total, self.worst, self.mean))
        return replace(self, total=total, worst=worst, mean=mean, planned=np.append(self.planned, np.zeros(more)))


def stretches(at: Hours, total: Hours, healthy: Hours, planned: Hours | None = None) -> Stretch:
    """Return the looks at one island as stretches. Shapes: (looks,) each, in order of time. Units: as Stretch."""
    until = np.minimum(np.append(at[1:], np.inf), at + STANDS)
    return Stretch(at, until, total, healthy, np.zeros(len(at)) if planned is None else planned)


def hourly(
    islands: Mapping[str, Stretch],
    windows: Sequence[Window] = (),
    end: float = np.inf,
    there: Collection[str] = (),
    cluster: str = "",
) -> Series | None:
    """Sum up the islands as one cluster, up to `end` (seconds); None if nothing is known of it.

    An island exists from its first stretch to its last, or to the end if it is in `there`: without looks it is then
    unknown, not gone. Missing hardware that declared windows explain counts as planned, as for the guard.
    """
    seen = {name: one for name, one in sorted(islands.items()) if len(one.since)}
    if not seen:
        return None
    # The last look, however far it reaches, counts for its own hour only.
    until = max(float(one.until[-1]) for one in seen.values())
    end = min(end, ((until - STANDS) // _HOUR + 1) * _HOUR, until)
    first = min(float(one.since[0]) for one in seen.values())
    if first >= end:
        return None
    at = _instants(seen, windows, first, end)
    total, healthy, planned = (np.zeros(len(at) - 1) for _ in range(3))
    declared = [w for w in windows if w.kind is not WindowKind.FREEZE]
    gone: dict[str, Hours] = {}
    for name, one in seen.items():
        values = _values_at(one, at[:-1], end if name in there else float(one.until[-1]))
        total += values[0]
        healthy += values[1]
        planned += values[2]
        if declared:
            gone[name] = np.nan_to_num(values[0] - values[1])
    for window in declared:
        planned += _explain_missing(window, gone, at)
    return _by_hour(cluster, at, total, healthy, np.minimum(planned, total - healthy))


def _instants(islands: Mapping[str, Stretch], windows: Sequence[Window], first: float, end: float) -> Hours:
    """Return every time at which something may change, full hours included; the last one is the end."""
    edges = [edge for one in islands.values() for edge in (one.since, one.until)]
    edges.append(np.arange(first // _HOUR, end // _HOUR + 1) * _HOUR)
    edges.append(np.array([t for w in windows for t in (w.starts.timestamp(), w.ends.timestamp())]))
    instants = np.unique(np.concatenate(edges))
    return np.append(instants[(instants >= first) & (instants < end)], end)


def _values_at(one: Stretch, at: Hours, gone: float) -> tuple[Hours, Hours, Hours]:
    """Return total, healthy and planned at these times: zero where there is no island, NaN where it is unknown."""
    last = np.searchsorted(one.since, at, side="right") - 1
    there = (last >= 0) & (at < gone)
    mask = there & (at < one.until[last])
    hole = np.where(there, np.nan, 0.0)
    total, healthy, planned = (np.where(mask, column[last], hole) for column in (one.total, one.healthy, one.planned))
    return total, healthy, planned


def _explain_missing(window: Window, gone: dict[str, Hours], at: Hours) -> Hours:
    """Return how much of `gone` the window explains at these times, and take it out of `gone`."""
    share = np.zeros(len(at) - 1)
    begins, ends = np.searchsorted(at[:-1], (window.starts.timestamp(), window.ends.timestamp()))
    for n in range(begins, ends):
        for name, gpus in covered_gpus(window, {name: int(values[n]) for name, values in gone.items()}).items():
            share[n] += gpus
            gone[name][n] -= gpus
    return share


def _by_hour(cluster: str, at: Hours, total: Hours, healthy: Hours, planned: Hours) -> Series | None:
    mask = total > 0  # false where it is unknown (NaN), or no island exists
    start, lasts = at[:-1][mask], np.diff(at)[mask]
    if not len(start):
        return None
    hour = (start // _HOUR).astype(np.int64)
    hours, begins = np.unique(hour, return_index=True)
    seconds = np.add.reduceat(lasts, begins)
    size, well, away = total[mask], healthy[mask], planned[mask]
    # Counted by missing GPUs: while islands come or go within an hour, their sum is not the cluster's.
    most = np.maximum.reduceat(size, begins)
    missing = np.maximum.reduceat(size - well, begins)
    lacking = np.maximum.reduceat(size - well - away, begins)
    mean = most - np.add.reduceat((size - well) * lasts, begins) / seconds
    enough = seconds * 2 >= _HOUR
    if not enough.any():
        return None
    first = int(hours[enough][0])
    placed = hours[enough] - first

    def row(values: Hours, otherwise: float = np.nan) -> Hours:
        placed_values = np.full(int(placed[-1]) + 1, otherwise)
        placed_values[placed] = values[enough]
        return placed_values

    return Series(cluster, row(most), row(most - missing), row(mean), row(missing - lacking, 0.0), first=first)
