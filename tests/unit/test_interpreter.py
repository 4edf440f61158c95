"""The pure state machine, sentence by sentence, in a world without Temporal (tests/unit/pure_world.py)."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from activities.notices.rendering import render
from models.base import parse_duration
from models.cluster.island import Island
from models.cluster.quota import Quota
from models.cluster.readings import Excess, LimitMode
from models.cluster.windows import WindowKind
from models.lifecycle.holds import Hold, HoldKind
from models.notices import Notice, NoticeKind
from models.rollout import plan_reducers
from models.rollout.commands import CommandRequest, add_hold, refusal
from models.rollout.decide import confirms_breach, is_urgent
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from models.rollout.state import Undo, UndoCause
from models.rollout.workflow_actions import Action, Aim, Draft, Look, Perform
from tests.unit.pure_world import TWO, Refused, World, parent, quota
from views.status import status_parts

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
QUICK: dict[str, Any] = {"notice": "0s", "soak_buffered": "1h", "soak_enforced": "1h"}
BUFFER_0: dict[str, Any] = {**QUICK, "buffer": 0, "spare_gpus": 0}
"""The plan of T = H = 361 keeps all 361."""
FORWARD = [EffectKind.RESERVE, EffectKind.SET_SOFT, EffectKind.HARDEN, EffectKind.FOLLOW]
BACK = [EffectKind.UNFOLLOW, EffectKind.SOFTEN, EffectKind.RESTORE, EffectKind.RELEASE]
CUT = {"a": 200, "b": 106}
BASELINE = {"a": 200, "b": 161}


def at(stage: Stage, world: World) -> World:
    """The world once its approved rollout is there."""
    world.start().until(stage)
    return world


def breached(world: World, healthy: int = 300) -> World:
    """The world after a shortage that lasted."""
    world.healthy(healthy)
    world.wait("11m")
    return world


def breaks(world: World) -> Undo:
    assert world.r.undo is not None
    return world.r.undo


# --- the straight path -----------------------------------------------------------------------


def test_an_approved_rollout_goes_to_monitored_by_itself_on_the_policys_clock() -> None:
    world = World()
    assert world.waits_for == {"approval", "notice"}
    world.start()
    assert world.until(Stage.BUFFERED) == 3 * DAY
    assert (world.values, world.modes, world.limit) == (CUT, {LimitMode.SOFT}, 306)
    assert world.until(Stage.ENFORCED) == 24 * HOUR
    assert (world.values, world.modes) == (CUT, {LimitMode.HARD})
    assert world.until(Stage.MONITORED) == 3 * DAY
    assert world.follows
    assert world.effects == FORWARD
    assert world.promises == CUT
    assert [kind for kind, _ in world.told] == ["planned", "buffered", "enforced", "monitored"]
    assert {audience for _, audience in world.told} == {"b"}  # a gives nothing


@pytest.mark.parametrize(
    ("policy", "looks"),
    [
        ({}, 2),
        ({"safety_poll": "2h"}, 2),
        ({"safety_poll": "36h"}, 1),
        ({"safety_poll": "30m"}, 96),
        ({"replan_window": "42h"}, 8),
        ({"replan_window": "1d", "on_long_run": "ignore"}, 2),
        ({"replan_window": "1h"}, 48),
    ],
)
def test_a_rollout_at_rest_looks_once_a_day_and_writes_nothing_else(policy: dict[str, Any], looks: int) -> None:
    """Seldom enough for half an event an hour; for long-run health seven times in its window, but not above hourly."""
    world = at(Stage.MONITORED, World(**QUICK, **policy))
    before, serial = world.looks(), world.r.post.serial
    world.wait("2d")
    assert world.looks() - before == looks
    assert world.r.post.serial == serial
    assert world.effects == FORWARD


def test_a_rollout_that_waits_or_has_something_wrong_looks_each_hour() -> None:
    world = at(Stage.MONITORED, World(**QUICK, on_breach="hold"))
    world.watch_runs = False
    world.say(Command.PAUSE)
    before = world.looks()
    world.wait("1d")
    assert world.looks() - before == 24
    world.say(Command.RESUME)
    before = world.looks()
    world.wait("1d")
    assert world.looks() - before == 1
    world.healthy(300)
    world.wait("1d")  # nobody tells: its own look finds it
    assert world.r.clocks.at_risk
    before = world.looks()
    world.wait("1d")
    assert world.looks() - before >= 24


def test_a_look_is_due_to_a_breach_once_its_time_has_come_and_until_it_is_answered() -> None:
    world = at(Stage.MONITORED, World(**QUICK, breach_after="10m", recover_after="1d"))
    assert not confirms_breach(world.r, world.now)
    world.healthy(300)
    assert world.r.clocks.at_risk
    for minutes, due in ((0, False), (9, False), (10, True), (600, True)):
        assert confirms_breach(world.r, world.now + timedelta(minutes=minutes)) is due
    world.until(Stage.ROLLED_BACK)
    assert not confirms_breach(world.r, world.now)


def test_a_run_from_before_rollouts_rested_looks_each_hour() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.r = world.r.but(rests=False)
    before = world.looks()
    world.wait("1d")
    assert world.looks() - before == 24


@pytest.mark.parametrize("stale_after", ["45m", "3h", "20h"])
def test_health_that_falls_silent_is_stale_when_the_policy_says_so_also_at_rest(stale_after: str) -> None:
    """The watch tells of a sample that is half an hour old, whatever the policy calls old."""
    world = at(Stage.MONITORED, World(**QUICK, stale_after=stale_after))
    world.wait("1h")
    world.silent()
    world.wait("30m")
    world.watch()
    world.run()
    world.wait(parse_duration(stale_after) - timedelta(minutes=31))
    assert "unknown_health" not in world.holds
    world.wait("2m")
    assert "unknown_health" in world.holds


def test_a_plan_that_is_not_backed_is_refused_at_launch() -> None:
    world = World(TWO, {"main": (361, 240)}, max_tier="unscheduled")
    assert world.is_in(Stage.ABORTED)
    assert "not backed" in world.r.ended_because
    assert "max_tier busy would suffice" in world.r.ended_because
    assert world.effects == []


def test_the_refusal_of_a_launch_says_why_no_tier_suffices() -> None:
    world = World((Quota(team="t", gpus=8, minimum_gpus=8),), {"main": (8, 7)})
    assert world.is_in(Stage.ABORTED)
    why = "minimums and protected blocks prevent the cuts that the plan needs"
    assert world.r.ended_because.endswith(f"so it cannot be launched: {why}")


def test_nothing_is_written_without_approval() -> None:
    world = World(**QUICK)
    world.wait("9d")
    assert world.is_in(Stage.PLANNED)
    assert world.effects == []
    assert world.told == []
    assert "backstop approve c1 --plan" in world.needs


def test_approval_names_the_plan_and_no_other_hash_will_do() -> None:
    world = World()
    with pytest.raises(Refused, match=f"the plan is {world.r.plan.hash if world.r.plan else ''}, not 0123"):
        world.say(Command.APPROVE, plan_hash="0123")
    world.approve()
    with pytest.raises(Refused, match="approved already, by tpm"):
        world.approve()


# --- pauses, objections, promotion, acknowledgements -----------------------------------------


def test_a_pause_lets_a_notice_period_run_on() -> None:
    world = World().start()
    world.wait("1d")
    world.say(Command.PAUSE)
    world.wait("4d")
    assert (world.stage, world.waits_for, world.holds) == (Stage.PLANNED, {"holds"}, {"paused"})
    world.say(Command.RESUME)
    assert world.is_in(Stage.BUFFERED)


def test_a_pause_restarts_a_soak() -> None:
    world = at(Stage.BUFFERED, World())
    world.wait("23h")
    world.say(Command.PAUSE)
    world.wait("1h")
    world.say(Command.RESUME)
    assert world.until(Stage.ENFORCED) == 24 * HOUR


def test_a_pause_lets_the_effect_under_way_finish_and_no_other_begin() -> None:
    world = World(**QUICK)
    world.meanwhile("reserve", lambda: world.say(Command.PAUSE, run=False))
    world.start()
    assert (world.stage, world.effects, world.holds) == (Stage.PLANNED, [EffectKind.RESERVE], {"paused"})
    world.wait("1d")
    assert world.effects == [EffectKind.RESERVE]
    world.say(Command.RESUME)
    assert (world.stage, world.effects) == (Stage.BUFFERED, [EffectKind.RESERVE, EffectKind.SET_SOFT])


def test_an_objection_before_enforced_holds_until_somebody_with_authority_resolves_it() -> None:
    world = World(**QUICK, authorities=["sre"])
    world.say(Command.OBJECT, actor="bob", team="b", reason="we need them")
    world.start()
    world.wait("9d")
    assert (world.stage, world.holds) == (Stage.PLANNED, {"objection-b"})
    with pytest.raises(Refused, match=r"mallory may not .* ask tpm or sre"):
        world.say(Command.RESOLVE, actor="mallory", hold="objection-b")
    world.say(Command.RESOLVE, actor="sre", hold="objection-b")
    assert world.is_in(Stage.BUFFERED)


def test_a_resolve_lifts_the_objection_that_was_read_and_no_later_one() -> None:
    world = World(**QUICK)
    world.say(Command.OBJECT, actor="bob", team="b", reason="Friday")
    world.say(Command.OBJECT, actor="bob", team="b", reason="Friday")  # the same, said again
    world.say(Command.OBJECT, actor="eve", team="b", reason="Friday")
    assert world.holds == {"objection-b", "objection-b-2"}
    assert "it replaces the earlier one" in world.say(Command.OBJECT, actor="bob", team="b", reason="and Monday")
    assert [(h.id, h.reason) for h in world.r.holds] == [("objection-b-2", "Friday"), ("objection-b-3", "and Monday")]
    world.start()
    with pytest.raises(Refused, match="no such hold: objection-b; the holds now: objection-b-2, objection-b-3"):
        world.say(Command.RESOLVE, hold="objection-b")
    world.say(Command.RESOLVE, hold="objection-b-2")
    assert world.stage is Stage.PLANNED
    world.say(Command.RESOLVE, hold="objection-b-3")
    assert world.is_in(Stage.BUFFERED)


def test_an_angry_team_holds_a_rollout_and_no_more() -> None:
    """391 long objections once made a state that no next run could begin with."""
    world = World(**QUICK)
    for number in range(400):
        world.say(Command.OBJECT, actor="bob", team="b", reason=f"{number} " + "no! " * 499)
    (hold,) = world.r.holds
    assert hold.reason.startswith("399 no! no!")
    assert hold.reason.endswith(" ...")
    assert len(hold.reason) == 600
    for person in ("ann", "cid", "dan", "eve"):
        world.say(Command.OBJECT, actor=person, team="b")
    with pytest.raises(Refused, match="b has 5 objections in c1, which is the limit: ann, bob, cid, dan, eve"):
        world.say(Command.OBJECT, actor="fay", team="b")
    world.say(Command.OBJECT, actor="dan", team="b", reason="another word")
    world.say(Command.OBJECT, actor="fay", team="a")
    assert len(world.r.holds) == 6


@pytest.mark.parametrize("kind", [HoldKind.BREACH, HoldKind.DRIFT, HoldKind.BLAST_RADIUS])
def test_a_stranger_lifts_no_hold_of_the_guard(kind: HoldKind) -> None:
    rollout = at(Stage.BUFFERED, World(authorities=["sre"], owners=["dana"])).r
    rollout = add_hold(
        rollout, Hold(id=kind.value, kind=kind, reason="x", actor="guard", at=rollout.launched_at), rollout.launched_at
    )

    def why_not(actor: str) -> str | None:
        return refusal(rollout, Command.RESOLVE, CommandRequest(actor=actor, reason="let it go", hold=kind.value))

    assert why_not("mallory") == f"mallory may not resolve hold {kind} here: ask tpm or sre or dana"
    assert [why_not(actor) for actor in ("tpm", "sre", "dana")] == [None] * 3


def test_a_later_objection_is_recorded_and_holds_nothing() -> None:
    world = at(Stage.ENFORCED, World(**QUICK))
    assert "too late" in world.say(Command.OBJECT, actor="bob", team="b", reason="we need them")
    assert world.holds == set()
    assert [h.id for h in world.status.recorded_objections] == ["objection-b"]
    world.until(Stage.MONITORED)
    assert "we need them" in world.needs
    world.say(Command.RESOLVE, hold="objection-b")
    assert world.needs == ""


def test_an_objection_after_a_rollback_holds_the_next_attempt() -> None:
    world = breached(at(Stage.MONITORED, World(**BUFFER_0)))
    world.say(Command.OBJECT, actor="bob", team="b", reason="not again")
    world.healthy(361)
    world.wait("9d")
    assert (world.stage, world.holds) == (Stage.ROLLED_BACK, {"objection-b"})
    world.say(Command.RESOLVE, hold="objection-b")
    assert world.is_in(Stage.BUFFERED)


def test_promote_waives_notice_soak_and_acknowledgements_and_nothing_else() -> None:
    world = World(acks="all")
    world.say(Command.PAUSE)
    world.start()
    world.say(Command.PROMOTE)
    assert (world.stage, world.waits_for) == (Stage.PLANNED, {"holds"})
    world.say(Command.RESUME)
    assert (world.stage, world.waits_for) == (Stage.BUFFERED, {"soak", "acks"})
    world.foreign("b", 100)
    world.say(Command.PROMOTE)
    assert (world.stage, world.waits_for) == (Stage.BUFFERED, {"drift", "holds"})
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert world.is_in(Stage.ENFORCED)
    world.healthy(290)
    world.say(Command.PROMOTE)
    assert (world.stage, world.waits_for) == (Stage.ENFORCED, {"backed"})
    with pytest.raises(Refused, match="already promoted"):
        world.say(Command.PROMOTE)


def test_promote_does_not_waive_the_approval() -> None:
    world = World()
    world.say(Command.PROMOTE)
    assert (world.stage, world.waits_for) == (Stage.PLANNED, {"approval"})


THREE = (quota("a", 100, 50), quota("b", 100, 50), quota("c", 100, 50))


@pytest.mark.parametrize(("acks", "enough"), [("none", 0), ("majority", 2), ("all", 3)])
def test_acknowledgements_are_waited_for(acks: str, enough: int) -> None:
    world = World(THREE, {"main": (300, 300)}, acks=acks)
    at(Stage.BUFFERED, world)
    world.wait("25h")
    for team in ("a", "b", "c")[:enough]:
        assert world.is_in(Stage.BUFFERED)
        assert world.waits_for == {"acks"}
        world.say(Command.ACK, actor=team, team=team)
    assert world.is_in(Stage.ENFORCED)


def test_acknowledgements_have_a_deadline() -> None:
    world = at(Stage.BUFFERED, World(acks="all", notice="1d", ack_deadline="7d"))
    assert world.until(Stage.ENFORCED) == 6 * DAY  # a day of notice has passed


def test_an_acknowledgement_of_a_smaller_cut_does_not_count_for_a_larger_one() -> None:
    world = World(acks="all").start()
    world.say(Command.ACK, actor="bob", team="b")
    assert world.r.announced.acks == ("b",)
    world.healthy(300)  # C = 292: b gives 69
    world.wait("11m")
    world.approve()
    assert set(world.r.announced.acks) == set()


def test_a_notice_that_cannot_be_sent_yet_delays_the_period_and_not_the_guard() -> None:
    world = World()
    world.mail_works = False
    world.start()
    world.wait("9d")
    assert (world.stage, world.waits_for) == (Stage.PLANNED, {"notice"})
    world.mail_works = True
    world.run()
    assert world.until(Stage.BUFFERED) == 3 * DAY


# --- plans -----------------------------------------------------------------------------------


def test_a_plan_inside_the_envelope_goes_on_by_itself() -> None:
    world = World()
    world.healthy(300)
    world.wait("11m")
    world.start()  # b 161 -> 97, a 200 -> 195
    assert world.r.plan is not None
    assert world.r.plan.cut_gpus == 69
    world.healthy(361)
    world.foreign("b", 150)
    assert world.r.plan.cut_gpus == 44
    assert world.r.is_approved
    assert world.until(Stage.BUFFERED) <= 3 * DAY
    assert world.values == CUT
    assert world.told_of(NoticeKind.PLANNED) == ["a", "b"]
    assert world.told_of(NoticeKind.CHANGED) == []


def test_a_plan_outside_the_envelope_asks_and_only_teams_whose_cut_grew_are_told_anew() -> None:
    world = World((quota("a", 200, 180), quota("b", 161, 100)), notice="1d").start()
    assert sorted(world.told_of(NoticeKind.PLANNED)) == ["a", "b"]
    world.healthy(300)
    world.wait("11m")
    assert (world.stage, world.waits_for) == (Stage.PLANNED, {"approval", "notice"})
    assert world.told_of(NoticeKind.HELD) == ["tpm"]
    world.wait("5d")
    assert world.is_in(Stage.PLANNED)
    assert world.told_of(NoticeKind.HELD) == ["tpm"]
    earlier = dict(world.r.announced.cuts)
    world.approve()
    assert world.r.plan is not None
    grown = {q.team for q in world.r.plan.quotas if q.cut_gpus > earlier[q.team]}
    assert set(world.told_of(NoticeKind.CHANGED)) == grown == {"a", "b"}
    assert world.until(Stage.BUFFERED) == DAY


def test_teams_whose_cut_did_not_grow_are_not_told_again() -> None:
    world = World((quota("a", 200, 180), quota("b", 161, 100)), notice="1d").start()
    world.foreign("b", 171)  # only b has more to give
    world.approve()
    assert world.told_of(NoticeKind.CHANGED) == ["b"]


def test_a_generation_that_moved_before_the_first_effect_replans_from_todays_values() -> None:
    world = World().start()
    world.wait("1d")
    world.foreign("b", 120)
    assert world.r.plan is not None
    assert world.r.baseline.generation == world.r.plan.generation == world.generation
    assert [(q.team, q.before_gpus) for q in world.r.plan.quotas] == [("a", 200), ("b", 120)]
    world.until(Stage.BUFFERED)
    world.say(Command.ROLLBACK)
    assert world.values == {"a": 200, "b": 120}


@pytest.mark.parametrize("during", ["reserve", "set_soft"])
def test_a_generation_that_moves_while_a_step_is_made_replans_and_nothing_is_overwritten(during: str) -> None:
    world = World(**QUICK)
    world.watch_runs = False
    world.meanwhile(during, lambda: _silently(world, "b", 120))
    world.start()
    assert world.is_in(Stage.BUFFERED)
    assert world.values == CUT
    assert {q.team: q.gpus for q in world.r.baseline.quotas} == {"a": 200, "b": 120}
    world.say(Command.ROLLBACK)
    assert world.values == {"a": 200, "b": 120}
    assert world.limit is None


def _silently(world: World, team: str, gpus: int) -> None:
    """A change that nobody has noticed yet."""
    world.quotas[team] = world.quotas[team].model_copy(update={"gpus": gpus})
    world.generation += 1


def test_health_that_no_longer_backs_the_plan_leads_to_another_plan() -> None:
    world = World().start()
    world.healthy(300)
    world.wait("9m")
    assert len(world.plans) == 1
    world.wait("2m")
    assert [p.ceiling_gpus for p in world.plans] == [306, 292]
    world.wait("5d")
    assert len(world.plans) == 2  # the same health gives the same plan


def test_a_plan_that_waits_for_approval_follows_health_back_into_the_envelope() -> None:
    world = World().start()
    world.healthy(300)
    world.wait("11m")
    assert world.waits_for == {"approval", "notice"}
    world.healthy(361)
    assert world.waits_for == {"notice"}
    assert world.until(Stage.BUFFERED) <= 3 * DAY


def test_a_plan_that_is_not_backed_is_made_again_when_health_returns() -> None:
    world = World(TWO, max_tier="unscheduled", plausible_drop=0.5, **QUICK)
    world.healthy(250)  # 361 - 61 unscheduled is above it
    world.wait("11m")
    assert world.r.plan is not None
    assert not world.r.plan.backed
    with pytest.raises(Refused, match="not backed"):
        world.approve()
    world.wait("3d")
    assert len(world.plans) == 2
    world.healthy(361)
    world.approve()
    assert world.is_in(Stage.BUFFERED)


def test_a_plan_that_cannot_be_made_holds_and_is_made_when_a_person_asks_again() -> None:
    world = World(**QUICK).start()
    world.say(Command.ROLLBACK)
    world.has_sample = False
    world.say(Command.RETRY)
    assert (world.stage, world.holds, len(world.plans)) == (Stage.PLANNED, {"replan"}, 1)
    assert world.told_of(NoticeKind.HELD) == ["tpm"]
    world.has_sample = True
    world.wait("2h")
    assert world.values == BASELINE  # not even the plan of the earlier attempt
    world.say(Command.RESOLVE, hold="replan")
    assert (world.stage, world.values, world.holds) == (Stage.BUFFERED, CUT, set())


# --- health that is not known ----------------------------------------------------------------


def test_a_source_whose_clock_is_ahead_is_not_believed_and_shadows_nothing() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.sampled_at = world.now + 2 * HOUR
    world.healthy(0)
    assert world.status.healthy_gpus == 361
    assert world.holds == {"unknown_health"}
    assert "with times in the future" in world.needs
    world.wait("20m")
    assert (world.stage, world.status.at_risk) == (Stage.MONITORED, ())
    world.sampled_at = None  # set right: what it says now counts at once, and is no older than what is known
    world.healthy(300)
    assert (world.status.healthy_gpus, world.holds) == (300, set())
    world.wait("10m")
    assert world.is_in(Stage.ROLLED_BACK)


def test_while_samples_stand_that_are_dated_ahead_the_guard_works_and_no_gate_opens() -> None:
    world = at(Stage.BUFFERED, World(**QUICK))
    world.ahead_to = world.now + 2 * HOUR
    world.noticed()
    world.wait("2h")
    assert (world.stage, world.holds) == (Stage.BUFFERED, {"unknown_health"})
    with pytest.raises(Refused, match="with correct times"):
        world.say(Command.RESOLVE, hold="unknown_health")
    world.healthy(300)
    world.wait("10m")
    assert world.is_in(Stage.ROLLED_BACK)
    world.healthy(361)
    world.wait("9d")
    assert world.stage is Stage.ROLLED_BACK  # no attempt is begun on such health either
    world.ahead_to = None
    world.noticed()
    world.wait("7h")
    assert world.status.attempt == 2


def test_more_healthy_gpus_than_are_installed_are_no_matter_of_correct_times() -> None:
    world = at(Stage.BUFFERED, World(**QUICK))
    world.beyond = Excess(at=world.now, island="X", total_gpus=361)
    world.noticed()
    assert world.holds == {"unknown_health"}
    with pytest.raises(Refused, match="than the 361 installed: mend the source, or import the cluster's new total"):
        world.say(Command.RESOLVE, hold="unknown_health")


def test_clocks_that_differ_by_less_than_a_minute_are_as_good_as_one() -> None:
    world = at(Stage.BUFFERED, World(**QUICK))
    world.sampled_at = world.now + timedelta(seconds=60)
    world.healthy(353)
    assert (world.status.healthy_gpus, world.holds) == (353, set())


def test_a_source_whose_clock_jumps_back_says_nothing_new() -> None:
    world = at(Stage.MONITORED, World(**QUICK, stale_after="2h"))
    world.sampled_at = world.now - 3 * HOUR
    world.healthy(300)
    world.wait("119m")
    assert (world.stage, world.status.healthy_gpus, world.holds) == (Stage.MONITORED, 361, set())
    world.wait("61m")
    assert (world.stage, world.holds) == (Stage.MONITORED, {"unknown_health"})


def test_stale_health_opens_no_gate_and_says_so_after_stale_after() -> None:
    world = World(stale_after="2h").start()
    world.silent()
    world.wait("4d")
    assert (world.stage, world.waits_for) == (Stage.PLANNED, {"holds", "backed"})
    assert world.holds == {"unknown_health"}
    assert "mend the health source" in world.needs
    with pytest.raises(Refused, match="current samples"):
        world.say(Command.RESOLVE, hold="unknown_health")
    world.speaks()
    assert world.is_in(Stage.BUFFERED)


def test_a_missing_sample_opens_no_gate_however_good_the_last_one_was() -> None:
    world = World(notice="0s", stale_after="1d")
    world.has_sample = False
    world.noticed()
    world.start()
    assert (world.stage, world.waits_for) == (Stage.PLANNED, {"backed"})
    assert world.effects == []
    world.has_sample = True
    world.noticed()
    assert world.is_in(Stage.BUFFERED)


@pytest.mark.slow
def test_unknown_health_opens_no_gate_and_is_neither_short_nor_good_for_the_guard() -> None:
    world = at(Stage.BUFFERED, World(confirm_samples=10_000))
    effects = list(world.effects)
    world.healthy(10)
    world.wait("25h")
    assert world.is_in(Stage.BUFFERED)
    assert world.effects == effects
    assert world.holds == {"unknown_health"}
    assert world.status.at_risk == ()
    world.say(Command.RESOLVE, hold="unknown_health", reason="the row is dark")
    world.wait("11m")
    assert world.is_in(Stage.ROLLED_BACK)
    assert sum(world.values.values()) == 10


def test_for_the_guard_the_last_known_shortage_stands() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.healthy(300)
    world.wait("5m")
    world.silent()
    world.wait("6m")
    assert world.is_in(Stage.ROLLED_BACK)


def test_a_missing_sample_neither_ends_a_shortage_nor_begins_one() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.has_sample = False
    world.noticed()
    world.wait("3h")
    assert world.is_in(Stage.MONITORED)
    world.has_sample = True
    world.healthy(300)
    world.wait("5m")
    world.has_sample = False
    world.noticed()
    assert world.status.at_risk
    world.has_sample = True
    world.wait("6m")
    assert world.is_in(Stage.ROLLED_BACK)


def test_a_drop_that_samples_confirm_is_a_breach() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.healthy(100)
    assert (world.status.health_known, world.status.at_risk) == (False, ())
    world.wait("4m")
    assert (world.status.health_known, len(world.status.at_risk)) == (True, 2)
    world.wait("11m")
    assert world.is_in(Stage.ROLLED_BACK)


def test_a_breachs_answer_is_urgent_until_the_quotas_are_restored_and_a_persons_undo_is_not() -> None:
    def urgent_ones(world: World) -> list[str]:
        seen: list[str] = []
        act = world.act

        def acting(action: Action) -> None:
            seen.extend([repr(action)] * is_urgent(world.r, action))
            act(action)

        world.act = acting  # type: ignore[method-assign]
        world.until(Stage.ROLLED_BACK)
        return seen

    world = at(Stage.MONITORED, World(**QUICK))
    world.healthy(300)
    answer = (EffectKind.UNFOLLOW, EffectKind.SOFTEN, EffectKind.RESTORE)
    assert urgent_ones(world) == [repr(Aim()), *(repr(Perform(kind)) for kind in answer)]
    world = at(Stage.MONITORED, World(**QUICK))
    world.say(Command.ROLLBACK, run=False)
    assert urgent_ones(world) == []


def test_a_suspect_source_is_not_asked_every_minute_for_ever() -> None:
    world = at(Stage.MONITORED, World(confirm_samples=2, **QUICK))
    world.healthy(100)
    world.silent()
    before = world.looks()
    world.wait("3d")
    assert world.looks() - before < 3 * 24 + 10


def test_a_gate_looks_again_before_it_opens() -> None:
    """The watch is dead and a shortage began unseen."""
    world = at(Stage.BUFFERED, World())
    world.watch_runs = False
    world.wait("23h")
    world.wait("59m")
    world.healthy(290)
    world.wait("2m")
    assert (world.stage, world.waits_for) == (Stage.BUFFERED, {"backed"})


def test_a_look_that_fails_opens_no_gate() -> None:
    world = World(notice="1h").start()
    world.looks_fail = True
    world.wait("2h")
    assert world.is_in(Stage.PLANNED)
    world.looks_fail = False
    world.wait("61s")
    assert world.is_in(Stage.BUFFERED)


# --- drift -----------------------------------------------------------------------------------


def test_drift_holds_by_default_and_a_person_accepts_it() -> None:
    world = at(Stage.BUFFERED, World())
    world.foreign("b", 90)
    world.wait("30h")
    assert (world.stage, world.holds) == (Stage.BUFFERED, {"drift"})
    assert "b 106 -> 90" in world.needs
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert world.is_in(Stage.ENFORCED)
    world.say(Command.ROLLBACK)
    assert world.values == {"a": 200, "b": 90}  # what others changed is left alone
    assert world.modes == {LimitMode.HARD}


def test_drift_is_restored_when_a_person_says_so_and_then_undone_like_ours() -> None:
    world = at(Stage.ENFORCED, World())
    world.foreign("b", 90)
    world.say(Command.RESOLVE, hold="drift", how="restore")
    assert world.values == CUT
    assert (world.holds, world.modes, world.r.foreign) == (set(), {LimitMode.HARD}, ())
    world.say(Command.ROLLBACK)
    assert world.values == BASELINE


def test_a_drift_that_is_written_back_is_not_given_back() -> None:
    world = at(Stage.ENFORCED, World())
    cuts = [*world.cuts]
    world.foreign("b", 90)
    world.say(Command.RESOLVE, hold="drift", how="restore")
    assert (world.values, world.cuts) == (CUT, cuts)


def test_the_answer_to_a_drift_says_what_is_done() -> None:
    world = at(Stage.ENFORCED, World())
    world.foreign("b", 90)
    assert world.say(Command.RESOLVE, hold="drift", how="restore") == "Backstop writes again: b at 106"
    world.foreign("b", None)
    world.foreign("c", 5)
    writes = len(world.effects)
    answer = world.say(Command.RESOLVE, hold="drift", how="restore")
    assert answer == (
        "Backstop has nothing left to write; others removed b, which still waits for an answer; "
        "others added c, which still waits for an answer; accept these changes (--how accept), "
        "or undo them in the quota system"
    )
    assert (world.values, len(world.effects)) == ({"a": 200, "c": 5}, writes), "and nothing was written"
    assert world.holds == {"drift"}


def notices(world: World, kind: NoticeKind) -> dict[str, Notice]:
    """The last of a kind, by audience."""
    return {n.audience: n for n in world.sent if n.kind is kind}


def test_a_rollback_is_told_from_what_stood_before_it_and_from_a_look_after_it() -> None:
    """Approved at 361 of 361, then 300 are left: both give back, and what is backed is looked at afterwards."""
    world = at(Stage.MONITORED, World(**BUFFER_0))
    world.healthy(300)
    world.wait("10m")
    told = notices(world, NoticeKind.ROLLED_BACK)
    owners = told.pop("tpm")
    assert {t: (n.before_gpus, n.after_gpus, n.backing_gpus) for t, n in told.items()} == {
        "a": (200, 200, 200),
        "b": (161, 100, 100),
    }
    breach = notices(world, NoticeKind.BREACH)
    assert {t: (breach[t].after_gpus or 0) - (breach[t].backing_gpus or 0) for t in ("a", "b")} == {"a": 34, "b": 27}, (
        "who lacked more gives nothing, and both are told why"
    )
    assert {t: n.reasons for t, n in told.items()} == {
        "a": (
            (
                "Backstop takes none of the 200 GPUs that the quota would have without the rollout: other quotas gave "
                "GPUs that cost less"
            ),
        ),
        "b": (
            (
                "from the 161 GPUs that the quota would have without the rollout, Backstop takes 61 that no running "
                "job held"
            ),
        ),
    }
    assert owners.facts["left"] == [f"b: 161 -> 100 ({told['b'].reasons[0]})"]
    assert [command["line"] for command in owners.facts["commands"]], "what the owner could say"
    _, body = render(owners)
    assert f"- b: 161 -> 100 ({told['b'].reasons[0]})\n" in body
    world.healthy(361)
    world.until(Stage.BUFFERED)
    again = notices(world, NoticeKind.BUFFERED)
    assert {t: (n.before_gpus, n.after_gpus) for t, n in again.items()} == {}, "the plan cuts nobody"


@pytest.mark.parametrize(("on_breach", "stays"), [("rollback", False), ("hold", True), ("realign", True)])
def test_a_breach_that_sets_quotas_back_at_once_does_not_say_that_they_stay(on_breach: str, stays: bool) -> None:
    world = at(Stage.MONITORED, World(**BUFFER_0, on_breach=on_breach))
    world.healthy(300)
    world.wait("10m")
    bodies = [render(n)[1] for n in world.sent if n.kind is NoticeKind.BREACH and n.audience != "tpm"]
    assert len(bodies) == 2
    assert ["The value of your quota has not changed" in body for body in bodies] == [stays, stays]
    moved = {n.audience for n in world.sent if n.kind is NoticeKind.ROLLED_BACK and n.before_gpus != n.after_gpus}
    assert bool(moved) != stays


def test_a_second_attempt_is_told_from_what_stands_and_not_from_the_baseline() -> None:
    """Cut 345 -> 306 at first; after a breach 280 stand, and the next plan brings 306 again."""
    world = at(
        Stage.MONITORED,
        World((quota("a", 345, busy=310),), {"main": (361, 319)}, spare_gpus=8, max_tier="busy", **QUICK),
    )
    first = notices(world, NoticeKind.BUFFERED)["a"]
    assert (first.before_gpus, first.after_gpus) == (345, 306)
    world.healthy(280)
    world.wait("10m")
    back = notices(world, NoticeKind.ROLLED_BACK)["a"]
    assert (back.before_gpus, back.after_gpus, back.backing_gpus) == (306, 280, 280)
    world.healthy(319)
    world.until(Stage.BUFFERED)
    second = notices(world, NoticeKind.BUFFERED)["a"]
    assert (second.before_gpus, second.after_gpus) == (280, 306)


def test_after_a_breach_the_status_says_when_the_next_attempt_begins() -> None:
    world = breached(at(Stage.MONITORED, World(**BUFFER_0, recover_after="6h")))
    assert not [c for c in world.status.waiting_for if c.name == "recovery"], "health does not back the plan yet"
    world.healthy(361)
    (recovery,) = [c for c in world.status.waiting_for if c.name == "recovery"]
    assert recovery.text == "waits for health that backs the plan for 6h without a break"
    assert recovery.until == world.now + 6 * HOUR
    assert world.until(Stage.BUFFERED) == 6 * HOUR


def test_teams_are_told_that_a_cut_to_nothing_retires_their_cluster() -> None:
    world = World(**QUICK)
    world.r = world.r.but(id="retire-c1-20260105080000")
    world.start()
    assert all("This cluster is being retired" in render(n)[1] for n in notices(world, NoticeKind.PLANNED).values())
    assert notices(world, NoticeKind.PLANNED)


@pytest.mark.parametrize("what", ["monitored", "breach", "rollback", "drift"])
def test_a_closing_explains_a_quota_by_the_plan_only_where_the_plan_has_set_it(what: str) -> None:
    """The plan cuts b from 161 to 106. A breach leaves another value, and so do an undo and others."""
    world = at(Stage.MONITORED, World(**QUICK))
    match what:
        case "breach":
            breached(world)
        case "rollback":
            world.say(Command.ROLLBACK)
        case "drift":
            world.foreign("b", 90)
            world.say(Command.RESOLVE, hold="drift", how="accept")
    said = world.say(Command.CLOSE)
    assert ("promise" in said) == (what not in ("breach", "rollback")), "a rollback has withdrawn it already"
    closed = notices(world, NoticeKind.CLOSED)["b"]
    assert bool(closed.reasons) == (closed.after_gpus == 106), closed.after_gpus


def test_the_owner_is_told_once_of_an_objection_of_somebodys_pause_and_of_a_breach() -> None:
    def held() -> list[str]:
        return [n.detail for n in world.sent if n.kind is NoticeKind.HELD]

    world = at(Stage.MONITORED, World(**BUFFER_0))
    world.say(Command.PAUSE, reason="my own")
    assert held() == [], "whoever paused it knows"
    world.say(Command.RESUME)
    world.say(Command.PAUSE, actor="scheduler-owners", reason="an upgrade")
    world.say(Command.OBJECT, actor="lead", team="b", reason="evals run")
    world.wait("2d")
    assert held() == [
        "scheduler-owners paused it: an upgrade",
        "b objects, by lead: evals run",
    ]
    world.say(Command.RESUME)
    world.healthy(300)
    world.wait("10m")
    breach = [n for n in world.sent if n.kind is NoticeKind.BREACH and n.audience == "tpm"]
    assert [n.detail for n in breach] == ["a lacks 34 GPUs, b lacks 27 GPUs"]


def test_the_owner_is_told_of_silent_health_once_an_episode() -> None:
    world = at(Stage.MONITORED, World(**BUFFER_0))
    world.watch_runs = False
    for _ in range(2):
        world.has_sample = False
        world.wait("25h")
        world.has_sample = True
        world.healthy(361)
        world.wait("1h")
    told = [n.detail for n in world.sent if n.kind is NoticeKind.HELD]
    assert len(told) == 2
    assert all(text.startswith("no believable health since") for text in told)


def test_a_look_that_was_under_way_when_a_drift_was_answered_does_not_hold_it_again() -> None:
    world = at(Stage.ENFORCED, World())
    world.foreign("b", 90)
    world.look_wanted = True
    world.meanwhile("look", lambda: world.say(Command.RESOLVE, run=False, hold="drift", how="restore"))
    world.run()
    assert (world.values, world.holds) == (CUT, set())
    drifts = [text for text in world.story if text.startswith("drift:")]
    assert len(drifts) == 1, drifts


def test_drift_that_others_take_back_holds_no_longer() -> None:
    world = at(Stage.BUFFERED, World())
    world.foreign("b", 90)
    world.foreign("b", 106)
    assert world.holds == set()
    world.say(Command.ROLLBACK)
    assert world.values == BASELINE


def test_a_drift_that_changes_while_it_is_held_is_held_as_it_is_now() -> None:
    world = at(Stage.BUFFERED, World())
    world.foreign("b", 90)
    world.foreign("a", 190)
    (hold,) = world.status.holds
    assert hold.reason == "changed by others: a 200 -> 190, b 106 -> 90"


def test_drift_is_accepted_by_policy() -> None:
    world = at(Stage.BUFFERED, World(on_drift="accept"))
    world.foreign("b", 90)
    assert world.holds == set()
    world.until(Stage.ENFORCED)
    world.say(Command.ROLLBACK)
    assert world.values == {"a": 200, "b": 90}


def test_drift_is_restored_by_policy_but_not_under_another_hold() -> None:
    world = at(Stage.BUFFERED, World(on_drift="restore"))
    world.foreign("b", 90)
    assert world.values == CUT
    world.say(Command.PAUSE)
    world.foreign("b", 90)
    world.wait("2h")
    assert (world.values["b"], world.holds) == (90, {"drift", "paused"})
    world.say(Command.RESUME)
    assert (world.values, world.holds) == (CUT, set())


def test_a_restore_leaves_an_earlier_accepted_change_alone() -> None:
    """The plan's values are older than what a person has accepted since."""
    world = at(Stage.BUFFERED, World())
    world.foreign("b", 90)
    world.say(Command.RESOLVE, hold="drift", how="accept")
    world.foreign("a", 180)
    world.say(Command.RESOLVE, hold="drift", how="restore")
    assert world.values == {"a": 200, "b": 90}
    world.say(Command.ROLLBACK)
    assert world.values == {"a": 200, "b": 90}


