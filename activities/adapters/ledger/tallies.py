"""The tallies in the ledger: written in bulk, and summed up by the database."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased
from sqlmodel import Session, col

from activities.adapters.ledger.bulk import as_json, keep, rows_of
from activities.adapters.ledger.database import Database, LedgerPart
from activities.adapters.ledger.tally_days import (
    BETWEEN,
    LONGEST_SLOT,
    clusters_digest,
    late_tallies,
    next_day,
    sum_up,
    unsum,
)
from models.base import DAY
from models.columns import UtcTime
from models.errors import BadInput
from models.hashes import hash_of
from models.ledger_tables import ClusterRow, TallyDayRow, TallyRow
from models.reports.tallies import Point, Tally, slot_of

_SETTLED = timedelta(minutes=10)
"""By this time after a reading, its tallies have been written."""
_MOST_KEPT = 20_000


class LedgerTallies(LedgerPart):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._past: dict[Hashable, Point | None] = {}
        """By key, sums for past times; their tallies are not read again."""

    def due_clusters(self, slot: datetime, most: int) -> tuple[str, ...]:
        with self._database.reading() as session:
            return tuple(session.connection().execute(_build_due_query(), {"slot": slot, "most": most}).scalars())

    def keep(self, tallies: Sequence[Tally]) -> None:
        with self._database.begin() as session:
            # A cluster that has gone meanwhile takes its tally with it.
            names = sa.select(col(ClusterRow.name)).where(col(ClusterRow.name).in_([t.cluster for t in tallies]))
            there = set(session.connection().execute(names).scalars())
            ours = [tally for tally in tallies if tally.cluster in there]
            behind = late_tallies(session, ours, slot_of(self._database.now(), DAY))
            keep(session, TallyRow, [tally.model_dump() for tally in ours])
            unsum(session, behind)

    def thin_out(self, day: datetime) -> None:
        first = aliased(TallyRow)
        same_day = (col(first.at) >= day, col(first.at) < day + DAY, col(first.cluster) == col(TallyRow.cluster))
        earliest = sa.select(sa.func.min(first.at)).where(*same_day).correlate(TallyRow).scalar_subquery()
        later = sa.delete(TallyRow).where(
            col(TallyRow.at) > day, col(TallyRow.at) < day + DAY, col(TallyRow.at) > earliest
        )
        with self._database.reading() as session:  # on most days there is nothing to do, and a read waits for nobody
            full = sa.select(sa.literal(1)).where(col(TallyRow.at) > day, col(TallyRow.at) < day + DAY).limit(1)
            if session.connection().execute(full).first() is None:
                return
        with self._database.begin() as session:
            session.connection().execute(later)
            session.connection().execute(sa.delete(TallyDayRow).where(col(TallyDayRow.at) <= day))

    def sum_up(self, since: datetime, until: datetime) -> bool:
        with self._database.reading() as session:  # as `thin_out`
            if next_day(session, since, until) is None:
                return False
        with self._database.begin() as session:
            return sum_up(session, since, until)

    def points(self, cluster: str, times: Sequence[datetime], within: timedelta) -> tuple[Point, ...]:
        with self._database.reading() as session:
            self._refuse_unknown(session, cluster)
            # A removed cluster has taken its tallies along.
            there = "" if cluster else clusters_digest(session)
            keys: dict[datetime, Hashable] = {at: (cluster, at, within, there) for at in times}
            sums = {at: self._past[key] for at, key in keys.items() if key in self._past}
            new = [at for at in keys if at not in sums]
            sums |= _sum_at(session, cluster, new, within)
            settled = self._database.now() - _SETTLED
            self._keep_past({keys[at]: sums[at] for at in new if at < settled})
            points: list[Point] = []
            for at in times:
                point = sums[at]
                # Nothing was read since the last point: the same figures must not look like those of a later time.
                if point is not None and (not points or point.at > points[-1].at):
                    points.append(point)
            return tuple(points)

    def _keep_past(self, sums: Mapping[Hashable, Point | None]) -> None:
        if len(self._past) + len(sums) > _MOST_KEPT:
            self._past.clear()
        self._past |= sums

    def begin_at(self, cluster: str) -> datetime | None:
        with self._database.reading() as session:
            self._refuse_unknown(session, cluster)
            of = [col(TallyRow.cluster) == cluster] if cluster else []
            # By the index of slots: to look at every row takes long.
            one = sa.select(col(TallyRow.seen_at)).where(*of).order_by(col(TallyRow.at)).limit(1)
            first = session.connection().execute(one).scalar()
            if first is None:
                return None
            # Other tallies of its slot, or of a later one that had begun by then, may have been read before it.
            seen = sa.select(sa.func.min(TallyRow.seen_at)).where(*of, col(TallyRow.at) <= first)
            earliest: datetime | None = session.connection().execute(seen).scalar()
            return earliest

    @staticmethod
    def _refuse_unknown(session: Any, cluster: str) -> None:
        if cluster and session.get(ClusterRow, cluster) is None:
            raise BadInput(f"the ledger has no cluster {cluster!r}")


@cache
def _build_due_query() -> sa.Select[str]:
    tallied = sa.select(sa.literal(1)).where(
        col(TallyRow.cluster) == col(ClusterRow.name), col(TallyRow.at) == sa.bindparam("slot")
    )
    rows = sa.select(col(ClusterRow.name)).where(~tallied.correlate(ClusterRow).exists())
    return rows.order_by(col(ClusterRow.name)).limit(sa.bindparam("most"))


def _sum_at(
    session: Session, cluster: str, times: Sequence[datetime], within: timedelta
) -> dict[datetime, Point | None]:
    """Return the sum for each of these times; None if it has no tally."""
    sums: dict[datetime, Point | None] = dict.fromkeys(times)
    asked = [
        {"n": n, "most": at, "least": at - within, "early": at - within - LONGEST_SLOT} for n, at in enumerate(times)
    ]
    if not asked:
        return sums
    statement = _sums(session.get_bind().dialect.name, of_one=bool(cluster))
    parameters = {"times": as_json(session, asked)} | ({"cluster": cluster} if cluster else {})
    for row in session.connection().execute(statement, parameters):
        n, *_ = row
        fields = dict(row._mapping)
        names = sorted((fields.pop("names") or "").split(BETWEEN))
        fields.pop("n")
        sums[times[n]] = Point(**fields, of=hash_of(BETWEEN.join(names)))
    return sums


@cache
def _sums(dialect: str, *, of_one: bool) -> sa.Select[Any]:
    """Takes one step into the tallies' key for each time and cluster: to read all between takes a second of CPU."""
    asked = rows_of(dialect, "times", n=sa.Integer(), most=UtcTime(), least=UtcTime(), early=UtcTime())
    recent = aliased(TallyRow)
    last = (
        sa.select(sa.func.max(recent.at))
        .where(
            col(recent.cluster) == col(ClusterRow.name),
            # A tally counts for the time when it was read; the key is by slots, which begin before that.
            col(recent.at) > asked.c.early,
            col(recent.at) <= asked.c.most,
            col(recent.seen_at) > asked.c.least,
            col(recent.seen_at) <= asked.c.most,
        )
        .correlate(ClusterRow, asked)
        .scalar_subquery()
    )
    pairs: Any = sa.select(asked.c.n, col(ClusterRow.name).label("cluster"), last.label("at"))
    pairs = pairs.select_from(asked).join(ClusterRow, sa.true())
    if of_one:
        pairs = pairs.where(col(ClusterRow.name) == sa.bindparam("cluster"))
    # Materialized: else the databases walk through all tallies, and look for the last one beside each.
    picked = pairs.cte("picked").prefix_with("MATERIALIZED")
    has_backing = col(TallyRow.backed_gpus).is_not(None)

    def of_known(value: Any) -> Any:
        return sa.func.coalesce(sa.func.sum(value).filter(has_backing), 0)

    assigned, backed = col(TallyRow.assigned_gpus), col(TallyRow.backed_gpus)
    return (
        sa.select(
            picked.c.n,
            sa.func.max(TallyRow.seen_at).label("at"),
            sa.func.min(TallyRow.seen_at).label("oldest_at"),
            sa.func.min(TallyRow.health_at).label("health_at"),
            sa.func.count().label("clusters"),
            sa.func.count(backed).label("known"),
            of_known(col(TallyRow.total_gpus)).label("total_gpus"),
            of_known(col(TallyRow.healthy_gpus)).label("healthy_gpus"),
            of_known(assigned).label("promised_gpus"),
            of_known(assigned - backed).label("phantom_gpus"),
            of_known(col(TallyRow.flex_gpus)).label("flex_gpus"),
            sa.func.count(col(TallyRow.lacking_gpus)).label("asking"),
            sa.func.sum(col(TallyRow.pending_gpus)).label("pending_gpus"),
            sa.func.sum(col(TallyRow.lacking_gpus)).label("lacking_gpus"),
            sa.func.aggregate_strings(sa.case((has_backing, picked.c.cluster)), BETWEEN).label("names"),
        )
        .select_from(picked)
        .join(TallyRow, sa.and_(col(TallyRow.cluster) == picked.c.cluster, col(TallyRow.at) == picked.c.at))
        .group_by(picked.c.n)
    )
