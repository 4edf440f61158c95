"""The book of access files and tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from pydantic import ValidationError
from sqlmodel import Session, col, select

from activities.adapters.ledger.audit_archive import append_all, never_dropped
from activities.adapters.ledger.database import LedgerPart, one_at_a_time
from models.access.access_file import AccessFile
from models.access.access_versions import ACCESS_CHAIN, AccessProposal, AccessVersion, HowImported, changes_between
from models.access.tokens import Token, TokenScope
from models.audit_chain import AuditEntry, Signature
from models.errors import Conflict, Refusal, Stuck
from models.ledger_access_tables import AccessFileRow, AccessTokenRow, EndedSessionRow
from models.texts import some_of

_CHANGES_TOLD = 50
_ENDED_KEPT = timedelta(days=1)
"""The time for which ended sessions are kept; longer than a session lasts."""
_OTHER = "another access file came into force before this one: look at it with `backstop access show`, and import again"


class LedgerAccess(LedgerPart):
    def now(self) -> datetime:
        return self._database.now()

    # --- files ----------------------------------------------------------------------------------

    def access(self) -> AccessVersion | None:
        with self._database.reading() as session:
            row = _in_force(session)
            return None if row is None else _version(row)

    def newest_version(self) -> int:
        """Return the version in force, whether it makes sense or not; 0 if there is none."""
        with self._database.reading() as session:
            row = _in_force(session)
            return 0 if row is None or row.version is None else row.version

    def proposal(self) -> AccessProposal | None:
        with self._database.reading() as session:
            last = _last(session)
            if last is None or last.version is not None:
                return None
            row = _in_force(session)
            proposed = _proposal(last)
            standing = 0 if row is None or row.version is None else row.version
            return proposed if proposed.is_open(self._database.now(), standing) else None

    def propose(self, file: AccessFile, after: int, by: Signature) -> AccessProposal:
        with never_dropped(), self._database.begin() as session:
            standing = _only_after(session, after)
            last = _last(session)
            if last is not None and last.version is None and (last.hash, last.imported_by) == (file.hash, by.actor):
                asked_before = _proposal(last)
                if asked_before.is_open(by.at, after):
                    return asked_before
            _refuse_twin(session, file)
            row = _row(_number(last), file, after, by)
            session.add(row)
            changes = changes_between(standing, file)
            text = f"access file {file.hash} is proposed; another admin has to countersign it within 24 h"
            data = {"command": "import_access", "hash": file.hash, "after": after, "changes": changes[:_CHANGES_TOLD]}
            append_all(session, [by.entry(ACCESS_CHAIN, text, data)])
            return _proposal(row)

    def put_in_force(
        self, file: AccessFile, after: int, by: Signature, how: HowImported, proposal: AccessProposal | None = None
    ) -> AccessVersion:
        with never_dropped(), self._database.begin() as session:
            now = _in_force(session, lock=True)
            if now is not None and (now.hash, now.version) == (file.hash, after + 1):
                return _version(now)  # done already
            standing = _only_after(session, after, whole=how is not HowImported.RECOVERED)
            last = _last(session)
            waits = proposal is not None and last is not None and (last.version, last.hash) == (None, proposal.hash)
            row = last if waits and last is not None else _row(_number(last), file, after, by)
            row.version, row.how, row.in_force_at, row.second = after + 1, how.value, by.at, by.actor if waits else ""
            session.add(row)
            append_all(session, [_import_entry(file, after + 1, by, how, proposal, changes_between(standing, file))])
            session.flush()
            return _version(row)

    # --- tokens ---------------------------------------------------------------------------------

    def tokens(self, *, ended: bool = False) -> Sequence[Token]:
        rows = select(AccessTokenRow).order_by(col(AccessTokenRow.name))
        if not ended:
            still = col(AccessTokenRow.expires_at) > self._database.now()
            rows = rows.where(col(AccessTokenRow.revoked_at).is_(None), still)
        with self._database.reading() as session:
            return tuple(_token(row) for row in session.exec(rows).all())

    def token_of(self, digest: str) -> Token | None:
        with self._database.reading() as session:
            row = session.exec(select(AccessTokenRow).where(AccessTokenRow.hash == digest)).first()
            return None if row is None else _token(row)

    def make_token(self, token: Token, by: Signature) -> Token:
        with never_dropped(), self._database.begin() as session:
            one_at_a_time(session, "access")
            row = session.get(AccessTokenRow, token.name)
            if row is not None:
                if row.hash == token.hash:
                    return _token(row)
                raise Refusal(f"there is already a token {token.name!r} of {row.owner}: choose another name")
            values = token.model_dump(exclude={"scope"}) | {"scope": token.scope.model_dump_json()}
            session.add(AccessTokenRow(**values))
            text = f"token {token.name} of {token.owner} was made ({token.scope.text})"
            text += f"; it expires on {token.expires_at:%Y-%m-%d}"
            data = {"command": "make_token", "token": token.name, "owner": token.owner}
            append_all(session, [by.entry(ACCESS_CHAIN, text, data)])
            return token

    def revoke_token(self, name: str, by: Signature) -> Token:
        with never_dropped(), self._database.begin() as session:
            one_at_a_time(session, "access")
            row = session.get(AccessTokenRow, name)
            if row is None:
                raise Refusal(f"there is no token {name!r}: `backstop access token list` shows them")
            if row.revoked_at is None:
                row.revoked_at, row.revoked_by = by.at, by.actor
                session.add(row)
                text = f"token {name} of {row.owner} revoked"
                data = {"command": "revoke_token", "token": name, "owner": row.owner}
                append_all(session, [by.entry(ACCESS_CHAIN, text, data)])
            return _token(row)

    def end_sessions(self, hashes: Sequence[str], at: datetime) -> Mapping[str, datetime]:
        if hashes:
            with self._database.begin() as session:
                session.execute(sa.delete(EndedSessionRow).where(col(EndedSessionRow.ended_at) < at - _ENDED_KEPT))
                for one in hashes:
                    row = session.get(EndedSessionRow, one) or EndedSessionRow(hash=one, ended_at=at)
                    row.ended_at = max(row.ended_at, at)
                    session.add(row)
        with self._database.reading() as session:
            return {row.hash: row.ended_at for row in session.exec(select(EndedSessionRow))}


def _in_force(session: Session, *, lock: bool = False) -> AccessFileRow | None:
    if lock:
        one_at_a_time(session, "access")
    rows = select(AccessFileRow).where(col(AccessFileRow.version).is_not(None))
    return session.exec(rows.order_by(col(AccessFileRow.version).desc()).limit(1)).first()


def _last(session: Session) -> AccessFileRow | None:
    return session.exec(select(AccessFileRow).order_by(col(AccessFileRow.number).desc()).limit(1)).first()


def _number(last: AccessFileRow | None) -> int:
    return 1 if last is None else last.number + 1


def _only_after(session: Session, after: int, *, whole: bool = True) -> AccessFile | None:
    """Return the file in force, if it is version `after`. `whole`: it has to make sense. Errors: Conflict, Stuck."""
    row = _in_force(session, lock=True)
    if (0 if row is None else row.version) != after:
        raise Conflict(_OTHER)
    try:
        return None if row is None else _file(row)
    except Stuck:
        if whole:
            raise
        return None


def _refuse_twin(session: Session, file: AccessFile) -> None:
    """Refuse a file whose hash another file has. Errors: Refusal.

    Another admin confirms a file by its 64 bits: somebody with two files of one hash could show one, and have the other
    confirmed.
    """
    for row in session.exec(select(AccessFileRow).where(AccessFileRow.hash == file.hash)):
        with contextlib.suppress(Stuck):
            if _hashed_text(_file(row)) != _hashed_text(file):
                raise Refusal(f"another access file already has the hash {file.hash}: change something in this one")


def _hashed_text(file: AccessFile) -> str:
    return file.model_dump_json(exclude={"schema_"}, exclude_defaults=True)


def _row(number: int, file: AccessFile, after: int, by: Signature) -> AccessFileRow:
    return AccessFileRow(
        number=number,
        stands_after=after,
        hash=file.hash,
        document=file.model_dump_json(exclude_unset=True, by_alias=True),
        imported_by=by.actor,
        imported_at=by.at,
        reason=by.reason,
    )


def _import_entry(
    file: AccessFile,
    version: int,
    by: Signature,
    how: HowImported,
    proposal: AccessProposal | None,
    changes: Sequence[str],
) -> AuditEntry:
    who = f"{proposal.by}, countersigned by {by.actor}" if proposal is not None else by.actor
    off = "" if file.two_person else "; two_person is off"
    text = f"access file {file.hash} is in force as version {version} ({how}), imported by {who}{off}"
    data = {
        "command": "import_access",
        "hash": file.hash,
        "version": version,
        "how": how.value,
        "admins": some_of(file.admins),
        "two_person": file.two_person,
        "changes": changes[:_CHANGES_TOLD],
    }
    return by.entry(ACCESS_CHAIN, text, data)


def _file(row: AccessFileRow) -> AccessFile:
    """Return the row's file. Errors: Stuck if it makes no sense: nobody has a right then, and a person must act."""
    try:
        file = AccessFile.model_validate_json(row.document)
    except ValidationError:
        file = None
    if file is None or file.hash != row.hash:
        raise Stuck(
            f"access file {row.number} in the ledger is not what was imported: nobody may give a command until "
            "`backstop access recover FILE` has put another one in force"
        )
    return file


def _version(row: AccessFileRow) -> AccessVersion:
    return AccessVersion(
        version=row.version or 1,
        hash=row.hash,
        file=_file(row),
        by=row.imported_by,
        at=row.in_force_at or row.imported_at,
        how=HowImported(row.how),
        second=row.second,
        reason=row.reason,
    )


def _proposal(row: AccessFileRow) -> AccessProposal:
    return AccessProposal(
        hash=row.hash,
        file=_file(row),
        by=row.imported_by,
        at=row.imported_at,
        after=row.stands_after,
        reason=row.reason,
    )


def _token(row: AccessTokenRow) -> Token:
    values = row.model_dump() | {"scope": TokenScope.model_validate_json(row.scope)}
    return Token.model_validate(values)