def test_a_restore_that_fails_for_good_undoes_the_rollout() -> None:
    world = at(Stage.BUFFERED, World(on_drift="restore"))
    world.fail(EffectKind.SET_SOFT, landed=True)
    world.foreign("b", 90)
    assert world.is_in(Stage.ROLLED_BACK)
    assert world.values == BASELINE


def test_an_undo_leaves_alone_and_reports_what_others_changed() -> None:
    world = at(Stage.ENFORCED, World())
    world.foreign("b", 90)
    world.say(Command.ROLLBACK)
    assert (world.stage, world.values) == (Stage.ROLLED_BACK, {"a": 200, "b": 90})
    assert (
        "conflict: others changed b, which is 90, and not 106 as Backstop expected; Backstop leaves it alone"
        in world.story
    )
    assert any("left as others changed them: b" in line for line in world.story)


def test_a_change_that_is_accepted_as_the_rollback_begins_is_not_overwritten() -> None:
    world = at(Stage.ENFORCED, World())
    world.foreign("b", 90)
    world.say(Command.ROLLBACK, run=False)
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert (world.stage, world.values) == (Stage.ROLLED_BACK, {"a": 200, "b": 90})
    assert breaks(world).target == {"a": 200, "b": 90}


@pytest.mark.parametrize("during", ["soften", "restore", "release"])
def test_while_the_rollback_runs_nothing_is_taken_as_given(during: str) -> None:
    """Earlier readings have our values in them: accepted, they would be the next attempt's baseline."""
    world = at(Stage.ENFORCED, World())
    world.foreign("b", 90)
    refused: list[str] = []

    def accept() -> None:
        with pytest.raises(Refused, match="does not touch what others changed") as found:
            world.say(Command.RESOLVE, hold="drift", how="accept", run=False)
        refused.append(str(found.value))

    world.meanwhile(during, accept)
    world.say(Command.ROLLBACK)
    assert len(refused) == 1
    assert (world.stage, world.values) == (Stage.ROLLED_BACK, {"a": 200, "b": 90})
    assert {q.team: q.gpus for q in world.r.baseline.quotas} == {"a": 200, "b": 161}


