"""The record of buffer policies for people, and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from models.buffers.backtest import Promised, Record
from models.buffers.estimator import WEEK_HOURS
from models.buffers.hourly_health import Series
from views.csv_out import csv_text
from views.words import count, line, row, table

_FIELDS = tuple(Record.model_fields)
_DECISION = ("cluster", "policy", "horizon_weeks", "hour", "until_hour", "total", "promise")
HEADINGS = ("POLICY", "BROKEN H", "BROKEN", "WORST", "BUFFER", "STRANDED", "CHANGES", "REFUSED")


def parts(records: Sequence[Record], series: Sequence[Series]) -> list[RenderableType]:
    """Return a table for each cluster and horizon, with a line for each policy."""
    hours = {one.cluster: (int((~np.isnan(one.worst)).sum()), len(one.worst)) for one in series}
    shown: list[RenderableType] = []
    for (cluster, horizon), group in groupby(records, key=lambda record: (record.cluster, record.horizon_weeks)):
        rows = list(group)
        length_known, whole = hours[cluster]
        unknown = f" ({whole - length_known:,} more unknown)" if whole > length_known else ""
        held = f", each tested against up to {horizon} promises" if horizon > 1 else ""
        shown += [Text()] if shown else []
        shown.append(
            line(
                (cluster, "bold"),
                f", promises for {count(horizon, 'week')}: {count(length_known, 'known hour')}{unknown}{held}",
            )
        )
        grid = table("=POLICY", *(f">{h}" for h in HEADINGS[1:]), least=("CHANGES", "REFUSED"))
        for record in rows:
            row(grid, *cells(record))
        shown.append(grid)
    notes = (
        "Broken: hours in which health fell below the promise, if only for a moment; an hour that several promises "
        "cover counts once for each. Stranded: the share of the cluster that was healthy but not promised."
    )
    return [*shown, Text(), line(notes)]


def cells(record: Record) -> tuple[object, ...]:
    return (
        record.policy,
        record.broken_hours,
        percent(record.broken_fraction),
        percent(record.worst_shortfall_fraction),
        percent(record.mean_buffer),
        percent(record.stranded_fraction),
        record.changes,
        f"{100 * record.refused:.0f}%",
    )


def percent(fraction: float) -> str:
    """Return a share as 0%, 0.004%, 0.25%, 12.3%: only zero reads as zero."""
    if not fraction:
        return "0%"
    value = 100 * fraction
    return f"{value:.1f}%" if value >= 1 else f"{value:.2g}%"


def decisions_csv(series: Sequence[Series], promised: Promised) -> str:
    """Return a line for each week's decision: the size that it saw, its promise, and the hours that it covers.

    Hours count as in the file, or from 1970 if the file has times; `until_hour` is the first hour after the promise.
    An empty promise: none.
    """
    rows: list[Sequence[object]] = [_DECISION]
    by_name = {one.cluster: one for one in series}
    for (cluster, horizon, policy), weekly in promised.items():
        one = by_name[cluster]
        for week, promise in enumerate(weekly):
            start = week * WEEK_HOURS
            hour = one.first + start
            size = one.total_at(start)
            shown = "" if promise is None else promise
            rows.append([cluster, policy, horizon, hour, hour + horizon * WEEK_HOURS, size, shown])
    return csv_text(rows)


def as_csv(records: Sequence[Record]) -> str:
    """Return all figures, a line for each record."""
    return csv_text([_FIELDS, *([getattr(record, name) for name in _FIELDS] for record in records)])
