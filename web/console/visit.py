"""One person's visit to one page: who they are, what they asked for, and how the page reads more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from client.operations import Operation, by_method, by_question
from models.access.decision import Denied
from models.access.principals import Principal
from models.errors import BackstopError, Unavailable
from models.question_base import Question
from web.authorized_calls import Asking, Giving, question_asking
from web.console.sessions import Session
from web.failures import Problem
from web.rights import Judged

_AnswerT = TypeVar("_AnswerT")
_PATIENCE_SECONDS = 15.0


class Page(NamedTuple):
    """A page to show: its template and values."""

    template: str
    title: str
    values: Mapping[str, Any]
    status: int = 200


class Elsewhere(NamedTuple):
    """A redirect of the browser."""

    path: str


class Download(NamedTuple):
    """A file to download, under this name."""

    name: str
    kind: str
    text: str


@dataclass
class Visit:
    """A request for a page. `query`: the address's. `form`: a form's fields; empty: the visitor only reads."""

    giving: Giving
    principal: Principal
    path: tuple[str, ...]
    query: Mapping[str, str]
    session: Session | None = None
    form: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    missed: list[str] = field(default_factory=list)
    """Why parts of the page are missing: the page reloads once somebody answers."""

    @property
    def now(self) -> datetime:
        return self.giving.doors.now()

    @property
    def without_form(self) -> Visit:
        """Return the visit without its form, for questions after a command."""
        return replace(self, form={}, key="")

    def add_sentence(self, sentence: str) -> None:
        """Show the sentence on the next page."""
        if self.session is not None:
            self.session.said.append(sentence)

    async def name(self) -> str:
        """Return the visitor's name in the access file, which others use too."""
        return (await self.giving.principal_for(self.principal, by_method()["audit"])).name

    async def call(self, method: str, **found: Any) -> Any:
        """Call an operation of the door, with the visitor's rights. Errors: Problem 403, those of the operation."""
        return await self.giving.give(await self._build_asking(by_method()[method], found))

    async def ask(self, question: Question[_AnswerT]) -> _AnswerT:
        """Ask the desk a question, with the visitor's rights. Errors: Problem 403, those of the question."""
        operation = by_question()[question.kind]
        who = await self.giving.principal_for(self.principal, operation)
        answer: _AnswerT = await self.giving.give(question_asking(who, operation, question, self.key))
        return answer

    async def try_call(self, method: str, **found: Any) -> tuple[Any, str]:
        """Return the answer, or None and the reason: the page shows its other parts all the same."""
        return await self.try_read(self.call(method, **found))

    async def try_ask(self, question: Question[_AnswerT]) -> tuple[_AnswerT | None, str]:
        return await self.try_read(self.ask(question))

    async def try_read(
        self, reading: Awaitable[_AnswerT], seconds: float = _PATIENCE_SECONDS
    ) -> tuple[_AnswerT | None, str]:
        """Return the answer if it comes within `seconds`, else None and the reason."""
        try:
            return await asyncio.wait_for(reading, seconds), ""
        except TimeoutError:
            why = f"there was no answer within {seconds:.0f} s"
            self.missed.append(why)
        except (BackstopError, Problem) as error:
            why = why_of(error)
            if isinstance(error, Unavailable):
                self.missed.append(why)
        return None, why

    async def why_not(self, method: str, **found: Any) -> str:
        """Return why the table of rights forbids the call, or why that is unknown; empty: the visitor may."""
        judged, unknown = await self.try_read(self._judge(by_method()[method], found))
        if judged is None:
            return unknown
        return judged.decision.reason if isinstance(judged.decision, Denied) else ""

    async def may_by_file(self, method: str, **found: Any) -> bool:
        """Return whether the access file alone allows the call: for lists, where a question for each row is slow."""
        judged, _ = await self.try_read(self._judge_by_file(by_method()[method], found))
        return judged is not None and not isinstance(judged.decision, Denied)

    async def _judge_by_file(self, operation: Operation, found: dict[str, Any]) -> Judged:
        return await self.giving.judge_by_file(await self._build_asking(operation, found))

    async def _judge(self, operation: Operation, found: dict[str, Any]) -> Judged:
        return await self.giving.judge(await self._build_asking(operation, found))

    async def _build_asking(self, operation: Operation, found: dict[str, Any]) -> Asking:
        who = await self.giving.principal_for(self.principal, operation)
        in_path = {name: str(found[name]) for name in operation.in_path if name in found}
        emergency = bool(self.form.get("emergency"))
        return Asking(who, operation, in_path, found, emergency, self.key)


def why_of(error: BaseException) -> str:
    """Return an error's sentence for a visitor."""
    return error.detail if isinstance(error, Problem) else getattr(error, "message", str(error))
