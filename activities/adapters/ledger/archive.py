"""The audit archive: one hash chain per cluster, and its head in another table.

Whoever appends holds the head's row, so that two archivists never continue the same link.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import groupby

import sqlalchemy as sa
from pydantic import ValidationError
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import add, keep, update
from activities.adapters.ledger.database import Database
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
            return append_all(session, entries)[entries[-1].cluster]

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
            return None if row is None else ChainHead(cluster=row.cluster, length=row.length, hash=row.hash)


def append_all(session: Session, entries: Sequence[AuditEntry]) -> dict[str, ChainHead]:
    """Each entry is at the end of its cluster's chain, in this transaction; the heads by cluster."""
    # Sorted: two archivists with the same clusters take the heads in the same order.
    by_cluster = groupby(sorted(entries, key=lambda e: e.cluster), lambda e: e.cluster)
    return {cluster: _append(session, cluster, list(theirs)) for cluster, theirs in by_cluster}


def _append(session: Session, cluster: str, entries: Sequence[AuditEntry]) -> ChainHead:
    head = _locked_head(session, cluster)
    keys = [entry.key for entry in entries]
    stored = set(session.connection().execute(_stored_keys(), {"keys": keys}).scalars())
    length, digest, rows = head.length, head.hash, []
    for entry in entries:
        if entry.key in stored:
            continue
        stored.add(entry.key)
        text = canonical_json(entry.model_dump(mode="json"))
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
def _stored_keys() -> sa.Select[str]:
    return sa.select(col(AuditRow.key)).where(col(AuditRow.key).in_(sa.bindparam("keys", expanding=True)))


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
