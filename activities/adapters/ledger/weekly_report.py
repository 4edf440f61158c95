"""The weekly report's facts in the ledger: the stages of rollouts from the archive, means of tallies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache

import sqlalchemy as sa
from sqlmodel import Session, col

from activities.adapters.ledger.database import Database, LedgerPart
from activities.adapters.ledger.tally_means import TallyMeans
from activities.bad_rows import those_that_do
from activities.watch.tallies import KEPT_WHOLE
from models.audit_chain import AuditEntry, AuditKind
from models.base import DAY
from models.ledger_tables import AuditRow, ClusterRow, ReceiptRow, RolloutRow
from models.reports.tallies import slot_of
from models.reports.weekly import ClusterCut, Mean, Move, Passage, Span
from models.rollout.effects import EffectKind

_KIND = json.dumps({"kind": AuditKind.TRANSITION.value}, separators=(",", ":"))[1:-1]


class LedgerReport(LedgerPart):
    """ReportPort on the ledger."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._means = TallyMeans()

    def passages(self, until: datetime) -> tuple[Passage, ...]:
        """Return the way of each rollout through its stages, from the archive, which is kept for every quota system.

        A receipt dates the first write; if none is kept here, the move into `buffered` does.
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
                    or next((move.at for move in moves.get(rollout, ()) if move.after == "buffered"), None),
                    moves=tuple(moves.get(rollout, ())),
                )
                for rollout, cluster in rows
            )

    def means(self, spans: Sequence[Span]) -> tuple[Mean | None, ...]:
        """Return the means of many clusters. Sums are not used for days that may have been thinned since."""
        with self._database.reading() as session:
            return tuple(self._means.means_of(session, spans, slot_of(self._database.now(), DAY) - KEPT_WHOLE))

    def cuts(self, since: datetime, until: datetime) -> tuple[ClusterCut, ...]:
        """Return the archived cuts. Entries of earlier builds do not have the GPUs, and count as nothing."""
        counts: dict[str, Counter[str]] = {}
        with self._database.reading() as session:
            for at, cluster, cut in those_that_do(session.connection().execute(_writes()).scalars(), _cut):
                if since < at <= until and cut is not None:
                    counts.setdefault(cluster, Counter()).update(cut)
        return tuple(
            ClusterCut(
                cluster=cluster,
                cut_gpus=of["cut"],
                phantom_gpus=of["phantom"],
                to_flex_gpus=of["flex"],
                back_gpus=of["back"],
                withdrawn_gpus=of["withdrawn"],
            )
            for cluster, of in sorted(counts.items())
            if of["cut"] or of["back"] or of["withdrawn"]
        )

    def clusters(self) -> tuple[str, ...]:
        with self._database.reading() as session:
            names = sa.select(col(ClusterRow.name)).order_by(col(ClusterRow.name))
            return tuple(session.connection().execute(names).scalars())


def _moves(session: Session, until: datetime) -> dict[str, list[Move]]:
    """Return the moves of each rollout, in their order."""
    moves: dict[str, list[Move]] = {}
    # A row that was altered beyond reading shows in `audit --verify`.
    for rollout, move in those_that_do(session.connection().execute(_transitions()).scalars(), _move):
        if move is not None and move.at <= until:
            moves.setdefault(rollout, []).append(move)
    return moves


@lru_cache(maxsize=20_000)
def _move(entry: str) -> tuple[str, Move | None]:
    """Return the rollout, and the move if the entry is one. Cached: a report reads all entries, which never change."""
    read = AuditEntry.model_validate_json(entry)
    if read.kind is not AuditKind.TRANSITION:
        return read.rollout, None
    return read.rollout, Move(
        cluster=read.cluster,
        rollout=read.rollout,
        at=read.at,
        before=str(read.data.get("before")),
        after=str(read.data.get("after")),
        actor=read.actor,
        text=read.text,
    )


@lru_cache(maxsize=20_000)
def _cut(entry: str) -> tuple[datetime, str, Mapping[str, int] | None]:
    """Return when and where a write took GPUs away, and how many, if the entry is a write. Cached, as `_move`."""
    read = AuditEntry.model_validate_json(entry)
    cut = read.data.get("cut")
    if read.kind is not AuditKind.EFFECT or not isinstance(cut, dict):
        return read.at, read.cluster, None
    gpus = int(cut.get("gpus", 0))
    # Earlier builds did not say what answered a breach; a restore that took something did.
    if gpus > 0 and (cut.get("breach") or read.data.get("effect") == EffectKind.RESTORE):
        return read.at, read.cluster, {"withdrawn": gpus}
    parts = {"phantom": int(cut.get("phantom_gpus", 0)), "flex": int(cut.get("to_flex_gpus", 0))}
    return read.at, read.cluster, {"cut": max(0, gpus), "back": max(0, -gpus), **parts}


@cache
def _transitions() -> sa.Select[str]:
    """Entries are canonical JSON: the pattern finds every transition, and `_move` leaves out entries that quote one."""
    pattern = f"%{_KIND}%"
    rows = sa.select(col(AuditRow.entry)).where(col(AuditRow.entry).like(pattern))
    return rows.order_by(col(AuditRow.cluster), col(AuditRow.seq))


@cache
def _writes() -> sa.Select[str]:
    """Select the entries that say how many GPUs a write took away."""
    rows = sa.select(col(AuditRow.entry)).where(col(AuditRow.entry).like('%"cut":{%'))
    return rows.order_by(col(AuditRow.cluster), col(AuditRow.seq))


@cache
def _first_writes() -> sa.Select[str, datetime]:
    return sa.select(col(ReceiptRow.rollout), sa.func.min(ReceiptRow.at).label("at")).group_by(col(ReceiptRow.rollout))