def test_a_look_that_ends_after_an_undo_began_changes_nothing_of_its_target() -> None:
    world = at(Stage.ENFORCED, World(on_drift="accept"))
    _silently(world, "b", 90)
    world.meanwhile("look", lambda: world.say(Command.ROLLBACK, run=False))
    world.noticed()
    assert (world.stage, world.values) == (Stage.ROLLED_BACK, {"a": 200, "b": 90})


def test_a_quota_that_others_delete_or_add_is_drift_and_then_part_of_the_baseline() -> None:
    world = at(Stage.BUFFERED, World((*TWO, quota("c", 0))))
    world.foreign("c", None)
    world.foreign("z", 0)
    (hold,) = world.status.holds
    assert hold.reason == "changed by others: c 0 -> absent, z absent -> 0"
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert [q.team for q in world.r.baseline.quotas] == ["a", "b", "z"]
    world.until(Stage.MONITORED)
    world.say(Command.ROLLBACK)
    assert world.values == {**BASELINE, "z": 0}


def test_a_restore_leaves_added_and_deleted_quotas_to_a_person() -> None:
    world = at(Stage.BUFFERED, World((*TWO, quota("c", 0)), on_drift="restore"))
    world.foreign("c", None)
    world.foreign("z", 0)
    world.foreign("b", 90)
    assert world.values == {**CUT, "z": 0}
    (hold,) = world.status.holds
    assert hold.reason == "changed by others: c 0 -> absent, z absent -> 0"
    world.say(Command.ROLLBACK)
    assert world.values == {**BASELINE, "z": 0}


