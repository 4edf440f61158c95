"""Means of tallies over spans of time: from sums of days as far as these reach, from the tallies at the edges.

Days that are summed up cannot change, so they are added up once. The means themselves are kept until a tally is added
or goes: tallies are inserted and deleted, never changed (ADR 116).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from activities.adapters.ledger.bulk import Row, as_json, is_among, rows_of
from activities.adapters.ledger.tally_days import (
    LONGEST_SLOT,
    clusters_digest,
    day_from,
    is_monitored,
    lack_columns,
)
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
    """The tallies of an ended span whose slots begin from `early` to `over`; `days`: its days that are summed up."""

    span: Span
    early: datetime
    over: datetime
    days: tuple[datetime, datetime] | None = None
    of: tuple[object, ...] | None = None
    """The total of the cluster's summed days if they cover this part, which changes only with it; None: they do not."""

    @property
    def key(self) -> tuple[object, ...]:
        """The key under which its sum is kept.

        If the span goes on after this part, all of the part's tallies were read in the span, however far that goes.
        """
        one = self.span
        return one.cluster, self.early, self.over, self.over == one.until, one.monitored, self.of

    @property
    def row(self) -> Row:
        start, end = self.days or (None, None)
        seen = self.span._asdict()
        return {**seen, "early": self.early, "over": self.over, "start": start, "end": end}


class _Version(NamedTuple):
    """A version of the tallies: another one once a tally comes or goes that a kept mean could include."""

    since: datetime
    days: tuple[object, ...]
    """The totals of the summed days; a late tally removes its cluster's sums."""
    tail: datetime | None
    """The end of the last summed day; None: there is none."""
    tail_tallies: int
    clusters: str
    """A digest of the clusters' names, because a renamed cluster takes its tallies along."""

    def has(self, part: _Part) -> bool:
        """Return whether a tally that comes into the part, or goes, makes another version."""
        return part.of is not None or (self.tail is not None and part.early >= self.tail)


class _Kept(NamedTuple):
    """Means of one version. `seen_to`: when its last tally was read. A look beside others keeps its own.

    The mean of an open span is kept up to any time after `seen_to`: it has the same tallies.
    """

    version: _Version
    seen_to: datetime | None
    means: dict[Span, Mean | None]


class TallyMeans:
    """Computes means, and keeps them in this process while the tallies are the same.

    It keeps sums too, by the totals of their clusters: a late tally changes those.
    """

    def __init__(self) -> None:
        self._past: dict[tuple[object, ...], _Sum | None] = {}
        self._kept: _Kept | None = None

    def means_of(
        self, session: Session, spans: Sequence[Span], until: datetime, whole_since: datetime
    ) -> list[Mean | None]:
        """Return the mean of each span, of open ones up to `until`. Sums of days before `whole_since` are not used."""
        version, kept = _version_of(session, whole_since), self._kept
        # While no day is summed up, a later tally makes no other version.
        if kept is None or kept.version != version or version.tail is None or len(kept.means) > _MOST_KEPT:
            kept = self._kept = _Kept(version, _last_seen_at(session), {})
        if kept.seen_to is not None and until <= kept.seen_to:
            spans = [_end_span(span, until) for span in spans]
        new = [span for span in spans if span not in kept.means]
        means = kept.means | self._compute(session, new, until, kept) if new else kept.means
        return [means[span] for span in spans]

    def _compute(
        self, session: Session, spans: Sequence[Span], until: datetime, kept: _Kept
    ) -> dict[Span, Mean | None]:
        version, clusters = kept.version, sorted({span.cluster for span in spans})
        summed = _summed_days(session, version.since, clusters)
        parts = {span: _parts(_end_span(span, until), summed.get(span.cluster)) for span in spans}
        sums = self._sums(session, [part for of_one in parts.values() for part in of_one])
        means = {
            span: _mean([one for _ in of_one if (one := next(sums)) is not None]) for span, of_one in parts.items()
        }
        kept.means.update({span: mean for span, mean in means.items() if all(map(version.has, parts[span]))})
        return means

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


def _version_of(session: Session, since: datetime) -> _Version:
    at, counts = col(TallyDayRow.at), (TallyDayRow.tallies, TallyDayRow.lacking_gpus, TallyDayRow.phantom_gpus)
    totals = (sa.func.sum(col(count)) for count in counts)
    days = sa.select(sa.func.count(), sa.func.min(at), sa.func.max(at), *totals).where(at >= since)
    total = tuple(session.connection().execute(days).one())
    tail = None if total[2] is None else total[2] + DAY
    return _Version(since, total, tail, 0 if tail is None else _count_from(session, tail), clusters_digest(session))


def _count_from(session: Session, at: datetime) -> int:
    later = sa.select(sa.func.count()).select_from(TallyRow).where(col(TallyRow.at) >= at)
    return int(session.connection().execute(later).scalar_one())


def _last_seen_at(session: Session) -> datetime | None:
    """Return when the last tally was read. It is among those whose slots begin within one slot of the last."""
    last: datetime | None = session.connection().execute(sa.select(sa.func.max(TallyRow.at))).scalar()
    if last is None:
        return None
    seen = sa.select(sa.func.max(TallyRow.seen_at)).where(col(TallyRow.at) >= last - LONGEST_SLOT)
    at: datetime | None = session.connection().execute(seen).scalar()
    return at


def _summed_days(session: Session, since: datetime, clusters: Sequence[str]) -> Mapping[str, _Summed]:
    at, counts = col(TallyDayRow.at), (TallyDayRow.tallies, TallyDayRow.lacking_gpus, TallyDayRow.phantom_gpus)
    totals = (sa.func.sum(col(count)) for count in counts)
    rows = sa.select(col(TallyDayRow.cluster), sa.func.min(at), sa.func.max(at), *totals)
    rows = rows.where(at >= since, is_among(TallyDayRow.cluster, "clusters")).group_by(col(TallyDayRow.cluster))
    reach = session.connection().execute(rows, {"clusters": clusters})
    return {cluster: _Summed(first, last + DAY, tuple(map(int, total))) for cluster, first, last, *total in reach}


def _end_span(span: Span, until: datetime) -> Span:
    return span._replace(until=until) if span.until is None else span


def _parts(span: Span, summed: _Summed | None) -> list[_Part]:
    """Divide an ended span into the days that are summed up and the tallies after them."""
    # The slot of a tally that was read in the span may begin before it: the key is by slots.
    early, until = span.since - LONGEST_SLOT, span.until or span.since
    rest = _Part(span, early, until)
    if summed is None:
        return [rest]
    # All tallies of these days were read in the span.
    first, last, total = summed
    start, end = max(first, day_from(span.since)), min(last, slot_of(until - LONGEST_SLOT, DAY))
    over = until if until <= last else end
    if over <= early:
        return [rest]
    days = (start, end) if start < end else None
    past = _Part(span, early, over, days, (first, *total) if first <= early else None)
    return [past] if over == until else [past, _Part(span, over, until)]


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
    lacking, phantom = lack_columns()
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
