"""The calls of a bring-up: they start, follow and stop runs, ask checks, and hand clusters over.

A long wait is one asynchronous call with heartbeats, which costs no event meanwhile: a worker that shuts down lets go
of it, and another one takes it up by the run's key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.clock import Clock, utc_now
from activities.failures import translate_errors
from activities.ports.bringup import BringupsPort, CheckPort, ProductionPort, RunnerPort
from activities.tickets.warrants import Warrants
from models.base import duration_text
from models.bringup.checks import CheckAnswer, CheckOrder, Colour
from models.bringup.entry import unfilled_text
from models.bringup.messages import (
    AskAnswer,
    AskRequest,
    BringupRecord,
    ChosenHost,
    FollowedRun,
    FollowRun,
    HandedOver,
    HandOverRequest,
    OpenBringup,
    OpenedBringup,
    StoppedRun,
    SupplyRequest,
    WindDownRequest,
    WoundDown,
)
from models.bringup.runs import RunOrder, RunPhase, RunReport
from models.errors import Unavailable

_T = TypeVar("_T")
_BEAT = 5.0
"""Seconds between two heartbeats, well below the heartbeat timeout of these calls."""
_IN_VAIN = 4
"""The number of failed tries after which a silent runner no longer counts as a passing trouble."""
_GRACE = timedelta(seconds=10)
"""The time that a check may take beyond its limit before it is given up."""


class RunActivities:
    """The runs of one host: `host` names it, empty if it runs no commands."""

    def __init__(self, runners: RunnerPort, threads: ThreadPoolExecutor, host: str = "", now: Clock = utc_now) -> None:
        self._now = now
        self._runners = runners
        self._threads = threads
        self._host = host

    @activity.defn(name="choose_host")
    async def choose_host(self) -> ChosenHost:
        """Return this worker's host, if it runs commands."""
        with translate_errors():
            if not self._host:
                raise Unavailable(
                    "this worker may not run commands: set BACKSTOP_RUNNERS to a file that lists programs to run"
                )
            return ChosenHost(host=self._host)

    @activity.defn(name="start_run")
    async def start(self, order: RunOrder) -> RunReport:
        """Start a run of this key, unless there is or was one."""
        with translate_errors():
            return await _run_in(self._threads, partial(self._runners.start, order))

    @activity.defn(name="stop_run")
    async def stop(self, order: RunOrder) -> StoppedRun:
        """Begin to end the run."""
        with translate_errors():
            return StoppedRun(report=await _run_in(self._threads, partial(self._runners.stop, order)))

    @activity.defn(name="follow_run")
    async def follow(self, request: FollowRun) -> FollowedRun:
        """Return when the run has ended, when it is news that it runs, or when it has left no trace for so long.

        If its runner does not answer, that is news too; the same answer again is an error, and retried.
        """
        loop, lost_since = asyncio.get_running_loop(), None
        began = loop.time()
        while True:
            try:
                with translate_errors():
                    report = await _run_in(self._threads, partial(self._runners.look, request.order))
            except ApplicationError as error:
                if error.type == Unavailable.__name__ and self._is_news(error.message, request):
                    return FollowedRun(unheard=error.message)
                raise
            passed = loop.time() - began
            if report is None:
                lost_since = loop.time() if lost_since is None else lost_since
                if loop.time() - lost_since >= request.settle.total_seconds():
                    return FollowedRun()
            elif (
                report.phase is not RunPhase.RUNNING
                or not request.seen
                or request.unheard
                or passed >= request.news.total_seconds()
            ):
                return FollowedRun(report=report)
            else:
                lost_since = None
            await _pause(request.every.total_seconds())

    def _is_news(self, answer: str, request: FollowRun) -> bool:
        """Return whether the answer is news: the first of a start, or after some tries; another one seldom."""
        info = activity.info()
        if request.unheard is None:
            return False
        if not request.unheard:
            return not request.seen or info.attempt >= _IN_VAIN
        return answer != request.unheard and self._now() - info.scheduled_time >= request.news