TREE = (parent("org", 361), quota("a", 200, parent="org"), quota("b", 161, 100, parent="org"))


def test_parents_follow_their_leaves_down_and_up_again() -> None:
    world = at(Stage.BUFFERED, World(TREE))
    assert world.values == {"a": 200, "b": 106, "org": 306}
    world.healthy(300)
    world.wait("11m")
    assert world.values == {"a": 200, "b": 100, "org": 300}
    world.say(Command.ROLLBACK)
    assert world.values == {"a": 200, "b": 161, "org": 361}


def test_a_notice_in_a_tree_counts_what_lacks_hardware_and_not_what_the_parent_withholds() -> None:
    """The parent promises 300 of its children's 361: 61 of these lack no hardware while 300 are healthy."""
    quotas = (parent("org", 300), quota("a", 200, 150, parent="org"), quota("b", 161, 100, parent="org"))
    world = at(Stage.MONITORED, World(quotas, **BUFFER_0, on_breach="hold"))
    told = [n.backing_gpus for n in world.sent if n.kind in (NoticeKind.ENFORCED, NoticeKind.MONITORED)]
    assert told == [200, 161] * (len(told) // 2)
    world.healthy(290)
    world.wait("11m")
    risks = {risk.team: risk.backing_gpus for risk in world.status.at_risk}
    assert sum(risks.values()) == 351, "10 lack"
    for kind in (NoticeKind.AT_RISK, NoticeKind.BREACH):
        sent = {n.audience: n.backing_gpus for n in world.sent if n.kind is kind and n.audience in ("a", "b")}
        assert sent == risks, "the notice says what the status says"


def test_a_quota_that_others_move_in_the_tree_moves_in_the_baseline() -> None:
    world = at(Stage.BUFFERED, World(TREE))
    world.foreign("b", 106, parent=None)
    assert world.holds == set()  # no value of ours was touched
    assert {q.team: q.parent for q in world.r.baseline.quotas} == {"a": "org", "b": None, "org": None}
    assert {q.team: q.gpus for q in world.r.baseline.quotas} == {"a": 200, "b": 161, "org": 361}
    world.say(Command.ROLLBACK)
    assert world.values == {"a": 200, "b": 161, "org": 361}


def test_a_quota_that_others_limit_to_a_new_island_can_be_carried_over() -> None:
    """Continue-as-new validates the baseline: its islands must know what quotas name."""
    world = at(Stage.BUFFERED, World())
    world.islands["new"] = Island(name="new", total_gpus=8, healthy_gpus=8)
    world.foreign("b", 106, islands=("new",))
    assert "new" in {i.name for i in world.r.baseline.islands}
    assert world.status.at_risk


def test_after_a_breach_rollback_an_accepted_change_is_planned_anew_and_not_overwritten() -> None:
    world = breached(at(Stage.MONITORED, World(**BUFFER_0)))
    assert world.values == {"a": 200, "b": 100}
    world.say(Command.PAUSE)
    world.foreign("b", 70)
    assert world.holds == {"drift", "paused"}
    world.healthy(361)
    world.say(Command.RETRY)
    world.say(Command.RESOLVE, hold="drift", how="accept")
    world.say(Command.RESUME)
    assert (world.stage, world.values) == (Stage.BUFFERED, {"a": 200, "b": 70})


# --- effects that fail -----------------------------------------------------------------------


@pytest.mark.parametrize("landed", [False, True], ids=["never-landed", "answer-lost"])
@pytest.mark.parametrize("failing", FORWARD)
@pytest.mark.parametrize("error", ["Unavailable", "Refusal"])
def test_a_failed_effect_leaves_the_world_as_it_was(failing: EffectKind, landed: bool, error: str) -> None:
    world = World(**QUICK)
    world.fail(failing, error, landed=landed)
    world.start()
    world.until(Stage.ROLLED_BACK)
    assert f"{failing} failed: {failing} did not answer" in world.story
    assert (world.values, world.modes, world.limit, world.follows) == (BASELINE, {LimitMode.HARD}, None, False)
    assert world.r.standing == ()
    assert world.told_of(NoticeKind.HELD) == ["tpm"]
    world.wait("9d")
    assert world.is_in(Stage.ROLLED_BACK)  # not retried by itself
    world.say(Command.RETRY)
    world.until(Stage.MONITORED)
    assert world.values == CUT


@pytest.mark.parametrize("landed", [False, True], ids=["never-landed", "answer-lost"])
def test_an_inverse_is_owed_once_when_an_abort_arrives_while_its_effect_is_under_way(landed: bool) -> None:
    for kind in FORWARD:
        world = World(**QUICK)
        world.fail(kind, landed=landed)
        world.meanwhile(kind.value, lambda world=world: world.say(Command.ABORT, run=False))  # type: ignore[misc]
        world.start()
        world.until(Stage.ABORTED)
        assert (world.values, world.modes, world.limit, world.follows) == (BASELINE, {LimitMode.HARD}, None, False)


@pytest.mark.parametrize("kind", FORWARD)
def test_an_effect_that_lands_after_an_abort_is_undone_exactly_once(kind: EffectKind) -> None:
    world = World(**QUICK)
    world.meanwhile(kind.value, lambda: world.say(Command.ABORT, run=False))
    world.start()
    world.until(Stage.ABORTED)
    made = FORWARD[: FORWARD.index(kind) + 1]
    assert world.effects == made + BACK[-len(made) :]
    assert (world.values, world.modes, world.limit) == (BASELINE, {LimitMode.HARD}, None)


def test_a_blast_radius_holds_and_is_lifted_for_the_whole_step() -> None:
    world = World(**QUICK, max_moved_gpus=54).start()
    assert (world.stage, world.holds) == (Stage.PLANNED, {"blast_radius"})
    assert world.r.standing == (EffectKind.RESERVE,)
    assert world.values == BASELINE
    assert world.told_of(NoticeKind.HELD) == ["tpm"]
    world.wait("2d")
    assert world.values == BASELINE
    world.say(Command.RESOLVE, hold="blast_radius")
    assert (world.stage, world.values) == (Stage.BUFFERED, CUT)
    assert not world.r.stay.exempt


def test_a_blast_radius_that_has_room_later_is_told_and_waited_for() -> None:
    world = World(**QUICK, max_moved_gpus=60)
    world.moves.append((world.now, 30))  # others have moved them
    world.start()
    assert (world.stage, world.holds, world.values) == (Stage.PLANNED, {"blast_radius"}, BASELINE)
    assert [h.until for h in world.r.holds] == [world.moves[0][0] + timedelta(hours=1)]
    (told,) = (n for n in world.sent if n.kind is NoticeKind.HELD)
    assert told.facts["goes_on"] == f"at {world.r.holds[0].until:%Y-%m-%d %H:%MZ}"
    world.wait("1h")
    assert (world.stage, world.holds, world.values) == (Stage.BUFFERED, set(), CUT)
    assert len(world.told_of(NoticeKind.HELD)) == 1
    assert not world.r.holds
    assert "hold blast_radius lifted" in world.story


def test_an_abort_under_a_blast_radius_hold_releases_what_was_reserved() -> None:
    world = World(**QUICK, max_moved_gpus=54).start()
    world.say(Command.ABORT)
    assert (world.stage, world.limit, world.values) == (Stage.ABORTED, None, BASELINE)
    assert EffectKind.RESTORE not in world.effects


@pytest.mark.parametrize("kind", FORWARD)
def test_a_superseded_rollout_runs_no_inverses(kind: EffectKind) -> None:
    world = World(**QUICK)
    world.meanwhile(kind.value, lambda: setattr(world, "superseded", True))
    world.start()
    world.until(Stage.STUCK)
    made = list(world.effects)
    world.wait("9d")
    assert world.effects == made == FORWARD[: FORWARD.index(kind)]
    assert world.told_of(NoticeKind.STUCK) == ["tpm"]
    with pytest.raises(Refused, match="only `close` is possible"):
        world.say(Command.RETRY)
    world.say(Command.CLOSE)
    assert (world.stage, world.effects) == (Stage.CLOSED, made)


def test_an_inverse_that_cannot_finish_makes_it_stuck_and_the_others_still_run() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.fail(EffectKind.SOFTEN, "Refusal")
    world.say(Command.ABORT)
    assert world.is_in(Stage.STUCK)
    assert (world.values, world.limit, world.follows, world.modes) == (BASELINE, None, False, {LimitMode.HARD})
    undoing = world.status.undoing
    assert undoing is not None
    assert undoing.stuck_on == ("harden: soften did not answer",)
    assert undoing.commands == ("retry", "close")
    assert world.told_of(NoticeKind.STUCK) == ["tpm"]
    for command in (Command.ABORT, Command.ROLLBACK, Command.PROMOTE):
        with pytest.raises(Refused, match="stuck"):
            world.say(command)
    world.say(Command.RETRY)
    assert world.is_in(Stage.ABORTED)
    assert world.effects[-4:] == [EffectKind.RESTORE, EffectKind.RELEASE, EffectKind.SOFTEN, EffectKind.RESTORE]
    # To soften sets every quota soft, and the baseline was hard: what had been restored is restored again.
    assert (world.values, world.limit, world.follows, world.modes) == (BASELINE, None, False, {LimitMode.HARD})


def test_what_is_restored_again_after_a_late_soften_leaves_alone_what_others_changed() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.fail(EffectKind.SOFTEN, "Refusal")
    world.meanwhile("restore", lambda: _silently(world, "b", 70))
    world.say(Command.ROLLBACK)
    assert (world.stage, world.values) == (Stage.STUCK, BASELINE | {"b": 70})
    world.say(Command.RETRY)
    assert (world.stage, world.values) == (Stage.ROLLED_BACK, BASELINE | {"b": 70})


def test_a_stuck_breach_rollback_stays_soft_when_it_is_softened_at_last() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.fail(EffectKind.SOFTEN, "Refusal")
    breached(world)
    made = len(world.effects)
    world.say(Command.RETRY)
    assert (world.stage, world.modes) == (Stage.ROLLED_BACK, {LimitMode.SOFT})
    assert world.effects[made:] == [EffectKind.SOFTEN]


def test_a_write_that_was_never_answered_is_undone_beside_what_others_changed_since() -> None:
    world = World(TREE, **QUICK)
    world.fail(EffectKind.SET_SOFT, landed=True)
    world.meanwhile("restore", lambda: _silently(world, "a", 120))
    before = world.values
    world.start()
    world.until(Stage.ROLLED_BACK)
    assert world.effects.count(EffectKind.RESTORE) == 2
    assert world.values == before | {"a": 120}


def test_a_stuck_breach_rollback_goes_on_owing_what_it_keeps() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.fail(EffectKind.RESTORE, "Refusal")
    breached(world)
    assert (world.stage, world.limit) == (Stage.STUCK, 300)
    assert set(world.r.standing) == {EffectKind.RESERVE, EffectKind.SET_SOFT}
    world.say(Command.RETRY)
    assert (world.stage, world.values) == (Stage.ROLLED_BACK, {"a": 200, "b": 100})
    world.say(Command.ABORT)
    assert (world.values, world.limit) == (BASELINE, None)


def test_a_stuck_rollout_can_be_closed_with_a_reason() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.fail(EffectKind.RESTORE, "Refusal")
    world.say(Command.ROLLBACK)
    with pytest.raises(Refused, match="close needs a reason while the rollout is stuck"):
        world.say(Command.CLOSE, reason="")
    world.say(Command.CLOSE, reason="by hand")
    assert (world.stage, world.values) == (Stage.CLOSED, CUT)


# --- undo ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED])
def test_an_undo_restores_values_and_modes_and_is_not_retried(stage: Stage) -> None:
    world = World(**QUICK)
    world.quotas["a"] = world.quotas["a"].model_copy(update={"mode": LimitMode.SOFT})
    world.r = world.r.but(modes={"a": LimitMode.SOFT, "b": LimitMode.HARD})
    before = dict(world.quotas)
    at(stage, world).say(Command.ROLLBACK)
    assert world.is_in(Stage.ROLLED_BACK)
    assert world.quotas == before
    assert (world.limit, world.follows, world.r.standing) == (None, False, ())
    assert world.told_of(NoticeKind.ROLLED_BACK) == ["b", "tpm"]
    world.wait("9d")
    assert world.told_of(NoticeKind.ROLLED_BACK) == ["b", "tpm"], "once"
    assert world.is_in(Stage.ROLLED_BACK)
    assert "backstop retry c1" in world.needs


@pytest.mark.parametrize("stage", [Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED])
def test_an_abort_tells_a_team_how_much_of_its_quota_is_backed(stage: Stage) -> None:
    """The worked case: 345 promised, 319 healthy."""
    world = World((quota("a", 345, busy=310),), {"main": (361, 319)}, spare_gpus=8, max_tier="busy", **QUICK)
    at(stage, world).say(Command.ABORT)
    notice = notices(world, NoticeKind.ROLLED_BACK)["a"]
    assert (world.stage, notice.after_gpus, notice.backing_gpus) == (Stage.ABORTED, 345, 319)
    assert "Your quota comes back up from 306 to 345 GPUs" in render(notice)[1]
    assert "319 of its 345 GPUs are backed by healthy hardware at the moment; 26 are not." in render(notice)[1]


def test_an_abort_says_nothing_of_backing_where_health_is_stale() -> None:
    world = at(Stage.ENFORCED, World(**QUICK))
    world.silent()
    world.wait("2h")
    world.say(Command.ABORT)
    assert (world.stage, notices(world, NoticeKind.ROLLED_BACK)["b"].backing_gpus) == (Stage.ABORTED, None)


def test_an_undo_says_what_todays_hardware_cannot_back() -> None:
    world = at(Stage.ENFORCED, World(**QUICK))
    world.healthy(310)  # backs what stands: no edge for the watch, so the next look sees it
    world.wait("1h")
    assert "51 GPUs of the baseline have no healthy hardware today" in world.say(Command.ROLLBACK)
    assert breaks(world).unbacked_gpus == 51
    assert any("51 GPUs of the baseline have no healthy hardware" in line for line in world.story)
    assert world.values == BASELINE


def test_an_undo_says_that_others_changes_stay_where_hardware_cannot_back_them_too() -> None:
    """All 361 of the baseline have hardware; b is 40 above its part of it, and stays so."""
    world = at(Stage.ENFORCED, World(**QUICK))
    world.healthy(361)
    world.limit = None  # as in Slurm, which cannot refuse a raise
    world.foreign("b", BASELINE["b"] + 40)
    said = world.say(Command.ROLLBACK)
    assert "40 GPUs of the baseline and of what others changed have no healthy hardware today" in said
    assert world.values == {**BASELINE, "b": BASELINE["b"] + 40}


def test_a_retry_after_an_undo_plans_from_what_others_set_meanwhile() -> None:
    world = at(Stage.ENFORCED, World(**QUICK))
    world.say(Command.ROLLBACK)
    world.foreign("b", 140)
    world.wait("3d")
    assert world.holds == set()  # nothing of ours stands: no drift
    world.say(Command.RETRY)
    assert world.r.plan is not None
    assert [q.before_gpus for q in world.r.plan.quotas] == [200, 140]
    assert world.until(Stage.BUFFERED) == timedelta(0)


def test_a_persons_undo_ends_an_aimed_breach_rollback() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.meanwhile("aim", lambda: world.say(Command.ABORT, run=False))
    breached(world)
    assert (world.stage, world.values) == (Stage.ABORTED, BASELINE)
    assert world.effects == FORWARD + BACK


def test_closing_while_a_rollback_is_aimed_leaves_the_values() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.meanwhile("aim", lambda: world.say(Command.CLOSE, run=False))
    breached(world)
    assert (world.stage, world.values) == (Stage.CLOSED, CUT)


def test_an_abort_while_the_first_plan_is_made_ends_the_rollout() -> None:
    def unstarted(world: World) -> None:
        world.meanwhile("draft", lambda: world.say(Command.ABORT, run=False))

    world = World(TWO, {"main": (361, 240)}, before=unstarted, max_tier="unscheduled")
    assert (world.stage, world.r.ended_because) == (Stage.ABORTED, "because")


def test_an_abort_tells_the_teams_that_had_been_told() -> None:
    world = World().start()
    world.say(Command.ABORT)
    assert (world.stage, world.told_of(NoticeKind.CLOSED)) == (Stage.ABORTED, ["b"])


# --- breach ----------------------------------------------------------------------------------


def test_a_breach_rolls_back_to_what_is_backed_and_the_retry_starts_from_the_baseline_again() -> None:
    """The issue's numbers: T = H = 361, then H = 300; a all busy, b 100 of 161."""
    world = at(Stage.MONITORED, World(**BUFFER_0))
    assert world.values == BASELINE
    world.healthy(300)
    world.wait("9m")
    assert (world.stage, world.values) == (Stage.MONITORED, BASELINE)
    assert {r.team: (r.quota_gpus, r.backing_gpus) for r in world.status.at_risk} == {"a": (200, 166), "b": (161, 134)}
    world.wait("1m")
    assert (world.stage, world.values, world.modes) == (Stage.ROLLED_BACK, {"a": 200, "b": 100}, {LimitMode.SOFT})
    assert world.limit == 300
    assert (breaks(world).why, breaks(world).broken_floors) == (UndoCause.BREACH, ())
    assert world.promises == {}
    assert set(world.told_of(NoticeKind.BREACH)) == {"a", "b", "tpm"}
    world.wait("9d")
    assert world.is_in(Stage.ROLLED_BACK)
    assert "today's health does not back the plan" in world.needs
    world.healthy(361)
    assert world.until(Stage.BUFFERED) == 6 * HOUR  # recover_after; inside the envelope, notice served
    assert world.values == BASELINE
    assert world.r.attempt == 2
    assert [p.assigned_gpus for p in world.plans] == [361, 361]
    world.until(Stage.MONITORED)
    assert world.r.failures == 0


def test_a_blip_shorter_than_breach_after_writes_nothing_though_its_end_goes_unseen() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.healthy(300)
    world.wait("2m")
    world.watch_runs = False
    world.healthy(361)
    world.wait("3h")
    assert world.is_in(Stage.MONITORED)
    assert world.effects == FORWARD


def test_a_breach_is_answered_where_looking_fails() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.healthy(300)
    world.looks_fail = True
    world.wait("10m")
    assert world.is_in(Stage.ROLLED_BACK)


@pytest.mark.parametrize("held_by", ["pause", "freeze", "objection"])
def test_no_hold_stops_a_breach_rollback(held_by: str) -> None:
    world = at(Stage.BUFFERED, World(**QUICK))
    if held_by == "pause":
        world.say(Command.PAUSE)
    elif held_by == "freeze":
        world.window(WindowKind.FREEZE, "9d")
    else:
        world.say(Command.OBJECT, actor="bob", team="b")
    breached(world)
    assert (world.stage, world.values) == (Stage.ROLLED_BACK, {"a": 200, "b": 100})


def test_rollback_to_baseline_restores_it_softly_and_advisory() -> None:
    world = breached(at(Stage.MONITORED, World(**QUICK, rollback_to="baseline")))
    assert (world.stage, world.values, world.modes) == (Stage.ROLLED_BACK, BASELINE, {LimitMode.SOFT})
    assert world.promises == {}
    world.healthy(361)
    world.until(Stage.BUFFERED)
    assert world.values == CUT


def test_pauses_grow_and_when_the_attempts_are_spent_a_person_is_called() -> None:
    world = at(Stage.BUFFERED, World(**QUICK, attempts=3))
    pauses = []
    for _ in range(2):
        breached(world)
        world.healthy(361)
        pauses.append(world.until(Stage.BUFFERED))
    assert pauses == [6 * HOUR, 12 * HOUR]
    assert world.told_of(NoticeKind.HELD) == []
    breached(world)
    world.healthy(361)
    assert world.told_of(NoticeKind.HELD) == ["tpm"]
    world.wait("9d")
    assert (world.stage, world.r.failures) == (Stage.ROLLED_BACK, 3)
    assert "backstop retry c1" in world.needs
    world.say(Command.RETRY)
    assert world.is_in(Stage.BUFFERED)


def test_health_must_have_been_good_all_the_while() -> None:
    world = breached(at(Stage.BUFFERED, World(**QUICK)))
    world.healthy(361)
    world.wait("5h")
    world.healthy(300)
    world.wait("1m")
    world.healthy(361)
    assert world.until(Stage.BUFFERED) == 6 * HOUR


def test_a_retry_outside_the_envelope_asks() -> None:
    world = breached(at(Stage.BUFFERED, World(**QUICK)))
    world.say(Command.RETRY)  # at 300 healthy: a 200 -> 195, b 161 -> 97
    assert (world.stage, world.r.is_approved) == (Stage.PLANNED, False)
    world.wait("9d")
    assert world.is_in(Stage.PLANNED)
    world.approve()
    assert (world.stage, world.values) == (Stage.BUFFERED, {"a": 195, "b": 97})


def test_a_paused_rollout_is_not_retried() -> None:
    world = breached(at(Stage.BUFFERED, World(**QUICK)))
    world.say(Command.PAUSE)
    world.healthy(361)
    world.wait("9d")
    assert world.is_in(Stage.ROLLED_BACK)
    world.say(Command.RESUME)
    assert world.is_in(Stage.BUFFERED)


def test_a_quota_that_only_rounding_spares_is_not_told_that_others_gave_what_costs_less() -> None:
    """All GPUs are busy: a and b give the 10 that are missing, and the one of c costs as much as theirs."""
    quotas = (quota("a", 50), quota("b", 49), quota("c", 1))
    world = at(Stage.MONITORED, World(quotas, {"main": (100, 100)}, **BUFFER_0))
    world.healthy(90)
    world.wait("10m")
    assert world.values == {"a": 45, "b": 44, "c": 1}
    assert notices(world, NoticeKind.ROLLED_BACK)["c"].reasons == (
        "Backstop takes none of the 1 GPU that the quota would have without the rollout: other quotas gave enough",
    )


def test_a_breach_during_a_rollback_does_not_move_its_target() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.meanwhile(
        "unfollow", lambda: world.islands.update(main=world.islands["main"].model_copy(update={"healthy_gpus": 240}))
    )
    breached(world)
    assert (world.stage, world.values) == (Stage.ROLLED_BACK, {"a": 200, "b": 100})
    assert "a lacks" in "; ".join(world.story[-6:])  # recorded


def test_an_abort_after_a_breach_rollback_undoes_to_the_baseline() -> None:
    world = breached(at(Stage.MONITORED, World(**QUICK)))
    world.say(Command.ABORT)
    assert (world.stage, world.values, world.modes, world.limit) == (Stage.ABORTED, BASELINE, {LimitMode.HARD}, None)


def test_what_stands_behind_quotas_says_that_it_is_by_a_sample_in_doubt() -> None:
    world = at(Stage.MONITORED, World(**BUFFER_0, plausible_drop=0.2))
    world.healthy(241)
    status = world.status
    assert (status.healthy_gpus, status.doubted_gpus, status.at_risk) == (361, 241, ())
    assert (status.assigned_gpus, status.backed_gpus, status.phantom_gpus) == (361, 241, 120)
    page = io.StringIO()
    Console(file=page, width=200).print(*status_parts(status, world.now))
    (now,) = (text for text in page.getvalue().splitlines() if " promised, " in text)
    assert (
        "241 backed, 120 phantom; surplus 0, flex 0; computed from a newer sample, which is in doubt: 241 healthy"
        in now
    )
    world.healthy(361)
    assert world.status.doubted_gpus is None


def test_a_quota_that_the_breach_does_not_touch_keeps_its_value() -> None:
    quotas = (quota("x", 100, islands=("X",)), quota("y", 100, islands=("Y",)))
    world = World(quotas, {"X": (100, 100), "Y": (100, 100)}, **BUFFER_0, plausible_drop=0.5)
    at(Stage.MONITORED, world)
    world.healthy(X=80)
    world.wait("11m")
    assert world.values == {"x": 80, "y": 100}


def test_broken_floors_are_listed_and_the_state_can_be_carried_over() -> None:
    quotas = (quota("a", 100, minimum_gpus=90), quota("b", 100, protected_blocks=(64,)))
    world = World(quotas, {"main": (200, 200)}, **BUFFER_0, plausible_drop=0.9)
    at(Stage.MONITORED, world)
    world.healthy(60)
    world.wait("11m")
    assert sum(world.values.values()) == 60
    assert len(breaks(world).broken_floors) == 2
    assert world.values == {"a": 0, "b": 60}
    world.foreign("b", 59)  # its block of 64 is clipped
    world.say(Command.RESOLVE, hold="drift", how="accept")
    world.healthy(200)
    world.until(Stage.BUFFERED)
    assert world.values == {"a": 100, "b": 59}


def test_too_many_clusters_at_once_hold_and_a_person_lets_the_rollback_go() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.breaching_elsewhere = 3
    breached(world)
    assert (world.stage, world.values, world.holds) == (Stage.MONITORED, CUT, {"rollback"})
    assert world.promises == {}
    world.wait("1d")
    assert world.is_in(Stage.MONITORED)
    world.say(Command.RESOLVE, hold="rollback")
    assert (world.stage, world.values) == (Stage.ROLLED_BACK, {"a": 200, "b": 100})


def test_a_rollback_that_was_held_is_not_needed_when_health_returns() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.breaching_elsewhere = 3
    breached(world)
    world.healthy(361)
    world.wait("29m")
    assert world.holds == {"rollback"}
    world.wait("1m")
    assert (world.holds, world.promises) == (set(), CUT)


def test_on_breach_hold_withdraws_the_promise_until_health_has_been_good() -> None:
    world = at(Stage.MONITORED, World(**QUICK, on_breach="hold"))
    breached(world)
    assert (world.stage, world.values, world.holds, world.promises) == (Stage.MONITORED, CUT, {"breach"}, {})
    assert [n.facts.get("recovers") for n in world.sent if n.kind is NoticeKind.HELD] == ["30m"]
    looks = world.looks()
    world.say(Command.RESOLVE, hold="breach")
    assert (world.holds, world.promises) == (set(), {})
    world.wait("2h")
    assert (world.holds, world.promises) == (set(), {})
    assert world.looks() - looks < 8
    world.healthy(361)
    world.wait("30m")
    assert world.promises == CUT
    assert world.effects == FORWARD


def test_on_breach_hold_withdraws_the_promise_of_each_further_team() -> None:
    quotas = (quota("x", 100, islands=("X",)), quota("y", 100, islands=("Y",)))
    policy = {**BUFFER_0, "on_breach": "hold", "plausible_drop": 0.5}
    world = at(Stage.MONITORED, World(quotas, {"X": (100, 100), "Y": (100, 100)}, **policy))
    world.healthy(X=80)
    world.wait("11m")
    assert (world.r.breach_of, world.promises) == (("x",), {"y": 100})
    world.healthy(Y=80)
    world.wait("11m")
    assert (world.r.breach_of, world.promises) == (("x", "y"), {})
    assert world.told_of(NoticeKind.BREACH) == ["x", "tpm", "y", "tpm"]


def test_the_end_of_a_held_breach_needs_no_event() -> None:
    """No signal comes when health has been good for clear_after."""
    world = breached(at(Stage.MONITORED, World(**QUICK, on_breach="hold", safety_poll="5d")))
    world.healthy(361)
    world.watch_runs = False
    world.wait("31m")
    assert world.promises == CUT


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (Stage.PLANNED, "resumed"),
        (Stage.BUFFERED, "resumed; the soak starts anew"),
        (Stage.ENFORCED, "resumed; the soak starts anew"),
        (Stage.MONITORED, "resumed"),
    ],
)
def test_a_soak_starts_anew_where_there_is_one(stage: Stage, said: str) -> None:
    world = at(stage, World(**({} if stage is Stage.PLANNED else QUICK)))
    world.say(Command.PAUSE)
    world.wait("5m")
    assert world.say(Command.RESUME) == said
    waited_until = [c.until for c in world.status.waiting_for if c.name == "soak"]
    soaked = world.r.policy.soak_buffered if stage is Stage.BUFFERED else world.r.policy.soak_enforced
    assert waited_until == ([world.now + soaked] if "soak" in said else [])


