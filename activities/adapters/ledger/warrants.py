"""WarrantPort on the ledger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import store
from activities.adapters.ledger.database import LedgerPart, one_at_a_time
from activities.adapters.ledger.second_persons import note_admitted
from activities.ports.warrants import Drawn, EffectProof, LoneDeed
from models.access.principals import Principal
from models.access.tickets import unverified_field
from models.access.warrants import Warrant
from models.errors import Refusal
from models.hashes import canonical_json
from models.ledger_access_tables import DrawnRow, EffectProofRow, WarrantRow
from models.ledger_tables import GrantReceiptRow, ReceiptRow
from models.rollout.effects import Fence, Receipt

_HEAD = 200
"""Characters at the start of a ticket that are sure to contain the name of its key."""
_KEPT = 100
"""The number of plans kept for a subject and kind; an approved plan is kept in its warrant."""


class LedgerWarrants(LedgerPart):
    def admit(self, warrant: Warrant, voids: Collection[str] = (), alone: LoneDeed | None = None) -> Warrant:
        with self._database.begin() as session:
            one_at_a_time(session, f"warrants of {warrant.subject}")
            stood = session.get(WarrantRow, warrant.nonce)
            if stood is not None:
                earlier_warrant = _warrant_of(stood)
                if (
                    earlier_warrant.update_id,
                    earlier_warrant.command,
                    earlier_warrant.subject,
                    earlier_warrant.ticket,
                ) != (warrant.update_id, warrant.command, warrant.subject, warrant.ticket):
                    raise Refusal("the ticket has been used: give the command again")
                return earlier_warrant
            if voids:
                session.execute(
                    sa.update(WarrantRow)
                    .where(
                        col(WarrantRow.subject) == warrant.subject,
                        col(WarrantRow.command).in_(sorted(voids)),
                        col(WarrantRow.voided_at).is_(None),
                    )
                    .values(voided_at=warrant.admitted_at, voided_by=f"{warrant.command} {warrant.nonce}")
                )
            session.add(_row(warrant))
            if alone is not None:
                note_admitted(session, warrant, alone)
            return warrant

    def warrant(self, nonce: str) -> Warrant | None:
        with self._database.reading() as session:
            row = session.get(WarrantRow, nonce)
            return None if row is None else _warrant_of(row)

    def warrants(self, subject: str, *commands: str) -> tuple[Warrant, ...]:
        rows = select(WarrantRow).where(col(WarrantRow.subject) == subject)
        if commands:
            rows = rows.where(col(WarrantRow.command).in_(commands))
        with self._database.reading() as session:
            warrant_rows = session.exec(rows.order_by(col(WarrantRow.admitted_at), col(WarrantRow.nonce)))
            return tuple(_warrant_of(row) for row in warrant_rows)

    def draw(self, subject: str, drawn: Drawn, now: datetime) -> None:
        text = canonical_json(drawn.content)
        row = {
            "subject": subject,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "kind": drawn.kind,
            "hash": drawn.hash,
            "content": text,
            "drawn_at": now,
        }
        with self._database.begin() as session:
            store(session, DrawnRow, [row])
            _thin(session, subject, drawn.kind)

    def drawn_plans(self, subject: str, kind: str, hash: str = "") -> tuple[Drawn, ...]:
        rows = select(DrawnRow).where(col(DrawnRow.subject) == subject, col(DrawnRow.kind) == kind)
        if hash:
            rows = rows.where(col(DrawnRow.hash) == hash)
        with self._database.reading() as session:
            newest = session.exec(rows.order_by(col(DrawnRow.drawn_at).desc(), col(DrawnRow.sha256)))
            return tuple(Drawn(row.kind, row.hash, json.loads(row.content), row.sha256, row.drawn_at) for row in newest)  # type: ignore[arg-type]

    def prove(self, proof: EffectProof, now: datetime) -> None:
        row = {
            "rollout": proof.fence.rollout,
            "counter": proof.fence.counter,
            "kind": proof.kind,
            "outcome": proof.outcome,
            "ground": proof.ground,
            "stood_on": ",".join(proof.stood_on),
            "evidence": proof.evidence,
            "after": "" if proof.after is None else canonical_json(proof.after),
            "at": now,
        }
        with self._database.begin() as session:
            store(session, EffectProofRow, [row])

    def proofs(self, rollout: str) -> tuple[EffectProof, ...]:
        return self._proofs(col(EffectProofRow.rollout) == rollout)

    def list_effects_of(self, nonce: str) -> tuple[EffectProof, ...]:
        first = col(EffectProofRow.stood_on)
        return self._proofs(sa.or_(first == nonce, first.startswith(f"{nonce},", autoescape=True)))

    def _proofs(self, which: sa.ColumnElement[bool]) -> tuple[EffectProof, ...]:
        rows = select(EffectProofRow).where(which).order_by(col(EffectProofRow.rollout), col(EffectProofRow.counter))
        with self._database.reading() as session:
            return tuple(
                EffectProof(
                    Fence(rollout=row.rollout, counter=row.counter),
                    row.kind,
                    row.outcome,  # type: ignore[arg-type]
                    row.ground,
                    tuple(row.stood_on.split(",")) if row.stood_on else (),
                    row.evidence,
                    json.loads(row.after) if row.after else None,
                )
                for row in session.exec(rows)
            )

    def list_signing_keys(self) -> frozenset[str]:
        head = sa.func.substr(col(WarrantRow.ticket), 1, _HEAD)
        heads = select(head).where(col(WarrantRow.ticket) != "", col(WarrantRow.voided_at).is_(None)).distinct()
        with self._database.reading() as session:
            return frozenset(key for head in session.exec(heads) if (key := unverified_field(head, 0, "kid")))

    def receipts(self, rollout: str) -> tuple[Receipt, ...]:
        texts: list[str] = []
        with self._database.reading() as session:
            for table in (ReceiptRow, GrantReceiptRow):
                rows = select(table.receipt).where(table.rollout == rollout).order_by(table.counter)  # type: ignore[arg-type]
                texts += session.exec(rows).all()
        return tuple(map(Receipt.model_validate_json, texts))


def _thin(session: Session, subject: str, kind: str) -> None:
    own = (col(DrawnRow.subject) == subject, col(DrawnRow.kind) == kind)
    newest = sa.select(col(DrawnRow.drawn_at)).where(*own).order_by(col(DrawnRow.drawn_at).desc())
    oldest_kept = session.scalar(newest.offset(_KEPT - 1).limit(1))
    if oldest_kept is not None:
        session.execute(sa.delete(DrawnRow).where(*own, col(DrawnRow.drawn_at) < oldest_kept))


def _row(warrant: Warrant) -> WarrantRow:
    fields: dict[str, Any] = warrant.model_dump(exclude={"principal", "message", "content", "inherits"})
    return WarrantRow(
        **fields,
        principal=warrant.principal.model_dump_json(),
        human=warrant.principal.human,
        message=canonical_json(warrant.message),
        content=canonical_json(warrant.content),
        inherits=warrant.inherits or None,
    )


def _warrant_of(row: WarrantRow) -> Warrant:
    fields = row.model_dump(exclude={"human"}) | {
        "principal": Principal.model_validate_json(row.principal),
        "message": json.loads(row.message),
        "content": json.loads(row.content),
        "inherits": row.inherits or "",
    }
    return Warrant(**fields)
