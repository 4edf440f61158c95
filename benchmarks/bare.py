"""The yardstick of benchmarks/rollout.py: a bare Temporal workflow that makes the same calls and means nothing by them.

A `Script` is taken from the histories of real rollouts: as many activities, one after another in the same three
loops (steps, archive, mail), with payloads of the same size; as many timers; the same update to start with, the
same update to go on, the same signal for a breach. Left out is what makes a rollout one: the state, its models,
search attributes, and (without `commits`) the ledger. Its worker has the settings of workers/main.py.
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from activities.adapters.ledger_db import Database
    from client.payloads import data_converter
    from workers.embedded import NAMESPACE
    from workers.heartbeats import Heartbeats
    from workers.main import _RESTRICTIONS, _THREADS, run_and_exit, until_told
    from workers.queries import OnTimeRunner

QUEUE = "bare"
_CALL, _SILENCE, _HOUR = timedelta(seconds=60), timedelta(seconds=15), timedelta(hours=1)


class Call(BaseModel):
    """One activity. Sizes in bytes."""

    ballast: str = ""
    answers: int = 0
    commits: int | None = None
    """None: the ledger is not asked at all."""
    done: str = ""
    """What is written to the file of ends when this call has been made."""


class Loops(BaseModel):
    """Sizes of question and answer, and commits, of the calls of each loop, which run beside each other."""

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
        for number, call in enumerate(script.breach.steps, 1):
            if number == script.looks_before + 1:
                await asyncio.sleep(script.breach_seconds)
            await self._call(*call, done=f"restored {self._start.name}" if number == script.restored_after else "")

    def _wind(self) -> None:
        """A timer that is cancelled when the next begins."""
        if self._clock is not None:
            self._clock.cancel()
        self._clock = asyncio.create_task(asyncio.sleep(_HOUR.total_seconds()))

    async def _calls(self, calls: list[tuple[int, int, int]]) -> None:
        for call in calls:
            await self._call(*call)

    async def _call(self, question: int, answer: int, commits: int, done: str = "") -> None:
        ledger = self._start.script.ledger
        call = Call(ballast="x" * question, answers=answer, commits=commits if ledger else None, done=done)
        await workflow.execute_activity_method(
            Work.work,
            call,
            start_to_close_timeout=_CALL,
            heartbeat_timeout=_SILENCE,
            retry_policy=RetryPolicy(),
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

    @workflow.signal
    def health_changed(self, words: str) -> None:
        self._short = True


class Work:
    """Nothing is done; with a ledger, one row is read and as many trivial transactions are committed as in ours."""

    def __init__(self, ledger: Database | None, ends: Path) -> None:
        self._ledger = ledger
        self._ends = os.open(ends, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        if ledger is not None:
            with ledger.writing() as session:
                session.connection().execute(sa.text("CREATE TABLE IF NOT EXISTS ticks (id INTEGER, n INTEGER)"))
                session.connection().execute(sa.text("INSERT INTO ticks VALUES (1, 0)"))

    @activity.defn(name="work", no_thread_cancel_exception=True)
    def work(self, call: Call) -> str:
        if self._ledger is not None and call.commits is not None:
            with self._ledger.reading() as session:
                session.connection().execute(sa.text("SELECT n FROM ticks WHERE id = 1")).one()
            for _ in range(call.commits):
                with self._ledger.writing() as session:
                    session.connection().execute(sa.text("UPDATE ticks SET n = n + 1 WHERE id = 1"))
        if call.done:
            os.write(self._ends, f"{call.done}\n".encode())
        return "x" * call.answers


async def _serve(address: str, ends: str, ledger_url: str) -> None:
    client = await Client.connect(address, namespace=NAMESPACE, data_converter=data_converter)
    ledger = Database(ledger_url) if ledger_url else None
    with ThreadPoolExecutor(_THREADS) as executor:
        async with Worker(
            client,
            task_queue=QUEUE,
            workflows=[Bare],
            activities=[Work(ledger, Path(ends)).work],
            activity_executor=executor,
            workflow_runner=OnTimeRunner(restrictions=_RESTRICTIONS),
            interceptors=[Heartbeats()],
            max_concurrent_activities=_THREADS,
            graceful_shutdown_timeout=timedelta(seconds=5),
        ):
            print(f"worker: serving {client.namespace}", flush=True)
            await until_told()
    if ledger is not None:
        ledger.close()


if __name__ == "__main__":
    run_and_exit(lambda: _serve(*sys.argv[1:]))
