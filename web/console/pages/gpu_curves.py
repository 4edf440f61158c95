"""Data of the pictures that the browser draws, and a table with the same figures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from models.page_questions import curve_question
from models.reports.tallies import Point, of_same
from views.words import count
from web.console.visit import Visit

_SERIES = (
    ("installed", "total_gpus"),
    ("healthy", "healthy_gpus"),
    ("promised", "promised_gpus"),
    ("phantom", "phantom_gpus"),
)
_ROWS = 14
"""The most rows of the table: the newest."""


async def tallied_points(visit: Visit, length: timedelta, points: int, cluster: str = "") -> tuple[list[Point], str]:
    """Return the points with a tally, oldest first; and why there are none. Without `cluster`: the fleet's."""
    curve, why = await visit.try_ask(curve_question(visit.now, length, points, cluster))
    if curve is None:
        return [], why
    known_points = [point for point in curve.points if point.known]
    return known_points, "" if known_points else "no tally is known yet"


def over_text(points: Sequence[Point]) -> str:
    """Return how much time the points cover, which may be less than was asked for."""
    length = points[-1].at - points[0].at
    units = {"day": timedelta(days=1), "hour": timedelta(hours=1), "minute": timedelta(minutes=1)}
    what = next((what for what, unit in units.items() if length >= unit), "minute")
    return count(round(length / units[what]), what)


def burn_down_of(points: Sequence[Point]) -> dict[str, Any] | None:
    """Return phantom GPUs alone: beside installed ones they would be invisible. None for fewer than two points."""
    return curve_of(points, (("phantom", "phantom_gpus"),))


def _series_of(points: Sequence[Point], fields: Sequence[str]) -> list[list[int | None]]:
    """Return seconds since 1970, then a row for each field; a gap where the sums begin to cover other clusters."""
    times: list[int | None] = []
    rows: list[list[int | None]] = [[] for _ in fields]
    for number, stretch in enumerate(of_same(points)):
        at = [int(p.at.timestamp()) for p in stretch]
        times += [at[0] - 1, *at] if number else at
        for row, field in zip(rows, fields, strict=True):
            row += [*([None] if number else []), *(getattr(p, field) for p in stretch)]
    return [times, *rows]


def curve_of(points: Sequence[Point], series: Sequence[tuple[str, str]] = _SERIES) -> dict[str, Any] | None:
    """Return a curve; None for under two points. `data`: seconds since 1970, then a row for each (name, field)."""
    if len(points) < 2:
        return None
    return {
        "over": over_text(points),
        "names": [name for name, _ in series],
        "data": _series_of(points, [field for _, field in series]),
        "rows": [(p.at, *(getattr(p, field) for _, field in series)) for p in reversed(points[-_ROWS:])],
    }
