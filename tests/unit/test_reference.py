"""The reference planner itself: every answer here was worked by hand from docs/design.md."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings

from models.cluster.island import Island
from models.cluster.policy import Policy, Scope, ShareBy, Tier
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot
from tests import reference
from tests.strategies import SMALL, policies, snapshots, tiny_snapshots

UNSCHEDULED, IDLE, BUSY = Tier.UNSCHEDULED, Tier.IDLE, Tier.BUSY


def island(name: str, total: int, healthy: int | None = None, block: int | None = None) -> Island:
    return Island(name=name, total_gpus=total, healthy_gpus=total if healthy is None else healthy, block_gpus=block)


def cluster(islands: list[Island], *quotas: Quota, gpus_per_node: int = 8) -> Snapshot:
    return Snapshot(cluster="c", gpus_per_node=gpus_per_node, islands=tuple(islands), quotas=quotas)


def policy(buffer: str = "0", spare: int | None = 0, **fields: object) -> Policy:
    return Policy.model_validate({"buffer": Decimal(buffer), "spare_gpus": spare, **fields})


WORKED = cluster([island("x", 361, 319)], Quota(team="a", gpus=345, scheduled_gpus=310, idle_gpus=0))


# Dividing


@pytest.mark.parametrize(
    ("amount", "weights", "expected"),
    [
        (3, {"a": 6, "b": 3}, {"a": 2, "b": 1}),  # 6, then b's 3 before a's 2, then 2
        (3, {"a": 10, "b": 2}, {"a": 3, "b": 0}),  # a's third, 10/5, ties with b's first, and a comes first
        (4, {"a": 10, "b": 2}, {"a": 3, "b": 1}),
        (1, {"a": 1, "Z": 1}, {"a": 0, "Z": 1}),  # code points: Z before a
        (1, {"é": 1, "z": 1}, {"é": 0, "z": 1}),
        (1, {"t9": 1, "t10": 1}, {"t9": 0, "t10": 1}),
        (0, {"a": 1}, {"a": 0}),
    ],
)
def test_a_division_worked_by_hand(amount: int, weights: dict[str, int], expected: dict[str, int]) -> None:
    assert reference.divide(amount, weights, dict.fromkeys(weights, 99)) == expected


def test_a_cap_sends_the_next_gpu_to_somebody_else() -> None:
    assert reference.divide(5, {"a": 9, "b": 1, "c": 1}, {"a": 2, "b": 9, "c": 1}) == {"a": 2, "b": 2, "c": 1}


def test_a_division_ends_when_everybody_is_at_the_cap() -> None:
    assert reference.divide(5, {"a": 9, "b": 1}, {"a": 2, "b": 1}) == {"a": 2, "b": 1}


# Assigned


def test_a_parent_promises_no_more_than_its_own_value_or_its_children() -> None:
    tree = cluster(
        [island("x", 8)],
        Quota(team="root", gpus=9),
        Quota(team="mid", gpus=4, parent="root"),
        Quota(team="a", gpus=3, parent="mid"),
        Quota(team="b", gpus=3, parent="mid"),
        Quota(team="c", gpus=2, parent="root"),
        Quota(team="d", gpus=1),
    )
    assert reference.assigned(tree) == 4 + 2 + 1  # mid caps 6 at 4, root's 9 is never reached
    assert reference.assigned(tree, {"root": 5, "mid": 4, "a": 3, "b": 3, "c": 2, "d": 0}) == 5


# Backing


def test_what_is_missing_is_divided_in_proportion_to_quota() -> None:
    found = reference.backing(cluster([island("x", 6)], Quota(team="a", gpus=6), Quota(team="b", gpus=3)))
    assert found.values == {"a": 4, "b": 2}
    assert found.total == 6


def test_a_quota_is_backed_only_by_islands_it_may_use() -> None:
    found = reference.backing(
        cluster(
            [island("x", 2), island("y", 3)],
            Quota(team="a", gpus=3, islands=("x",)),
            Quota(team="b", gpus=3),
        )
    )
    assert found.values == {"a": 2, "b": 3}  # the missing GPU can only be a's: b fits in y


def test_placed_blocks_count_before_the_total() -> None:
    """a's block has room only in x, the only island b may use; without it all 8 would be backed."""
    found = reference.backing(
        cluster(
            [island("x", 4), island("y", 4, block=0)],
            Quota(team="a", gpus=4, protected_blocks=(4,)),
            Quota(team="b", gpus=4, islands=("x",)),
        )
    )
    assert (found.values, found.placed, found.total) == ({"a": 4, "b": 0}, (("a", 4),), 4)


