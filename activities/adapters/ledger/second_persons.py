"""The book of deeds that need a second person: commands that wait for one, and those that were given without one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pydantic import ValidationError
from sqlmodel import Session, col, func, or_, select

from activities.adapters.ledger.audit_archive import append_all, never_dropped
from activities.adapters.ledger.database import LedgerPart, one_at_a_time
from activities.ports.warrants import LoneDeed
from models.access.access_versions import ACCESS_CHAIN, COUNTERSIGNED_WITHIN
from models.access.second_persons import SHOWN_DIGITS, Awaited, Emergency, KeptCommand
from models.access.warrants import Warrant
from models.audit_chain import Signature
from models.countersign_questions import chain_of
from models.errors import Refusal, Stuck
from models.hashes import canonical_json
from models.ledger_access_tables import EmergencyRow, WaitingRow

_MOST_OF_ONE = 50
_LOCK = "second persons"
_ADMITTED = "|warrant/"
"""Separates the rest of an emergency's key from its warrant's nonce, so that an emergency counts for one command."""
_TOLD_WITHIN = timedelta(minutes=10)
"""How long before its warrant an emergency may be recorded: longer than a ticket is valid, and clocks differ."""
_NONE = "no command with the hash {} waits for a second person: see `backstop countersign list`"


class LedgerSecondPersons(LedgerPart):
    def now(self) -> datetime:
        return self._database.now()

    # --- what waits -----------------------------------------------------------------------------

    def keep(self, kept: KeptCommand, by: Signature) -> Awaited:
        with never_dropped(), self._database.begin() as session:
            one_at_a_time(session, _LOCK)
            mine = [
                _awaited_command(row) for row in _open_rows(session, self._database.now()) if row.given_by == by.actor
            ]
            for other in mine:
                if (other.kept.command, other.kept.message) == (kept.command, kept.message):
                    return other
            if len(mine) >= _MOST_OF_ONE:
                raise Refusal(
                    f"{len(mine)} commands of {by.actor} already wait for a second person: withdraw some of them "
                    "(`backstop countersign list`)"
                )
            row = WaitingRow(
                hash=kept.hash,
                command=kept.command,
                given_by=by.actor,
                given_at=kept.at,
                document=canonical_json(kept.canonical),
            )
            session.add(row)
            waits = Awaited(kept=kept)
            text = f"a command to {waits.deed_text} waits for a second person until {waits.until:%Y-%m-%d %H:%MZ}"
            _archive(session, waits, by, text)
            return waits

    def list_awaited(self) -> Sequence[Awaited]:
        with self._database.reading() as session:
            return tuple(map(_awaited_command, _open_rows(session, self._database.now())))

    def awaited_one(self, digits: str) -> Awaited:
        with self._database.reading() as session:
            return _awaited_command(_row(session, digits))

    def take(self, digits: str, by: Signature) -> Awaited:
        with never_dropped(), self._database.begin() as session:
            row, waits = self._still_waiting(session, digits)
            if row.second and row.second != by.actor:
                raise Refusal(f"{row.second} is already countersigning command {row.hash[:SHOWN_DIGITS]}")
            if not row.second:
                row.second, row.taken_at = by.actor, by.at
                session.add(row)
                text = f"countersigned the command of {row.given_by} to {waits.deed_text}"
                _archive(session, waits, by, text)
            return _awaited_command(row)

    def let_go(self, digits: str, by: Signature) -> Awaited:
        with self._database.begin() as session:
            one_at_a_time(session, _LOCK)
            row = _row(session, digits)
            if row.second == by.actor and not row.ended:
                row.second, row.taken_at = "", None
                session.add(row)
            return _awaited_command(row)

    def mark_given(self, digits: str, by: Signature) -> Awaited:
        with self._database.begin() as session:
            one_at_a_time(session, _LOCK)
            row = _row(session, digits)
            if row.second != by.actor:
                raise Refusal(f"{by.actor} is not the person who is countersigning command {row.hash[:SHOWN_DIGITS]}")
            if not row.ended:
                row.ended, row.ended_at = "given", by.at
                session.add(row)
            return _awaited_command(row)

    def withdraw(self, digits: str, by: Signature) -> Awaited:
        with never_dropped(), self._database.begin() as session:
            row, waits = self._still_waiting(session, digits)
            if row.second:
                raise Refusal(
                    f"{row.second} is countersigning command {row.hash[:SHOWN_DIGITS]}: it is too late to withdraw it"
                )
            row.ended, row.ended_at = "withdrawn", by.at
            session.add(row)
            text = f"the command to {waits.deed_text} is withdrawn: nobody needs to countersign it any more"
            _archive(session, waits, by, text)
            return _awaited_command(row)

    def _still_waiting(self, session: Session, digits: str) -> tuple[WaitingRow, Awaited]:
        """Return the row and the command. Errors: Refusal for one that waits no more."""
        one_at_a_time(session, _LOCK)
        row = _row(session, digits)
        waits = _awaited_command(row)
        if why := waits.why_not(self._database.now()):
            raise Refusal(why)
        return row, waits

    # --- what was done alone --------------------------------------------------------------------

    def record_emergency(self, command: str, what: str, chain: str, by: Signature) -> Emergency:
        with never_dropped(), self._database.begin() as session:
            one_at_a_time(session, _LOCK)
            used = col(EmergencyRow.key).startswith(f"{by.key}{_ADMITTED}", autoescape=True)
            earlier_row = session.exec(select(EmergencyRow).where(or_(col(EmergencyRow.key) == by.key, used))).first()
            return (
                _note_emergency(session, command, what, chain, by) if earlier_row is None else _emergency(earlier_row)
            )

    def mark_refused(self, number: int, chain: str, by: Signature) -> Emergency:
        with never_dropped(), self._database.begin() as session:
            one_at_a_time(session, _LOCK)
            row = session.get(EmergencyRow, number)
            if row is None or row.given_by != by.actor:
                raise Refusal(f"there is no emergency {number} in which {by.actor} acted alone")
            if row.seen_at is None and _ADMITTED not in row.key:
                row.seen_at, row.seen_reason = by.at, "its command was refused"
                session.add(row)
                text = f"nothing was done in emergency {number}: the command to {row.what} was refused"
                append_all(session, [by.entry(chain, text, {"emergency": number})])
            return _emergency(row)

    def find_admitted_alone(self, nonce: str) -> Emergency | None:
        with self._database.reading() as session:
            row = session.exec(select(EmergencyRow).where(EmergencyRow.key == f"{_ADMITTED}{nonce}")).first()
            return None if row is None else _emergency(row)

    def emergencies(self) -> Sequence[Emergency]:
        with self._database.reading() as session:
            rows = select(EmergencyRow).where(col(EmergencyRow.seen_at).is_(None)).order_by(col(EmergencyRow.number))
            return tuple(map(_emergency, session.exec(rows).all()))

    def emergency(self, number: int) -> Emergency | None:
        with self._database.reading() as session:
            row = session.get(EmergencyRow, number)
            return None if row is None else _emergency(row)

    def mark_seen(self, number: int, by: Signature) -> Emergency:
        with never_dropped(), self._database.begin() as session:
            one_at_a_time(session, _LOCK)
            row = session.get(EmergencyRow, number)
            if row is None:
                raise Refusal(f"there is no emergency {number}")
            if row.seen_at is None:
                row.seen_by, row.seen_at, row.seen_reason = by.actor, by.at, by.reason
                session.add(row)
                text = f"reviewed emergency {number}, in which {row.given_by} acted alone to {row.what}"
                append_all(session, [by.entry(ACCESS_CHAIN, text, {"command": "seen_emergency", "emergency": number})])
            return _emergency(row)


def note_admitted(session: Session, warrant: Warrant, alone: LoneDeed) -> None:
    """Join the warrant to the emergency that a front reported a little before; without one, record it here."""
    one_at_a_time(session, _LOCK)
    name = warrant.principal.name
    before = select(EmergencyRow).where(
        EmergencyRow.given_by == name,
        EmergencyRow.what == alone.what,
        EmergencyRow.reason == alone.reason,
        col(EmergencyRow.given_at) >= warrant.admitted_at - _TOLD_WITHIN,
        ~col(EmergencyRow.key).contains(_ADMITTED),
        or_(col(EmergencyRow.seen_at).is_(None), EmergencyRow.seen_by != ""),
    )
    earlier = session.exec(before.order_by(col(EmergencyRow.number))).first()
    if earlier is None:
        by = Signature(actor=name, at=warrant.admitted_at, key=f"{_ADMITTED}{warrant.nonce}", reason=alone.reason)
        _note_emergency(session, warrant.command, alone.what, alone.chain, by)
    else:
        earlier.key = f"{earlier.key}{_ADMITTED}{warrant.nonce}"
        session.add(earlier)


def _note_emergency(session: Session, command: str, what: str, chain: str, by: Signature) -> Emergency:
    last = session.exec(select(func.max(EmergencyRow.number))).one()
    row = EmergencyRow(
        number=(last or 0) + 1, key=by.key, given_by=by.actor, given_at=by.at, what=what, reason=by.reason
    )
    session.add(row)
    text = f"acted alone in an emergency to {what}: no second person was asked"
    append_all(session, [by.entry(chain, text, {"command": command, "emergency": row.number})])
    return _emergency(row)


def _open_rows(session: Session, now: datetime) -> Sequence[WaitingRow]:
    since = now - COUNTERSIGNED_WITHIN
    rows = select(WaitingRow).where(WaitingRow.ended == "", col(WaitingRow.given_at) > since)
    return session.exec(rows.order_by(col(WaitingRow.given_at), col(WaitingRow.hash))).all()


def _row(session: Session, digits: str) -> WaitingRow:
    """Return the row whose hash begins with these digits. Errors: Refusal."""
    rows = session.exec(select(WaitingRow).where(col(WaitingRow.hash).startswith(digits)).limit(2)).all()
    if not rows:
        raise Refusal(_NONE.format(digits))
    if len(rows) > 1:
        raise Refusal(f"two commands have a hash that begins with {digits}: give more of its digits")
    return rows[0]


def _awaited_command(row: WaitingRow) -> Awaited:
    """Return the waiting command. Errors: Stuck for a row that is not what was kept."""
    try:
        kept = KeptCommand.model_validate_json(row.document)
    except ValidationError:
        kept = None
    if kept is None or kept.hash != row.hash or kept.principal.name != row.given_by:
        raise Stuck(
            f"the stored command {row.hash[:SHOWN_DIGITS]} is not the one that {row.given_by} gave, so nobody can "
            "countersign it: give the command again"
        )
    return Awaited(kept=kept, second=row.second, ended=row.ended, ended_at=row.ended_at)


def _archive(session: Session, waits: Awaited, by: Signature, text: str) -> None:
    kept = waits.kept
    data = {"command": kept.command, "hash": kept.hash, "given_by": kept.principal.name}
    append_all(session, [by.entry(chain_of(kept.command, kept.target), text, data)])


def _emergency(row: EmergencyRow) -> Emergency:
    return Emergency(
        number=row.number,
        by=row.given_by,
        at=row.given_at,
        what=row.what,
        reason=row.reason,
        seen_by=row.seen_by,
        seen_at=row.seen_at,
        seen_reason=row.seen_reason,
    )
