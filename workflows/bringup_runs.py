"""Calls about a bring-up's runs, each on the task queue of whoever can answer it.

A command belongs to the host that it was started on, and is asked about there. Where nobody takes a call on a host's
queue for as long as the recipe lets a start settle, the host counts as gone.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import TypedDict

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from activities.bringup.calls import RunActivities
    from models.base import shortened
    from models.bringup import calls
    from models.bringup.messages import BRINGUP_QUEUE, ChosenHost, FollowedRun, StoppedRun, runs_queue
    from models.bringup.runs import NO_TIME_LIMIT, UNDO_SUFFIX, Runner, RunReport
    from models.bringup.state import Bringup, StepRun
    from workflows import patches
    from workflows.failures import reason_of
    from workflows.options import BRINGUP_CALL, BRINGUP_LONG_CALL, BRINGUP_START_CALL


REFUSED, STUCK = ("BadInput", "Refusal"), "Stuck"
"""Types of errors: it is not started, and nobody will ever say how it stands."""
_ANSWER_BYTES = 1000


class _Where(TypedDict):
    task_queue: str
    schedule_to_start_timeout: timedelta | None


def _where(b: Bringup, run: str) -> _Where:
    host = b.runs[run].host
    if not host:
        return {"task_queue": BRINGUP_QUEUE, "schedule_to_start_timeout": None}
    return {"task_queue": runs_queue(host), "schedule_to_start_timeout": b.recipe.settle}


def needs_host(b: Bringup, run: str) -> bool:
    """A step that runs on a host, which has to be chosen before its start is noted."""
    step = b.recipe.steps[run.removesuffix(UNDO_SUFFIX)]
    return step.runner(undo=run.endswith(UNDO_SUFFIX)) is Runner.COMMAND


def untaken(error: ActivityError) -> bool:
    """No worker took the call in time: nothing of it has begun."""
    return isinstance(error.cause, ActivityTimeout) and error.cause.type is TimeoutType.SCHEDULE_TO_START


def is_news(run: StepRun, attempt: int) -> bool:
    """That this attempt runs: it was not known, or its runner had answered nothing of it meanwhile."""
    first = run.attempt == attempt and run.phase.under_way and (not run.seen or bool(run.unheard))
    return first and workflow.patched(patches.STEPS_IN_SIGHT)


def may_be_sent_again(run: StepRun, error: ActivityError) -> bool:
    """The answer to its start is lost: the same start finds what it began. Not on a host, nor where it is stopped."""
    once = reason_of(error)[0] in (*REFUSED, STUCK) or run.host or run.stopping
    return not once and workflow.patched(patches.STEPS_IN_SIGHT)


def last_answer(error: ActivityError) -> str:
    """After a colon what its latest try met, where it was given up as its time was over; empty: nobody knows."""
    cause = error.cause.__cause__ if isinstance(error.cause, ActivityTimeout) else error.cause
    return f": {shortened(cause.message, _ANSWER_BYTES)}" if isinstance(cause, ApplicationError) else ""


def choose_host(run: str) -> Awaitable[ChosenHost]:
    return workflow.execute_activity_method(
        RunActivities.choose_host, **BRINGUP_CALL, task_queue=BRINGUP_QUEUE, summary=f"a host for {run}"
    )


def start(b: Bringup, run: str) -> Awaitable[RunReport]:
    return workflow.execute_activity_method(
        RunActivities.start,
        calls.run_order(b, run),
        **BRINGUP_START_CALL,
        **_where(b, run),
        summary=f"start {run} (attempt {b.runs[run].attempt})",
    )


def follow(b: Bringup, run: str) -> Awaitable[FollowedRun]:
    return workflow.execute_activity_method(
        RunActivities.follow,
        calls.follow_request(b, run),
        **BRINGUP_LONG_CALL,
        **_where(b, run),
        start_to_close_timeout=NO_TIME_LIMIT,
        summary=f"follow {run} (attempt {b.runs[run].attempt})",
    )


def follow_elsewhere(b: Bringup, run: str) -> Awaitable[FollowedRun]:
    """Another worker sees the run only where it shares `runs_dir` with the host that is gone."""
    return workflow.execute_activity_method(
        RunActivities.follow,
        calls.follow_request(b, run).but(seen=False, unheard=None),
        **BRINGUP_LONG_CALL,
        task_queue=BRINGUP_QUEUE,
        start_to_close_timeout=b.recipe.settle * 3,
        schedule_to_close_timeout=b.recipe.settle * 3,
        summary=f"host {b.runs[run].host} is gone: who else sees {run}",
    )


def stop(b: Bringup, run: str) -> Awaitable[StoppedRun]:
    return workflow.execute_activity_method(
        RunActivities.stop, calls.run_order(b, run), **BRINGUP_CALL, **_where(b, run), summary=f"stop {run}"
    )