class CheckActivities:
    def __init__(self, checks: CheckPort, threads: ThreadPoolExecutor, now: Clock = utc_now) -> None:
        self._now = now
        self._checks = checks
        self._threads = threads

    @activity.defn(name="ask_checks")
    async def ask(self, request: AskRequest) -> AskAnswer:
        """Ask the checks in parallel; one that hangs is unknown, and keeps none waiting for longer."""
        beating = asyncio.create_task(_beats())
        try:
            answers = await asyncio.gather(*(self._ask_one(order) for order in request.orders))
        finally:
            beating.cancel()
        return AskAnswer(answers={o.name: answer for o, answer in zip(request.orders, answers, strict=True)})

    async def _ask_one(self, order: CheckOrder) -> CheckAnswer:
        patience = (order.limit + _GRACE).total_seconds()
        try:
            asked = _run_in(self._threads, partial(self._checks.check, order))
            return await asyncio.wait_for(asked, patience)
        except TimeoutError:
            return self._unknown(f"did not answer within {duration_text(order.limit)}")
        except Exception as error:  # a port that raises against its contract must not cost the other answers
            return self._unknown(f"cannot be asked: {type(error).__name__}")

    def _unknown(self, sentence: str) -> CheckAnswer:
        return CheckAnswer(colour=Colour.UNKNOWN, said=sentence, at=self._now())

    @activity.defn(name="wait_for_supply")
    async def supply(self, request: SupplyRequest) -> CheckAnswer:
        """Return when the check is green, when its answer changes, or after so long."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + request.most.total_seconds()
        while True:
            answer = await self._ask_one(request.order)
            news = (answer.colour, answer.said) != (request.colour, request.said)
            if answer.colour is Colour.GREEN or news or loop.time() >= ends:
                return answer
            await _pause(min(request.every.total_seconds(), max(0.0, ends - loop.time())))


class BringupActivities:
    def __init__(self, bringups: BringupsPort, production: ProductionPort, warrants: Warrants | None = None) -> None:
        self._warrants = warrants
        self._bringups = bringups
        self._production = production

    @activity.defn(name="open_bringup", no_thread_cancel_exception=True)
    def open(self, request: OpenBringup) -> OpenedBringup:
        """Return whether it may begin, and its number."""
        with translate_errors():
            if self._warrants is not None:
                self._warrants.bringup(request.start)
            entry, recipe = request.start.entry, request.start.recipe
            for place, fault in unfilled_text(entry, recipe):  # not every entry came through the command line
                return OpenedBringup(refused=f"recipe {recipe.name}, {'.'.join(map(str, place))}: {fault}")
            return self._bringups.open(request.start, request.at)

    @activity.defn(name="record_bringup", no_thread_cancel_exception=True)
    def record(self, request: BringupRecord) -> None:
        """Show the bring-up on the board, and archive its entries, once per key."""
        with translate_errors():
            self._bringups.record(request)

    @activity.defn(name="hand_over", no_thread_cancel_exception=True)
    def hand_over(self, request: HandOverRequest) -> HandedOver:
        """Take the cluster into the fleet."""
        with translate_errors():
            self._check_entry(request)
            return self._production.hand_over(request)

    @activity.defn(name="grant_owed", no_thread_cancel_exception=True)
    def grant_owed(self, request: HandOverRequest) -> HandedOver:
        """Grant what is owed, as far as it fits now."""
        with translate_errors():
            self._check_entry(request)
            return self._production.grant_owed(request)

    @activity.defn(name="wind_down", no_thread_cancel_exception=True)
    def wind_down(self, request: WindDownRequest) -> WoundDown:
        """Have a rollout lower the quotas to nothing; return the quotas and jobs that are left."""
        with translate_errors():
            if self._warrants is not None:
                self._warrants.word(f"bringup/{request.cluster}", "bringup.retire")
            return self._production.wind_down(request)

    def _check_entry(self, request: HandOverRequest) -> None:
        """Check that the entry is the signed one, whatever the workflow says. Errors: Refusal."""
        if self._warrants is not None:
            self._warrants.admit_entry(request.entry)


async def _run_in(threads: ThreadPoolExecutor, call: Callable[[], _T]) -> _T:
    """Run a blocking call in a thread, with heartbeats meanwhile, and return its answer."""
    running = asyncio.get_running_loop().run_in_executor(threads, call)
    while True:
        activity.heartbeat()
        done, _ = await asyncio.wait([running], timeout=_BEAT)
        if done:
            return running.result()


async def _pause(seconds: float) -> None:
    """Wait so long, with heartbeats. Errors: Unavailable when the worker shuts down: another one takes it up."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    while (left := ends - loop.time()) > 0:
        activity.heartbeat()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(activity.wait_for_worker_shutdown(), min(_BEAT, left))
            raise ApplicationError(
                "the worker shuts down", type=Unavailable.__name__, category=ApplicationErrorCategory.BENIGN
            )


async def _beats() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(_BEAT)
