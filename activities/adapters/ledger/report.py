"""What the weekly report asks of the ledger: ways of rollouts from the archive, means of tallies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from activities.adapters.ledger.database import Database
from activities.adapters.ledger.tallies import LONGEST_SLOT
from activities.sense import those_that_do
from models.audit import AuditEntry, AuditKind
from models.reports.weekly import ClusterCut, Mean, Move, Passage, Span
from models.tables import AuditRow, ClusterRow, ReceiptRow, RolloutRow, TallyRow

_KIND = json.dumps({"kind": AuditKind.TRANSITION.value}, separators=(",", ":"))[1:-1]


class LedgerReport:
    """ReportPort on the ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def passages(self, until: datetime) -> tuple[Passage, ...]:
        """By way of the archive, which is kept also where another system holds the quotas.

        First writes are by receipts; where none is kept here, the way into `buffered` stands for it.
        """
        with self._database.reading() as session:
            moves = _moves(session, until)
            wrote = {row.rollout: row.at for row in session.connection().execute(_first_writes())}
            real = sa.select(col(RolloutRow.id), col(RolloutRow.cluster)).where(~col(RolloutRow.shadow))
            rows = session.connection().execute(real.order_by(col(RolloutRow.cluster), col(RolloutRow.opened_at)))
            return tuple(
                Passage(
                    cluster=cluster,
                    rollout=rollout,
                    wrote_at=wrote.get(rollout)
                    or next((m.at for m in moves.get(rollout, ()) if m.after == "buffered"), None),
                    moves=tuple(moves.get(rollout, ())),
                )
                for rollout, cluster in rows
            )

    def means(self, spans: Sequence[Span]) -> tuple[Mean | None, ...]:
        with self._database.reading() as session:
            return tuple(_mean(session, span) for span in spans)

    def cuts(self, since: datetime, until: datetime) -> tuple[ClusterCut, ...]:
        """By way of the archive, as `passages`. Entries of earlier builds do not say it, and count as nothing."""
        found: dict[str, Counter[str]] = {}
        with self._database.reading() as session:
            entries = those_that_do(session.connection().execute(_writes()).scalars(), AuditEntry.model_validate_json)
            for entry in entries:
                cut = entry.data.get("cut")
                if entry.kind is AuditKind.EFFECT and since < entry.at <= until and isinstance(cut, dict):
                    gpus = int(cut.get("gpus", 0))
                    parts = {"phantom": int(cut.get("phantom_gpus", 0)), "flex": int(cut.get("to_flex_gpus", 0))}
                    of = found.setdefault(entry.cluster, Counter())
                    of.update({"cut": max(0, gpus), "back": max(0, -gpus), **parts})
        return tuple(
            ClusterCut(
                cluster=cluster,
                cut_gpus=of["cut"],
                phantom_gpus=of["phantom"],
                to_flex_gpus=of["flex"],
                back_gpus=of["back"],
            )
            for cluster, of in sorted(found.items())
            if of["cut"] or of["back"]
        )

    def clusters(self) -> tuple[str, ...]:
        with self._database.reading() as session:
            return tuple(session.scalars(sa.select(col(ClusterRow.name)).order_by(col(ClusterRow.name))))


def _moves(session: Session, until: datetime) -> dict[str, list[Move]]:
    """By rollout, in their order."""
    moves: dict[str, list[Move]] = {}
    # A row that was altered beyond reading shows in `audit --verify`.
    for entry in those_that_do(session.connection().execute(_transitions()).scalars(), AuditEntry.model_validate_json):
        if entry.kind is AuditKind.TRANSITION and entry.at <= until:
            move = Move(
                cluster=entry.cluster,
                rollout=entry.rollout,
                at=entry.at,
                before=str(entry.data.get("before")),
                after=str(entry.data.get("after")),
                actor=entry.actor,
                text=entry.text,
            )
            moves.setdefault(entry.rollout, []).append(move)
    return moves


@cache
def _transitions() -> sa.Select[str]:
    """Entries are canonical JSON: the pattern finds every transition, and what quotes one is told apart after it."""
    pattern = f"%{_KIND}%"
    rows = sa.select(col(AuditRow.entry)).where(col(AuditRow.entry).like(pattern))
    return rows.order_by(col(AuditRow.cluster), col(AuditRow.seq))


@cache
def _writes() -> sa.Select[str]:
    """Entries that say what a write took away."""
    rows = sa.select(col(AuditRow.entry)).where(col(AuditRow.entry).like('%"cut":{"gpus":%'))
    return rows.order_by(col(AuditRow.cluster), col(AuditRow.seq))


@cache
def _first_writes() -> sa.Select[str, datetime]:
    return sa.select(col(ReceiptRow.rollout), sa.func.min(ReceiptRow.at).label("at")).group_by(col(ReceiptRow.rollout))


def _mean(session: Session, span: Span) -> Mean | None:
    given = {"cluster": span.cluster, "since": span.since, "until": span.until, "early": span.since - LONGEST_SLOT}
    row = session.connection().execute(_means(span.monitored), given).one()
    if not row.tallies:
        return None
    return Mean(
        tallies=row.tallies,
        since=row.first,
        until=row.last,
        lacking_gpus=None if row.lacking is None else float(row.lacking),
        phantom_gpus=None if row.phantom is None else float(row.phantom),
    )


@cache
def _means(monitored: bool) -> Any:
    seen = col(TallyRow.seen_at)
    rows = sa.select(
        sa.func.count().label("tallies"),
        sa.func.min(seen).label("first"),
        sa.func.max(seen).label("last"),
        sa.func.avg(col(TallyRow.lacking_gpus)).label("lacking"),
        sa.func.avg(col(TallyRow.assigned_gpus) - col(TallyRow.backed_gpus)).label("phantom"),
    ).where(
        col(TallyRow.cluster) == sa.bindparam("cluster"),
        # What was read in the span may have its slot's beginning before it: the key is by slots.
        col(TallyRow.at) > sa.bindparam("early"),
        col(TallyRow.at) < sa.bindparam("until"),
        seen >= sa.bindparam("since"),
        seen < sa.bindparam("until"),
    )
    return rows.where(col(TallyRow.stage) == "monitored", ~col(TallyRow.shadow)) if monitored else rows
