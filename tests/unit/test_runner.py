"""A question is refused where the workflow may have lived for it alone."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from models.wire import MOVES_ON
from workers.untimely_queries import _OnTime


class Inner:
    """Takes every activation."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        done = WorkflowActivationCompletion(run_id=act.run_id)
        done.successful.SetInParent()
        return done


REPLAYED, LIVED, ALONE, WITH_A_TASK = "replayed", "lived", "legacy_query", "a query with a task"
STILL = "lived, at the time of the task before"
"""A question brought events with it; or the server's clock was set back, and the core shows no earlier time."""


def said(*activations: str) -> list[bool]:
    """Which activations were refused. Each has a longer history than the one before, and most a later time."""
    inner: Any = Inner()
    runner, refused, time = _OnTime(inner, versioned=False), [], 0
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
