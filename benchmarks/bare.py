"""The yardstick of benchmarks/rollout.py: a bare Temporal workflow that makes the same calls and means nothing by them.

A `Script` is taken from the histories of real rollouts: as many activities, one after another in the same three
loops (steps, archive, mail), with payloads of the same size; as many timers; the same update to start with, the
same update to go on, the same signal for a breach. Left out is what makes a rollout one: the state, its models,
search attributes, and (without `commits`) the ledger. Its worker (bare_worker.py) is the SDK's own.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

QUEUE = "bare"
WORK = "work"
_CALL, _SILENCE, _HOUR = timedelta(seconds=60), timedelta(seconds=15), timedelta(hours=1)


class Call(BaseModel):
    """An activity call. Sizes in bytes."""

    ballast: str = ""
    answers: int = 0
    commits: int | None = None
    """None: the ledger is not asked at all."""
    done: str = ""
    """What is written to the file of ends when this call has been made."""


class Loops(BaseModel):
    """The calls of three loops that run beside each other: for each call, sizes of question and answer, and commits."""

    steps: list[tuple[int, int, int]]
    archive: list[tuple[int, int, int]]
    mail: list[tuple[int, int, int]]
    timers: int
    """Started and cancelled again, as a rollout does while it waits for its next gate."""


class Script(BaseModel):
    launch: Loops
    planned_after: int
    """Steps until the launch is answered."""
    plan_bytes: int
    breach: Loops
    looks_before: int
    """Steps of a breach before its clock has run out."""
    restored_after: int
    """Steps of a breach until the quotas are restored."""
    breach_seconds: float
    ledger: bool = False


class BareInput(BaseModel):
    name: str
    script: Script


@workflow.defn(name="Bare")
class Bare:
    @workflow.init
    def __init__(self, start: BareInput) -> None:
        self._start = start
        self._steps = 0
        self._approved = self._short = False
        self._clock: asyncio.Task[None] | None = None

    @workflow.run
    async def run(self, start: BareInput) -> None:
        await self._play(start.script.launch, self._launch())
        self._wind()
        await workflow.wait_condition(lambda: self._short)
        self._steps = 0
        await self._play(start.script.breach, self._breach())
        await workflow.wait_condition(lambda: False)

    async def _play(self, loops: Loops, steps: object) -> None:
        await asyncio.gather(steps, self._calls(loops.archive), self._calls(loops.mail))  # type: ignore[call-overload]

    async def _launch(self) -> None:
        script = self._start.script
        calls, timers = script.launch.steps, script.launch.timers
        for number, call in enumerate(calls, 1):
            if number == script.planned_after + 1:
                await workflow.wait_condition(lambda: self._approved)
            if number > len(calls) - timers:
                self._wind()
            await self._call(*call, done=self._start.name if number == len(calls) else "")
            self._steps += 1

    async def _breach(self) -> None:
        script = self._start.script
        calls, timers = script.breach.steps, script.breach.timers - 1
        for number, call in enumerate(calls, 1):
            if number == script.looks_before + 1:
                await asyncio.sleep(script.breach_seconds)
            if number > len(calls) - timers:
                self._wind()
            await self._call(*call, done=f"restored {self._start.name}" if number == script.restored_after else "")

    def _wind(self) -> None:
        """Replace the running timer by a new one."""
        if self._clock is not None:
            self._clock.cancel()
        self._clock = asyncio.create_task(asyncio.sleep(_HOUR.total_seconds()))

    async def _calls(self, calls: list[tuple[int, int, int]]) -> None:
        for call in calls:
            await self._call(*call)

    async def _call(self, question: int, answer: int, commits: int, done: str = "") -> None:
        ledger = self._start.script.ledger
        call = Call(ballast="x" * question, answers=answer, commits=commits if ledger else None, done=done)
        await workflow.execute_activity(
            WORK,
            call,
            start_to_close_timeout=_CALL,
            heartbeat_timeout=_SILENCE,
            retry_policy=RetryPolicy(),
            result_type=str,
            summary="a call like any other",
        )

    @workflow.update
    async def launched(self) -> str:
        await workflow.wait_condition(lambda: self._steps >= self._start.script.planned_after)
        return "x" * self._start.script.plan_bytes

    @workflow.update
    def approve(self, words: str) -> str:
        self._approved = True
        return words

    @approve.validator
    def _may_approve(self, words: str) -> None:
        if self._steps < self._start.script.planned_after:
            raise ValueError("there is no plan yet")

    @workflow.query
    def answer(self) -> str:
        """Return a text as long as the answer to a launch."""
        return "x" * self._start.script.plan_bytes

    @workflow.signal
    def health_changed(self, words: str) -> None:
        self._short = True
