"""RolloutWaits: how the main loop of a rollout waits for time or a change, and leaves for its next run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from models.lifecycle.workflow_actions import Wait
    from models.rollout.messages import RolloutInput
    from models.rollout.workflow_actions import Look
    from workflows import options, patches
    from workflows.next_run import begin_next_run, next_run_is_due
    from workflows.no_empty_tasks import patience
    from workflows.rollout_post import RolloutPost


class KeptTimer:
    """A timer that runs on while its due moment stays: each start and each cancel of one is an event in history.

    `summary`: as Temporal's own page shows it. `ended`: called when the due moment has come.
    """

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


class RolloutWaits(RolloutPost):
    """The part of the host that waits."""

    def __init__(self, start: RolloutInput) -> None:
        super().__init__(start)
        self._timer = KeptTimer(self.wakes, self._leave_mark)

    async def _wait(self, wait: Wait) -> None:
        changes, until = self._changes, wait.until
        leaves = self._leaving and patches.since(patches.LEAVES_IN_TIME)
        if leaves and self._leaving_since and (late := self._leaving_since + options.OVERDUE) > workflow.now():
            until = min(until or late, late)

        def is_woken() -> bool:
            return self._changes != changes or self._lapses.reset or (leaves and self._may_continue(workflow.now()))

        if patches.has_fewer_events():
            self._waits = changes
            if self._timer.set(until):
                self._note_event()
            elif until is None:
                self._leave_mark()
            await workflow.wait_condition(lambda: self._timer.is_over or is_woken())
        else:
            await self._wait_anew(until, is_woken)
        self._waits = None
        if self._leaving_since is None:
            self._leaving = False

    async def _wait_anew(self, until: datetime | None, is_woken: Callable[[], bool]) -> None:
        """Wait by a timer of its own, which any change starts again: in runs from before the patch."""
        timeout = patience(until)
        self._waits = None if timeout is None else self._changes
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(is_woken, timeout=timeout, timeout_summary=self.wakes)

    def _leave(self, action: Look | Wait, now: datetime) -> None:
        """Continue as new if that is due and nothing is in the way.

        Neither a flood of commands nor a ledger that is away for weeks is in the way: side loops start nothing new
        until then, and the next run can repeat a look, or a call that a side loop has tried for too long.
        """
        if not next_run_is_due():
            self._leaving, self._leaving_since = False, None  # another build was due, and no longer is
            return
        if patches.since(patches.LEAVES_PROMPTLY):
            self._leaving_since = self._leaving_since or now
        elif isinstance(action, Look):
            return
        if self._may_continue(now):
            self._note_event()
            begin_next_run(self._next_run(now))
        self._leaving = True

    def _next_run(self, now: datetime) -> RolloutInput:
        raise NotImplementedError
