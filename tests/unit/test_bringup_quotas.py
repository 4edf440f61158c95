"""First quotas, written out by hand: 8 nodes of 8 GPUs are ordered, the buffer is 15%, a node is spared.

Planned: T = H = 64, C = min(floor(0.85 * 64), 64 - 8) = min(54, 56) = 54.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from models.bringup.first_quotas import first_plan, next_values, too_much
from models.bringup.stages import BringupStage
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.quota import QuotaTree
from tests.unit.bringup_world import BringupWorld, entry, recipe

POLICY = Policy(buffer=Fraction(15, 100))
A_AND_B = [{"team": "a", "gpus": 30}, {"team": "b", "gpus": 24}]


def nodes(count: int, healthy: int | None = None) -> tuple[Island, ...]:
    gpus = 8 * count
    return (Island(name="main", total_gpus=gpus, healthy_gpus=gpus if healthy is None else healthy),)


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        ((30, 24), ""),
        (
            (30, 25),
            "quotas sum to 55, 1 GPU above the 54 that h100-new may promise of the 64 ordered: lower them",
        ),
        ((64, 0), "quotas sum to 64, 10 GPUs above the 54 that h100-new may promise of the 64 ordered: lower them"),
    ],
)
def test_a_sum_above_the_planned_ceiling_is_refused_at_entry(gpus: tuple[int, int], sentence: str) -> None:
    quotas = [{"team": "a", "gpus": gpus[0]}, {"team": "b", "gpus": gpus[1]}]
    assert too_much(entry(quotas=quotas), POLICY) == sentence
    without_history = Policy.model_validate({"buffer": {"health": {"floor": 0.15}}})
    assert too_much(entry(quotas=quotas), without_history) == sentence


def test_a_block_that_no_ordered_island_holds_is_refused_at_entry() -> None:
    islands = [{"name": "x", "nodes": 4}, {"name": "y", "nodes": 4}]
    asked = entry(islands=islands, quotas=[{"team": "a", "gpus": 48, "protected_blocks": [48]}])
    told = too_much(asked, POLICY)
    assert told.startswith("quotas do not all fit the islands ordered for h100-new: no island has room")


@pytest.mark.parametrize(
    ("came", "minimum", "values"),
    [
        # T = 48: C = min(floor(40.8), 40) = 40, 14 to cut. S = 0, so all of it is unscheduled: weights 30 and 24.
        # The 14 largest of 30, 10, 6, 4.29, 3.33, 2.73, 2.31, 2.0 (8 of a) and 24, 8, 4.8, 3.43, 2.67, 2.18 (6 of b).
        (6, 0, {"a": 22, "b": 18}),
        # The same with a floor of 20 under b: weights 30 and 4, b gives 2 (4, 1.33) and a 12 (30 ... 1.304).
        (6, 20, {"a": 18, "b": 22}),
        # T = 56: C = min(floor(47.6), 48) = 47, 7 to cut: 30, 10, 6, 4.29 of a and 24, 8, 4.8 of b.
        (7, 0, {"a": 26, "b": 21}),
        (8, 0, {"a": 30, "b": 24}),
        # One node: C = min(6, 0) = 0.
        (1, 0, {"a": 0, "b": 0}),
    ],
)
def test_what_missing_nodes_cut_is_divided(came: int, minimum: int, values: dict[str, int]) -> None:
    asked = entry(quotas=[A_AND_B[0], A_AND_B[1] | {"minimum_gpus": minimum}])
    plan = first_plan(asked, nodes(came), POLICY)
    assert plan.values == values
    assert plan.backed


def test_what_is_owed_is_granted_as_more_comes_and_never_taken_back() -> None:
    asked = entry(quotas=A_AND_B)
    assert next_values(asked, nodes(7), {"a": 22, "b": 18}, POLICY) == {"a": 26, "b": 21}
    assert next_values(asked, nodes(8), {"a": 26, "b": 21}, POLICY) == {"a": 30, "b": 24}
    # 7 nodes of which 40 GPUs are healthy: C = min(47, 32) = 32, below the 40 that stand.
    assert next_values(asked, nodes(7, healthy=40), {"a": 22, "b": 18}, POLICY) == {"a": 22, "b": 18}
    # C = 47, and b has been granted all of its 24: 23 are left for a.
    assert next_values(asked, nodes(7), {"a": 18, "b": 24}, POLICY) == {"a": 23, "b": 24}


def test_parents_rise_with_their_children() -> None:
    tree = [{"team": "org", "gpus": 54}, *({**q, "parent": "org"} for q in A_AND_B)]
    asked = entry(quotas=tree)
    first = first_plan(asked, nodes(6), POLICY).values
    assert first == {"org": 40, "a": 22, "b": 18}
    after = next_values(asked, nodes(7), first, POLICY)
    assert after == {"org": 47, "a": 26, "b": 21}
    assert QuotaTree(asked.quotas).assigned_gpus(after) == 47


def handed_over(came: tuple[Island, ...] | None = None, **more: Any) -> BringupWorld:
    world = BringupWorld(recipe(accept_at_least=0.75), entry(quotas=A_AND_B, **more))
    world.policy, world.islands = POLICY, came or nodes(6)
    world.run()
    world.say("check-in")
    world.wait("3h")
    assert world.stage is BringupStage.IN_PRODUCTION
    assert world.b.production is not None
    assert world.b.production.granted == {"a": 22, "b": 18}
    assert world.b.production.owed == {"a": 8, "b": 6}
    return world


@pytest.mark.parametrize("came", [None, nodes(8, healthy=48)], ids=["six-of-eight", "eight-two-of-them-not-healthy"])
def test_what_is_owed_is_granted_by_itself_when_the_rest_comes(came: tuple[Island, ...] | None) -> None:
    """A node that is declared, and has not registered yet, is installed and not healthy."""
    world = handed_over(came, owed_until="2026-06-01T00:00:00Z")
    world.wait("20d")  # long after its probation
    world.islands = nodes(8)
    world.wait("2h")
    assert world.b.production is not None
    assert (world.b.production.granted, world.b.production.owed) == ({"a": 30, "b": 24}, {})
    assert world.told()[-1] == "Backstop granted GPUs that it owed in h100-new: a 8 GPUs more, b 6 GPUs more."
    asked = len(world.asked)
    world.wait("10d")
    assert len(world.asked) == asked


@pytest.mark.parametrize("until", [None, "2026-03-03T00:00:00Z"])
def test_after_the_entrys_date_nothing_is_granted_by_itself(until: str | None) -> None:
    given: dict[str, Any] = {} if until is None else {"owed_until": until}
    world = handed_over(**given)
    world.wait("2d")
    world.islands = nodes(8)
    world.wait("9d")
    assert world.b.production is not None
    assert world.b.production.granted == {"a": 22, "b": 18}
