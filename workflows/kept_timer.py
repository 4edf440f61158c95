"""A timer that runs on while its due moment stays: each start and each cancel of one is an event in history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from temporalio import workflow


class KeptTimer:
    """One timer. `summary`: as Temporal's own page shows it. `ended`: called when the due moment has come."""

    def __init__(self, summary: str, ended: Callable[[], None]) -> None:
        self._summary = summary
        self._ended = ended
        self._due: datetime | None = None
        self._sleep: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self._sleep is not None and self._sleep.done()

    def set(self, due: datetime | None) -> bool:
        """Have the timer end at `due`, or never; return whether it changed, which leaves an event."""
        if due == self._due and not self.is_over:
            return False
        self.cancel()
        if due is not None:
            self._due, self._sleep = due, asyncio.create_task(self._wait(max(timedelta(0), due - workflow.now())))
        return True

    async def _wait(self, left: timedelta) -> None:
        await workflow.sleep(left, summary=self._summary)
        self._ended()

    def cancel(self) -> None:
        if self._sleep is not None:
            self._sleep.cancel()
        self._due, self._sleep = None, None
