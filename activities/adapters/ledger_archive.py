"""The audit archive: one hash chain per cluster, and its head in another table.

Whoever appends holds the head's row, so that two archivists never continue the same link.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

from pydantic import ValidationError
from sqlmodel import Session, col, select

from activities.adapters.ledger_bulk import add, keep
from activities.adapters.ledger_db import Database
from models.audit import GENESIS, AuditEntry, AuditKind, ChainedEntry, ChainHead, chain_hash
from models.base import canonical_json
from models.tables import AuditHeadRow, AuditRow


class LedgerArchive:
    """The archive's part of RegistryPort."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def archive(self, entries: Sequence[AuditEntry]) -> ChainHead | None:
        """Each entry is at the end of its cluster's chain, once per key; the last entry's head."""
        if not entries:
            return None
        with self._database.writing() as session:
            # Sorted: two archivists with the same clusters take the heads in the same order.
            by_cluster = groupby(sorted(entries, key=lambda e: e.cluster), lambda e: e.cluster)
            heads = {cluster: _append(session, cluster, list(theirs)) for cluster, theirs in by_cluster}
            return heads[entries[-1].cluster]

    def archived(self, cluster: str, after_seq: int, limit: int) -> tuple[ChainedEntry, ...]:
        with self._database.reading() as session:
            rows = session.exec(
                select(AuditRow)
                .where(AuditRow.cluster == cluster, AuditRow.seq > after_seq)
                .order_by(col(AuditRow.seq))
                .limit(limit)
            ).all()
            return tuple(_chained(row) for row in rows)

    def chain_head(self, cluster: str) -> ChainHead | None:
        with self._database.reading() as session:
            row = session.get(AuditHeadRow, cluster)
            return None if row is None else _head(row)


def _append(session: Session, cluster: str, entries: Sequence[AuditEntry]) -> ChainHead:
    head = _locked_head(session, cluster)
    keys = [entry.key for entry in entries]
    stored = set(session.exec(select(AuditRow.key).where(col(AuditRow.key).in_(keys))).all())
    rows = []
    for entry in entries:
        if entry.key in stored:
            continue
        stored.add(entry.key)
        text = canonical_json(entry.model_dump(mode="json"))
        # Hashed as it will be read back: JSON turns tuples into lists and numbers as keys into texts.
        digest = chain_hash(head.hash, AuditEntry.model_validate_json(text))
        rows.append(
            {
                "cluster": cluster,
                "seq": head.length + 1,
                "key": entry.key,
                "previous_hash": head.hash,
                "hash": digest,
                "entry": text,
            }
        )
        head.length, head.hash = head.length + 1, digest
    add(session, AuditRow, rows)
    return _head(head)


def _locked_head(session: Session, cluster: str) -> AuditHeadRow:
    keep(session, AuditHeadRow, [{"cluster": cluster, "length": 0, "hash": GENESIS}])
    return session.get_one(AuditHeadRow, cluster, with_for_update=True)


def _head(row: AuditHeadRow) -> ChainHead:
    return ChainHead(cluster=row.cluster, length=row.length, hash=row.hash)


def _chained(row: AuditRow) -> ChainedEntry:
    return ChainedEntry(seq=row.seq, previous_hash=row.previous_hash, hash=row.hash, entry=_entry(row))


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
            text=f"row {row.seq} of the archive cannot be read any more",
        )
