"""Adds to people's commands in the archive how the person was proven: by the admitted ticket, or by who speaks.

One warrant proves one row. The search for an earlier one holds the chain's head, and a warrant proves rows of one
chain alone, so that two archivists cannot both miss it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.orm import aliased
from sqlmodel import Session, col

from activities.adapters.ledger.audit_warrant_match import Given, Link, proving_nonce
from activities.bad_rows import those_that_do
from activities.desk.speaker import speaker
from models.access.principals import Principal, Proof, proof_data
from models.access.warrants import BACKSTOP_SERVICE
from models.audit_chain import BACKSTOP, BESIDE, AuditEntry, AuditKind
from models.hashes import canonical_json, json_object
from models.ledger_access_tables import WarrantRow
from models.ledger_tables import AuditRow, RolloutRow

_NOBODY = frozenset({BACKSTOP, BACKSTOP_SERVICE, "temporal"})
"""Actors that are no people; their commands are neither proven nor asserted."""
SPENT = "its ticket proves another row"


def proven_entries(session: Session, cluster: str, entries: Sequence[AuditEntry]) -> list[AuditEntry]:
    """Return the entries of one chain, whose head is locked, with the proof of each person's command."""
    book = _Book.read(session, cluster, entries)
    return [_with_proof(entry, book) for entry in entries]


def without_proof(entry: AuditEntry) -> AuditEntry:
    if "proof" not in entry.data:
        return entry
    return entry.but(data={key: value for key, value in entry.data.items() if key != "proof"})


def _with_proof(entry: AuditEntry, book: _Book) -> AuditEntry:
    if entry.kind is not AuditKind.COMMAND or entry.actor in _NOBODY:
        return without_proof(entry)
    return entry.but(data={**entry.data, "proof": _proof(entry, book)})


def _proof(entry: AuditEntry, book: _Book) -> dict[str, str]:
    warrant, speaks = book.given.get(_nonce(entry)), speaker()
    if warrant is None:
        theirs = speaks is not None and speaks.name == entry.actor
        return proof_data(speaks.proof, speaks.how) if speaks and theirs else proof_data(Proof.ASSERTED, "")
    row = book.row_for(entry)
    if not row:
        return proof_data(Proof.ASSERTED, "")
    earlier = book.proven.setdefault(row, entry)
    if not _is_same(earlier, entry):
        return proof_data(Proof.ASSERTED, "", SPENT)
    return proof_data(warrant.by.proof, warrant.by.how, warrant.note)


def _is_same(one: AuditEntry, other: AuditEntry) -> bool:
    """Compare two entries, of which one may stand beside another entry that had its key."""
    keys = {entry.key.partition(BESIDE)[0][:250] for entry in (one, other)}
    return len(keys) == 1 and without_proof(one).but(key="k") == without_proof(other).but(key="k")


class _Book(NamedTuple):
    """The warrants that entries name, as the ledger knows them. `proven`: entries by the row that proves them."""

    given: Mapping[str, Given]
    links: Collection[Link]
    asked_for: Mapping[str, Collection[str]]
    proven: dict[str, AuditEntry]

    @classmethod
    def read(cls, session: Session, cluster: str, entries: Sequence[AuditEntry]) -> _Book:
        nonces = {nonce for entry in entries if (nonce := _nonce(entry))}
        warrants = _read_given(session, col(WarrantRow.nonce).in_(nonces)) if nonces else {}
        if not warrants:
            return cls({}, (), {}, {})
        links = _links(session, {entry.rollout for entry in entries if entry.rollout})
        book = cls(warrants, links, _asked_clusters(session, warrants.values()), {})
        for stored in _read_entries_naming(session, cluster, warrants):
            if _says_proven(stored) and (row := book.row_for(stored)):
                book.proven.setdefault(row, stored)
        return book

    def row_for(self, entry: AuditEntry) -> str:
        warrant = self.given.get(_nonce(entry))
        return "" if warrant is None else proving_nonce(entry, warrant, self.links, self.asked_for)


def _nonce(entry: AuditEntry) -> str:
    nonce = entry.data.get("warrant") if entry.kind is AuditKind.COMMAND else None
    return nonce if isinstance(nonce, str) else ""


def _says_proven(entry: AuditEntry) -> bool:
    proof = entry.data.get("proof")
    return isinstance(proof, dict) and proof.get("proof") != Proof.ASSERTED


def _read_given(session: Session, which: sa.ColumnElement[bool]) -> dict[str, Given]:
    """Read the warrants of people, by nonce. One that cannot be read is left out."""
    names = ("nonce", "command", "workflow", "subject", "principal", "message", "content")
    rows = sa.select(*(getattr(WarrantRow, name) for name in names)).where(which, col(WarrantRow.inherits).is_(None))
    warrants = {}
    for row in session.connection().execute(rows):
        try:
            by, message, kept = (
                Principal.model_validate_json(row.principal),
                json_object(row.message),
                json_object(row.content),
            )
        except (ValidationError, ValueError):
            continue
        note = kept.get("note")
        text = note if isinstance(note, str) else ""
        warrants[row.nonce] = Given(row.nonce, row.command, row.workflow, row.subject, by, message, text)
    return warrants


def _links(session: Session, rollouts: set[str]) -> tuple[Link, ...]:
    parent = aliased(WarrantRow)
    rows = (
        sa.select(
            col(WarrantRow.nonce),
            col(WarrantRow.command),
            col(RolloutRow.id),
            col(RolloutRow.cluster),
            col(parent.nonce),
            col(parent.subject),
        )
        .join(RolloutRow, col(RolloutRow.id) == col(WarrantRow.subject))
        .join(parent, col(parent.nonce) == col(WarrantRow.inherits))
        .where(col(WarrantRow.subject).in_(rollouts))
    )
    return tuple(Link(*row) for row in session.connection().execute(rows)) if rollouts else ()


def _asked_clusters(session: Session, given: Iterable[Given]) -> dict[str, set[str]]:
    subjects = {one.subject for one in given if one.command.startswith("request.")}
    if not subjects:
        return {}
    asks = _read_given(
        session, sa.and_(col(WarrantRow.subject).in_(subjects), col(WarrantRow.command) == "request.ask")
    )
    clusters: dict[str, set[str]] = {}
    for ask in asks.values():
        clusters.setdefault(ask.subject, set()).add(str(ask.message.get("cluster", "")))
    return clusters


def _read_entries_naming(session: Session, cluster: str, nonces: Iterable[str]) -> list[AuditEntry]:
    """Read the chain's rows that name one of these, in their order."""
    named = (col(AuditRow.entry).contains(f'"warrant":{canonical_json(nonce)}', autoescape=True) for nonce in nonces)
    rows = sa.select(col(AuditRow.entry)).where(col(AuditRow.cluster) == cluster, sa.or_(*named))
    texts = session.connection().execute(rows.order_by(col(AuditRow.seq))).scalars()
    # One that is tampered beyond reading is left out: the chain's check says so.
    return list(those_that_do(texts, AuditEntry.model_validate_json))
