"""Reads health samples: a CSV with a row for each look at a cluster or one of its islands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from client.inputs.csv_table import LEAVE_OUT, TOO_LATE, CsvTable, latest, says_nothing
from client.inputs.sentences import first_problem
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.errors import BadInput

_NEEDED = ("cluster", "time", "total_gpus", "healthy_gpus")
_OPTIONAL = ("island", "block_gpus")
_COUNTS = ("total_gpus", "healthy_gpus", "block_gpus")


def read_health(
    path: str | Path,
    clusters: Sequence[ClusterSpec],
    now: datetime | None = None,
    left_out: dict[str, str] | None = None,
) -> tuple[HealthSample, ...]:
    """Return the samples of a health CSV by time, then cluster: one for each cluster and time.

    A row without an island (the column may be absent) counts for its cluster's only island. `now`: this moment.
    `left_out`: takes each cluster that has a wrong row, with the fault; all rows of such a cluster are left out.
    Without it, and where no cluster is left, the first such row is refused. Errors: BadInput.
    """
    end = latest(now)
    table = CsvTable.read(path, _NEEDED, _OPTIONAL)
    names = {cluster.name: tuple(island.name for island in cluster.islands) for cluster in clusters}
    lines: dict[tuple[datetime, str, str], int] = {}
    looks: dict[tuple[datetime, str], list[Island]] = {}
    wrong: dict[str, BadInput] = {}
    for row in table.records():
        try:
            at, island = _instant_of(table, row, end), _island(table, row, names)
            earlier = lines.setdefault((at, row["cluster"], island.name), table.line)
            if earlier != table.line:
                what = f"island {island.name!r} of {row['cluster']} at {row['time']}"
                raise table.bad(f"{what} is given twice, first in line {earlier}")
        except BadInput as error:
            if left_out is None:
                raise
            wrong.setdefault(row["cluster"], error)
            continue
        looks.setdefault((at, row["cluster"]), []).append(island)
    samples = tuple(
        HealthSample(cluster=cluster, at=at, islands=tuple(sorted(islands, key=lambda i: i.name)))
        for (at, cluster), islands in sorted(looks.items())
        if cluster not in wrong
    )
    if wrong and not samples:
        raise next(iter(wrong.values()))
    if left_out is not None:
        left_out.update({cluster: error.message for cluster, error in wrong.items()})
    return samples


def _instant_of(table: CsvTable, row: Mapping[str, str], end: float) -> datetime:
    try:
        at = _instant(row["time"])
    except ValueError as error:
        raise table.bad(f"time {error}") from None
    if at.timestamp() > end:
        raise table.bad(f"time {TOO_LATE}: {row['time']!r}")
    return at


def _island(table: CsvTable, row: Mapping[str, str], names: Mapping[str, tuple[str, ...]]) -> Island:
    cluster, island = row["cluster"], row.get("island", "")
    if cluster not in names:
        raise table.bad(f"cluster {cluster!r} is not in the fleet")
    own = names[cluster]
    if island and island not in own:
        raise table.bad(f"island {island!r} is not in cluster {cluster}, whose islands are {', '.join(own)}")
    if not island and len(own) > 1:
        raise table.bad(f"island is missing, but cluster {cluster} has several: name one of {', '.join(own)}")
    for column in _COUNTS:
        if row.get(column) and says_nothing(row[column]):
            raise table.bad(f"{column} {LEAVE_OUT}: {row[column]!r}")
    counts = {column: table.count(column, row[column]) for column in _COUNTS if row.get(column)}
    try:
        return Island.model_validate({"name": island or own[0], **counts})
    except ValidationError as error:
        raise table.bad(first_problem(error, counts).text) from None


@lru_cache(4096)
def _instant(text: str) -> datetime:
    """Parse a time. Errors: ValueError with a text that goes on after the column's name."""
    try:
        at = datetime.fromisoformat(text)
        instant = at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"must be a date and time such as 2026-01-31T12:00:00Z, not {text!r}") from None
    if at.tzinfo is None:
        raise ValueError(f"needs a time zone (for example a final Z): {text!r}")
    return instant
