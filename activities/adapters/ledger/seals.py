"""Seals in the ledger beside the chains: each sealer continues from the last seal, and one of them seals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import store
from activities.adapters.ledger.database import LedgerPart, one_at_a_time
from models.audit_chain import GENESIS, ChainHead, hashes_to
from models.hashes import canonical_json
from models.ledger_access_tables import SealingRow, SealRow
from models.ledger_tables import AuditHeadRow, AuditRow
from models.seals import Seal, SealedSeal, SealedTo, Sealing

_PAGE = 500
_SHOWN = 30


class LedgerSeals(LedgerPart):
    def all(self) -> list[SealedSeal]:
        with self._database.reading() as session:
            rows = session.exec(select(SealRow.leaf, SealRow.note).order_by(col(SealRow.number))).all()
        return [SealedSeal(leaf=leaf, note=note) for leaf, note in rows]

    def heads(self) -> tuple[ChainHead, ...]:
        """Return the head of every chain, as of one moment."""
        with self._database.reading() as session:
            rows = session.exec(select(AuditHeadRow).order_by(col(AuditHeadRow.cluster))).all()
            return tuple(ChainHead(cluster=row.cluster, length=row.length, hash=row.hash) for row in rows)

    def add(self, seal: SealedSeal) -> bool:
        """Add the seal as the ledger's last; False if another one has its number already."""
        content = seal.seal
        try:
            with self._database.begin() as session:
                one_at_a_time(session, "seals")
                if _last_number(session) != content.number - 1:
                    return False
                session.add(SealRow(number=content.number, at=content.at, leaf=seal.leaf, note=seal.note))
        except IntegrityError:
            return False
        return True

    def fault_of(self, sealed: ChainHead | None, head: ChainHead) -> str:
        """Return why the chain up to `head` does not continue the sealed one; empty if it does."""
        if sealed is not None and head.length < sealed.length:
            return f"ends at row {head.length}, but a seal covers it up to row {sealed.length}"
        after = 0 if sealed is None or not sealed.length else sealed.length - 1
        previous, expected = GENESIS, after
        while expected < head.length:
            page = self._links(head.cluster, expected)
            for seq, previous_hash, digest, text in page:
                expected += 1
                if seq != expected:
                    return f"row {expected} is missing"
                first = sealed is not None and expected == sealed.length
                if first and sealed is not None and digest != sealed.hash:
                    return f"row {expected} differs from the row that was sealed"
                altered = not hashes_to(digest, previous_hash, text)
                if altered or (not first and previous_hash != previous):
                    return f"row {expected} was altered"
                previous = digest
                if expected == head.length:
                    break
            if not page:
                return f"row {expected + 1} is missing"
        return "" if previous == head.hash or not head.length else f"ends otherwise than row {head.length}"

    def _links(self, cluster: str, after: int) -> Sequence[tuple[int, str, str, str]]:
        """Read number, predecessor's hash, hash and text of the next rows: a seal reads every one since the last."""
        links = (
            sa.select(col(AuditRow.seq), col(AuditRow.previous_hash), col(AuditRow.hash), col(AuditRow.entry))
            .where(col(AuditRow.cluster) == cluster, col(AuditRow.seq) > after)
            .order_by(col(AuditRow.seq))
            .limit(_PAGE)
        )
        with self._database.reading() as session:
            return [(n, before, digest, text) for n, before, digest, text in session.connection().execute(links)]

    def read_last_seals(self, cluster: str) -> tuple[SealedTo, ...]:
        """Return the last seals that name this chain, the newest first."""
        named = f'"cluster":{canonical_json(cluster)}'
        rows = select(SealRow.number, SealRow.at, SealRow.leaf).where(
            col(SealRow.leaf).contains(named, autoescape=True)
        )
        with self._database.reading() as session:
            seal_rows = session.exec(rows.order_by(col(SealRow.number).desc()).limit(_SHOWN)).all()
        return tuple(
            SealedTo(number=number, at=at, length=head.length)
            for number, at, leaf in seal_rows
            for head in Seal.model_validate_json(leaf).heads
            if head.cluster == cluster
        )

    def note(self, every: timedelta, trouble: str) -> None:
        """Record how sealing goes."""
        with self._database.begin() as session:
            before = session.get(SealingRow, 1)
            seconds = round(every.total_seconds())
            if before is not None and (before.every_seconds, before.trouble) == (seconds, trouble):
                return
            since = self._database.now() if before is None else before.since
            row = {"id": 1, "every_seconds": seconds, "since": since, "trouble": trouble}
            store(session, SealingRow, [row])

    def sealing_state(self) -> Sealing | None:
        """Return how sealing goes; None if nobody has sealed here."""
        with self._database.reading() as session:
            row = session.get(SealingRow, 1)
            if row is None:
                return None
            number = _last_number(session)
            at = session.scalar(select(SealRow.at).where(SealRow.number == number)) if number else None
            return Sealing(number=number, at=at, every_seconds=row.every_seconds, since=row.since, trouble=row.trouble)


def _last_number(session: Session) -> int:
    return session.scalar(sa.select(sa.func.max(SealRow.number))) or 0