def test_the_first_name_wins_between_equal_blocks_and_more_gpus_win_before_that() -> None:
    def blocks(a: int, b: int) -> reference.Reference:
        return reference.backing(
            cluster(
                [island("x", 3)],
                Quota(team="a", gpus=a, protected_blocks=(a,)),
                Quota(team="b", gpus=b, protected_blocks=(b,)),
            )
        )

    assert blocks(3, 3).unplaced == (("b", 3),)
    assert blocks(2, 3).unplaced == (("a", 2),)
    assert blocks(2, 3).values == {"a": 0, "b": 3}


def test_a_block_without_a_place_competes_as_loose_gpus() -> None:
    found = reference.backing(
        cluster(
            [island("x", 3), island("y", 3)],
            Quota(team="a", gpus=4, protected_blocks=(4,)),
            Quota(team="b", gpus=4),
        )
    )
    assert (found.values, found.unplaced) == ({"a": 3, "b": 3}, (("a", 4),))


def test_blocks_use_only_wholly_healthy_nodes() -> None:
    one = cluster([island("x", 8, 8, 3)], Quota(team="a", gpus=8, protected_blocks=(4, 3)))
    found = reference.backing(one)
    assert (found.placed, found.unplaced, found.values) == ((("a", 3),), (("a", 4),), {"a": 8})


def test_the_tree_limits_what_is_backed() -> None:
    found = reference.backing(
        cluster(
            [island("x", 8)],
            Quota(team="P", gpus=4),
            Quota(team="a", gpus=3, parent="P"),
            Quota(team="b", gpus=3, parent="P"),
            Quota(team="c", gpus=2),
        )
    )
    assert found.values == {"a": 2, "b": 2, "c": 2}
    assert found.total == 6


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tiny_snapshots())
def test_the_formula_gives_what_listing_every_assignment_gives(snapshot: Snapshot) -> None:
    assert reference.backing(snapshot) == reference.backing_by_enumeration(snapshot)


# Plans


def test_the_worked_case_comes_out_exactly() -> None:
    found = reference.plan(WORKED, Policy())
    assert (found.ceiling, found.assigned, found.haircut, found.short) == (306, 345, 39, 0)
    assert (found.cuts, found.after) == ({"a": {UNSCHEDULED: 35, BUSY: 4}}, {"a": 306})
    assert (found.phantom_gpus, found.to_flex_gpus) == (26, 13)
    assert (found.phantom, found.to_flex) == ({"a": 26}, {"a": 13})
    assert (found.backed, found.wave) == (True, BUSY)


def test_the_worked_case_limited_to_unscheduled_is_short_by_four() -> None:
    found = reference.plan(WORKED, Policy(), UNSCHEDULED)
    assert (found.cuts, found.after) == ({"a": {UNSCHEDULED: 35}}, {"a": 310})
    assert (found.haircut, found.short) == (39, 4)
    assert (found.phantom_gpus, found.to_flex_gpus) == (26, 9)
    assert (found.backed, found.wave) == (True, BUSY)


def test_a_cluster_with_room_loses_nothing() -> None:
    found = reference.plan(cluster([island("x", 20)], Quota(team="a", gpus=9)), policy("0.5"))
    assert (found.ceiling, found.haircut, found.cuts, found.wave) == (10, 0, {"a": {}}, Tier.UNALLOCATED)


