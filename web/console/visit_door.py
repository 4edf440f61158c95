"""A visitor's door: calls that take several questions, each judged by the visitor's rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from client.composed import Composed
from models.question_base import Question
from web.console.visit import Visit

if TYPE_CHECKING:
    from client.backstop import Backstop

_AnswerT = TypeVar("_AnswerT")


class _ByVisit(Composed):
    """A door whose methods go through the visit: a visitor without the right gets the usual refusal."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    async def ask(self, question: Question[_AnswerT], payload: str = "") -> _AnswerT:
        return await self._visit.ask(question)

    async def open_fleet(self) -> Any:
        return await self._visit.call("open_fleet")


def door_of(visit: Visit) -> Backstop:
    """Return a door for code that reads: lists in pages, the weekly report. It gives no command."""
    return cast("Backstop", _ByVisit(visit))
