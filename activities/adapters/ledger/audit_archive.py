"""The audit archive: one hash chain per cluster, and its head in another table.

Appending locks the head's row, so that two archivists never continue the same link.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from itertools import groupby

import sqlalchemy as sa
from pydantic import ValidationError
from sqlmodel import Session, col, select

from activities.adapters.ledger.audit_actor_proofs import proven_entries, without_proof
from activities.adapters.ledger.bulk import add, keep, update
from activities.adapters.ledger.database import LedgerPart
from models.audit_chain import BESIDE, GENESIS, AuditEntry, AuditKind, ChainedEntry, ChainHead, chain_hash
from models.errors import Barred, Unavailable
from models.hashes import canonical_json, hash_of
from models.ledger_tables import AuditHeadRow, AuditRow

log = logging.getLogger(__name__)


class LedgerArchive(LedgerPart):
    """The archive's part of RegistryPort."""

    def archive(self, entries: Sequence[AuditEntry]) -> ChainHead | None:
        """Append each entry to its cluster's chain, once per key; return the last entry's head."""
        if not entries:
            return None
        with never_dropped(), self._database.begin() as session:
            return append_all(session, entries)[entries[-1].cluster]

    def entries_after(self, cluster: str, after_seq: int, limit: int) -> tuple[ChainedEntry, ...]:
        with self._database.reading() as session:
            rows = session.exec(
                select(AuditRow)
                .where(AuditRow.cluster == cluster, AuditRow.seq > after_seq)
                .order_by(col(AuditRow.seq))
                .limit(limit)
            ).all()
            return tuple(
                ChainedEntry(seq=row.seq, previous_hash=row.previous_hash, hash=row.hash, entry=_entry(row))
                for row in rows
            )

    def find_archived(self, keys: Sequence[str]) -> frozenset[str]:
        with self._database.reading() as session:
            return frozenset(_texts(session, keys))

    def chain_head(self, cluster: str) -> ChainHead | None:
        with self._database.reading() as session:
            row = session.get(AuditHeadRow, cluster)
            return None if row is None else ChainHead(cluster=row.cluster, length=row.length, hash=row.hash)


@contextmanager
def never_dropped() -> Iterator[None]:
    """Raise a missing right as Unavailable: the call is tried again until it is granted, and loses no entry."""
    try:
        yield
    except Barred as error:
        raise Unavailable(error.message) from None


def append_all(session: Session, entries: Sequence[AuditEntry]) -> dict[str, ChainHead]:
    """Append each entry to its cluster's chain, in this transaction; return the heads by cluster.

    The ledger itself adds to people's commands how the person was proven: the caller's word for it does not count.
    """
    # Sorted: two archivists with the same clusters take the heads in the same order.
    by_cluster = groupby(sorted(entries, key=lambda e: e.cluster), lambda entry: entry.cluster)
    return {cluster: _append(session, cluster, list(theirs)) for cluster, theirs in by_cluster}


def _append(session: Session, cluster: str, entries: Sequence[AuditEntry]) -> ChainHead:
    head = _locked_head(session, cluster)
    entries = proven_entries(session, cluster, entries)
    stored = _stored_texts(session, entries)
    length, digest, rows = head.length, head.hash, []
    for new_entry in entries:
        entry, text = _beside_another(new_entry, stored)
        if entry.key in stored:
            continue
        stored[entry.key] = text
        previous, length = digest, length + 1
        # Hashed as it will be read back: JSON turns tuples into lists and numbers as keys into texts.
        digest = chain_hash(previous, AuditEntry.model_validate_json(text))
        rows.append(
            {
                "cluster": cluster,
                "seq": length,
                "key": entry.key,
                "previous_hash": previous,
                "hash": digest,
                "entry": text,
            }
        )
    if rows:
        add(session, AuditRow, rows)
        update(session, AuditHeadRow, [{"cluster": cluster, "length": length, "hash": digest}])
    return ChainHead(cluster=cluster, length=length, hash=digest)


def _beside_another(entry: AuditEntry, stored: Mapping[str, str]) -> tuple[AuditEntry, str]:
    """Return the entry as it is stored, and its text.

    If another entry has its key already, it is stored under the key and its own hash: else somebody who knew a coming
    key could keep its entry out of the archive. The chain's check names both.
    """
    text = _text(entry)
    if entry.key not in stored or _is_same_but_for_proof(stored[entry.key], entry):
        return entry, text
    log.error("the archive of %s has another entry under the key %s", entry.cluster, entry.key)
    entry = entry.but(key=f"{entry.key[:250]}{BESIDE}{hash_of(text)}")
    return entry, _text(entry)


def _is_same_but_for_proof(stored: str, entry: AuditEntry) -> bool:
    """Return whether the texts differ in the proof only: a worker of another build may have archived it."""
    if stored == _text(entry):
        return True
    try:
        other = AuditEntry.model_validate_json(stored)
    except ValidationError:
        return False
    return without_proof(other) == without_proof(entry)


def _text(entry: AuditEntry) -> str:
    return canonical_json(entry.model_dump(mode="json"))


def _stored_texts(session: Session, entries: Sequence[AuditEntry]) -> dict[str, str]:
    """Return the texts of these entries and of those that were put beside them, by key."""
    stored = _texts(session, [entry.key for entry in entries])
    others = [e for e in entries if e.key in stored and not _is_same_but_for_proof(stored[e.key], e)]
    return stored | _texts(session, [_beside_another(e, stored)[0].key for e in others])


def _texts(session: Session, keys: Sequence[str]) -> dict[str, str]:
    rows = session.connection().execute(_stored_entries(), {"keys": keys}) if keys else ()
    return {row.key: row.entry for row in rows}


def _locked_head(session: Session, cluster: str) -> ChainHead:
    head = session.connection().execute(_head_row(), {"cluster": cluster}).first()
    if head is None:
        keep(session, AuditHeadRow, [{"cluster": cluster, "length": 0, "hash": GENESIS}])
        head = session.connection().execute(_head_row(), {"cluster": cluster}).one()
    return ChainHead(cluster=cluster, length=head.length, hash=head.hash)


@cache
def _head_row() -> sa.Select[int, str]:
    row = sa.select(col(AuditHeadRow.length), col(AuditHeadRow.hash))
    return row.where(col(AuditHeadRow.cluster) == sa.bindparam("cluster")).with_for_update()


@cache
def _stored_entries() -> sa.Select[str, str]:
    return sa.select(col(AuditRow.key), col(AuditRow.entry)).where(
        col(AuditRow.key).in_(sa.bindparam("keys", expanding=True))
    )


def _entry(row: AuditRow) -> AuditEntry:
    try:
        return AuditEntry.model_validate_json(row.entry)
    except ValidationError:
        # Tampered beyond reading. The stand-in cannot match the hash, so the chain check finds it.
        return AuditEntry(
            key=row.key,
            cluster=row.cluster,
            at=datetime.min.replace(tzinfo=UTC),
            kind=AuditKind.COMMAND,
            actor="unknown",
            text=f"row {row.seq} of the archive can no longer be read",
        )
