"""The blast radius in the ledger: the GPUs that were moved, those that may yet be, and when there is room again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col, func

from activities.adapters.ledger.bulk import store
from activities.adapters.ledger.database import LedgerPart, one_at_a_time
from models.base import DAY, HOUR
from models.errors import BlastRadius
from models.ledger_tables import BreachRow, MoveRow, ReceiptRow
from models.rollout.effects import Fence
from models.texts import count_text, gpus_text, some_of


class LedgerBlastRadius(LedgerPart):
    """The part of ClustersPort that books moves and breach rollbacks."""

    def reserve_moves(
        self, fence: Fence, cluster: str, gpus: int, limit: int, now: datetime, day_limit: int | None = None
    ) -> None:
        with self._database.begin() as session:
            one_at_a_time(session, "moves")
            if session.get(MoveRow, (fence.rollout, fence.counter)) is not None:
                return
            if gpus > 0:
                _check(session, cluster, gpus, limit, now, HOUR, "an hour")
                if day_limit is not None:
                    _check(session, cluster, gpus, day_limit, now, DAY, "a day")
            session.add(MoveRow(rollout=fence.rollout, counter=fence.counter, cluster=cluster, at=now, gpus=gpus))

    def reserve_breach(self, cluster: str, most_clusters: int | None, now: datetime) -> None:
        recent = (col(BreachRow.at) > now - HOUR, col(BreachRow.cluster) != cluster)
        with self._database.begin() as session:
            one_at_a_time(session, "moves")
            others = sorted(session.execute(sa.select(col(BreachRow.cluster)).where(*recent)).scalars())
            if most_clusters is not None and len(others) + 1 > most_clusters:
                begun = count_text(len(others), "cluster") + (f" ({some_of(others, 5)})" if others else "")
                raise BlastRadius(
                    f"in the last hour Backstop has begun to roll back {begun} after breaches, and "
                    f"max_breaching_clusters {most_clusters} allows no more"
                )
            store(session, BreachRow, [{"cluster": cluster, "at": now}])

    def release_breach(self, cluster: str) -> None:
        with self._database.begin() as session:
            session.execute(sa.delete(BreachRow).where(col(BreachRow.cluster) == cluster))

    def give_back_moves(self, fence: Fence) -> None:
        """Remove the booking of a refused write; keep that of one with a receipt, against a late repetition."""
        landed = sa.exists().where(col(ReceiptRow.rollout) == fence.rollout, col(ReceiptRow.counter) == fence.counter)
        mine = (col(MoveRow.rollout) == fence.rollout, col(MoveRow.counter) == fence.counter)
        with self._database.begin() as session:
            one_at_a_time(session, "moves")
            session.execute(sa.delete(MoveRow).where(*mine, ~landed))

    def booked_gpus(self, now: datetime) -> tuple[int, int]:
        with self._database.reading() as session:
            sums = [
                session.scalar(sa.select(func.coalesce(func.sum(MoveRow.gpus), 0)).where(col(MoveRow.at) > now - span))
                for span in (HOUR, DAY)
            ]
        return int(sums[0] or 0), int(sums[1] or 0)


def _check(session: Session, cluster: str, gpus: int, limit: int, now: datetime, span: timedelta, named: str) -> None:
    recent = sa.select(col(MoveRow.at), col(MoveRow.gpus), col(MoveRow.cluster)).where(col(MoveRow.at) > now - span)
    rows = [(at, moved, where) for at, moved, where in session.execute(recent.order_by(col(MoveRow.at)))]
    for where, moves in (
        (f"in cluster {cluster}", [(at, moved) for at, moved, of in rows if of == cluster]),
        ("in the fleet", [(at, moved) for at, moved, _ in rows]),
    ):
        total = sum(moved for _, moved in moves)
        if total + gpus > limit:
            raise BlastRadius(
                f"moving {gpus_text(gpus)} now would bring the GPUs moved {where} within {named} to {total + gpus:,}: "
                f"at most {limit:,} may move",
                room_at(moves, gpus, limit, span),
            )


def room_at(moves: Sequence[tuple[datetime, int]], gpus: int, limit: int, span: timedelta) -> datetime | None:
    """Return when so many of these moves (the oldest first) are over that `gpus` fit; None if they never do."""
    if gpus > limit:
        return None
    left = sum(moved for _, moved in moves)
    for at, moved in moves:
        left -= moved
        if left + gpus <= limit:
            return at + span
    return None