REALIGN: dict[str, Any] = {**QUICK, "on_breach": "realign"}


def test_realign_inside_the_envelope_writes_in_place() -> None:
    world = World(**REALIGN)
    world.healthy(300)
    world.wait("11m")
    world.approve()  # the envelope: a gives up to 5, b up to 64
    world.healthy(361)
    assert world.is_in(Stage.BUFFERED)
    world.say(Command.ROLLBACK)
    world.say(Command.RETRY)
    world.until(Stage.ENFORCED)
    assert world.values == CUT
    breached(world)
    assert (world.stage, world.values, world.modes) == (Stage.ENFORCED, {"a": 195, "b": 97}, {LimitMode.HARD})
    assert (world.limit, world.r.breach_of, world.holds) == (292, (), set())
    assert world.until(Stage.MONITORED) == HOUR - timedelta(minutes=1)  # the soak starts again
    world.say(Command.ROLLBACK)
    assert world.values == BASELINE


@pytest.mark.parametrize(
    ("on_breach", "writes"),
    [("realign", [(55, 0, 55), (14, 6, 8)]), ("rollback", [(55, 0, 55), (6, 6, 0), (8, 0, 8)])],
)
def test_what_a_write_took_that_had_no_hardware_is_counted_once(
    on_breach: str, writes: list[tuple[int, int, int]]
) -> None:
    """By hand: 361 GPUs are promised and cut to 306; 300 stay healthy, and 292 would keep a node to spare.

    So 6 of 306 had no hardware, whoever took them, and the 8 from 300 to 292 had.
    """
    world = breached(at(Stage.MONITORED, World(**QUICK, on_breach=on_breach)))
    if on_breach == "rollback":
        world.say(Command.RETRY)
    world.approve()
    world.wait("2h")
    assert world.values == {"a": 195, "b": 97}
    assert [(cut["gpus"], cut["phantom_gpus"], cut["to_flex_gpus"]) for cut in world.cuts] == writes


