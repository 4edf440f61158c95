"""The planner gives what the reference gives: two independent readings of DESIGN.md, to the GPU."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from models.backing import back
from models.divide import divide
from models.plans import Plan, breach_target, make_plan
from models.policy import Policy, Tier
from models.snapshot import Snapshot
from tests import reference
from tests.strategies import Breach, breaches, policies, small_snapshots

settings.register_profile("agree", deadline=None, suppress_health_check=[HealthCheck.too_slow])
AGREE = settings.get_profile("agree")

counts = st.dictionaries(st.sampled_from("aZbé"), st.tuples(st.integers(1, 30), st.integers(0, 12)), min_size=1)


@settings(AGREE, max_examples=300)
@given(counts, st.data())
def test_whole_gpus_are_divided_as_webster_divides_them(wanted: dict[str, tuple[int, int]], data: st.DataObject) -> None:
    weights = {name: weight for name, (weight, _) in wanted.items()}
    caps = {name: cap for name, (_, cap) in wanted.items()}
    amount = data.draw(st.integers(0, sum(caps.values())))
    assert divide(amount, weights, caps) == reference.divide(amount, weights, caps)


@settings(AGREE, max_examples=400)
@given(small_snapshots())
def test_backing_is_the_largest_assignment(snapshot: Snapshot) -> None:
    mine, theirs = reference.backing(snapshot), back(snapshot)
    promised, healthy = reference.assigned(snapshot), snapshot.healthy_gpus
    assert (theirs.of, theirs.backed_gpus) == (mine.values, mine.total)
    assert tuple(sorted((u.team, u.gpus) for u in theirs.unplaced)) == mine.unplaced
    assert theirs.assigned_gpus == promised
    assert theirs.phantom_gpus == promised - mine.total
    assert theirs.surplus_gpus == healthy - mine.total
    assert theirs.is_backed == (mine.total == promised and not mine.unplaced)


def as_reference(plan: Plan, snapshot: Snapshot) -> reference.ReferencePlan:
    """The product's plan in the reference's words."""
    leaves = {q.team: q for q in plan.quotas if q.leaf}
    after = {q.team: q.gpus for q in snapshot.quotas} | {q.team: q.after_gpus for q in plan.quotas}
    cuts: dict[str, dict[Tier, int]] = {}
    for team, quota in leaves.items():
        by_tier: Counter[Tier] = Counter()
        for cut in quota.cuts:
            by_tier[cut.tier] += cut.gpus
        cuts[team] = dict(by_tier)
    return reference.ReferencePlan(
        ceiling=plan.ceiling_gpus,
        assigned=plan.assigned_gpus,
        cuts=cuts,
        after=after,
        haircut=plan.haircut_gpus,
        short=plan.short_by_gpus,
        phantom_gpus=plan.phantom_gpus,
        to_flex_gpus=plan.to_flex_gpus,
        phantom={team: q.phantom_gpus for team, q in leaves.items()},
        to_flex={team: q.to_flex_gpus for team, q in leaves.items()},
        backed=plan.backed,
        wave=plan.wave,
    )


@settings(AGREE, max_examples=500)
@given(small_snapshots(), policies())
def test_a_plan_cuts_whom_the_ladder_cuts(snapshot: Snapshot, policy: Policy) -> None:
    plan = make_plan(snapshot, policy)
    assert as_reference(plan, snapshot) == reference.plan(snapshot, policy)
    assert {q.team: q.before_gpus for q in plan.quotas} == {q.team: q.gpus for q in snapshot.quotas}


@settings(AGREE, max_examples=100)
@given(small_snapshots(), policies(), st.sampled_from(Tier))
def test_a_deepest_tier_that_is_asked_for_wins_over_the_policy(snapshot: Snapshot, policy: Policy, tier: Tier) -> None:
    plan = make_plan(snapshot, policy, max_tier=tier)
    assert as_reference(plan, snapshot) == reference.plan(snapshot, policy, tier)


@settings(AGREE, max_examples=400)
@given(breaches())
def test_a_breach_lowers_whom_it_touches_and_nobody_else(breach: Breach) -> None:
    target = breach_target(breach.baseline, breach.current, breach.islands)
    expected = reference.breach_target(breach.baseline, breach.current, breach.islands)
    assert target.values == expected.values


@settings(AGREE, max_examples=100)
@given(breaches())
def test_no_breach_no_change(breach: Breach) -> None:
    """Where today's islands back the current values, a breach target is those values."""
    now = reference.backing(breach.baseline.with_values(breach.current).with_islands(breach.islands))
    assume(now.total == reference.assigned(breach.baseline, breach.current))
    assert breach_target(breach.baseline, breach.current, breach.islands).values == breach.current
