"""docs/design.md's invariants 1 to 3 and the plan's own promises, on random fleets of every shape.

Invariants 4 to 6 are about rollouts in time: tests/property/test_machine.py.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from models.cluster.island import Island
from models.cluster.policy import Policy, Scope, ShareBy, Tier
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot
from models.planning.backing import back
from models.planning.breach_target import breach_target
from models.planning.ceiling import ceiling_of
from models.planning.plan import Cut, Plan, envelope_of, make_plan
from tests.strategies import LARGE, Breach, breaches, large_snapshots, policies, snapshots
from tests.tried import examples

LOOSE = settings(
    deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def flat_and_unlimited() -> st.SearchStrategy[Snapshot]:
    return snapshots(LARGE, tree=False, limits=False, blocks=False)


def leaf_rows(plan: Plan) -> list[tuple[int, int, int, int]]:
    return [(q.cut_gpus, q.phantom_gpus, q.to_flex_gpus, sum(c.gpus for c in q.cuts)) for q in plan.quotas if q.leaf]


def with_one_more(snapshot: Snapshot, island: str) -> Snapshot:
    return snapshot.with_islands(
        tuple(
            i.model_copy(
                update={
                    "healthy_gpus": i.healthy_gpus + 1,
                    "block_gpus": None if i.block_gpus is None else i.block_gpus + 1,
                }
            )
            if i.name == island
            else i
            for i in snapshot.islands
        )
    )


@LOOSE
@given(large_snapshots(), policies())
def test_gpus_are_conserved(snapshot: Snapshot, policy: Policy) -> None:
    backing = back(snapshot)
    assert backing.assigned_gpus == backing.backed_gpus + backing.phantom_gpus
    assert snapshot.healthy_gpus == backing.backed_gpus + backing.surplus_gpus
    assert sum(backing.of.values()) == backing.backed_gpus

    plan = make_plan(snapshot, policy)
    after = back(snapshot.with_values(dict(plan.values)))
    assert plan.cut_gpus + plan.short_by_gpus == plan.haircut_gpus
    assert plan.cut_gpus == plan.phantom_gpus + plan.to_flex_gpus
    assert plan.phantom_gpus == backing.phantom_gpus - after.phantom_gpus
    assert plan.to_flex_gpus == after.surplus_gpus - backing.surplus_gpus
    for cut, phantom, to_flex, by_tier in leaf_rows(plan):
        assert cut == phantom + to_flex == by_tier
        assert phantom >= 0
        assert to_flex >= 0
    assert sum(phantom for _, phantom, _, _ in leaf_rows(plan)) == plan.phantom_gpus


@LOOSE
@given(large_snapshots(), policies())
def test_a_sufficient_plan_is_backed_and_under_its_ceiling(snapshot: Snapshot, policy: Policy) -> None:
    plan = make_plan(snapshot, policy)
    after = back(snapshot.with_values(dict(plan.values)))
    assert plan.backed == after.is_backed
    assigned = snapshot.tree.assigned_gpus(plan.values)
    assert assigned <= snapshot.tree.assigned_gpus()
    if plan.short_by_gpus == 0:
        assert assigned <= ceiling_of(snapshot, policy)
    if plan.backed:
        assert assigned <= snapshot.healthy_gpus
    for quota in snapshot.quotas:
        assert 0 <= plan.values[quota.team] <= quota.gpus
        if quota.team in snapshot.tree.leaves:
            assert plan.values[quota.team] >= quota.floor


@LOOSE
@given(breaches(LARGE))
def test_after_a_breach_rollback_the_sum_of_promises_is_at_most_the_healthy_gpus(breach: Breach) -> None:
    target = breach_target(breach.baseline, breach.current, breach.islands)
    there = breach.baseline.with_values(target.values).with_islands(breach.islands)
    assert there.tree.assigned_gpus() <= there.healthy_gpus
    assert back(there).phantom_gpus == 0


@LOOSE
@given(flat_and_unlimited(), policies(), st.data())
def test_one_more_healthy_gpu_never_lowers_a_quota_in_a_cluster_without_limits(
    snapshot: Snapshot, policy: Policy, data: st.DataObject
) -> None:
    room = [i.name for i in snapshot.islands if i.healthy_gpus < i.total_gpus]
    assume(room)
    better = with_one_more(snapshot, data.draw(st.sampled_from(room)))
    assert back(snapshot).of.items() <= {t: min(g, back(snapshot).of[t]) for t, g in back(better).of.items()}.items()
    before, after = make_plan(snapshot, policy), make_plan(better, policy)
    assert all(after.values[team] >= gpus for team, gpus in before.values.items())


@LOOSE
@given(snapshots(LARGE, tree=False, blocks=False), st.data())
def test_one_more_healthy_gpu_never_lowers_a_backing(snapshot: Snapshot, data: st.DataObject) -> None:
    room = [i.name for i in snapshot.islands if i.healthy_gpus < i.total_gpus]
    assume(room)
    better = with_one_more(snapshot, data.draw(st.sampled_from(room)))
    before, after = back(snapshot).of, back(better).of
    assert all(after[team] >= gpus for team, gpus in before.items())


def test_where_a_short_island_and_the_ceiling_both_bind_one_more_gpu_must_cost_somebody() -> None:
    """The contradiction of ADR 0003, kept here so that nobody believes it away."""

    def planned(healthy_of_x: int) -> dict[str, int]:
        snapshot = Snapshot(
            cluster="c",
            islands=(
                Island(name="X", total_gpus=40, healthy_gpus=healthy_of_x),
                Island(name="Y", total_gpus=40, healthy_gpus=40),
            ),
            quotas=(Quota(team="x", gpus=40, islands=("X",)), Quota(team="y", gpus=40, islands=("Y",))),
        )
        return make_plan(snapshot, Policy.model_validate({"buffer": 0.375, "spare_gpus": 0})).values

    assert planned(20) == {"x": 20, "y": 30}
    assert planned(21) == {"x": 21, "y": 29}


@LOOSE
@given(large_snapshots(), policies(), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_order_and_can_be_made_again_bit_for_bit(
    snapshot: Snapshot, policy: Policy, dice: random.Random
) -> None:
    plan = make_plan(snapshot, policy)
    again = make_plan(Snapshot.model_validate_json(snapshot.model_dump_json()), policy)
    assert again.model_dump_json() == plan.model_dump_json()
    assert Plan.model_validate_json(plan.model_dump_json()).hash == plan.hash
    quotas, islands = list(snapshot.quotas), list(snapshot.islands)
    dice.shuffle(quotas)
    dice.shuffle(islands)
    shuffled = snapshot.model_copy(update={"quotas": tuple(quotas), "islands": tuple(islands)})
    other = make_plan(shuffled, policy)
    assert {q.team: (q.after_gpus, q.phantom_gpus, q.to_flex_gpus) for q in other.quotas} == {
        q.team: (q.after_gpus, q.phantom_gpus, q.to_flex_gpus) for q in plan.quotas
    }


@LOOSE
@given(large_snapshots(), policies(), st.data())
def test_an_envelope_holds_its_plan_and_no_deeper_one(snapshot: Snapshot, policy: Policy, data: st.DataObject) -> None:
    plan = make_plan(snapshot, policy)
    envelope = envelope_of(plan)
    assert envelope.holds(plan)
    assume(plan.quotas)
    one = data.draw(st.sampled_from(plan.quotas))

    def held(**changed: object) -> bool:
        quotas = tuple(q.model_copy(update=changed) if q is one else q for q in plan.quotas)
        return envelope.holds(plan.model_copy(update={"quotas": quotas}))

    assert not held(after_gpus=one.after_gpus - 1), "a GPU more is cut"
    assert held(after_gpus=one.before_gpus, cuts=()), "nothing is cut"
    for tier in Tier:
        deeper = tier.depth > plan.deepest_tier.depth
        assert held(cuts=(*one.cuts, Cut(tier=tier, gpus=0, reason="again"))) != deeper, "the same from another tier"


@pytest.mark.nightly
@LOOSE
@given(snapshots(LARGE), policies())
def test_what_suffices_is_the_first_tier_limit_that_does(snapshot: Snapshot, policy: Policy) -> None:
    by_tier = {tier: make_plan(snapshot, policy.but(max_tier=tier)) for tier in Tier}
    enough = [tier for tier, plan in by_tier.items() if plan.backed and not plan.short_by_gpus]
    first = min(enough, key=lambda tier: tier.depth, default=None)
    assert {plan.suffices for plan in by_tier.values()} == {first}


@pytest.mark.nightly
@LOOSE
@given(large_snapshots(), policies())
def test_a_wider_tier_limit_never_makes_a_plan_shorter(snapshot: Snapshot, policy: Policy) -> None:
    plain = policy.model_copy(update={"scope": Scope.CLUSTER, "share": ShareBy.TIER})
    shorts = [make_plan(snapshot, plain.but(max_tier=tier)).short_by_gpus for tier in Tier]
    assert shorts == sorted(shorts, reverse=True)
