"""Sentences about plans: the order of clusters and its reason, figures in JSON, and singular for one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import numpy as np
import pytest
from rich.console import RenderableType

from cli.json_answers_plan import PlanAnswer
from cli.output import _plain
from cli.pages.haircut import page
from models.buffers.backtest import explain_buffer
from models.buffers.hourly_health import Series
from models.cluster.derived_buffer import TERMS
from models.cluster.island import Island
from models.cluster.policy import Policy, Tier
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot
from models.fleet.messages import FleetLaunch, FleetPlan
from models.fleet.order import order_prospects, prospect_of, take_prospects
from models.fleet.state import Pace, Wave
from models.planning.backing import back
from models.planning.breach_target import breach_target
from models.planning.fleet_haircut import haircut
from models.planning.plan import Plan, make_plan
from tests.reference import divide
from views import buffer as buffer_view
from views import fleet_rollout as fleet_view
from views import haircut as haircut_view
from views.plan import in_order, plan_parts, plans_parts

BARE = Policy.model_validate({"buffer": 0, "spare_gpus": 0})


def cluster(name: str, islands: Sequence[tuple[int, int]], *quotas: Quota) -> Snapshot:
    where = tuple(Island(name=f"i{n}", total_gpus=t, healthy_gpus=h) for n, (t, h) in enumerate(islands))
    return Snapshot(cluster=name, islands=where, quotas=quotas)


def said(parts: Sequence[RenderableType]) -> str:
    return "\n".join(line for part in parts for line in _plain(part))


def test_a_quotas_own_team_may_target_it_whoever_else_may() -> None:
    gated = (
        Quota(team="a", gpus=2, namespaces=()),
        Quota(team="b", gpus=2, namespaces=("b-x", "b")),
        Quota(team="c", gpus=2),
    )
    shown = said(plan_parts(make_plan(cluster("gated", [(8, 8)], *gated), BARE)))
    assert "Only the namespace a may target the quota of a." in shown
    assert "Only the namespaces b and b-x may target the quota of b." in shown
    assert "the quota of c." not in shown
    assert [quota.admits(quota.team) for quota in gated] == [True, True, True]


# --- the order of a fleet --------------------------------------------------------------------------

HOMELESS = cluster("homeless", [(8, 6), (90, 90)], Quota(team="t", gpus=8, protected_blocks=(8,), islands=("i0", "i1")))
HOMELESS = HOMELESS.with_islands((HOMELESS.islands[0], HOMELESS.islands[1].model_copy(update={"block_gpus": 0})))
FLOORED = cluster("floored", [(8, 7)], Quota(team="t", gpus=8, minimum_gpus=8))
PAINLESS = cluster("painless", [(8, 8)], Quota(team="t", gpus=8))
BUSY = cluster("busy", [(8, 1)], Quota(team="t", gpus=8, scheduled_gpus=8))
UNSCHEDULED = cluster("unscheduled", [(8, 4)], Quota(team="t", gpus=8, scheduled_gpus=2))
IN_TURN = ["painless", "unscheduled", "busy", "homeless", "floored"]
WHY = {
    "homeless": "no island has room for the protected block of 8 of t",
    "floored": "minimums and protected blocks prevent the cuts that the plan needs",
}


def plans() -> list[Plan]:
    return [make_plan(s, BARE) for s in (FLOORED, HOMELESS, BUSY, UNSCHEDULED, PAINLESS)]


def test_clusters_that_no_plan_mends_come_after_all_waves_with_the_reason() -> None:
    """Both would be in the painless wave by what they cut, and the first has by far the most headroom."""
    ordered = in_order(plans())
    assert [p.wave for p in plans()[:2]] == [Tier.UNALLOCATED, Tier.UNALLOCATED]
    assert [p.cluster for p in ordered] == IN_TURN
    text = said(plans_parts(ordered))
    for name, why in WHY.items():
        assert f"{name} comes after all waves: {why}." in text
        assert re.search(rf"^{name} +after all ", text, re.MULTILINE)
    assert "painless comes" not in text


def test_a_fleet_rollout_takes_them_after_all_waves_too() -> None:
    prospects = order_prospects(prospect_of(p) for p in plans())
    assert [p.cluster for p in prospects] == IN_TURN
    assert [p.wave for p in prospects][3:] == [Wave.AFTER, Wave.AFTER]
    assert [p.why_last for p in prospects] == ["", "", "", *WHY.values()]
    assert prospects[3].why_not == f"its plan is not backed by healthy GPUs: {WHY['homeless']}"
    launch = FleetLaunch(fleet="f", owner="o", waves=(Wave.UNALLOCATED, Wave.BUSY))
    assert [p.cluster for p in take_prospects(launch, prospects)] == ["painless", "busy"]


def test_one_that_is_short_but_backed_comes_last_with_its_reason_and_can_be_launched() -> None:
    """A floor of 7 fits the 7 that are healthy, and not the buffer."""
    short = make_plan(cluster("short", [(8, 7)], Quota(team="t", gpus=8, minimum_gpus=7)), Policy())
    p = prospect_of(short)
    assert (short.backed, short.short_by_gpus, p.wave, p.why_not) == (True, 7, Wave.AFTER, "")
    shown = said(fleet_view.plan_parts(FleetPlan(fleet="f", hash="h", clusters=(p,)), (), Pace()))
    assert "AFTER ALL WAVES" in shown
    assert WHY["floored"] in shown


# --- figures -----------------------------------------------------------------------------------------


def test_phantom_of_a_cut_goes_by_the_cuts_and_backing_by_the_quotas() -> None:
    """Two divisions, each by its own law: a reader who compared them is told so."""
    uses = {"a": 196, "b": 156, "c": 90, "d": 196, "e": 120}
    quotas = tuple(Quota(team=team, gpus=196, scheduled_gpus=used) for team, used in uses.items())
    here = cluster("here", [(512, 488), (512, 488)], *quotas)
    plan = make_plan(here, Policy())
    cuts = {q.team: q.cut_gpus for q in plan.quotas}
    assert (plan.phantom_gpus, sum(cuts.values())) == (5 * 196 - 976, 5 * 196 - int(0.85 * 1024))
    assert {q.team: q.phantom_gpus for q in plan.quotas} == divide(4, cuts, cuts)
    assert back(here).of == {"a": 195, "b": 195, "c": 195, "d": 195, "e": 196}, "in proportion to quota, ties by name"
    shown = " ".join(said(plan_parts(plan)).split())
    assert (
        "The cluster's phantom GPUs are divided in proportion to the cuts, so a team's PHANTOM is not what its own "
        "quota lacks today: `backstop status` shows that." in shown
    )
    alone = make_plan(cluster("one", [(361, 319)], Quota(team="t", gpus=345, scheduled_gpus=310)), Policy())
    assert "in proportion to the cuts" not in said(plan_parts(alone)), "of one quota there is nothing to divide"


def test_a_shortage_of_13_is_8_and_5_of_the_quotas_and_7_and_6_of_the_cuts() -> None:
    """Two questions of docs/day-two.md: what each quota lacks today, and how much of each cut was phantom."""

    def webster(amount: int, weights: dict[str, int]) -> dict[str, int]:
        given = dict.fromkeys(weights, 0)
        for _ in range(amount):
            given[max(sorted(weights), key=lambda team: Fraction(weights[team], 2 * given[team] + 1))] += 1
        return given

    quotas = Quota(team="evals", gpus=90, scheduled_gpus=76), Quota(team="research", gpus=160, scheduled_gpus=141)
    here = cluster("h100-09", [(256, 237)], *quotas)
    plan = make_plan(here, Policy())
    assert back(here).shortage == webster(13, {"evals": 90, "research": 160}) == {"evals": 5, "research": 8}
    assert {q.team: q.cut_gpus for q in plan.quotas} == {"evals": 14, "research": 19}
    phantom = {q.team: q.phantom_gpus for q in plan.quotas}
    assert phantom == webster(13, {"evals": 14, "research": 19}) == {"evals": 6, "research": 7}


def test_the_json_of_a_plan_has_its_cut_and_what_was_and_would_be_phantom() -> None:
    """8 promised, 5 healthy: 3 phantom, of which a floor of 7 lets 1 go."""
    plan = make_plan(cluster("c", [(8, 5)], Quota(team="t", gpus=8, minimum_gpus=7)), BARE)
    answer = PlanAnswer.of(plan).as_json()
    figures = ("cut_gpus", "phantom_before_gpus", "phantom_gpus", "phantom_after_gpus", "unplaced_blocks")
    assert [answer[name] for name in figures] == [1, 3, 1, 2, []]
    assert PlanAnswer.of(make_plan(HOMELESS, BARE)).as_json()["unplaced_blocks"] == [["t", 8]]


# --- how old its health is -----------------------------------------------------------------------------

SAMPLED = datetime(2026, 11, 25, 10, tzinfo=UTC)


@pytest.mark.parametrize(("minutes", "stale"), [(29, False), (30, True), (31, True)])
@pytest.mark.parametrize("short", [False, True])
def test_a_plan_on_stale_health_says_how_old_it_is_and_claims_nothing_of_now(
    minutes: int, stale: bool, short: bool
) -> None:
    """By the default policy a sample of 30 minutes ago opens no gate."""
    held = Quota(team="t", gpus=8, scheduled_gpus=8, minimum_gpus=7 * short)
    here = cluster("c", [(8, 8)], held).model_copy(update={"health_at": SAMPLED})
    plan = make_plan(here, Policy.model_validate({"buffer": 0.5, "spare_gpus": 0}))
    now = SAMPLED + timedelta(minutes=minutes)
    one, many = (" ".join(said(parts).split()) for parts in (plan_parts(plan, now), plans_parts([plan], now=now)))
    age = f"The newest health sample of c is {minutes}m old (2026-11-25 10:00:00Z) and stale: the limit is 30m. No gate"
    assert (age in one, age in many, "stale health" in many) == (stale, stale, stale)
    assert ("with this plan every promised GPU has" in one and "by that sample" not in one) == (not stale and not short)
    assert ("by that sample" in one) == stale
    assert "health: 2026-11-25 10:00:00Z" in one, "its time is said in any case"


def test_a_plan_of_a_file_has_no_age_of_health_and_a_sample_s_time_changes_no_hash() -> None:
    here = cluster("c", [(8, 8)], Quota(team="t", gpus=8))
    from_file, sampled = (make_plan(here.model_copy(update={"health_at": at}), Policy()) for at in (None, SAMPLED))
    assert "health:" not in said(plan_parts(from_file))
    assert not from_file.is_stale(SAMPLED)
    assert {"health_at", "stale_after"}.isdisjoint(from_file.model_dump())
    again = sampled.but(health_at=SAMPLED + timedelta(minutes=1), stale_after=timedelta(hours=1))
    assert again.hash == sampled.hash
    assert again.but(hash_rule=1).hash == sampled.but(hash_rule=1).hash
    assert PlanAnswer.of(sampled).as_json()["health_at"] == "2026-11-25T10:00:00Z"


# --- one of a thing ----------------------------------------------------------------------------------

_RIGHT = {"is", "was", "has", "moves", "stays", "promises", "comes", "lacks"}
_WRONG = re.compile(r"\b1 (?:were|are|move|have|stay|promise|of [^.;:,()]* (?:were|are|have|is [^.;:,()]*their))\b")


def slips(text: str) -> list[str]:
    """Return where the plural stands for one of a thing."""
    return [m[0] for m in re.finditer(r"\b1 ([a-zA-Z]+s)\b", text) if m[1] not in _RIGHT] + _WRONG.findall(text)


ONES = [
    cluster("one", [(1, 1)], Quota(team="t", gpus=1)),
    cluster("none", [(1, 0)], Quota(team="t", gpus=1)),
    cluster("busy", [(2, 1)], Quota(team="t", gpus=2, scheduled_gpus=2)),
    cluster("idle", [(2, 1)], Quota(team="t", gpus=2, scheduled_gpus=2, idle_gpus=1)),
    cluster("free", [(2, 1)], Quota(team="t", gpus=2, scheduled_gpus=1)),
    cluster("held", [(2, 1)], Quota(team="t", gpus=2, minimum_gpus=2)),
    cluster("islands", [(2, 1), (1, 1)], Quota(team="t", gpus=2, islands=("i0",)), Quota(team="u", gpus=1)),
    cluster("block", [(1, 0), (1, 1)], Quota(team="t", gpus=1, protected_blocks=(1,), islands=("i0",))),
    cluster(
        "tree",
        [(2, 1), (1, 1)],
        Quota(team="p", gpus=2),
        Quota(team="t", gpus=2, minimum_gpus=2, islands=("i0",), parent="p"),
        Quota(team="u", gpus=1, islands=("i1",), parent="p"),
    ),
]
POLICIES = [
    Policy.model_validate({"buffer": b, "spare_gpus": spare, "scope": scope})
    for b in (0, 0.5)
    for spare in (0, 1)
    for scope in ("cluster", "quota")
]


@pytest.mark.parametrize("here", ONES, ids=[s.cluster for s in ONES])
def test_one_of_a_thing_is_told_as_one(here: Snapshot) -> None:
    told = []
    for policy in POLICIES:
        for tier in Tier:
            plan = make_plan(here, policy.but(max_tier=tier))
            told += [said(plan_parts(plan)), said(plans_parts([plan]))]
            fleet = FleetPlan(fleet="f", hash="h", clusters=(prospect_of(plan),))
            pace = Pace(parallel=1, budget_per_hour=1, budget_per_day=1)
            told.append(said(fleet_view.plan_parts(fleet, (), pace)))
        report = haircut([(here, policy)], [Fraction(1, 2)])
        told += [said(haircut_view.fleet_parts(report, 0)), said(haircut_view.parts_by(report, "team", 0))]
    none = tuple(i.at_health(min(i.healthy_gpus, 1)) for i in here.islands)
    told += breach_target(here, {q.team: q.gpus for q in here.quotas}, none).broken_floors
    assert any(re.search(r"\b1 (GPU|cluster)\b", text) for text in told)
    assert [slip for text in told for slip in slips(text)] == []


def test_where_nothing_is_healthy_the_ceiling_says_so() -> None:
    shown = said(plan_parts(make_plan(ONES[1], Policy())))
    assert "1 promised; none may be promised, because no GPU is healthy" in shown
    assert "at most 0 may be" not in shown


@pytest.mark.parametrize(
    ("above", "sentence"), [(1, "1 of 2 clusters is above its"), (2, "2 of 2 clusters are above their")]
)
def test_how_many_clusters_are_above_their_ceiling_agrees_with_the_number(above: int, sentence: str) -> None:
    many = [cluster(f"c{n}", [(10, 10)], Quota(team="t", gpus=10 * (n < above))) for n in range(2)]
    report = haircut([(s, BARE) for s in many], [Fraction(1, 2)])
    assert f"{sentence} ceiling, by {5 * above} GPUs." in haircut_view.sentence(report, 0)
    alone = haircut_view.sentence(haircut([(many[0], BARE)], [Fraction(1, 2)]), 0)
    assert "1 of 1 cluster is above its ceiling, by 5 GPUs." in alone


def test_a_history_of_one_is_told_as_one() -> None:
    """One hour is known and one is not, and one node is down."""
    total, worst = np.array([60.0, np.nan]), np.array([59.0, np.nan])
    series = Series("c", total, worst, worst, np.zeros(2), 1, "nodes", 490_000)
    text = buffer_view.lines(explain_buffer(series, TERMS))[0]
    assert "Their health is known for 1 hour (0 weeks), and unknown for 1 hour. Down for most of" in text
    assert slips(text) == []


def test_the_page_of_a_haircut_tells_one_as_one() -> None:
    text = re.sub(r"(?s)<svg.*?</svg>|<[^>]*>", " ", page(haircut([(ONES[4], POLICIES[0])], [Fraction(1, 2)]), 0))
    assert slips(re.sub(r"\s+", " ", text)) == []


# --- what flex gains, and which islands bind -----------------------------------------------------------------


def test_the_island_that_binds_is_named_where_the_plan_is_not_backed() -> None:
    """The cluster has 110 healthy for 60; i0 has 10 for the 50 that may stand nowhere else, and gives none of them."""
    tight = cluster(
        "tight",
        [(64, 10), (100, 100)],
        Quota(team="a", gpus=30, islands=("i0",), minimum_gpus=30),
        Quota(team="b", gpus=20, islands=("i0",), minimum_gpus=20),
        Quota(team="c", gpus=10),
    )
    plan = make_plan(tight, BARE)
    assert not plan.backed
    assert "island i0 has 10 healthy GPUs, but 50 would be promised there" in said(plan_parts(plan))
    huge = make_plan(cluster("huge", [(2000, 10)], Quota(team="a", gpus=1900, minimum_gpus=1900)), BARE)
    assert (
        "not backed: 1,890 GPUs would still be phantom; only 10 GPUs are healthy on the islands that a may use, "
        "but its quota is 1,900. "
    ) in said(plan_parts(huge))
    fits = make_plan(
        tight.with_islands((tight.islands[0].model_copy(update={"healthy_gpus": 50}), *tight.islands[1:])), BARE
    )
    assert fits.short_islands == ()
    assert "short_islands" not in fits.model_dump(mode="json")


def test_jobs_that_run_on_as_flex_are_told_apart_from_what_flex_gains() -> None:
    """All 20 that are cut were phantom: flex gains none, though 20 busy ones run on as flex."""
    busy = cluster("busy", [(100, 80)], Quota(team="t", gpus=100, scheduled_gpus=100, idle_gpus=0))
    plan = make_plan(busy, BARE)
    assert (plan.cut_gpus, plan.to_flex_gpus) == (20, 0)
    sentence = "20 GPUs counted as in use are cut, and flex gains 0: jobs above their quota may use this flex"
    assert sentence in said(plan_parts(plan))
    gains = make_plan(
        busy.with_islands((Island(name="i0", total_gpus=100, healthy_gpus=100),)), Policy(buffer=Fraction(1, 5))
    )
    assert gains.to_flex_gpus == gains.cut_gpus == 20
    assert "as in use are cut" not in said(plan_parts(gains))
    assert re.search(r"PHANTOM +TO FLEX", said(plans_parts([plan])))
