"""A picture of one cluster's week: installed, healthy, assigned and promised GPUs, and the ceiling.

The bands in it are in a list below too: breaches, from the cluster's own archive, and declared windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from models.audit_chain import AuditEntry, AuditKind
from models.cluster.snapshot import Snapshot
from models.cluster.windows import Window
from models.planning.ceiling import ceiling_of
from models.questions import ArchivePage, Plannable
from models.reports.tallies import Point
from models.rollout.stages import Stage
from web.console.pages.gpu_curves import over_text

BACKED_AGAIN = "backed again"
"""The first words of the guard's entry that ends a breach (models/rollout/time_reducers.py)."""
_SERIES = ("installed", "healthy", "ceiling", "assigned", "promise", "phantom")
_ROWS = 14
"""The most rows of the table: the newest."""


class Band(NamedTuple):
    """A marked period. `kind`: a breach, or the window's kind."""

    kind: str
    begins: datetime
    ends: datetime
    text: str
    over: bool


def bands_of(archive: ArchivePage | None, windows: Iterable[Window], since: datetime, now: datetime) -> list[Band]:
    """Return the bands in this time, by their beginning; one that is not over ends now."""
    marked = [Band(w.kind.value, max(w.starts, since), min(w.ends, now), w.reason, w.ends <= now) for w in windows]
    if archive is not None:
        marked += _breaches([row.entry for row in archive.rows], now)
    return sorted(
        (band for band in marked if band.ends > since and band.begins < now), key=lambda band: (band.begins, band.kind)
    )


def _breaches(entries: Sequence[AuditEntry], now: datetime) -> list[Band]:
    """Return the breaches: each begins where the guard reports it, and ends where it is over or the stage changes."""
    bands, begun = list[Band](), list[AuditEntry]()
    for entry in entries:
        if entry.kind is AuditKind.GUARD and entry.data.get("breach"):
            begun.append(entry)
        elif begun and (entry.kind is AuditKind.TRANSITION or entry.text.startswith(BACKED_AGAIN)):
            bands.append(Band("breach", begun[0].at, entry.at, begun[0].text, over=True))
            begun.clear()
    return [*bands, *(Band("breach", first.at, now, first.text, over=False) for first in begun[:1])]


def cluster_curve(
    points: Sequence[Point], archive: ArchivePage | None, plannable: Plannable | None, bands: Sequence[Band]
) -> dict[str, Any] | None:
    """Return the curve. `data`: seconds since 1970, then a row for each series; None for fewer than two points."""
    if len(points) < 2:
        return None
    guarded = _guard_test(archive)
    values = [_values(p, plannable, promised=guarded(p.at)) for p in points]
    rows = [(p.at, *each) for p, each in zip(points, values, strict=True)]
    return {
        "over": over_text(points),
        "names": _SERIES,
        "data": [[int(p.at.timestamp()) for p in points], *map(list, zip(*values, strict=True))],
        "rows": list(reversed(rows[-_ROWS:])),
        "bands": [[band.kind, int(band.begins.timestamp()), int(band.ends.timestamp())] for band in bands],
    }


def _values(point: Point, plannable: Plannable | None, *, promised: bool) -> tuple[int | None, ...]:
    ceiling = None if plannable is None else ceiling_of(_as_of(plannable.snapshot, point), plannable.policy)
    promise = point.promised_gpus if promised else None
    return (point.total_gpus, point.healthy_gpus, ceiling, point.promised_gpus, promise, point.phantom_gpus)


def _as_of(snapshot: Snapshot, point: Point) -> Snapshot:
    """Return the snapshot with that time's size and health, in one island: a ceiling needs only the sums."""
    first = snapshot.islands[0]
    whole = {
        "total_gpus": point.total_gpus,
        "healthy_gpus": min(point.healthy_gpus, point.total_gpus),
        "block_gpus": None,
    }
    return snapshot.model_copy(update={"islands": (first.model_copy(update=whole),)})


def _guard_test(archive: ArchivePage | None) -> Any:
    """Return a function that says whether quotas were promised at a time, by the stages in the archive."""
    passed = [
        (row.entry.at, str(row.entry.data.get("after", "")))
        for row in ([] if archive is None else archive.rows)
        if row.entry.kind is AuditKind.TRANSITION
    ]
    guards = {stage.value for stage in Stage if stage.is_guarded}
    spans = [(at, end) for (at, stage), (end, _) in pairwise(passed) if stage in guards]
    last = passed[-1][0] if passed and passed[-1][1] in guards else None
    return lambda at: any(begin <= at < end for begin, end in spans) or (last is not None and at >= last)