def test_realign_outside_the_envelope_holds_until_it_is_approved() -> None:
    world = breached(at(Stage.MONITORED, World(**REALIGN)))
    assert (world.stage, world.values, world.holds, world.promises) == (Stage.MONITORED, CUT, {"realign"}, {})
    assert world.told_of(NoticeKind.HELD) == ["tpm"]
    world.wait("1d")
    assert world.values == CUT
    assert "backstop approve" in world.needs
    world.approve()
    assert (world.values, world.holds, world.promises) == ({"a": 195, "b": 97}, set(), {"a": 195, "b": 97})


def test_an_approved_realignment_that_health_no_longer_backs_is_planned_again_and_not_written() -> None:
    world = breached(at(Stage.MONITORED, World(**REALIGN)))
    world.watch_runs = False
    world.healthy(270)
    world.approve()
    assert (world.values, world.holds) == (CUT, {"realign"})
    world.approve()
    assert world.values == {"a": 175, "b": 87}


def test_a_realignment_that_is_not_backed_within_max_tier_holds_and_is_not_written() -> None:
    world = at(Stage.MONITORED, World(**REALIGN, max_tier="unscheduled", plausible_drop=0.5))
    breached(world, 250)
    assert (world.values, world.holds) == (CUT, {"realign"})
    with pytest.raises(Refused, match="not backed"):
        world.approve()
    world.wait("1d")
    assert (world.values, world.promises) == (CUT, {})
    world.say(Command.ROLLBACK)
    assert world.values == BASELINE


