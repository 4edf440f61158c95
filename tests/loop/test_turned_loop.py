"""The clock that stories are told by."""

from __future__ import annotations

import asyncio
import selectors
import threading
from typing import Any

import pytest

from tests.loop import turned_loop
from tests.loop.turned_loop import run_coroutine_threadsafe


async def test_a_thread_that_comes_to_wait_for_a_loop_that_waits_for_it_stops_no_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop waited for the thread in real time then, and the thread for the loop's next timer."""
    loop, began, loop_waits = asyncio.get_running_loop(), threading.Event(), threading.Event()
    select, submit = selectors.DefaultSelector.select, turned_loop._run_threadsafe
    monkeypatch.setattr(turned_loop, "_THREADS_SECONDS", 3.0)

    async def pass_an_hour() -> str:
        began.set()
        await asyncio.sleep(3600)
        return "over"

    def select_and_say(selector: Any, timeout: float | None = None) -> Any:
        if began.is_set() and timeout:
            loop_waits.set()
        return select(selector, timeout)

    def submit_and_wait(*call: Any) -> Any:
        future = submit(*call)
        assert loop_waits.wait(turned_loop._THREADS_SECONDS)
        return future

    monkeypatch.setattr(selectors.DefaultSelector, "select", select_and_say)
    monkeypatch.setattr(turned_loop, "_run_threadsafe", submit_and_wait)
    starts = loop.time()
    assert await asyncio.to_thread(lambda: run_coroutine_threadsafe(pass_an_hour(), loop).result()) == "over"
    passed = loop.time() - starts
    assert passed == pytest.approx(3600, abs=0.01)
