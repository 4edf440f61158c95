"""Rights from the ledger: the caller by the access file in force, and what they may do by the table.

Without an access file the front's own user may do everything; other callers may read.
Source: docs/access.md; models/access/decision.py decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from client.backstop import Backstop
from client.operations import Operation
from models.access.access_file import USER, AccessFile
from models.access.access_versions import ANEW, READS_KEPT
from models.access.command_targets import asks_ledger, target_of
from models.access.decision import Denied, Target, decide
from models.access.principals import Principal, Proof
from models.access.rights import READS_DESK, Case
from models.access.tokens import Token, TokenScope
from models.access_questions import AccessNow, AimOf, TokenOf
from models.errors import Refusal, Unavailable
from web.peer import own_user
from web.rights import ALLOWED, Judged, message_of, reason_of
from web.temporal_connection import FRONT, Doors

_KEPT_SECONDS = READS_KEPT.total_seconds()
"""How long an access file is kept for callers who only read. A change is judged by the file of that moment."""
_ANEW_SECONDS = ANEW.total_seconds()
"""How long it is kept for a change: one request asks twice, who calls and what they may do."""
_TOKENS_SECONDS = 15.0
"""How long a revoked token may still count."""
_ANSWER_SECONDS, _AWAY_SECONDS = 5.0, 2.0
_NOBODY = "no worker answers, so it is unknown who may do what: start one with `backstop up` or `backstop worker`"
_OF_ALL = frozenset({"read.unserved"})
"""Reads that need no right: they ask whether a worker answers, and without one nobody knows rights."""
_NOT_SET_UP = (
    "no access file is in force, so only the user who runs the front may give commands; you may only read: "
    "import an access file (`backstop access import FILE`)"
)


class LedgerRights:
    """web.rights.Rights and web.callers.TokenBook, by questions to the desk."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self._file: AccessFile | None = None
        self._read_at = self._failed_at = float("-inf")
        self._tokens: dict[str, tuple[float, Token | None]] = {}
        self._scopes: dict[str, TokenScope] = {}

    @property
    def two_person(self) -> bool:
        return self._file is not None and self._file.two_person

    async def is_in_force(self) -> bool:
        return await self._access(anew=True) is not None

    async def principal_for(self, principal: Principal, operation: Operation | None) -> Principal:
        try:
            file = await self._access(anew=operation is None or _changes(operation))
        except Unavailable:
            return principal  # by its own name: what it asks for is judged, and refused, by itself
        return principal if file is None else file.principal_of(principal)

    async def principal_by_token(self, token_hash: str) -> Principal | None:
        """Return the token's owner. Errors: Refusal for one that expired or was revoked."""
        at, token = self._tokens.get(token_hash, (float("-inf"), None))
        now = asyncio.get_running_loop().time()
        if now - at > _TOKENS_SECONDS:
            door = await self._doors.door_of(FRONT)
            token = await door.ask(TokenOf(hash=token_hash))
            if len(self._tokens) > 10_000:
                self._tokens.clear()
            self._tokens[token_hash] = now, token
        file = await self._access()
        if token is None or file is None:
            return None
        if why := token.why_not(self._doors.now()):
            raise Refusal(why)
        principal = token.principal(file)
        self._scopes[principal.how] = token.scope
        return principal

    async def judge(
        self,
        principal: Principal,
        operation: Operation,
        command: str,
        found: Mapping[str, Any],
        *,
        emergency: bool = False,
        facts: bool = True,
    ) -> Judged:
        if command in _OF_ALL:
            return ALLOWED
        file = await self._access(anew=_changes(operation))
        if file is None:
            return _without_file(principal, command)
        target = target_of(command, message_of(found), str(found.get("cluster") or ""))
        if facts and asks_ledger(command, target):
            target = await _with_facts(await self._doors.door_of(FRONT), command, target, found)
        scope = self._scopes.get(principal.how) if principal.proof is Proof.TOKEN else None
        answer = decide(file, principal, command, target, emergency=emergency, reason=reason_of(found), scope=scope)
        return Judged(answer, target)

    async def _access(self, *, anew: bool = False) -> AccessFile | None:
        """Return the access file. Errors: Unavailable without an answer and without a reading that still counts."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._read_at <= (_ANEW_SECONDS if anew else _KEPT_SECONDS):
            return self._file
        try:
            if now - self._failed_at < _AWAY_SECONDS:
                raise Unavailable(_NOBODY)
            door = await self._doors.door_of(FRONT)
            stands = await asyncio.wait_for(door.ask(AccessNow()), _ANSWER_SECONDS)
        except (Unavailable, TimeoutError):
            self._failed_at = loop.time()
            if anew or self._read_at == float("-inf"):
                raise Unavailable(_NOBODY) from None
            return self._file
        self._file = None if stands.version is None else stands.version.file
        self._read_at = loop.time()
        return self._file


def _without_file(principal: Principal, command: str) -> Judged:
    """Judge without an access file: the front's own user, and root, who can become any user, may do everything."""
    if principal.proof is Proof.PEER and principal.name in (USER + own_user().user, f"{USER}root"):
        return ALLOWED
    return ALLOWED if _only_reads(command) else Judged(Denied(reason=_NOT_SET_UP))


def _changes(operation: Operation) -> bool:
    return not _only_reads(operation.command)


def _only_reads(command: str) -> bool:
    return command.startswith("read.") or command in _READING


_READING = frozenset(
    f"desk.{kind}" for kind in READS_DESK - {"tokens", "token_of", "ended_sessions", "aim", "push_health"}
)
"""Questions that only read, except those about tokens, which are for admins, and those that make somebody act."""


async def _with_facts(door: Backstop, command: str, target: Target, found: Mapping[str, Any]) -> Target:
    """Return the command's target with the ledger's facts. Errors: those of the door."""
    if command == "rollout.close":
        status = await door.status(target.cluster)
        risky = status.stage == "stuck" or status.at_risk or status.breach_of
        target = target.but(cases=target.cases | ({Case.AT_RISK} if risky else set()))
    subject = found.get("request") if command.startswith("request.") else getattr(message_of(found), "fleet", "")
    return await door.ask(AimOf(command=command, target=target, subject=subject if isinstance(subject, str) else ""))
