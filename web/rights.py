"""The rights of a principal, as the front asks for them; it decides nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from client.operations import Operation
from models.access.decision import Decision, Denied, Permitted, Target
from models.access.principals import Principal
from models.base import Model


class Judged(NamedTuple):
    """A decision, and its target."""

    decision: Decision
    target: Target = Target()

    @property
    def why_not(self) -> str:
        """Why the call is refused, or which second person it waits for; empty: it is allowed."""
        return self.decision.reason if isinstance(self.decision, Denied) else self.decision.sentence


ALLOWED = Judged(Permitted(roles=()))


class Rights(Protocol):
    async def principal_for(self, principal: Principal, operation: Operation | None) -> Principal:
        """Return the caller as the access file names them: the same person by every way in."""

    async def is_in_force(self) -> bool:
        """Return whether an access file says who may do what. Errors: Unavailable if that is unknown."""

    @property
    def two_person(self) -> bool:
        """Whether commands that the table of rights marks for two people need a second one, as last read."""

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
        """Judge by the table of rights. `command`: its key. `emergency`: the caller acts alone where two are needed.

        `facts`: ask a worker what the ledger knows of the target, and judge with that.
        """


class Everybody:
    """No access is configured: every caller may do everything, as with a direct connection to Temporal."""

    two_person = False

    async def is_in_force(self) -> bool:
        return False

    async def principal_for(self, principal: Principal, operation: Operation | None) -> Principal:
        return principal

    async def judge(self, *_: Any, **__: Any) -> Judged:
        return ALLOWED


def message_of(found: Mapping[str, Any]) -> Any:
    """Return the argument that says most: a command, a launch, a question."""
    subjects = (found.get(name) for name in ("request", "order", "ask", "start", "question"))
    return next((one for one in subjects if isinstance(one, Model)), None)


def reason_of(found: Mapping[str, Any]) -> str:
    """Return the caller's reason."""
    return str(getattr(message_of(found), "reason", "") or "")
