"""The curve of phantom GPUs as people read it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.text import Text

from cli.output import gpus, line, moment, row, table
from models.reports.tallies import Point

_WIDTH = 32
_FIELDS = tuple(Point.model_fields)


def burndown_parts(
    points: Sequence[Point], cluster: str, began: datetime | None, since: datetime
) -> list[RenderableType]:
    """A sentence, then a line for each time with a bar for its phantom GPUs."""
    if not points:
        return [line(_nothing(cluster, began, since))]
    most = max(p.phantom_gpus for p in points)
    asked = any(p.lacking_gpus is not None for p in points)
    rows = table(
        "=TIME", ">CLUSTERS", ">PROMISED", ">HEALTHY", ">PHANTOM", *([">WAITING"] if asked else []), "=PHANTOM GPUS"
    )
    for p in points:
        row(
            rows,
            f"{p.at:%Y-%m-%d %H:%MZ}",
            p.clusters if p.known == p.clusters else f"{p.known} of {p.clusters}",
            p.promised_gpus if p.known else None,
            p.healthy_gpus if p.known else None,
            p.phantom_gpus if p.known else None,
            *([p.lacking_gpus] if asked else []),
            "#" * (-(-p.phantom_gpus * _WIDTH // most) if most else 0) if p.known else "unknown",
        )
    notes = []
    if any(p.known < p.clusters for p in points):
        notes.append(line("Clusters whose health nobody knew are left out of the sums."))
    if asked:
        notes.append(
            line("Waiting: GPUs asked for inside a quota that no healthy GPU could run, as far as it is known.")
        )
    return [line(_sentence(points, cluster)), Text(), rows, *([Text(), *notes] if notes else [])]


def _sentence(points: Sequence[Point], cluster: str) -> str:
    measured = [p for p in points if p.known]
    where = cluster or "the fleet"
    if not measured:
        return f"The health of {where} was not known at any of these times."
    first, last = measured[0], measured[-1]
    if first.phantom_gpus == last.phantom_gpus:
        change = "as many as then" if len(measured) > 1 else "at the only time that is known"
    else:
        less = first.phantom_gpus - last.phantom_gpus
        change = f"{gpus(abs(less))} {'fewer' if less > 0 else 'more'} than on {moment(first.at)}"
    return (
        f"{gpus(last.phantom_gpus)} of {last.promised_gpus} promised in {where} "
        f"{'has' if last.phantom_gpus == 1 else 'have'} no healthy GPU behind, {change}."
    )


def _nothing(cluster: str, began: datetime | None, since: datetime) -> str:
    where = f" of {cluster}" if cluster else ""
    if began is None:
        return f"There is no tally{where} yet: the watch writes a cluster's first within a minute or two of its import."
    return (
        f"There is no tally{where} since {moment(since)}: look at `backstop doctor`. The first is of {moment(began)}."
    )


def as_csv(points: Sequence[Point]) -> str:
    """A line for each time. What is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_FIELDS)
    for p in points:
        writer.writerow([p.at.isoformat(), *(getattr(p, name) for name in _FIELDS if name != "at")])
    return out.getvalue()
