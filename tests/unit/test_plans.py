"""The numbers that must come out, worked by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from models.cluster.island import Island
from models.cluster.policy import Basis, Policy, Tier
from models.cluster.quota import Quota, QuotaTree
from models.cluster.snapshot import Snapshot
from models.planning.backing import back
from models.planning.breach_target import breach_target
from models.planning.ceiling import static_ceiling
from models.planning.plan import Plan, envelope_of, make_plan


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
    plan = make_plan(WORKED, Policy().but(max_tier=Tier.UNSCHEDULED))
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
    assert target.broken_floors == ("a: 50 GPUs left, but its minimum or blocks need 55",)


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


def test_of_blocks_that_cannot_all_stand_those_are_placed_that_leave_the_others_most() -> None:
    """Either block fills x. With a's there b, which may stand nowhere else, has nothing; with b's there a has y."""
    quotas = [
        Quota(team="a", gpus=4, protected_blocks=(4,)),
        Quota(team="b", gpus=4, islands=("x",), protected_blocks=(4,)),
    ]
    backing = back(snapshot([island("x", 4, 4), island("y", 4, 4, 0)], quotas))
    assert backing.of == {"a": 4, "b": 4}
    assert [(u.team, u.gpus) for u in backing.unplaced] == [("a", 4)]


OUT_OF_REACH = [
    Quota(team="org", gpus=8),
    Quota(team="a", gpus=8, parent="org", islands=("x",)),
    Quota(team="b", gpus=8, parent="org", islands=("y",)),
]
TWO_IN_X = [island("x", 8, 2), island("y", 8, 8)]


def test_a_leaf_that_can_only_ever_reach_2_of_its_8_is_not_backed_though_its_sibling_uses_all_that_is_promised() -> (
    None
):
    backing = back(snapshot(TWO_IN_X, OUT_OF_REACH))
    assert (backing.assigned_gpus, backing.backed_gpus) == (8, 8)
    assert not backing.is_backed
    assert backing.shortage == {"a": 6}
    assert back(snapshot([island("x", 8, 8), island("y", 8, 8)], OUT_OF_REACH)).is_backed


BARE = Policy.model_validate({"buffer": 0, "spare_gpus": 0})


def test_such_a_leaf_is_mended_by_its_own_cut_or_its_siblings_which_lower_their_parent() -> None:
    """All is in use, so that the tier is the same: the six are divided by the ladder."""
    plan = make_plan(snapshot(TWO_IN_X, OUT_OF_REACH), BARE)
    assert plan.values == {"org": 2, "a": 5, "b": 5}
    assert (plan.haircut_gpus, plan.phantom_gpus, plan.to_flex_gpus, plan.backed) == (6, 0, 6, True)
    alone = make_plan(snapshot(TWO_IN_X, [OUT_OF_REACH[0], *(q.with_gpus(8) for q in OUT_OF_REACH[1:2])]), BARE)
    assert alone.values == {"org": 2, "a": 2}


@pytest.mark.parametrize(
    ("use", "values"),
    [
        ({"a": 8, "b": 0}, {"org": 2, "a": 8, "b": 2}),
        ({"a": 0, "b": 8}, {"org": 2, "a": 2, "b": 8}),
        ({"a": 8, "b": 4}, {"org": 2, "a": 7, "b": 3}),
    ],
)
def test_the_cheapest_tier_of_all_whose_cut_would_mend_it_goes_first(
    use: dict[str, int], values: dict[str, int]
) -> None:
    quotas = [q.model_copy(update={"scheduled_gpus": use.get(q.team)}) for q in OUT_OF_REACH]
    plan = make_plan(snapshot(TWO_IN_X, quotas), BARE)
    assert (plan.values, plan.haircut_gpus, plan.backed) == (values, 6, True)
    reasons = {q.team: c.reason for q in plan.quotas for c in q.cuts if q.leaf}
    lowers = "that lowers org, which promises a more than the 2 GPUs that are healthy on the islands it may use"
    assert "b" not in reasons or reasons["b"].endswith(lowers)
    assert "a" not in reasons or "its island (x) has 2 healthy GPUs" in reasons["a"]


def test_the_plan_without_a_limit_goes_no_deeper_than_a_limit_that_suffices() -> None:
    """GPU by GPU one of `Z`, in use, is as good as one of `é`; in the end three of `é` do."""
    quotas = [
        Quota(team="org", gpus=5),
        Quota(team="Z", gpus=3, islands=("x",), parent="org"),
        Quota(team="é", gpus=3, scheduled_gpus=0, islands=("x",), parent="org"),
    ]
    here = snapshot([island("x", 2, 2), island("y", 2, 2)], quotas)
    for tier in (Tier.BUSY, Tier.IDLE, Tier.UNSCHEDULED):
        plan = make_plan(here, BARE.but(max_tier=tier))
        assert plan.values == {"org": 2, "Z": 3, "é": 0}
        assert (plan.max_tier, plan.wave, plan.suffices) == (tier, Tier.UNSCHEDULED, Tier.UNSCHEDULED)


def test_two_that_share_a_parent_and_the_island_are_cut_together() -> None:
    """With the parent cut to 2 all are within reach; cutting each of x to 2 by itself would take 12."""
    quotas = [*OUT_OF_REACH, Quota(team="c", gpus=8, parent="org", islands=("x",))]
    plan = make_plan(snapshot(TWO_IN_X, quotas), BARE)
    assert plan.values == {"org": 2, "a": 6, "b": 6, "c": 6}
    assert (plan.haircut_gpus, plan.backed) == (6, True)


def test_a_floor_out_of_reach_is_reported_and_the_plan_cannot_be_launched() -> None:
    floored = [q if q.parent is None else q.model_copy(update={"minimum_gpus": q.gpus - 3}) for q in OUT_OF_REACH]
    floored[2] = floored[2].model_copy(update={"minimum_gpus": 8})
    plan = make_plan(snapshot(TWO_IN_X, floored), BARE)
    assert plan.values == {"org": 5, "a": 5, "b": 8}
    assert (plan.haircut_gpus, plan.short_by_gpus, plan.unbacked_gpus) == (6, 3, 0)
    assert (plan.backed, plan.suffices, plan.out_of_reach) == (False, None, (("a", 2),))
    assert plan.fault == "not backed by healthy GPUs"


def test_a_floor_out_of_reach_is_mended_by_a_sibling_that_has_none() -> None:
    floored = [OUT_OF_REACH[0], OUT_OF_REACH[1].model_copy(update={"minimum_gpus": 5}), OUT_OF_REACH[2]]
    plan = make_plan(snapshot(TWO_IN_X, floored), BARE)
    assert plan.values == {"org": 2, "a": 6, "b": 4}
    assert (plan.haircut_gpus, plan.short_by_gpus, plan.backed) == (6, 0, True)


def test_a_breach_that_leaves_a_leaf_out_of_reach_touches_it_and_lowers_it() -> None:
    healthy = snapshot([island("x", 8, 8), island("y", 8, 8)], OUT_OF_REACH)
    target = breach_target(healthy, {"org": 8, "a": 8, "b": 8}, tuple(TWO_IN_X))
    assert target.values == {"org": 2, "a": 2, "b": 8}
    assert target.touched == ("a",)


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
    """Each gives 15: a from busy. Limited to unscheduled, b alone gives all 30, and that is under C as well."""
    quotas = [Quota(team="a", gpus=100, scheduled_gpus=100), Quota(team="b", gpus=100, scheduled_gpus=0)]
    here = snapshot([island("main", 200, 200)], quotas)
    policy = Policy.model_validate({"buffer": 0.15, "scope": "quota"})
    plan = make_plan(here, policy)
    assert (plan.deepest_tier, plan.suffices) == (Tier.BUSY, Tier.UNSCHEDULED)
    narrower = make_plan(here, policy.but(max_tier=Tier.UNSCHEDULED))
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
    assert tree.assigned_gpus() == 100
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


ONE_WAY = snapshot(
    [island("x", 8, 2), island("y", 16, 16)],
    [
        Quota(team="org", gpus=16),
        Quota(team="a", gpus=8, parent="org", scheduled_gpus=4, islands=("x",), namespaces=("lab", "ci")),
        Quota(team="b", gpus=12, parent="org", islands=("x", "y"), protected_blocks=(2, 4)),
        Quota(team="c", gpus=4, scheduled_gpus=3),
    ],
)


def test_the_reason_of_a_cut_names_islands_by_name_and_only_where_they_limit() -> None:
    """x and y have 3 of the 6 that a promises; all three have 3 of the 12 of both. A hash would tell the difference."""

    def reasons(a: tuple[str, ...], b: tuple[str, ...] | None) -> list[str]:
        quotas = [Quota(team="a", gpus=6, islands=a), Quota(team="b", gpus=6, islands=b)]
        where = [island("x", 4, 2), island("y", 4, 1), island("z", 4, 0)]
        plan = make_plan(snapshot(where, quotas), Policy.model_validate({"buffer": 0, "spare_gpus": 0}))
        return [cut.reason for row in plan.quotas for cut in row.cuts]

    assert reasons(("x", "y"), None) == reasons(("y", "x"), ("z", "y", "x"))
    assert [text.split("; ")[1] for text in reasons(("y", "x"), None)] == [
        "its islands (x, y) have 3 healthy GPUs, fewer than the quotas on them promise",
        "c has 3 healthy of 12 GPUs and may promise 3",
    ]


def test_the_reason_of_a_cut_calls_no_islands_short_that_are_not() -> None:
    """East and west together lack 2 of 64; the 24 that only east may serve fit its 30."""
    quotas = [
        Quota(team="train", gpus=40, scheduled_gpus=40, protected_blocks=(16, 16)),
        Quota(team="evals", gpus=24, scheduled_gpus=8, islands=("east",)),
    ]
    plan = make_plan(snapshot([island("east", 32, 30), island("west", 32, 32)], quotas), Policy())
    (cut,) = [cut for row in plan.quotas for cut in row.cuts]
    assert (cut.gpus, cut.reason.split("; ")[1]) == (10, "c has 62 healthy of 64 GPUs and may promise 54")


@pytest.mark.parametrize(
    ("known", "gpus", "says"),
    [
        (None, 4, "whether jobs run on these 4 GPUs is not known (if some do, they go on, as flex)"),
        (None, 1, "whether jobs run on this GPU is not known (if some do, they go on, as flex)"),
        (10, 4, "4 GPUs are in use: the jobs on them go on, as flex"),
        (10, 1, "1 GPU is in use: the jobs on it go on, as flex"),
    ],
)
def test_a_quota_of_unknown_usage_is_not_told_that_its_gpus_are_in_use(known: int | None, gpus: int, says: str) -> None:
    here = snapshot([island("m", 10, 10 - gpus)], [Quota(team="a", gpus=10, scheduled_gpus=known)])
    (cut,) = make_plan(here, Policy.model_validate({"buffer": 0, "spare_gpus": 0})).quotas[0].cuts
    assert (cut.tier, cut.gpus, cut.reason.split("; ")[0]) == (Tier.BUSY, gpus, says)


def _rewritten(**changes: dict[str, object]) -> Snapshot:
    """`ONE_WAY` with other words for some of its rows."""
    return ONE_WAY.model_copy(
        update={"quotas": tuple(q.model_copy(update=changes.get(q.team, {})) for q in ONE_WAY.quotas)}
    )


@pytest.mark.parametrize(
    "other",
    [
        ONE_WAY.model_copy(update={"quotas": ONE_WAY.quotas[::-1]}),
        ONE_WAY.with_islands(ONE_WAY.islands[::-1]),
        ONE_WAY.with_islands((island("x", 8, 2, 2), island("y", 16, 16, 16))),
        _rewritten(b={"islands": ("y", "x")}),
        _rewritten(b={"islands": None}),
        _rewritten(b={"protected_blocks": (4, 2)}),
        _rewritten(a={"namespaces": ("ci", "lab")}),
        _rewritten(a={"namespaces": ("ci", "a", "lab")}),
        _rewritten(a={"idle_gpus": 0}, b={"idle_gpus": 0, "minimum_gpus": 0}),
        Snapshot.model_validate(ONE_WAY.model_dump(exclude_defaults=True)),
    ],
    ids=[
        "quotas",
        "islands",
        "block_gpus",
        "its islands",
        "all islands",
        "blocks",
        "gate",
        "own gate",
        "idle 0",
        "bare",
    ],
)
@pytest.mark.parametrize("buffer", [0, 0.5])
def test_neither_the_order_of_rows_nor_a_default_written_out_changes_a_hash(other: Snapshot, buffer: float) -> None:
    policy = Policy.model_validate({"buffer": buffer, "spare_gpus": 8})
    default = Policy.model_validate({"buffer": buffer})
    mine, theirs = make_plan(ONE_WAY, policy), make_plan(other, default)
    assert other.hash == ONE_WAY.hash
    assert theirs.hash == mine.hash
    assert envelope_of(mine).holds(theirs)
    assert envelope_of(mine).gates == envelope_of(theirs).gates


def test_a_newer_health_sample_of_the_same_figures_changes_no_hash() -> None:
    """Health arrives each minute: what `plan` shows is what `launch` then asks people to approve."""
    now = datetime(2026, 3, 2, 12, tzinfo=UTC)
    earlier, later = (
        make_plan(ONE_WAY.model_copy(update={"health_at": at}), Policy()) for at in (now, now + timedelta(minutes=1))
    )
    assert (earlier.health_at, later.health_at) == (now, now + timedelta(minutes=1))
    assert earlier.hash == later.hash == make_plan(ONE_WAY, Policy()).hash


@pytest.mark.parametrize(
    "other",
    [
        _rewritten(a={"gpus": 7}),
        _rewritten(a={"islands": ("y",)}),
        _rewritten(a={"namespaces": ("lab",)}),
        _rewritten(b={"protected_blocks": (6,)}),
        _rewritten(b={"minimum_gpus": 1}),
        _rewritten(b={"scheduled_gpus": 12}),
        ONE_WAY.with_islands((island("x", 8, 2, 1), island("y", 16, 16))),
        ONE_WAY.model_copy(update={"generation": 1}),
    ],
)
def test_what_says_something_else_has_another_hash(other: Snapshot) -> None:
    assert other.hash != ONE_WAY.hash
    assert make_plan(other, Policy()).hash != make_plan(ONE_WAY, Policy()).hash


def test_a_plan_of_before_keeps_the_hash_that_was_approved_and_its_envelope_holds_the_same_plan_of_today() -> None:
    """Both hashes are those of the worked case of the examples as the docs showed them before this rule."""
    worked = snapshot(
        [island("main", 361, 319)],
        [Quota(team="research", gpus=345, scheduled_gpus=310, idle_gpus=0)],
        cluster="h100-worked",
    )
    today = make_plan(worked, Policy())
    then = today.model_dump_json().replace("the jobs on them go on, as flex", "what runs on them runs on, as flex")
    recorded = Plan.model_validate_json(then).but(snapshot_hash="4609dce1820b37c9", hash_rule=1)
    assert recorded.hash == "24a3e3310d6b5882"
    assert Plan.model_validate_json(recorded.model_dump_json(exclude={"hash_rule", "out_of_reach"})) == recorded
    assert today.hash != recorded.hash
    assert envelope_of(recorded).holds(today)
    ordered = envelope_of(recorded).but(gates={"research": ("lab", "ci")})
    assert ordered.holds(today.but(quotas=(today.quotas[0].but(namespaces=("ci", "lab")),)))
