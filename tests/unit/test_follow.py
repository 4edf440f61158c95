"""The news that a fleet rollout gets of its members while it waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.fleet.calls import FleetActivities
from activities.ports.clusters import ClusterPorts
from models.fleet.messages import FollowRequest, Noted

PLANNED, ABORTED = (Noted(rollout="b/1", stage=stage, needs="", rollbacks=0) for stage in ("planned", "aborted"))
REFUSED = Noted(rollout="b/0", stage="aborted", needs="", rollbacks=0)


class Book:
    """A registry that says one thing after the other; the last for good."""

    def __init__(self, *answers: Sequence[Noted]) -> None:
        self._answers = list(answers)

    def noted_rollouts(self, rollouts: Sequence[str], fleet: str) -> dict[str, Noted]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return {noted.rollout: noted for noted in answer}


@pytest.mark.parametrize(
    ("answers", "known", "unseen", "told"),
    [
        ([[], [PLANNED]], [], [], [PLANNED]),
        ([[PLANNED], [ABORTED]], [PLANNED], [], [ABORTED]),
        # It was opened after the call began, and aborted before the next look: the fleet waited half an hour.
        ([[], [ABORTED]], [], [], [ABORTED]),
        ([[ABORTED]], [], ["b/1"], [ABORTED]),
        ([[REFUSED], [REFUSED], [REFUSED, ABORTED]], [], [], [ABORTED]),
    ],
)
async def test_what_is_not_as_it_was_known_is_told_once(
    answers: list[list[Noted]], known: list[Noted], unseen: list[str], told: list[Noted]
) -> None:
    registry: Any = Book(*answers)
    nobody: Any = None
    ports = ClusterPorts(nobody, nobody, nobody, nobody, registry, nobody, nobody)
    activities = FleetActivities(nobody, ports, nobody)
    request = FollowRequest(fleet="f", known={n.rollout: n for n in known}, unseen=tuple(unseen), every_seconds=0.01)
    answer = await ActivityEnvironment().run(activities.follow, request)
    assert list(answer.changed.values()) == told