def test_a_realignment_that_is_not_needed_any_more_is_dropped_with_its_plan() -> None:
    world = breached(at(Stage.MONITORED, World(**REALIGN)))
    assert world.r.plan is not None
    assert world.r.plan.values == {"a": 195, "b": 97}
    world.healthy(361)
    world.wait("30m")
    assert (world.r.plan.values, world.holds, world.promises) == (CUT, set(), CUT)
    assert world.r.is_approved
    assert world.effects == FORWARD


def test_a_realignment_past_the_blast_radius_holds_and_is_written_when_a_person_lifts_it() -> None:
    world = World(**{**REALIGN, "max_moved_gpus": 1000})
    world.healthy(300)
    world.wait("11m")
    world.approve()
    world.until(Stage.MONITORED)
    assert world.values == {"a": 195, "b": 97}
    world.r = world.r.but(policy=world.r.policy.but(max_moved_gpus=3))
    world.foreign("b", 80)
    world.say(Command.RESOLVE, hold="drift", how="restore")
    assert world.holds == {"blast_radius", "drift"}
    world.say(Command.RESOLVE, hold="blast_radius")
    world.say(Command.RESOLVE, hold="drift", how="restore")
    assert (world.values, world.holds, world.r.stay.exempt) == ({"a": 195, "b": 97}, set(), False)


def realigns_under_drift(meanwhile: Callable[[World], object] = lambda world: None) -> World:
    """The write in place finds b at 105, not at our 106, and leaves it. `meanwhile`: while it is under way."""
    world = World(**REALIGN)
    world.healthy(300)
    world.wait("11m")
    world.approve()  # the envelope: a gives up to 5, b up to 64
    world.say(Command.ROLLBACK)
    world.healthy(361)
    world.say(Command.RETRY)
    assert (world.stage, world.values) == (Stage.BUFFERED, CUT)
    world.foreign("b", 105)
    world.meanwhile("set_soft", lambda: meanwhile(world))
    breached(world)
    assert (
        "conflict: others changed b, which is 105, and not 106 as Backstop expected; Backstop leaves it alone"
        in world.story
    )
    return world


def test_a_realignment_under_drift_leaves_alone_what_others_changed() -> None:
    world = realigns_under_drift()
    assert (world.values, world.holds) == ({"a": 195, "b": 105}, {"drift"})


def test_so_does_an_undo_after_it_or_in_the_middle_of_it() -> None:
    """The write reads the foreign value, which would otherwise be taken for ours and overwritten."""
    after = realigns_under_drift()
    after.say(Command.ABORT)
    between = realigns_under_drift(lambda world: world.say(Command.ABORT, run=False))
    for world in (after, between):
        assert (world.stage, world.values) == (Stage.ABORTED, {"a": 200, "b": 105})


