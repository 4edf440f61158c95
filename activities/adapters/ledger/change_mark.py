"""Makes a small text that changes with the ledger, so that a page reads all of the state only when it has changed."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from sqlmodel import col

from activities.adapters.ledger.database import LedgerPart
from models.ledger_tables import AuditHeadRow, ClusterRow, RequestRow, RolloutRow


class LedgerPulse(LedgerPart):
    """Returns another text after an entry was archived, a quota changed, or a rollout or request was recorded again."""

    def mark(self) -> str:
        chains = sa.select(sa.func.count(), sa.func.sum(col(AuditHeadRow.length))).select_from(AuditHeadRow)
        quotas = sa.select(sa.func.count(), sa.func.sum(col(ClusterRow.generation))).select_from(ClusterRow)
        requests = sa.select(col(RequestRow.id), col(RequestRow.stage)).where(col(RequestRow.ended).is_(False))
        rollouts = sa.select(
            *(
                col(column)
                for column in (RolloutRow.id, RolloutRow.stage, RolloutRow.needs, RolloutRow.held, RolloutRow.note)
            )
        )
        rollouts = rollouts.where(col(RolloutRow.ended_at).is_(None)).order_by(col(RolloutRow.id))
        digest = hashlib.sha256()
        with self._database.reading() as session:
            for statement in (chains, quotas, requests.order_by(col(RequestRow.id)), rollouts):
                for row in session.execute(statement):
                    digest.update(repr(tuple(row)).encode())
        return digest.hexdigest()[:16]
