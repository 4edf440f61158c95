from __future__ import annotations

import asyncio
import functools

import pytest
import typer

from tests.unit.loop_clock import LoopClock


@pytest.fixture(scope="session", autouse=True)
def _one_command_line() -> None:
    """The tree of commands is made once: a program makes it once too, and making it is most of a short command."""
    pytest.MonkeyPatch().setattr(typer.main, "get_command", functools.cache(typer.main.get_command))


@pytest.fixture
async def loop_clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    """The loop goes by it until the test is over."""
    loop = asyncio.get_running_loop()
    clock = LoopClock(loop)
    monkeypatch.setattr(loop, "time", clock)
    return clock
