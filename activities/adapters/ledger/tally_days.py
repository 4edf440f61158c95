"""Sums of tallies for days that are over: a mean over months adds up its days, and tallies at its edges alone.

A cluster's sums have no gap from its first to its last summed day. The tallies outside of them are read themselves, so
that a cluster without sums has the same means.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from activities.adapters.ledger.bulk import is_among
from activities.adapters.ledger.database import one_at_a_time
from models.base import DAY
from models.columns import UtcTime
from models.hashes import hash_of
from models.ledger_tables import ClusterRow, TallyDayRow, TallyRow
from models.reports.tallies import Tally, slot_of

LONGEST_SLOT = DAY
"""The longest slot; a tally is read within its slot, so at most this long after the slot begins."""

BETWEEN = "\n"
"""Separates clusters' names, none of which contains it."""


def clusters_digest(session: Session) -> str:
    """Return a digest of the names of all clusters."""
    names = session.connection().execute(sa.select(col(ClusterRow.name)).order_by(col(ClusterRow.name))).scalars()
    return hash_of(BETWEEN.join(names))


def day_from(at: datetime) -> datetime:
    """Return the first day that begins then or later."""
    day = slot_of(at, DAY)
    return day if day == at else day + DAY


def next_day(session: Session, since: datetime, until: datetime) -> datetime | None:
    """Return the first day with tallies after those that are summed up."""
    last = session.connection().execute(sa.select(sa.func.max(TallyDayRow.at))).scalar()
    start = since if last is None else max(since, last + DAY)
    first = sa.select(sa.func.min(TallyRow.at)).where(col(TallyRow.at) >= start, col(TallyRow.at) < until)
    at = session.connection().execute(first).scalar()
    return None if at is None else slot_of(at, DAY)


def sum_up(session: Session, since: datetime, until: datetime) -> bool:
    """Sum up the next day, for all clusters at once; False if there is none."""
    one_at_a_time(session, "sums up tallies")
    day = next_day(session, since, until)
    if day is None:
        return False
    session.connection().execute(_build_insert(), {"day": day, "end": day + DAY})
    return next_day(session, since, until) != day


def late_tallies(session: Session, tallies: Sequence[Tally], today: datetime) -> list[Tally]:
    """Return the tallies whose day may be summed up already, and wait for anybody who sums up now."""
    behind = [tally for tally in tallies if tally.at < today - DAY]
    if behind:
        one_at_a_time(session, "sums up tallies")
    return behind


def unsum(session: Session, tallies: Sequence[Tally]) -> None:
    """Remove the sums of these clusters up to the last of these tallies."""
    if tallies:
        end = max(slot_of(tally.at, DAY) for tally in tallies)
        gone = sa.delete(TallyDayRow).where(is_among(col(TallyDayRow.cluster), "names"), col(TallyDayRow.at) <= end)
        session.connection().execute(gone, {"names": [tally.cluster for tally in tallies]})


@cache
def _build_insert() -> Any:
    lacking, phantom = lack_columns()
    day, end = (sa.bindparam(name, type_=UtcTime()) for name in ("day", "end"))
    rows = (
        sa.select(
            col(TallyRow.cluster),
            day.label("at"),
            is_monitored().label("monitored"),
            col(TallyRow.seen_at),
            lacking.label("lacking"),
            phantom.label("phantom"),
        )
        .where(col(TallyRow.at) >= day, col(TallyRow.at) < end)
        .subquery()
        .c
    )
    sums = sa.select(
        rows.cluster,
        rows.at,
        rows.monitored,
        sa.func.count(),
        sa.func.min(rows.seen_at),
        sa.func.max(rows.seen_at),
        sa.func.count(rows.lacking),
        sa.func.coalesce(sa.func.sum(rows.lacking), 0),
        sa.func.count(rows.phantom),
        sa.func.coalesce(sa.func.sum(rows.phantom), 0),
    ).group_by(rows.cluster, rows.at, rows.monitored)
    return sa.insert(TallyDayRow).from_select([column.name for column in sa.inspect(TallyDayRow).columns], sums)


def lack_columns() -> tuple[Any, Any]:
    """Return the columns. Units: whole GPUs; null if a tally does not know it."""
    return col(TallyRow.lacking_gpus), col(TallyRow.assigned_gpus) - col(TallyRow.backed_gpus)


def is_monitored() -> Any:
    """Return whether the tally's cluster was monitored; a shadow is not."""
    there = sa.and_(col(TallyRow.stage) == "monitored", ~col(TallyRow.shadow))
    return sa.case((there, sa.true()), else_=sa.false())
