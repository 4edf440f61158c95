"""A visitor who clicks through pages leaves one question waiting at a worker, not one for each page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from models.questions import Pulse
from tests.waiting import eventually
from web.console.live import Live
from web.temporal_connection import Doors


class Ledger:
    """Says its mark, and waits until it is another one."""

    def __init__(self) -> None:
        self.mark, self.waiting, self.most, self.asked = "one", 0, 0, 0
        self.changed = asyncio.Event()

    async def door_of(self, *_: Any, **__: Any) -> Any:
        return self

    async def ask(self, question: Pulse) -> str:
        self.asked += 1
        if question.since == self.mark:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            try:
                await self.changed.wait()
            finally:
                self.waiting -= 1
        return self.mark


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No question is given up, and no line is called quiet, because the machine is slow."""
    for seconds in ("_LATE_SECONDS", "_MARK_SECONDS", "_QUIET_SECONDS"):
        monkeypatch.setattr(f"web.console.live.{seconds}", 3600.0)


def _page(live: Live, stopping: asyncio.Event) -> AsyncGenerator[bytes]:
    return cast("AsyncGenerator[bytes]", live.follow("ana", stopping))


async def _until(ledger: Ledger, waiting: int) -> None:
    await eventually(lambda: ledger.waiting == waiting, f"{waiting} wait")


async def test_twenty_pages_one_after_the_other_wait_by_one_question_and_end_it() -> None:
    ledger, stopping = Ledger(), asyncio.Event()
    live = Live(cast("Doors", ledger))
    for _ in range(20):
        page = _page(live, stopping)
        assert await anext(page) == b"event: mark\ndata: one\n\n"
        await _until(ledger, 1)
        await page.aclose()
    assert (ledger.most, ledger.asked) == (1, 2), "the mark, and then one that waits for another"

    ledger.mark = "two"
    ledger.changed.set()
    await _until(ledger, 0)
    asked = ledger.asked
    await eventually(lambda: live._looking is not None and live._looking.done(), "while no page is open nobody looks")
    assert ledger.asked == asked, "while no page is open nobody looks"
    page = _page(live, stopping)
    assert await anext(page) == b"event: mark\ndata: two\n\n"
    await page.aclose()


async def test_a_page_begins_with_a_mark_and_asks_for_it_only_where_nobody_looks() -> None:
    ledger, stopping = Ledger(), asyncio.Event()
    live = Live(cast("Doors", ledger))
    assert (await live.mark_now(), await live.mark_now(), ledger.asked) == ("one", "one", 2)
    page = _page(live, stopping)
    await anext(page)
    await _until(ledger, 1)
    asked = ledger.asked
    assert (await live.mark_now(), ledger.asked) == ("one", asked)
    await page.aclose()


async def test_a_page_does_not_wait_for_a_mark_that_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.console.live._MARK_SECONDS", 0.01)
    ledger = Ledger()
    ledger.mark = ""  # as it is asked for: it waits until it is another one
    assert await Live(cast("Doors", ledger)).mark_now() == ""