def test_what_others_changed_before_a_breach_rollback_waits_for_a_person_before_the_next_attempt() -> None:
    world = at(Stage.MONITORED, World(**BUFFER_0, plausible_drop=0.5))
    world.foreign("b", 90)
    assert world.holds == {"drift"}
    breached(world, 280)  # the sum of 290 is above it
    assert (world.stage, world.values["b"]) == (Stage.ROLLED_BACK, 90)
    assert (world.values["a"], world.holds) == (190, {"drift"})
    world.healthy(361)
    world.wait("30d")
    assert (world.stage, world.holds) == (Stage.ROLLED_BACK, {"drift"})
    assert {q.team: q.gpus for q in world.r.baseline.quotas} == BASELINE
    world.say(Command.RESOLVE, hold="drift", how="accept")
    world.until(Stage.BUFFERED)
    assert world.values == {"a": 200, "b": 90}
    world.say(Command.ROLLBACK)
    assert world.values == {"a": 200, "b": 90}


def test_a_quota_added_while_a_realignment_waits_for_approval_is_in_the_next_plan() -> None:
    world = breached(at(Stage.MONITORED, World(**REALIGN)))
    world.foreign("z", 0)
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert world.r.plan is not None
    assert set(world.r.plan.values) == {"a", "b", "z"}
    world.approve()
    assert world.values == {"a": 195, "b": 97, "z": 0}


# --- declared absences -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [WindowKind.MAINTENANCE, WindowKind.SEV])
def test_a_declared_absence_explains_a_shortage_and_holds(kind: WindowKind) -> None:
    world = at(Stage.BUFFERED, World(**QUICK))
    world.window(kind, "4h", gpus=61)
    world.healthy(300)
    world.wait("239m")
    assert (world.stage, world.effects) == (Stage.BUFFERED, FORWARD[:2])
    assert {h.kind.value for h in world.status.holds} == {kind.value}
    assert {r.team for r in world.status.at_risk} == {"a", "b"}
    assert all(r.breach_at is None for r in world.status.at_risk)
    world.healthy(361)
    world.wait("1m")
    assert world.is_in(Stage.ENFORCED)


def test_what_exceeds_the_window_counts() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.window(WindowKind.MAINTENANCE, "4h", gpus=10)
    world.healthy(310)
    world.wait("1h")
    assert world.is_in(Stage.MONITORED)  # 310 + 10 back 306
    world.healthy(290)
    world.wait("11m")
    assert world.is_in(Stage.ROLLED_BACK)


def test_a_shortage_that_outlasts_its_window_breaches_after_it() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.window(WindowKind.SEV, "2h")
    world.healthy(300)
    world.wait("2h")
    assert world.is_in(Stage.MONITORED)
    world.wait("10m")
    assert world.is_in(Stage.ROLLED_BACK)


def test_a_breach_that_is_declared_afterwards_is_not_over() -> None:
    world = breached(at(Stage.MONITORED, World(**QUICK, on_breach="hold")))
    world.window(WindowKind.SEV, "4h")
    world.wait("2h")
    assert (world.promises, "breach" in world.holds) == ({}, True)


def test_recovery_does_not_count_while_the_hardware_is_away() -> None:
    world = breached(at(Stage.MONITORED, World(**QUICK)))
    world.window(WindowKind.SEV, "12h")
    world.wait("12h")
    world.healthy(361)
    assert world.until(Stage.BUFFERED) == 6 * HOUR


# --- closing ---------------------------------------------------------------------------------


def test_close_leaves_the_values_ends_the_promise_and_tells_the_teams() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.say(Command.CLOSE, reason="")
    assert (world.stage, world.values, world.limit, world.follows) == (Stage.CLOSED, CUT, None, False)
    assert world.promises == {}
    assert world.effects == [*FORWARD, EffectKind.CLOSE]
    assert world.told_of(NoticeKind.CLOSED) == ["a", "b"]


def test_close_needs_a_reason_while_a_quota_is_at_risk_even_an_explained_one() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    world.window(WindowKind.MAINTENANCE, "4h")
    world.healthy(300)
    with pytest.raises(Refused, match="at risk"):
        world.say(Command.CLOSE, reason="")
    world.say(Command.CLOSE, reason="moving house")
    assert world.is_in(Stage.CLOSED)


def test_a_rollout_is_not_over_for_the_registry_before_its_last_effect() -> None:
    world = at(Stage.MONITORED, World(**QUICK))
    closing: list[bool] = []
    world.meanwhile("close", lambda: closing.append(world.r.is_closing))
    world.say(Command.CLOSE)
    assert closing == [True]
    assert not world.r.is_closing


@pytest.mark.parametrize("error", ["Refusal", "Unavailable", "Conflict", "BlastRadius", "Drift"])
def test_a_close_while_values_are_restored_ends_whatever_becomes_of_them(error: str) -> None:
    world = at(Stage.MONITORED, World(**QUICK, on_drift="restore"))
    world.fail(EffectKind.SET_SOFT, error)
    world.meanwhile("set_soft", lambda: world.say(Command.CLOSE, run=False))
    world.foreign("b", 90)
    assert (world.stage, world.values["b"]) == (Stage.CLOSED, 90)


# --- shadow ----------------------------------------------------------------------------------


def test_a_shadow_goes_all_the_way_and_writes_nothing() -> None:
    world = at(Stage.MONITORED, World(**QUICK, shadow=True))
    assert (world.values, world.effects, world.holds) == (BASELINE, [], set())
    assert [(t.quota_gpus, t.would_gpus) for t in world.status.teams] == [(200, 200), (161, 106)]
    # What is: all 361 are healthy and promised, none is published. What would be: 306, and 55 that nobody has.
    is_, would = world.status, world.status.would
    assert would is not None
    assert (is_.assigned_gpus, is_.backed_gpus, is_.phantom_gpus, is_.flex_published_gpus) == (361, 361, 0, None)
    assert (would.assigned_gpus, would.backed_gpus, would.phantom_gpus, would.flex_published_gpus) == (306, 306, 0, 55)
    assert world.promises == {}
    breached(world)
    assert world.is_in(Stage.ROLLED_BACK)
    assert [(t.quota_gpus, t.would_gpus) for t in world.status.teams] == [(200, 200), (161, 100)]
    world.healthy(361)
    world.until(Stage.MONITORED)
    world.say(Command.ABORT)
    assert (world.stage, world.values, world.effects) == (Stage.ABORTED, BASELINE, [])


def test_what_would_be_is_the_plan_before_it_is_written_in_the_rows_and_in_the_sums() -> None:
    world = at(Stage.PLANNED, World(shadow=True))
    would = world.status.would
    assert would is not None
    rows = [(t.planned_gpus, t.would_gpus, t.would_backing_gpus) for t in world.status.teams]
    assert rows == [(200, 200, 200), (106, 106, 106)]
    assert (would.assigned_gpus, would.backed_gpus) == (sum(r[1] or 0 for r in rows), sum(r[2] or 0 for r in rows))


@pytest.mark.parametrize("ends", [False, True], ids=["rolled back", "aborted"])
def test_what_would_be_of_an_undone_shadow_is_what_is(ends: bool) -> None:
    """A look after the undo is at the next attempt's plan: a status said 306 in its sums and 361 in its rows."""
    world = at(Stage.BUFFERED, World(**QUICK, shadow=True))
    world.healthy(319)
    world.say(Command.ROLLBACK)
    if ends:
        world.say(Command.ABORT)
    status = world.status
    assert status.stage is (Stage.ABORTED if ends else Stage.ROLLED_BACK)
    assert status.would is not None
    assert (status.would.assigned_gpus, status.would.backed_gpus, status.would.phantom_gpus) == (361, 319, 42)
    assert {t.team: t.would_gpus for t in status.teams} == BASELINE
    assert sum(t.would_backing_gpus or 0 for t in status.teams) == 319


def test_what_would_be_after_a_breach_in_shadow_is_not_said_by_the_look_at_the_next_plan() -> None:
    world = at(Stage.MONITORED, World(**QUICK, shadow=True))
    breached(world)
    assert world.is_in(Stage.ROLLED_BACK)
    assert [t.would_gpus for t in world.status.teams] == [200, 100]
    assert world.status.would is None
    assert [t.would_backing_gpus for t in world.status.teams] == [None, None]


def test_a_shadow_is_not_bothered_by_its_own_values_but_by_those_of_others() -> None:
    world = at(Stage.BUFFERED, World(shadow=True))
    world.wait("2h")
    assert world.holds == set()
    world.foreign("b", 150)
    assert world.holds == {"drift"}
    with pytest.raises(Refused, match="--how restore is only for hold drift"):
        world.say(Command.RESOLVE, hold="drift", how="restore")
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert world.holds == set()
    world.until(Stage.MONITORED)
    assert (world.values, world.effects) == ({"a": 200, "b": 150}, [])


# --- the order of things ---------------------------------------------------------------------


def test_a_retry_ordered_while_a_look_is_under_way_makes_one_plan() -> None:
    world = breached(at(Stage.BUFFERED, World(**QUICK)))
    world.meanwhile("look", lambda: world.say(Command.RETRY, run=False))
    world.healthy(361)
    assert world.is_in(Stage.BUFFERED)
    assert len(world.plans) == 2


def test_a_look_precedes_each_effect_of_a_step() -> None:
    world = World(**QUICK).start()
    last = [a for a in world.actions if not isinstance(a, Draft)]
    assert [type(a) for a in last[-4:]] == [Look, Perform, Perform, Look]


def test_an_objection_between_two_effects_of_a_step_stops_the_second() -> None:
    world = World(**QUICK)
    world.meanwhile("reserve", lambda: world.say(Command.OBJECT, actor="bob", team="b", run=False))
    world.start()
    assert (world.stage, world.values, world.holds) == (Stage.PLANNED, BASELINE, {"objection-b"})
    world.say(Command.RESOLVE, hold="objection-b")
    assert world.is_in(Stage.BUFFERED)


def test_an_adopted_rollout_whose_first_plan_fails_keeps_owing_the_undo() -> None:
    world = World(**QUICK)
    lost = world.r.but(plan=None, standing=(EffectKind.RESERVE, EffectKind.SET_SOFT))
    lost = lost.with_stay(replan="the first plan")
    held = plan_reducers.fail_draft(lost, "no health", world.now)
    assert (held.stage, [h.id for h in held.holds]) == (Stage.PLANNED, ["replan"])
    world.r = held
    world.say(Command.RESOLVE, hold="replan")
    assert world.r.plan is not None
    assert world.holds == set()


def test_what_others_change_while_a_lost_write_is_undone_is_left_alone() -> None:
    world = World(notice="0s")

    def others() -> None:
        world.quotas["a"] = world.quotas["a"].model_copy(update={"gpus": 150})
        world.generation += 1

    world.fail(EffectKind.SET_SOFT, landed=True)
    world.meanwhile("restore", others)
    world.start()
    assert world.effects.count(EffectKind.RESTORE) == 2, "the write was not found, so nothing was tested"
    assert world.values == {"a": 150, "b": 161}


def test_softening_that_lands_on_a_retry_leaves_the_baseline_s_modes() -> None:
    world = World(notice="0s", soak_buffered="0s", soak_enforced="0s").start()
    world.fail(EffectKind.SOFTEN, "Refusal", landed=False)
    world.say(Command.ROLLBACK)
    assert world.is_in(Stage.STUCK)
    world.say(Command.RETRY)
    assert world.is_in(Stage.ROLLED_BACK)
    assert world.effects.count(EffectKind.SOFTEN) == 1
    assert world.modes == {LimitMode.HARD}, "the limits were hard before the rollout"
    assert world.r.standing == ()
