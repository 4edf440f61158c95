"""The numbers that must come out, worked by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from models.cluster.island import Island
from models.cluster.policy import Basis, Policy, Tier
from models.cluster.quota import Quota, QuotaTree
from models.cluster.snapshot import Snapshot
from models.planning.backing import back
from models.planning.ceiling import static_ceiling
from models.planning.plan import Plan, breach_target, envelope_of, make_plan


def island(name: str, total: int, healthy: int, block: int | None = None) -> Island:
    return Island(name=name, total_gpus=total, healthy_gpus=healthy, block_gpus=block)


def snapshot(islands: list[Island], quotas: list[Quota], **more: object) -> Snapshot:
    return Snapshot.model_validate({"cluster": "c", "islands": islands, "quotas": quotas, **more})


WORKED = snapshot([island("main", 361, 319)], [Quota(team="a", gpus=345, scheduled_gpus=310, idle_gpus=0)])


def test_the_worked_case_cuts_35_unscheduled_and_4_busy() -> None:
    plan = make_plan(WORKED, Policy())
    (row,) = plan.quotas
    assert (plan.ceiling_gpus, plan.haircut_gpus, plan.phantom_gpus, plan.to_flex_gpus) == (306, 39, 26, 13)
    assert (row.before_gpus, row.after_gpus) == (345, 306)
    assert [(c.tier, c.gpus) for c in row.cuts] == [(Tier.UNSCHEDULED, 35), (Tier.BUSY, 4)]
    assert (plan.short_by_gpus, plan.backed, plan.wave) == (0, True, Tier.BUSY)


def test_limited_to_unscheduled_the_worked_case_is_short_by_4_and_still_backed() -> None:
    plan = make_plan(WORKED, Policy(), max_tier=Tier.UNSCHEDULED)
    assert plan.values == {"a": 310}
    assert (plan.phantom_gpus, plan.to_flex_gpus, plan.short_by_gpus, plan.backed) == (26, 9, 4, True)
    assert plan.suffices is Tier.BUSY


TWO = snapshot([island("main", 361, 361)], [Quota(team="a", gpus=200), Quota(team="b", gpus=161, scheduled_gpus=100)])


def test_a_breach_takes_the_ladder_from_the_baseline_with_h_as_ceiling() -> None:
    plan = make_plan(TWO, Policy())
    assert plan.values == {"a": 200, "b": 106}
    target = breach_target(TWO, plan.values, (island("main", 361, 300),))
    assert target.values == {"a": 200, "b": 100}
    assert target.broken_floors == ()


ISLANDS = snapshot(
    [island("X", 200, 190), island("Y", 200, 160)],
    [
        Quota(team="q1", gpus=180, islands=("X",), protected_blocks=(180,)),
        Quota(team="q2", gpus=60, islands=("X",)),
        Quota(team="q3", gpus=140, islands=("Y",)),
    ],
)


def test_what_an_island_lacks_is_cut_from_those_on_it_alone() -> None:
    plan = make_plan(ISLANDS, Policy())
    assert plan.values == {"q1": 180, "q2": 10, "q3": 140}
    assert (plan.haircut_gpus, plan.phantom_gpus, plan.to_flex_gpus, plan.backed) == (50, 50, 0, True)


def test_a_breach_in_one_island_leaves_the_other_islands_quotas_alone() -> None:
    planned = make_plan(ISLANDS, Policy()).values
    target = breach_target(ISLANDS, planned, (island("X", 200, 185), island("Y", 200, 160)))
    assert target.values == {"q1": 180, "q2": 5, "q3": 140}
    assert target.touched == ("q2",)


def test_a_floor_that_makes_the_haircut_impossible_is_reported_as_short() -> None:
    floored = snapshot([island("m", 100, 100)], [Quota(team="a", gpus=95, minimum_gpus=95), Quota(team="b", gpus=5)])
    plan = make_plan(floored, Policy())
    assert (plan.haircut_gpus, plan.short_by_gpus, plan.values) == (15, 10, {"a": 95, "b": 0})
    assert plan.suffices is None


def test_on_a_breach_h_wins_over_a_floor_and_the_broken_floor_is_named() -> None:
    floored = snapshot([island("m", 100, 100)], [Quota(team="a", gpus=60, minimum_gpus=55), Quota(team="b", gpus=30)])
    target = breach_target(floored, {"a": 60, "b": 25}, (island("m", 100, 50),))
    assert target.values == {"a": 50, "b": 0}
    assert target.broken_floors == ("a: 50 GPUs are left of a floor of 55",)


def test_a_block_cannot_cross_islands_so_351_in_one_and_8_in_another_are_worth_nothing() -> None:
    training = snapshot(
        [island("X", 352, 351), island("Y", 352, 344)],
        [Quota(team="pretraining", gpus=352, protected_blocks=(352,))],
    )
    backing = back(training)
    assert backing.backed_gpus == 352
    assert [(u.team, u.gpus) for u in backing.unplaced] == [("pretraining", 352)]
    assert not backing.is_backed
    plan = make_plan(training, Policy())
    assert not plan.backed
    assert plan.unplaced_blocks == (("pretraining", 352),)


def test_healthy_gpus_on_broken_nodes_do_not_serve_blocks() -> None:
    quotas = [Quota(team="t", gpus=96, protected_blocks=(96,))]
    assert back(snapshot([island("X", 100, 98, 96)], quotas)).is_backed
    assert not back(snapshot([island("X", 100, 98, 88)], quotas)).is_backed


def test_a_cut_of_a_leaf_lowers_its_ancestors_alike() -> None:
    tree = snapshot(
        [island("m", 100, 90)],
        [Quota(team="org", gpus=100), Quota(team="a", gpus=50, parent="org"), Quota(team="b", gpus=50, parent="org")],
    )
    plan = make_plan(tree, Policy())
    assert plan.ceiling_gpus == 82
    assert plan.values == {"org": 82, "a": 41, "b": 41}
    assert [q.leaf for q in plan.quotas] == [False, True, True]
    assert plan.quotas[0].cut_gpus == 18


@pytest.mark.parametrize(("buffer", "expected"), [("0.15", 306), ("0", 319), ("0.05", 319), ("0.999", 0), ("0.1", 319)])
def test_the_ceiling_is_exact_and_never_rounded_up(buffer: str, expected: int) -> None:
    assert static_ceiling(361, 319, Fraction(buffer), 0, Basis.TOTAL) == expected


def test_decimal_buffers_are_exact() -> None:
    # In binary floating point (1 - 0.1) * 70 is 62.99999999999999.
    assert static_ceiling(70, 70, Policy.model_validate({"buffer": 0.1}).buffer_at(0), 0, Basis.TOTAL) == 63


def test_a_ramp_moves_on_with_completed_rollouts_and_stays_on_its_last_step() -> None:
    policy = Policy.model_validate({"buffer": {"ramp": [0.05, 0.10, 0.15]}})
    assert [policy.buffer_at(n) for n in range(5)] == [Fraction(n, 100) for n in (5, 10, 15, 15, 15)]


def test_scope_quota_takes_the_buffer_from_each_then_goes_down_to_the_ceiling() -> None:
    each = snapshot([island("m", 100, 80)], [Quota(team="a", gpus=60), Quota(team="b", gpus=30)])
    plan = make_plan(each, Policy.model_validate({"scope": "quota", "buffer": 0.1}))
    # floor(0.9 * 60) = 54, floor(0.9 * 30) = 27: 81 in all; C = min(90, 72) = 72 takes 9 more.
    assert plan.ceiling_gpus == 72
    assert sum(plan.values.values()) == 72
    assert plan.values == {"a": 48, "b": 24}


def test_under_scope_quota_the_first_tier_limit_that_would_do_is_named_and_not_the_one_that_was_chosen() -> None:
    """Each gives 15: a from busy. Limited to what is unscheduled, b alone gives all 30, and that is under C as well."""
    quotas = [Quota(team="a", gpus=100, scheduled_gpus=100), Quota(team="b", gpus=100, scheduled_gpus=0)]
    here = snapshot([island("main", 200, 200)], quotas)
    policy = Policy.model_validate({"buffer": 0.15, "scope": "quota"})
    plan = make_plan(here, policy)
    assert (plan.deepest_tier, plan.suffices) == (Tier.BUSY, Tier.UNSCHEDULED)
    narrower = make_plan(here, policy, max_tier=Tier.UNSCHEDULED)
    assert (narrower.backed, narrower.short_by_gpus, narrower.cut_gpus) == (True, 0, 30)


def test_usage_above_quota_is_no_reason_to_cut_it_differently() -> None:
    over = snapshot([island("m", 100, 100)], [Quota(team="a", gpus=50, scheduled_gpus=70, idle_gpus=30)])
    plan = make_plan(over, Policy.model_validate({"buffer": 0.6}))
    # 40 of the 50 are held by working jobs, 10 by idle ones: idle goes first, nothing was needed beyond it.
    assert [(c.tier, c.gpus) for c in plan.quotas[0].cuts] == [(Tier.IDLE, 10)]


def test_a_tree_that_promises_more_than_its_parent_is_backed_by_what_the_parent_promises() -> None:
    tree = QuotaTree(
        [Quota(team="org", gpus=100), Quota(team="a", gpus=60, parent="org"), Quota(team="b", gpus=60, parent="org")]
    )
    assert tree.assigned() == 100
    backing = back(snapshot([island("m", 100, 100)], list(tree.by_team.values())))
    assert backing.is_backed
    assert backing.shortage == {}


def test_what_was_phantom_adds_up_where_a_block_a_limit_and_a_small_parent_bind_at_once() -> None:
    """No split among the leaves is exact here; their sum is, and each stays within its cut."""
    quotas = [
        Quota(team="leaf", gpus=3, protected_blocks=(1,), parent="parent"),
        Quota(team="limited", gpus=59, idle_gpus=0, islands=("y",), minimum_gpus=1),
        Quota(team="parent", gpus=2),
    ]
    plan = make_plan(snapshot([island("x", 1, 1, 0), island("y", 1, 1)], quotas), Policy())
    leaves = [row for row in plan.quotas if row.leaf]
    assert plan.phantom_gpus == 59
    assert sum(row.phantom_gpus for row in leaves) == 59
    assert all(0 <= row.phantom_gpus <= row.cut_gpus for row in leaves)


def test_who_may_target_a_quota_is_shown_and_part_of_what_is_approved() -> None:
    def planned(gate: tuple[str, ...] | None) -> Plan:
        quotas = [Quota(team="a", gpus=95, namespaces=gate), Quota(team="b", gpus=5)]
        return make_plan(snapshot([island("main", 100, 100)], quotas), Policy())

    gated, others, anybody = planned(("lab",)), planned(("lab", "other")), planned(None)
    assert [q.namespaces for q in gated.quotas] == [("lab",), None]
    assert "namespaces" not in anybody.model_dump_json(), "plans that were approved before keep their hash"
    assert len({p.hash for p in (gated, others, anybody)}) == 3
    assert [envelope_of(gated).holds(p) for p in (gated, others, anybody)] == [True, False, False]
    assert envelope_of(anybody).holds(gated) is False
