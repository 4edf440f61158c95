"""The time since which at least as many promised GPUs as today have had no healthy GPU behind them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np

from models.base import Since
from models.buffers.hourly_health import Stretch
from models.cluster.snapshot import Snapshot
from models.planning.placement import PlacementSolver

_SOLVED = 200
"""The most past times for which the backing is computed; earlier times are not judged."""


def find_lacking_since(snapshot: Snapshot, history: Mapping[str, Stretch]) -> Since | None:
    """Return since when as many GPUs as now lack a healthy one; None: none lacks one, or it is unknown.

    `history`: the recent health of each island. Quotas are the snapshot's at all times, and an island counts as last
    seen, as for the guard.
    """
    lacking = _phantom(snapshot)
    since: Since | None = None
    solved = 0
    for at in _changes(snapshot, history):
        then = _at(snapshot, history, at)
        worse = all(
            was.healthy_gpus <= now.healthy_gpus for was, now in zip(then.islands, snapshot.islands, strict=True)
        )
        if not worse:
            if solved == _SOLVED:
                break
            solved += 1
            if _phantom(then) < lacking:
                return None if since is None else since.model_copy(update={"or_earlier": False})
        since = Since(at=datetime.fromtimestamp(at, UTC), or_earlier=True)
    return since if lacking else None


def _phantom(snapshot: Snapshot) -> int:
    """Return the phantom of `back`, without its owners."""
    values = snapshot.values
    return snapshot.tree.assigned_gpus(values) - PlacementSolver(snapshot).best(values)[0]


def _changes(snapshot: Snapshot, history: Mapping[str, Stretch]) -> list[float]:
    """Return every time at which some island changed, the last first; none before all of them are known."""
    with_gpus = [island.name for island in snapshot.islands if island.total_gpus]
    of_each = [history[name].since for name in with_gpus if name in history]
    if len(of_each) < len(with_gpus) or not all(map(len, of_each)) or not of_each:
        return []
    beginning = max(float(since[0]) for since in of_each)
    return sorted({float(at) for since in of_each for at in since if at >= beginning}, reverse=True)


def _at(snapshot: Snapshot, history: Mapping[str, Stretch], at: float) -> Snapshot:
    def healthy(island: str) -> int:
        stretch = history[island]
        return int(stretch.healthy[int(np.searchsorted(stretch.since, at, side="right")) - 1])

    return snapshot.with_islands(
        tuple(i.at_health(min(i.total_gpus, healthy(i.name))) if i.total_gpus else i for i in snapshot.islands)
    )