TWO = [Quota(team="a", gpus=10, scheduled_gpus=6, idle_gpus=2), Quota(team="b", gpus=10, scheduled_gpus=10)]


def test_cheaper_tiers_are_emptied_before_deeper_ones() -> None:
    # 10 to cut: a's 4 unscheduled, a's 2 idle, and 4 of the busy 4 and 10: b 10, a 4, b 3.33, b 2.
    found = reference.plan(cluster([island("x", 20)], *TWO), policy("0.5"))
    assert found.cuts == {"a": {UNSCHEDULED: 4, IDLE: 2, BUSY: 1}, "b": {BUSY: 3}}
    assert (found.phantom_gpus, found.to_flex_gpus) == (0, 10)


def test_a_deepest_tier_leaves_the_rest_short() -> None:
    found = reference.plan(cluster([island("x", 20)], *TWO), policy("0.5"), IDLE)
    assert (found.cuts, found.short) == ({"a": {UNSCHEDULED: 4, IDLE: 2}, "b": {}}, 4)
    assert found.wave is BUSY


@pytest.mark.parametrize(
    "floor", [{"minimum_gpus": 6}, {"protected_blocks": (4, 2)}], ids=["minimum", "protected blocks"]
)
def test_a_floor_is_taken_out_of_the_deepest_tier_first(floor: dict[str, object]) -> None:
    # 6 covers a's 4 busy and 2 idle; its 4 unscheduled stay.
    a = Quota.model_validate({**TWO[0].model_dump(), **floor})
    found = reference.plan(cluster([island("x", 20)], a, TWO[1]), policy("0.5"))
    assert found.cuts == {"a": {UNSCHEDULED: 4}, "b": {BUSY: 6}}


@pytest.mark.parametrize(
    ("share", "expected"),
    [(ShareBy.TIER, {"a": 1, "b": 1}), (ShareBy.QUOTA, {"a": 2, "b": 0}), (ShareBy.EQUAL, {"a": 1, "b": 1})],
)
def test_the_share_decides_the_weights_and_the_tier_the_caps(share: ShareBy, expected: dict[str, int]) -> None:
    quotas = Quota(team="a", gpus=10, scheduled_gpus=8), Quota(team="b", gpus=2, scheduled_gpus=0)
    found = reference.plan(cluster([island("x", 12)], *quotas), policy("0.16", share=share))
    assert found.ceiling == 10
    assert {team: sum(cuts.values()) for team, cuts in found.cuts.items()} == expected


SHORT_X = cluster(
    [island("x", 8, 4), island("y", 8)],
    Quota(team="a", gpus=8, islands=("x",)),
    Quota(team="b", gpus=8, islands=("y",)),
)


def test_what_backing_demands_is_cut_from_those_who_share_the_short_island() -> None:
    found = reference.plan(SHORT_X, policy("0.25"))
    assert (found.ceiling, found.after) == (12, {"a": 4, "b": 8})
    assert (found.phantom, found.to_flex) == ({"a": 4, "b": 0}, {"a": 0, "b": 0})


def test_what_the_ceiling_demands_goes_on_where_backing_stopped() -> None:
    # 2 more from the busy 8 and 8, of which a has given 4: a's next is 8/9, b's 8 and 8/3.
    found = reference.plan(SHORT_X, policy("0.375"))
    assert (found.ceiling, found.after) == (10, {"a": 4, "b": 6})
    assert (found.phantom_gpus, found.to_flex_gpus) == (4, 2)
    assert found.to_flex == {"a": 0, "b": 2}


def test_scope_quota_lowers_each_by_the_buffer_though_the_ceiling_is_far() -> None:
    found = reference.plan(
        cluster([island("x", 20)], Quota(team="a", gpus=5), Quota(team="b", gpus=3)),
        policy("0.5", scope=Scope.QUOTA),
    )
    assert (found.ceiling, found.after, found.haircut) == (10, {"a": 2, "b": 1}, 5)


