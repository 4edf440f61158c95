"""Means of tallies over spans of time: from sums of days as far as these reach, from the tallies at the edges.

Days that are summed up cannot change, so they are added up once; the tallies after them are read at each look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from activities.adapters.ledger.bulk import Row, as_json, rows_of
from activities.adapters.ledger.tally_days import LONGEST_SLOT, day_from, is_monitored, lacking_and_phantom
from models.base import DAY
from models.columns import NameText, UtcTime
from models.ledger_tables import TallyDayRow, TallyRow
from models.reports.tallies import slot_of
from models.reports.weekly import Mean, Span

_MOST_KEPT = 20_000


class _Sum(NamedTuple):
    """Sums over tallies of one cluster; the columns of `tally_days`."""

    tallies: int
    first_at: datetime
    last_at: datetime
    lacking_known: int
    lacking_gpus: int
    phantom_known: int
    phantom_gpus: int


class _Part(NamedTuple):
    """The tallies of a span whose slots begin from `early` to `over`; `days`: its days that are summed up."""

    span: Span
    early: datetime
    over: datetime
    days: tuple[datetime, datetime] | None = None
    of: tuple[object, ...] | None = None
    """The total of its cluster's sums, if they cover all of this part: it changes only with them."""

    @property
    def key(self) -> tuple[object, ...]:
        """The key under which its sum is kept.

        If the span goes on after this part, all of the part's tallies were read in the span, however far that goes.
        """
        one = self.span
        return one.cluster, self.early, self.over, self.over == one.until, one.monitored, self.of

    @property
    def row(self) -> Row:
        one = self.span
        start, end = self.days or (None, None)
        seen = {"cluster": one.cluster, "monitored": one.monitored, "since": one.since, "until": one.until}
        return {**seen, "early": self.early, "over": self.over, "start": start, "end": end}


class TallyMeans:
    """Computes means, and keeps sums in this process by the totals of their clusters: a late tally changes those."""

    def __init__(self) -> None:
        self._past: dict[tuple[object, ...], _Sum | None] = {}

    def means_of(self, session: Session, spans: Sequence[Span], since: datetime) -> list[Mean | None]:
        """Return the mean of each span. Sums of days before `since` are not used."""
        summed = _summed_days(session, since)
        parts = [_parts(span, summed.get(span.cluster)) for span in spans]
        sums = self._sums(session, [part for of_one in parts for part in of_one])
        return [_mean([one for _ in of_one if (one := next(sums)) is not None]) for of_one in parts]

    def _sums(self, session: Session, parts: Sequence[_Part]) -> Iterator[_Sum | None]:
        past = self._past = self._past if len(self._past) < _MOST_KEPT else {}
        new = [number for number, part in enumerate(parts) if part.of is None or part.key not in past]
        read = dict(zip(new, _read(session, [parts[n] for n in new]), strict=True))
        past |= {parts[n].key: one for n, one in read.items() if parts[n].of is not None}
        return (read[n] if n in read else past[part.key] for n, part in enumerate(parts))


class _Summed(NamedTuple):
    """The first and last summed day of a cluster, and the total of its sums."""

    first: datetime
    last: datetime
    total: tuple[int, ...]


def _summed_days(session: Session, since: datetime) -> Mapping[str, _Summed]:
    at, counts = col(TallyDayRow.at), (TallyDayRow.tallies, TallyDayRow.lacking_gpus, TallyDayRow.phantom_gpus)
    totals = (sa.func.sum(col(count)) for count in counts)
    rows = sa.select(col(TallyDayRow.cluster), sa.func.min(at), sa.func.max(at), *totals).where(at >= since)
    reach = session.connection().execute(rows.group_by(col(TallyDayRow.cluster)))
    return {cluster: _Summed(first, last + DAY, tuple(map(int, total))) for cluster, first, last, *total in reach}


def _parts(span: Span, summed: _Summed | None) -> list[_Part]:
    """Divide the span into the days that are summed up and the tallies after them."""
    # The slot of a tally that was read in the span may begin before it: the key is by slots.
    early = span.since - LONGEST_SLOT
    rest = _Part(span, early, span.until)
    if summed is None:
        return [rest]
    # All tallies of these days were read in the span.
    first, last, total = summed
    start, end = max(first, day_from(span.since)), min(last, slot_of(span.until - LONGEST_SLOT, DAY))
    over = span.until if span.until <= last else end
    if over <= early:
        return [rest]
    days = (start, end) if start < end else None
    past = _Part(span, early, over, days, (first, *total) if first <= early else None)
    return [past] if over == span.until else [past, _Part(span, over, span.until)]


def _mean(sums: Sequence[_Sum]) -> Mean | None:
    if not sums:
        return None
    asking, lacking = sum(one.lacking_known for one in sums), sum(one.lacking_gpus for one in sums)
    sure, phantom = sum(one.phantom_known for one in sums), sum(one.phantom_gpus for one in sums)
    return Mean(
        tallies=sum(one.tallies for one in sums),
        since=min(one.first_at for one in sums),
        until=max(one.last_at for one in sums),
        lacking_gpus=lacking / asking if asking else None,
        phantom_gpus=phantom / sure if sure else None,
    )


def _read(session: Session, parts: Sequence[_Part]) -> list[_Sum | None]:
    """Read the sum of each part, in order; None if it has no tally."""
    asked = [{"n": number, **part.row} for number, part in enumerate(parts)]
    sums: list[_Sum | None] = [None] * len(parts)
    if asked:
        statement = _select_sums(session.get_bind().dialect.name)
        for n, tallies, first_at, last_at, *gpus in session.connection().execute(
            statement, {"parts": as_json(session, asked)}
        ):
            sums[n] = _Sum(int(tallies), first_at, last_at, *(int(count or 0) for count in gpus))
    return sums


@cache
def _select_sums(dialect: str) -> Any:
    times = dict.fromkeys(("since", "until", "early", "start", "end", "over"), UtcTime())
    asked = rows_of(dialect, "parts", n=sa.Integer(), cluster=NameText(), monitored=sa.Boolean(), **times).c
    at, seen, day = col(TallyRow.at), col(TallyRow.seen_at), TallyDayRow
    lacking, phantom = lacking_and_phantom()
    one = sa.select(
        asked.n,
        sa.literal_column("1").label("tallies"),
        seen.label("first_at"),
        seen.label("last_at"),
        sa.case((lacking.is_not(None), 1), else_=0).label("lacking_known"),
        lacking.label("lacking_gpus"),
        sa.case((phantom.is_not(None), 1), else_=0).label("phantom_known"),
        phantom.label("phantom_gpus"),
    ).where(
        col(TallyRow.cluster) == asked.cluster,
        seen >= asked.since,
        seen < asked.until,
        sa.or_(~asked.monitored, is_monitored()),
    )
    of_days = sa.select(asked.n, *(col(getattr(day, name)) for name in _Sum._fields)).where(
        col(day.cluster) == asked.cluster,
        col(day.at) >= asked.start,
        col(day.at) < asked.end,
        sa.or_(~asked.monitored, col(day.monitored)),
    )
    before = one.where(at >= asked.early, at < sa.func.coalesce(asked.start, asked.over))
    after = one.where(at >= asked.end, at < asked.over)
    both = sa.union_all(before, of_days, after).subquery().c
    sums = (sa.func.sum(both[name]) for name in _Sum._fields[3:])
    seen_from, seen_to = sa.func.min(both.first_at), sa.func.max(both.last_at)
    return sa.select(both.n, sa.func.sum(both.tallies), seen_from, seen_to, *sums).group_by(both.n)
