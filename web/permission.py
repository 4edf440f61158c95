"""Whether a principal may do what it asks for. The front asks whoever knows the rights, and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from client.operations import Operation
from models.access.decision import Decision, Denied, Permitted, Target
from models.access.principals import Principal
from models.base import Model


class Judged(NamedTuple):
    """What somebody asks for, and whether they may."""

    decision: Decision
    target: Target = Target()

    @property
    def why_not(self) -> str:
        """The sentence of a refusal, or what it waits for; empty: it is allowed."""
        return self.decision.reason if isinstance(self.decision, Denied) else self.decision.sentence


ALLOWED = Judged(Permitted(roles=()))


class Rights(Protocol):
    """Of who comes in."""

    async def principal_for(self, principal: Principal, operation: Operation | None) -> Principal:
        """Whoever the access file says that this is: the same human by whichever way they come in."""
        ...

    async def in_force(self) -> bool:
        """Whether an access file says who may do what. Errors: Unavailable where nobody can say."""
        ...

    @property
    def two_person(self) -> bool:
        """Whether a second person is wanted where the table of rights has one, as it was known last."""
        ...

    async def judge(
        self,
        principal: Principal,
        operation: Operation,
        command: str,
        found: Mapping[str, Any],
        *,
        emergency: bool = False,
    ) -> Judged:
        """By the table of rights, `command` a key of it. `emergency`: they want to act alone where two are needed."""
        ...


class Everybody:
    """No access is configured: everybody who comes in may do everything, as straight at Temporal."""

    two_person = False

    async def in_force(self) -> bool:
        return False

    async def principal_for(self, principal: Principal, operation: Operation | None) -> Principal:
        return principal

    async def judge(
        self,
        principal: Principal,
        operation: Operation,
        command: str,
        found: Mapping[str, Any],
        *,
        emergency: bool = False,
    ) -> Judged:
        return ALLOWED


def command_key(operation: Operation, in_path: Mapping[str, str]) -> str:
    """As the table of rights has it."""
    return operation.command.format(**in_path) if "{" in operation.command else operation.command


def message_of(found: Mapping[str, Any]) -> Any:
    """Of the arguments the one that says most: a command, a launch, a question."""
    given = (found.get(name) for name in ("request", "order", "ask", "start", "question"))
    return next((one for one in given if isinstance(one, Model)), None)


def reason_of(found: Mapping[str, Any]) -> str:
    """Why they do it, in their words."""
    return str(getattr(message_of(found), "reason", "") or "")
