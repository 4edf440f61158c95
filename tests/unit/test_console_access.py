"""The access page on who acted alone: what it asks, and what it says where nobody answers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from pydantic import ValidationError

from models.access.access_versions import AccessStands
from models.access.second_persons import Emergency
from models.access_questions import AccessNow
from models.base import in_one_sentence
from models.countersign_questions import UnseenEmergencies, WaitingNow
from models.errors import BackstopError, BadInput, Unavailable
from models.questions import QUESTIONS, DeskRequest
from tests.unit.test_console_flex import BASE
from web.console.pages.access import access
from web.console.rendering import page
from web.console.visit import Visit

AT = datetime(2026, 11, 24, 12, tzinfo=UTC)
ALONE = Emergency(number=3, by="user:sre", at=AT, what="approve in <b>", reason="a SEV")


class _Asks:
    """A visit of whoever may, where no access file is in force and nothing waits."""

    def __init__(self, alone: tuple[Emergency, ...] | BackstopError) -> None:
        self.path, self.query, self.form = ("access",), dict[str, str](), dict[str, str]()
        self.asked = set[type[Any]]()
        self._alone = alone

    async def ask(self, question: Any) -> Any:
        self.asked.add(type(question))
        if not isinstance(question, UnseenEmergencies):
            return AccessStands() if isinstance(question, AccessNow) else ()
        if isinstance(self._alone, BackstopError):
            raise self._alone
        return self._alone

    async def try_ask(self, question: Any) -> Any:
        try:
            return await self.ask(question), ""
        except BackstopError as error:
            return None, error.message


def looked(alone: tuple[Emergency, ...] | BackstopError) -> tuple[str, set[type[Any]]]:
    visit = _Asks(alone)
    made = asyncio.run(access(cast("Visit", visit)))
    values = {**BASE, "once": "", **made.values}  # type: ignore[union-attr]
    return bytes(page("access.html", values).body).decode(), visit.asked


def of_an_earlier_build(monkeypatch: pytest.MonkeyPatch) -> BadInput:
    """Return the error of a worker that does not know the question (client/converter.py)."""
    with monkeypatch.context() as earlier:
        earlier.delitem(QUESTIONS, "unseen_emergencies")
        with pytest.raises(ValidationError) as refused:
            DeskRequest.model_validate({"kind": "unseen_emergencies"})
    return BadInput(f"not a valid DeskRequest: {in_one_sentence(refused.value)}")


def test_the_page_asks_for_the_emergencies_and_not_for_a_week() -> None:
    html, asked = looked((ALONE,))
    assert asked == {AccessNow, WaitingNow, UnseenEmergencies}
    assert "user:sre acted alone in an emergency, 2026-11-24 12:00Z: approve in &lt;b&gt;: a SEV." in html
    assert "There is none." not in html
    assert "There is none." in looked(())[0]


def test_what_nobody_answers_is_unknown_and_not_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (Unavailable("no worker answers"), of_an_earlier_build(monkeypatch)):
        html, _ = looked(error)
        assert "Whether there is an emergency to review is unknown" in html
        assert "There is none." not in html
