"""A door for agents: it reads and asks for more quota, and refuses every other operation.

Theory of operation. The tools of agents (cli/agents/tools.py) use this door instead of the command line's. It knows
each operation by its key in the table of rights, and refuses one that is not on its list before it sends anything. So
no tool can approve anything, whatever the tool does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from client.operations import by_method, composed_method
from models.access.rights import READS_DESK
from models.errors import Refusal

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.question_base import Question

_AnswerT = TypeVar("_AnswerT")

PROPOSES = frozenset({"request.ask"})
"""The commands that change something: only the request for quota, on which a person decides."""
_NOT_FOR_AGENTS = frozenset({"access", "tokens", "token_of", "ended_sessions", "aim", "describe_slurm", "push_health"})
"""Agents need neither rights and tokens, nor a new reading of Slurm, nor an extra round of the watch."""
READS = frozenset(f"desk.{kind}" for kind in READS_DESK - _NOT_FOR_AGENTS)


def may(command: str) -> bool:
    """Return whether an agent's tool may give this command of the table of rights."""
    return command.startswith("read.") or command in READS or command in PROPOSES


class ReadingDoor:
    """The real door (client/backstop.py) behind a check: only what `may` allows gets through. Errors: Refusal."""

    def __init__(self, door: Backstop) -> None:
        self._door = door

    async def ask(self, question: Question[_AnswerT], payload: str = "") -> _AnswerT:
        _refuse(f"desk.{question.kind}")
        return await self._door.ask(question, payload)

    def __getattr__(self, name: str) -> Any:
        if (method := composed_method(self, name)) is not None:  # made of questions, each of which comes back here
            return method
        operation = by_method().get(name)
        if operation is None:
            raise AttributeError(name)
        _refuse(operation.command)
        return getattr(self._door, name)


def _refuse(command: str) -> None:
    if not may(command):
        raise Refusal(
            f"agents may not give {command}: they may read, and ask for quota; only people give other commands"
        )
