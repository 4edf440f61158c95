"""Reads health history as hours: CSV files of node or GPU counts, gzipped or not, with one cluster or many.

There are two kinds of file. Hourly: one row for each hour, with the lowest and the mean count of healthy units.
Samples: the file that `backstop fleet import --health` takes, a row for each look at a cluster or one of its islands;
a sample holds until the next one, for an hour at most, and a cluster is known where all of its islands are. Hours that
no row covers are unknown, not healthy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from client.inputs.csv_table import LEAVE_OUT, TOO_LATE, CsvTable, latest, says_nothing
from client.inputs.sentences import show_value
from models.buffers.estimator import Hours
from models.buffers.hourly_health import Series, hourly, stretches
from models.errors import BadInput
from models.texts import count_text

_MOST_HOURS = 50 * 366 * 24
_MOST = 10**7


def read_series(path: str | Path, gpus_per_node: int | None = None, now: datetime | None = None) -> tuple[Series, ...]:
    """Return the hours of each cluster in the file, in the order of their names. `now`: this moment.

    Units: the file's, nodes or GPUs; `gpus_per_node` says how many GPUs fail together where it counts GPUs (8). Columns
    that name no unit count GPUs where `gpus_per_node` is given, else nodes.
    Errors: BadInput naming file, line, column and value.
    """
    return _Histories(CsvTable.read(path), gpus_per_node, latest(now)).series()


@dataclass
class _Rows:
    """The cells of one cluster, column by column."""

    lines: list[int] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)


class _Histories:
    """Reads one CSV into series."""

    def __init__(self, table: CsvTable, gpus_per_node: int | None, latest: float) -> None:
        self._table = table
        self._gpus_per_node = gpus_per_node
        self._latest = latest

    def series(self) -> tuple[Series, ...]:
        self._columns(self._table.columns)
        clusters: dict[str, _Rows] = {}
        stem = Path(self._table.name).name.split(".")[0]
        for row in self._table.rows():
            cluster = row[self._at["cluster"]].strip() if "cluster" in self._at else stem
            rows = clusters.get(cluster)
            if rows is None:
                if not cluster:
                    raise self._table.bad("cluster is missing")
                rows = clusters[cluster] = _Rows()
            rows.lines.append(self._table.line)
            rows.cells.append(row)
        make = self._hourly if "healthy_min" in self._at else self._from_samples
        return tuple(make(cluster, clusters[cluster]) for cluster in sorted(clusters))

    def _columns(self, header: list[str]) -> None:
        columns = ", ".join(header)
        ways = [of for of in ("_nodes", "_gpus", "") if f"total{of}" in header]
        if len(ways) != 1:
            wanted = "exactly one of the columns total_nodes, total_gpus and total"
            raise self._table.bad(f"{wanted} is needed; the file has the columns {columns}")
        of = ways[0]
        counts_gpus = of == "_gpus" or (not of and self._gpus_per_node is not None)
        self._unit: Literal["nodes", "gpus"] = "gpus" if counts_gpus else "nodes"
        self._node = 1 if self._unit == "nodes" else self._gpus_per_node or 8
        if self._unit == "nodes" and self._gpus_per_node is not None:
            raise BadInput(f"{self._table.name} counts nodes: leave --gpus-per-node out")
        spelt = {f"total{of}": "total", f"healthy{of}_min": "healthy_min", f"healthy{of}_mean": "healthy_mean"}
        spelt |= {f"healthy{of}": "healthy", f"planned{of}": "planned", "cluster": "cluster", "island": "island"}
        spelt |= {"hour": "hour", "ts": "time", "time": "time"}
        self._at = {spelt[column]: n for n, column in enumerate(header) if column in spelt}
        self._spelt = {meaning: column for column, meaning in spelt.items() if column in header}
        if "hour" not in self._at and "time" not in self._at:
            raise self._table.bad(f"one of the columns hour, ts and time is needed; the file has the columns {columns}")
        if "healthy_min" not in self._at and "healthy" not in self._at:
            raise self._table.bad(
                f"column healthy{of}_min or healthy{of} is needed; the file has the columns {columns}"
            )

    def _hourly(self, cluster: str, rows: _Rows) -> Series:
        hours = self._hours(rows)
        order = np.argsort(hours, kind="stable")
        twice = np.flatnonzero(np.diff(hours[order]) == 0)
        if len(twice):
            first, second = sorted((rows.lines[order[twice[0]]], rows.lines[order[twice[0] + 1]]))
            raise self._table.bad(
                f"this hour of cluster {show_value(cluster)} is given twice, first in line {first}", second
            )
        total = self._counts("total", rows)
        worst = self._counts("healthy_min", rows)
        mean = self._numbers("healthy_mean", rows) if "healthy_mean" in self._at else worst
        planned = self._counts("planned", rows) if "planned" in self._at else np.zeros(len(hours))
        self._check(rows, total, worst, planned)
        self._refuse(
            rows,
            (mean < worst - 1e-6) | (mean > total + 1e-6),
            "healthy_mean",
            "must be between the minimum and the total",
        )
        return self._place(cluster, hours, total, worst, mean, planned, rows)

    def _from_samples(self, cluster: str, rows: _Rows) -> Series:
        times = self._times(rows)
        total, healthy = self._counts("total", rows), self._counts("healthy", rows)
        planned = self._counts("planned", rows) if "planned" in self._at else np.zeros(len(times))
        self._check(rows, total, healthy, planned)
        self._once(cluster, rows, times)
        islands = np.array(self._column("island", rows) if "island" in self._at else [""] * len(times))
        looked = {}
        for island in np.unique(islands):
            own = np.flatnonzero(islands == island)
            own = own[np.argsort(times[own])]
            looked[str(island)] = stretches(times[own], total[own], healthy[own], planned[own])
        self._check_span(cluster, int(np.ptp(times) / 3600) + 1, rows.lines[int(times.argmax())])
        series = hourly(looked, cluster=cluster)
        if series is None:
            raise self._table.bad(
                f"cluster {show_value(cluster)} has no hour with known health for at least half of it", rows.lines[0]
            )
        return replace(series, node=self._node, unit=self._unit)

    # --- cells ------------------------------------------------------------------------------------

    def _column(self, meaning: str, rows: _Rows) -> list[str]:
        at = self._at[meaning]
        return [cells[at] for cells in rows.cells]

    def _numbers(self, meaning: str, rows: _Rows) -> Hours:
        """Return the column as numbers from zero to `_MOST`."""
        cells = self._column(meaning, rows)
        try:
            numbers = np.array(cells, dtype=np.float64)
        except ValueError:
            numbers = np.array([_number(cell) for cell in cells])
        nothing = np.array([says_nothing(cell) for cell in cells]) if np.isnan(numbers).any() else np.isnan(numbers)
        self._refuse(rows, nothing, meaning, LEAVE_OUT)
        self._refuse(rows, ~((numbers >= 0) & (numbers <= _MOST)), meaning, f"must be a number from 0 to {_MOST:,}")
        return numbers

    def _counts(self, meaning: str, rows: _Rows) -> Hours:
        counts = self._numbers(meaning, rows)
        self._refuse(rows, counts != np.floor(counts), meaning, "must be a whole number")
        return counts

    def _hours(self, rows: _Rows) -> npt.NDArray[np.int64]:
        if "hour" in self._at:
            return self._counts("hour", rows).astype(np.int64)
        times = self._times(rows)
        self._refuse(rows, times % 3600 != 0, "time", "must be a whole hour")
        return (times // 3600).astype(np.int64)

    def _times(self, rows: _Rows) -> Hours:
        """Return the seconds of each row; a time without a zone is taken as UTC."""
        if "time" not in self._at:
            return self._counts("hour", rows) * 3600.0
        times = np.array([_seconds(cell) for cell in self._column("time", rows)])
        self._refuse(rows, np.isnan(times), "time", "must be a time such as 2026-01-31T12:00:00Z")
        self._refuse(rows, times > self._latest, "time", TOO_LATE)
        return times

    def _check(self, rows: _Rows, total: Hours, healthy: Hours, planned: Hours) -> None:
        least = "healthy_min" if "healthy_min" in self._at else "healthy"
        self._refuse(rows, total < 1, "total", "must be at least 1")
        self._refuse(rows, healthy > total, least, "is more than the total")
        self._refuse(rows, planned > total, "planned", "is more than the total")

    def _once(self, cluster: str, rows: _Rows, times: Hours) -> None:
        islands = self._column("island", rows) if "island" in self._at else [""] * len(times)
        first: dict[tuple[float, str], int] = {}
        for time, island, line in zip(times.tolist(), islands, rows.lines, strict=True):
            earlier = first.setdefault((time, island), line)
            if earlier != line:
                raise self._table.bad(
                    f"this time of cluster {show_value(cluster)} is given twice, first in line {earlier}", line
                )

    def _place(
        self,
        cluster: str,
        hours: npt.NDArray[np.int64],
        total: Hours,
        worst: Hours,
        mean: Hours,
        planned: Hours,
        rows: _Rows,
    ) -> Series:
        """Return the values at their hours; hours between them are unknown."""
        first = int(hours.min())
        length = int(hours.max()) - first + 1
        self._check_span(cluster, length, rows.lines[int(hours.argmax())])
        at = hours - first

        def place(values: Hours) -> Hours:
            row = np.full(length, np.nan)
            row[at] = values
            return row

        absent = np.zeros(length)
        absent[at] = planned
        return Series(cluster, place(total), place(worst), place(mean), absent, self._node, self._unit, first)

    def _check_span(self, cluster: str, hours: int, line: int) -> None:
        """Refuse a time span that is so long that the file is probably wrong. Errors: BadInput."""
        if hours > _MOST_HOURS:
            raise self._table.bad(
                f"cluster {show_value(cluster)} spans {count_text(hours, 'hour')}: more than fifty years", line
            )

    # --- faults -----------------------------------------------------------------------------------

    def _refuse(self, rows: _Rows, wrong: npt.NDArray[np.bool_], meaning: str, what: str) -> None:
        """Raise BadInput about the first row that is wrong."""
        if wrong.any():
            row = int(np.argmax(wrong))
            value = show_value(rows.cells[row][self._at[meaning]].strip())
            raise self._table.bad(f"{self._spelt[meaning]} {what}: {value}", rows.lines[row])


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _seconds(cell: str) -> float:
    try:
        at = datetime.fromisoformat(cell.strip())
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return math.nan
