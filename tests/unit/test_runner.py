"""A question is refused if the workflow may have lived for it alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from models.temporal_names import MOVES_ON
from tests.waiting import PATIENCE
from workers.workflow_sandbox import _OnTime


class Inner:
    """Takes every activation."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        done = WorkflowActivationCompletion(run_id=act.run_id)
        done.successful.SetInParent()
        return done


REPLAYED, LIVED, ALONE, WITH_A_TASK = "replayed", "lived", "legacy_query", "a query with a task"
STILL = "lived, at the time of the task before"
"""A question brought events with it; or the server's clock was set back, and the core shows no earlier time."""


INFO: Any = SimpleNamespace(start_time=datetime(2026, 11, 23, tzinfo=UTC), namespace="n", workflow_id="w")


def said(*activations: str) -> list[bool]:
    """Return which activations were refused. Each has a longer history than the one before, and most a later time."""
    inner: Any = Inner()
    runner, refused, time = _OnTime(inner, versioned=False, info=INFO), [], 0
    for number, what in enumerate(activations, 1):
        act = WorkflowActivation(run_id="r", is_replaying=what not in (LIVED, STILL), history_length=10 * number)
        time += what in (REPLAYED, LIVED)
        act.timestamp.seconds = time
        if what in (REPLAYED, LIVED, STILL):
            act.jobs.add().fire_timer.seq = number
        else:
            act.jobs.add().query_workflow.query_id = what
        done = runner.activate(act)
        assert not done.HasField("failed") or done.failed.failure.message == MOVES_ON
        refused.append(done.HasField("failed"))
    return refused


@pytest.mark.parametrize(
    ("activations", "refused"),
    [
        ((REPLAYED, REPLAYED, LIVED, ALONE), True),
        ((LIVED, ALONE), True),
        ((REPLAYED, REPLAYED, ALONE), False),
        ((REPLAYED, LIVED, WITH_A_TASK, ALONE), False),
        ((REPLAYED, LIVED, LIVED, ALONE), False),
        ((REPLAYED, ALONE, LIVED, LIVED, ALONE), False),
        ((REPLAYED, LIVED, LIVED, STILL, ALONE), True),
        ((REPLAYED, LIVED, LIVED, STILL, LIVED, ALONE), False),
        ((REPLAYED, LIVED, STILL, STILL, STILL, LIVED), False),
        ((REPLAYED, LIVED, LIVED, STILL, WITH_A_TASK), False),
    ],
)
def test_a_run_that_may_have_lived_for_a_question_alone_leaves_the_cache(
    activations: tuple[str, ...], refused: bool
) -> None:
    assert said(*activations) == [False] * (len(activations) - 1) + [refused]


def test_nothing_is_thrown_into_the_thread_of_a_slow_activation() -> None:
    """Whatever thread the sandbox uses, a run that was interrupted between two steps could never leave the cache."""
    inner: Any = SimpleNamespace(get_thread_id=lambda: 4711)
    assert _OnTime(inner, versioned=False, info=INFO).get_thread_id() is None


class Turnstile:
    """A lock. `asked`: set when somebody wants it whom it keeps waiting."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.asked.set()
            assert self._lock.acquire(timeout=PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_what_comes_after_a_slow_activation_waits_for_it() -> None:
    """temporalio sends the run out of the cache while an activation that it gave up still lives in its loop."""
    entered, may_end, inside, together = threading.Event(), threading.Event(), [], []

    class Slow(Inner):
        def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
            inside.append(act)
            together.append(len(inside))
            entered.set()
            may_end.wait(PATIENCE)
            inside.pop()
            return super().activate(act)

    inner: Any = Slow()
    runner = _OnTime(inner, versioned=False, info=INFO)
    turnstile: Any = Turnstile()
    runner._one_at_a_time = turnstile
    slow, eviction = WorkflowActivation(run_id="r"), WorkflowActivation(run_id="r")
    slow.jobs.add().fire_timer.seq = 1
    eviction.jobs.add().remove_from_cache.SetInParent()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(runner.activate, slow)
        assert entered.wait(PATIENCE)
        second = threads.submit(runner.activate, eviction)
        try:
            assert turnstile.asked.wait(PATIENCE)
            assert inside == [slow]
            assert not second.done()
        finally:
            may_end.set()
        assert first.result(PATIENCE).HasField("successful")
        assert second.result(PATIENCE).HasField("successful")
    assert together == [1, 1]
