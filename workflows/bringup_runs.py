"""BringupRuns: the part of a bring-up that starts, follows and stops the runs of its steps.

Each call goes to the task queue of a worker that can answer it. A noted start is followed by its key, whoever made it.
A command belongs to the host that it was started on, and only that host is asked about it. If nobody takes a call on a
host's queue for as long as the recipe lets a start settle, the host counts as gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import TypedDict

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from activities.bringup.calls import RunActivities
    from models.bringup import reducers, request_builders
    from models.bringup.decide import startable_steps
    from models.bringup.messages import BRINGUP_QUEUE, ChosenHost, FollowedRun, StoppedRun, runs_queue
    from models.bringup.runs import NO_TIME_LIMIT, Runner, RunPhase, RunReport
    from models.bringup.state import Bringup, StepRun
    from models.texts import shorten
    from workflows import patches
    from workflows.durable import Durable
    from workflows.failures import reason_of
    from workflows.options import BRINGUP_CALL, BRINGUP_LONG_CALL, BRINGUP_START_CALL, START_PAUSES

_REFUSED, _STUCK = ("BadInput", "Refusal"), "Stuck"
"""Types of errors: for a start that was refused, and for a run whose state can never be known."""
_ANSWER_BYTES = 1000


class BringupRuns(Durable[Bringup]):
    """The part of the host that starts, follows and stops runs."""

    async def _start_run(self, run: str) -> None:
        host = ""
        if _needs_host(self._state, run):
            host = await self._choose_host(run)
            if not host or self._state.hold is not None or run not in startable_steps(self._state, workflow.now()):
                return  # a command came meanwhile
        self._set(reducers.note_start(self._state, run, workflow.now()))
        attempt = self._state.runs[run].attempt
        self._set(reducers.note_host(self._state, run, attempt, host))
        for pause in (*START_PAUSES, None):
            try:
                report = await _call_start(self._state, run)
            except ActivityError as error:
                if pause is None or not _may_be_sent_again(self._state.runs[run], error):
                    self._note_failed_start(run, attempt, error)
                    return
                self._set(reducers.note_silence(self._state, run, attempt, reason_of(error)[1], workflow.now()))
                await asyncio.sleep(pause.total_seconds())
                if not self._state.runs[run].phase.under_way or self._state.runs[run].stopping:
                    return  # its time limit is over, or somebody stops it
            else:
                self._apply_report(run, attempt, report)
                return

    def _note_failed_start(self, run: str, attempt: int, error: ActivityError) -> None:
        kind, why = reason_of(error)
        if _was_not_taken(error):
            why = f"no worker on host {self._state.runs[run].host} took up the run"
            self._set(reducers.note_untaken(self._state, run, attempt, why, workflow.now()))
        elif kind in _REFUSED:
            self._set(reducers.note_refusal(self._state, run, attempt, why, workflow.now()))
        elif kind == _STUCK:
            self._note_failed_call(run, attempt, error)
        else:
            self._set(reducers.note_lost_start(self._state, run, attempt, why, workflow.now()))

    async def _choose_host(self, run: str) -> str:
        try:
            return (await _call_for_host(run)).host
        except ActivityError as error:
            self._set(reducers.note_no_host(self._state, run, reason_of(error)[1], workflow.now()))
            return ""

    async def _follow(self, run: str, attempt: int) -> None:
        try:
            followed = await _call_follow(self._state, run)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            if _was_not_taken(error):
                await self._follow_elsewhere(run, attempt)
            else:
                self._note_failed_call(run, attempt, error)
            return
        if followed.unheard:
            self._set(reducers.note_silence(self._state, run, attempt, followed.unheard, workflow.now()))
        elif followed.report is None:
            self._set(reducers.note_untraced(self._state, run, attempt, workflow.now()))
        else:
            self._apply_report(run, attempt, followed.report)

    def _apply_report(self, run: str, attempt: int, report: RunReport) -> None:
        news = report.phase is RunPhase.RUNNING and _is_news(self._state.runs[run], attempt)
        bringup = reducers.apply_report(self._state, run, attempt, report, workflow.now())
        self._set(reducers.note_running(bringup, run, workflow.now()) if news else bringup)

    def _note_failed_call(self, run: str, attempt: int, error: ActivityError) -> None:
        """Note a failed call about the run: it is made again, unless nobody can ever answer it."""
        kind, why = reason_of(error)
        failed = reducers.note_lost_host if kind == _STUCK else reducers.note_failed_call
        self._set(failed(self._state, run, attempt, why, workflow.now()))

    async def _follow_elsewhere(self, run: str, attempt: int) -> None:
        """Follow the run from another worker: nobody serves its host."""
        report, answer = None, ""
        try:
            report = (await _call_follow_elsewhere(self._state, run)).report
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            answer = _last_answer(error)
        if report is None:
            why = (
                f"host {self._state.runs[run].host} is gone, and no other worker can see what became of the run{answer}"
            )
            self._set(reducers.note_lost_host(self._state, run, attempt, why, workflow.now()))
            return
        self._apply_report(run, attempt, report)

    async def _stop(self, run: str, attempt: int) -> None:
        try:
            report = (await _call_stop(self._state, run)).report
        except ActivityError as error:
            self._note_failed_call(run, attempt, error)
            return
        if report is None:
            self._set(reducers.note_untraced(self._state, run, attempt, workflow.now()))
        elif report.phase is RunPhase.RUNNING:
            why, now = report.said, workflow.now()
            self._set(reducers.note_failed_call(self._state, run, attempt, why, now, endless=report.endless))
        else:
            self._apply_report(run, attempt, report)


class _Where(TypedDict):
    task_queue: str
    schedule_to_start_timeout: timedelta | None


def _where(bringup: Bringup, run: str) -> _Where:
    host = bringup.runs[run].host
    if not host:
        return {"task_queue": BRINGUP_QUEUE, "schedule_to_start_timeout": None}
    return {"task_queue": runs_queue(host), "schedule_to_start_timeout": bringup.recipe.settle}


def _needs_host(bringup: Bringup, run: str) -> bool:
    """Return whether the step runs on a host, which is chosen before the start is noted."""
    return bringup.runner(run) is Runner.COMMAND


def _was_not_taken(error: ActivityError) -> bool:
    """Return whether no worker took the call in time, so that nothing of it has begun."""
    return isinstance(error.cause, ActivityTimeout) and error.cause.type is TimeoutType.SCHEDULE_TO_START


def _is_news(run: StepRun, attempt: int) -> bool:
    """Return whether a running attempt is news: it was not known to run, or the runner had not answered about it."""
    first = run.attempt == attempt and run.phase.under_way and (not run.seen or bool(run.unheard))
    return first and workflow.patched(patches.STEPS_IN_SIGHT)


def _may_be_sent_again(run: StepRun, error: ActivityError) -> bool:
    """Return whether to send a start again whose answer was lost: the runner then finds the run it began.

    A start on a host, and one that is being stopped, is not sent again.
    """
    once = reason_of(error)[0] in (*_REFUSED, _STUCK) or run.host or run.stopping
    return not once and workflow.patched(patches.STEPS_IN_SIGHT)


def _last_answer(error: ActivityError) -> str:
    """Return a colon and the error of its latest try, if it was given up for time; empty if nobody knows."""
    cause = error.cause.__cause__ if isinstance(error.cause, ActivityTimeout) else error.cause
    return f": {shorten(cause.message, _ANSWER_BYTES)}" if isinstance(cause, ApplicationError) else ""


def _call_for_host(run: str) -> Awaitable[ChosenHost]:
    return workflow.execute_activity_method(
        RunActivities.choose_host, **BRINGUP_CALL, task_queue=BRINGUP_QUEUE, summary=f"a host for {run}"
    )


def _call_start(bringup: Bringup, run: str) -> Awaitable[RunReport]:
    return workflow.execute_activity_method(
        RunActivities.start,
        request_builders.run_order(bringup, run),
        **BRINGUP_START_CALL,
        **_where(bringup, run),
        summary=f"start {run} (attempt {bringup.runs[run].attempt})",
    )


def _call_follow(bringup: Bringup, run: str) -> Awaitable[FollowedRun]:
    return workflow.execute_activity_method(
        RunActivities.follow,
        request_builders.follow_request(bringup, run),
        **BRINGUP_LONG_CALL,
        **_where(bringup, run),
        start_to_close_timeout=NO_TIME_LIMIT,
        summary=f"follow {run} (attempt {bringup.runs[run].attempt})",
    )


def _call_follow_elsewhere(bringup: Bringup, run: str) -> Awaitable[FollowedRun]:
    """Ask another worker, which sees the run only if it shares `runs_dir` with the host that is gone."""
    return workflow.execute_activity_method(
        RunActivities.follow,
        request_builders.follow_request(bringup, run).but(seen=False, unheard=None),
        **BRINGUP_LONG_CALL,
        task_queue=BRINGUP_QUEUE,
        start_to_close_timeout=bringup.recipe.settle * 3,
        schedule_to_close_timeout=bringup.recipe.settle * 3,
        summary=f"host {bringup.runs[run].host} is gone: ask the other workers about {run}",
    )


def _call_stop(bringup: Bringup, run: str) -> Awaitable[StoppedRun]:
    return workflow.execute_activity_method(
        RunActivities.stop,
        request_builders.run_order(bringup, run),
        **BRINGUP_CALL,
        **_where(bringup, run),
        summary=f"stop {run}",
    )
