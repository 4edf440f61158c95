"""The curve of phantom GPUs for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from rich.console import RenderableType
from rich.text import Text

from models.questions import Arrival
from models.reports.tallies import Point
from models.texts import some_of
from views.csv_out import csv_text
from views.words import count, gpus, line, moment, none_of, row, table

_WIDTH = 32
_AGREE = timedelta(hours=1)
"""Readings at most this far apart count as one time: each cluster is tallied this often."""
_FIELDS = tuple(Point.model_fields)


def burndown_parts(
    points: Sequence[Point],
    cluster: str,
    began: datetime | None,
    since: datetime,
    of: int = 0,
    arrived: Sequence[Arrival] = (),
) -> list[RenderableType]:
    """Return a sentence, then a line for each time with a bar for its phantom GPUs. `of`: how many times there are."""
    if of and not points:
        return [none_of(of, "time")]
    if not points:
        return [line(_nothing(cluster, began, since))]
    most = max(point.phantom_gpus for point in points)
    asked = any(point.lacking_gpus is not None for point in points)
    carried = any(_is_carried(point) for point in points)
    rows = table(
        "=READ AT",
        *(["=OLDEST"] if carried else []),
        ">CLUSTERS",
        ">PROMISED",
        ">HEALTHY",
        ">PHANTOM",
        *([">WAITING"] if asked else []),
        "=PHANTOM GPUS",
        least=("OLDEST", "CLUSTERS", "WAITING", "HEALTHY", "PROMISED"),
    )
    for point in points:
        row(
            rows,
            f"{point.at:%Y-%m-%d %H:%MZ}",
            *([f"{point.oldest_at:%m-%d %H:%MZ}" if _is_carried(point) else None] if carried else []),
            point.clusters if point.known == point.clusters else f"{point.known} of {point.clusters}",
            point.promised_gpus if point.known else None,
            point.healthy_gpus if point.known else None,
            point.phantom_gpus if point.known else None,
            *([point.lacking_gpus] if asked else []),
            "#" * (-(-point.phantom_gpus * _WIDTH // most) if most else 0) if point.known else "unknown",
        )
    notes = []
    if carried:
        notes.append(line("Oldest: the time of the oldest figure; a cluster without a newer one counts with its last."))
    if arrived:
        came = some_of([f"{a.cluster} ({gpus(a.gpus)}, {moment(a.at)})" for a in arrived], 5)
        notes.append(line(f"New clusters, from bring-ups: {came}."))
    late = _late_health(max(points, key=lambda point: point.at))
    if late:
        notes.append(line(late))
    if any(point.known < point.clusters for point in points):
        notes.append(line("Clusters with unknown health are left out of the sums."))
    if asked:
        notes.append(
            line("Waiting: GPUs that jobs inside a quota ask for and no healthy GPU can serve, as far as known.")
        )
    in_time = sorted(points, key=lambda point: point.at)
    return [line(_sentence(in_time, cluster)), Text(), rows, *([Text(), *notes] if notes else [])]


def _sentence(points: Sequence[Point], cluster: str) -> str:
    measured = [p for p in points if p.known]
    where = cluster or "the fleet"
    if not measured:
        return f"The health of {where} was not known at any of these times."
    first, last = measured[0], measured[-1]
    most = max(p.phantom_gpus for p in measured)
    if len(measured) == 1:
        change = "the only time with known health"
    else:
        less = first.phantom_gpus - last.phantom_gpus
        than = f"{abs(less):,} {'fewer' if less > 0 else 'more'} than" if less else "as many as"
        change = f"{than} on {moment(first.at)}"
        if first.known != last.known:
            change += f" ({count(first.known, 'cluster')} then, {last.known} now)"
        elif not first.is_of_same(last):
            change += " (then for other clusters)"
        if most > max(first.phantom_gpus, last.phantom_gpus):
            change += f"; in between there were up to {most}"
    return (
        f"On {moment(last.at)} {last.phantom_gpus:,} of {count(last.promised_gpus, 'promised GPU')} in {where} had no "
        f"healthy GPU behind {'it' if last.phantom_gpus == 1 else 'them'}, {change}."
    )


def _is_carried(point: Point) -> bool:
    return point.oldest_at is not None and point.at - point.oldest_at > _AGREE


def _late_health(point: Point) -> str:
    """Say that the last figures use health that is older than their reading."""
    if point.health_at is None or point.oldest_at is None or point.oldest_at - point.health_at <= _AGREE:
        return ""
    return f"The last line uses the last known health of each cluster; the oldest is from {moment(point.health_at)}."


def _nothing(cluster: str, began: datetime | None, since: datetime) -> str:
    where = f" of {cluster}" if cluster else ""
    if began is None:
        return f"There is no tally{where} yet: the watch writes the first soon after a cluster's import."
    first = f"The first tally is from {moment(began)}."
    return f"There is no tally{where} since {moment(since)}: see `backstop doctor`. {first}"


def as_csv(points: Sequence[Point]) -> str:
    """Return a line for each time. Unknown values are empty."""
    rows = ([p.at.isoformat(), *(getattr(p, name) for name in _FIELDS if name != "at")] for p in points)
    return csv_text([_FIELDS, *rows])
