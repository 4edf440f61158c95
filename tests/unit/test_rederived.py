"""A buffer from health history, derived again each week while a cluster is monitored. In a world without Temporal."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from models.cluster.derived_buffer import TERMS, BufferBasis, Derived
from models.notices import NoticeKind
from models.rollout import request_builders
from models.rollout.stages import Stage
from models.rollout.workflow_actions import Draft
from tests.unit.pure_world import World

pytestmark = pytest.mark.slow  # takes seconds: `make quick` leaves it to `make test`

POLICY: dict[str, Any] = {
    "notice": "0s",
    "soak_buffered": "1h",
    "soak_enforced": "1h",
    "spare_gpus": 0,
    "buffer": {"health": {}},
}
TOTAL = 361


def asks(needed: int, ground: BufferBasis = BufferBasis.HISTORY) -> Derived:
    """`needed` of the 361 GPUs must stay unpromised."""
    text = f"{needed - 20} down most of the time, 20 in reserve"
    return Derived(
        ground=ground,
        terms=TERMS,
        total=TOTAL,
        needed=needed,
        level=needed - 20,
        reserve=20,
        known_hours=5000,
        worst=60,
        text=text,
    )


def asking(found: Derived) -> Callable[[World], None]:
    def before(world: World) -> None:
        world.asked = found

    return before


def monitored(needed: int = 60, **policy: Any) -> World:
    world = World(before=asking(asks(needed)), **{**POLICY, **policy})
    world.start().until(Stage.MONITORED)
    assert sum(world.values.values()) == TOTAL - needed
    return world


def promised(world: World) -> int:
    return sum(world.values.values())


def test_the_plan_says_what_its_buffer_stands_on() -> None:
    world = monitored(60)
    plan = world.r.plan
    assert plan is not None
    assert (plan.ceiling_gpus, plan.buffer, plan.derived) == (301, Fraction(60, TOTAL), asks(60))


def test_less_is_proposed_and_waits_for_approval_though_health_backs_it_all() -> None:
    world = monitored(60)
    world.asked = asks(80)
    world.wait("6d")
    assert len(world.plans) == 1, "not before a week has passed"
    world.wait("2d")
    proposal = world.status.proposal
    assert proposal is not None
    assert promised(world) == 301
    (notice,) = [n for n in world.sent if n.kind is NoticeKind.HELD]
    assert "buffer 80 of 361: 60 down most of the time, 20 in reserve" in notice.detail
    world.wait("3d")
    assert promised(world) == 301
    world.approve()
    assert promised(world) == 281


def test_less_is_never_written_by_itself_even_inside_what_was_approved() -> None:
    world = monitored(60)
    world.asked = asks(45)
    world.wait("8d")
    assert promised(world) == 316
    world.asked = asks(60)
    world.wait("8d")
    proposal = world.status.proposal
    assert proposal is not None
    assert proposal.inside
    assert proposal.plan_hash in world.needs
    assert promised(world) == 316
    world.approve()
    assert promised(world) == 301


def test_more_comes_by_itself_and_by_steps() -> None:
    world = monitored(60)
    world.asked = asks(20)
    seen = []
    for _ in range(4):
        world.wait("8d")
        seen.append(promised(world))
    assert seen == [319, 337, 341, 341], "a twentieth of 361 in a week"
    assert world.status.proposal is None
    assert any("the promise rises from 301 only to 319 for now" in text for text in world.story)


@pytest.mark.parametrize("needed", [59, 57, 61])
def test_a_few_gpus_change_nothing_and_ask_nobody(needed: int) -> None:
    world = monitored(60)
    world.asked = asks(needed)
    world.wait("30d")
    assert (promised(world), len(world.plans), world.status.proposal) == (301, 1, None)
    derived = [
        text for text in world.story if text.startswith(f"Backstop derived the buffer again: {needed} of 361 GPUs")
    ]
    assert len(derived) == 4, "once a week"
    assert not world.told_of(NoticeKind.HELD)


def test_a_cluster_that_has_grown_may_be_promised_more_than_a_step_at_once() -> None:
    """301 of 361 stand; of ten times as many that is 3010, and a twentieth of 3610 comes on top."""
    world = monitored(60)
    asked = request_builders.draft(world.r, Draft(why=""), world.now)
    assert (asked.promised, asked.promised_of) == (301, TOTAL)
    world.asked = asks(100).model_copy(update={"total": 10 * TOTAL})
    world.wait("8d")
    said = [plan.derived for plan in world.plans[1:]]
    assert [None if one is None else one.promise for one in said] == [3190]
    assert said[0] is not None
    grown = "the cluster has grown from 361 to 3610, and the promise with it from 301 to 3010"
    assert f"{grown}; for now it rises only to 3190" in said[0].text


def test_when_nothing_can_be_promised_any_more_a_person_is_called_and_nothing_is_written() -> None:
    world = monitored(60)
    world.asked = asks(200, BufferBasis.WILD)
    world.wait("8d")
    assert (promised(world), world.status.proposal) == (301, None)
    (notice,) = [n for n in world.sent if n.kind is NoticeKind.HELD]
    assert "it cannot be approved: no quota can be promised in this cluster: 180 down" in notice.detail
    world.wait("5d")
    assert len(world.told_of(NoticeKind.HELD)) == 1


def test_a_cluster_too_wild_to_promise_is_not_launched() -> None:
    world = World(before=asking(asks(361, BufferBasis.WILD)), **POLICY)
    assert world.is_in(Stage.ABORTED)
    assert world.r.ended_because.startswith("no quota can be promised in this cluster: 341 down most")
    assert promised(world) == TOTAL


def test_a_policy_may_ask_for_no_new_buffers() -> None:
    world = monitored(60, on_long_run="ignore")
    world.asked = asks(80)
    world.wait("30d")
    assert (promised(world), len(world.plans)) == (301, 1)
