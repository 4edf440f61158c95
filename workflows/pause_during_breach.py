"""The priority of a breach: archive and mail wait, because its answer needs the workers and the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows import patches
    from workflows.options import HASTE


class Haste:
    """A switch that is `on` after `turn(True)`, for HASTE at most. `leave_mark`: called when that is over."""

    def __init__(self, leave_mark: Callable[[], None]) -> None:
        self._leave_mark = leave_mark
        self.on = False
        self._ends: asyncio.TimerHandle | None = None

    def turn(self, wanted: bool) -> None:
        if not wanted:
            if self._ends is not None:
                self._ends.cancel()
            self.on, self._ends = False, None
        elif self._ends is None and patches.since(patches.UNDO_FIRST):
            self.on = True
            self._ends = asyncio.get_running_loop().call_later(HASTE.total_seconds(), self._over)

    def _over(self) -> None:
        self.on = False
        self._leave_mark()