def test_scope_quota_is_short_by_what_floors_keep() -> None:
    found = reference.plan(
        cluster([island("x", 20)], Quota(team="a", gpus=5, minimum_gpus=4), Quota(team="b", gpus=3)),
        policy("0.5", scope=Scope.QUOTA),
    )
    assert (found.after, found.haircut, found.short) == ({"a": 4, "b": 1}, 5, 2)


def test_a_cut_lowers_the_ancestors_so_that_no_sibling_takes_it_up() -> None:
    found = reference.plan(
        cluster(
            [island("x", 6, 4)],
            Quota(team="P", gpus=6),
            Quota(team="a", gpus=5, parent="P"),
            Quota(team="b", gpus=5, parent="P"),
        ),
        policy(),
    )
    assert found.after == {"P": 4, "a": 4, "b": 4}
    assert (found.assigned, found.phantom_gpus, found.backed) == (6, 2, True)


def test_a_plan_whose_block_has_no_place_is_not_backed() -> None:
    found = reference.plan(
        cluster([island("x", 4), island("y", 4)], Quota(team="a", gpus=5, protected_blocks=(5,))), policy()
    )
    assert (found.haircut, found.backed) == (0, False)


@pytest.mark.nightly
@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshots(SMALL, blocks=False), policies())
def test_without_floors_and_limits_the_whole_haircut_is_cut(snapshot: Snapshot, policy: Policy) -> None:
    bare = tuple(q.model_copy(update={"minimum_gpus": 0}) for q in snapshot.quotas)
    found = reference.plan(snapshot.model_copy(update={"quotas": bare}), policy, BUSY)
    assert (found.short, found.backed) == (0, True)
    assert sum(sum(cuts.values()) for cuts in found.cuts.values()) == found.haircut


# Breach


def test_a_breach_cuts_the_touched_and_leaves_the_others() -> None:
    whole = cluster(
        [island("x", 4), island("y", 4)],
        Quota(team="a", gpus=4, islands=("x",)),
        Quota(team="b", gpus=4, islands=("y",)),
    )
    found = reference.breach_target(whole, {"a": 3, "b": 3}, (island("x", 4), island("y", 4, 2)))
    assert (found.values, found.touched) == ({"a": 3, "b": 2}, frozenset({"b"}))


def test_a_touched_quota_starts_from_its_baseline_and_may_come_back_up() -> None:
    # 8 of 10 to cut, weights 8 and 2: a 8, a 2.67, b 2, a 1.6, a 1.14, a .89, a .73, b .67.
    whole = cluster([island("x", 10)], Quota(team="a", gpus=8), Quota(team="b", gpus=2))
    found = reference.breach_target(whole, {"a": 1, "b": 2}, (island("x", 10, 2),))
    assert found.values == {"a": 2, "b": 0}


def test_a_floor_stands_while_anything_else_is_left() -> None:
    whole = cluster([island("x", 5)], Quota(team="a", gpus=2, minimum_gpus=2), Quota(team="b", gpus=3))
    two = reference.breach_target(whole, {"a": 2, "b": 3}, (island("x", 5, 2),))
    assert (two.values, two.broken_floors) == ({"a": 2, "b": 0}, frozenset())
    one = reference.breach_target(whole, {"a": 2, "b": 3}, (island("x", 5, 1),))
    assert (one.values, one.broken_floors) == ({"a": 1, "b": 0}, frozenset({"a"}))


def test_minimums_give_way_before_blocks_and_placed_blocks_stay() -> None:
    whole = cluster(
        [island("x", 8)],
        Quota(team="a", gpus=4, minimum_gpus=4),
        Quota(team="b", gpus=4, protected_blocks=(3,)),
    )
    found = reference.breach_target(whole, {"a": 4, "b": 4}, (island("x", 8, 4),))
    assert (found.values, found.broken_floors) == ({"a": 1, "b": 3}, frozenset({"a"}))


def test_where_everything_is_backed_nothing_is_touched() -> None:
    whole = cluster([island("x", 8)], Quota(team="a", gpus=8))
    assert reference.breach_target(whole, {"a": 5}, (island("x", 8, 5),)).values == {"a": 5}
