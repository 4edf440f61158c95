"""The tallies in the ledger: written in bulk, and summed up by the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased
from sqlmodel import col

from activities.adapters.ledger.bulk import keep
from activities.adapters.ledger.database import Database
from models.errors import BadInput
from models.reports.tallies import Point, Tally
from models.tables import ClusterRow, TallyRow

_DAY = timedelta(days=1)
LONGEST_SLOT = _DAY
"""A tally is read in its slot: at most so long after its beginning."""


class LedgerTallies:
    """TallyPort on the ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def due(self, slot: datetime, most: int) -> tuple[str, ...]:
        with self._database.reading() as session:
            return tuple(session.connection().execute(_due(), {"slot": slot, "most": most}).scalars())

    def keep(self, tallies: Sequence[Tally]) -> None:
        with self._database.writing() as session:
            # A cluster that has gone meanwhile takes its tally with it.
            names = sa.select(col(ClusterRow.name)).where(col(ClusterRow.name).in_([t.cluster for t in tallies]))
            there = set(session.connection().execute(names).scalars())
            keep(session, TallyRow, [t.model_dump() for t in tallies if t.cluster in there])

    def thin(self, day: datetime) -> None:
        first = aliased(TallyRow)
        same_day = (col(first.at) >= day, col(first.at) < day + _DAY, col(first.cluster) == col(TallyRow.cluster))
        earliest = sa.select(sa.func.min(first.at)).where(*same_day).correlate(TallyRow).scalar_subquery()
        later = sa.delete(TallyRow).where(
            col(TallyRow.at) > day, col(TallyRow.at) < day + _DAY, col(TallyRow.at) > earliest
        )
        with self._database.reading() as session:  # on most days there is nothing to do, and a read waits for nobody
            full = sa.select(sa.literal(1)).where(col(TallyRow.at) > day, col(TallyRow.at) < day + _DAY).limit(1)
            if session.connection().execute(full).first() is None:
                return
        with self._database.writing() as session:
            session.connection().execute(later)

    def points(self, cluster: str, times: Sequence[datetime], within: timedelta) -> tuple[Point, ...]:
        with self._database.reading() as session:
            self._refuse_unknown(session, cluster)
            points: list[Point] = []
            for at in times:
                given: dict[str, Any] = {"least": at - within, "most": at, "early": at - within - LONGEST_SLOT}
                given |= {"cluster": cluster} if cluster else {}
                row = session.connection().execute(_sums(bool(cluster)), given).one()
                # Nothing was read since the last point: the same figures are not told again as if of a later time.
                if row.clusters and (not points or row.at > points[-1].at):
                    points.append(Point(**row._mapping))
            return tuple(points)

    def began(self, cluster: str) -> datetime | None:
        with self._database.reading() as session:
            self._refuse_unknown(session, cluster)
            first = sa.select(sa.func.min(TallyRow.seen_at))
            if cluster:
                first = first.where(col(TallyRow.cluster) == cluster)
            earliest: datetime | None = session.connection().execute(first).scalar()
            return earliest

    @staticmethod
    def _refuse_unknown(session: Any, cluster: str) -> None:
        if cluster and session.get(ClusterRow, cluster) is None:
            raise BadInput(f"the ledger has no cluster {cluster!r}")


@cache
def _due() -> sa.Select[str]:
    tallied = sa.select(sa.literal(1)).where(
        col(TallyRow.cluster) == col(ClusterRow.name), col(TallyRow.at) == sa.bindparam("slot")
    )
    rows = sa.select(col(ClusterRow.name)).where(~tallied.correlate(ClusterRow).exists())
    return rows.order_by(col(ClusterRow.name)).limit(sa.bindparam("most"))


@cache
def _sums(of_one: bool) -> sa.Select[Any]:
    recent = aliased(TallyRow)
    span = [
        # A slot's tally is of the time it was read at; the key is by slots, which begin before it.
        col(recent.at) > sa.bindparam("early"),
        col(recent.at) <= sa.bindparam("most"),
        col(recent.seen_at) > sa.bindparam("least"),
        col(recent.seen_at) <= sa.bindparam("most"),
    ]
    if of_one:
        span.append(col(recent.cluster) == sa.bindparam("cluster"))
    last = (
        sa.select(col(recent.cluster).label("cluster"), sa.func.max(recent.at).label("at"))
        .where(*span)
        .group_by(col(recent.cluster))
        .subquery()
    )
    known = col(TallyRow.backed_gpus).is_not(None)

    def of_known(value: Any) -> Any:
        return sa.func.coalesce(sa.func.sum(value).filter(known), 0)

    assigned, backed = col(TallyRow.assigned_gpus), col(TallyRow.backed_gpus)
    return sa.select(
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
    ).join_from(TallyRow, last, sa.and_(col(TallyRow.cluster) == last.c.cluster, col(TallyRow.at) == last.c.at))
