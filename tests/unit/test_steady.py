"""Monitored for good, in a world without Temporal: flex follows health, and drift of every kind is found."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.cluster.flex_size import FlexSight, follow_surplus
from models.cluster.readings import LimitMode
from models.cluster.windows import WindowKind
from models.notices import NoticeKind
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from models.rollout.state import Rollout
from models.rollout.workflow_actions import Perform
from tests.unit.pure_world import T0, Refused, World

QUICK: dict[str, Any] = {"notice": "0s", "soak_buffered": "1h", "soak_enforced": "1h"}
CUT = {"a": 200, "b": 106}
"""The plan of T = H = 361: 306 are promised, and 55 left over."""


def monitored(**policy: Any) -> World:
    world = World(**{**QUICK, **policy})
    world.start().until(Stage.MONITORED)
    return world


def flex(world: World) -> tuple[int | None, list[int]]:
    """Return the flex that a scheduler reads, and each value that it was moved to."""
    return world.flex, world.flexes


# --- the arithmetic ----------------------------------------------------------------------------


@given(
    published=st.none() | st.integers(0, 60),
    surplus=st.integers(0, 60),
    dip=st.integers(0, 60),
    band=st.integers(0, 16),
)
def test_what_is_published_is_never_more_than_there_is_and_grows_only_past_the_band(
    published: int | None, surplus: int, dip: int, band: int
) -> None:
    sight = FlexSight(surplus_gpus=surplus, standing_gpus=max(0, surplus - dip))
    new = follow_surplus(published, sight, band)
    assert new <= surplus
    if published is not None:
        assert new == published or new == surplus < published or published + band < new <= sight.standing_gpus
    assert follow_surplus(new, sight, band) == new, "it comes to rest"


# --- the pool of a monitored cluster -----------------------------------------------------------


def test_the_surplus_is_published_with_monitored_and_no_longer_with_the_end() -> None:
    world = World(**QUICK)
    world.start().until(Stage.ENFORCED)
    assert flex(world) == (None, [])
    world.until(Stage.MONITORED)
    assert (flex(world), world.status.flex_published_gpus) == ((55, []), 55)
    world.say(Command.CLOSE)
    assert (world.flex, world.follows) == (None, False)


def test_a_shrink_is_published_at_once_however_small() -> None:
    world = monitored()
    world.healthy(360)
    assert flex(world) == (54, [54])
    assert "follow: flex 55 -> 54" in world.story
    assert world.status.flex_published_gpus == 54


def test_growth_within_the_band_is_never_published() -> None:
    world = monitored()
    world.healthy(353)
    world.healthy(361)
    world.wait("8d")
    assert flex(world) == (47, [47])


def test_growth_past_the_band_is_published_once_it_has_stood() -> None:
    world = monitored()
    world.healthy(340)
    world.healthy(361)
    assert world.status.flex_grows_at is not None
    world.wait("29m")
    assert flex(world) == (34, [34])
    world.wait("2m")
    assert flex(world) == (55, [34, 55])
    assert world.status.flex_grows_at is None


def test_growth_is_published_to_what_has_stood_and_no_further() -> None:
    world = monitored()
    world.healthy(330)
    world.healthy(345)
    world.wait("20m")
    world.healthy(361)
    world.wait("11m")
    assert flex(world) == (39, [24, 39])
    world.wait("31m")
    assert world.flex == 55


def test_a_look_just_before_the_growth_has_stood_delays_it_by_no_more_than_seconds() -> None:
    world = monitored()
    world.healthy(340)
    world.healthy(361)
    world.wait("1798s")
    world.healthy(360)
    world.look_wanted = True
    world.run()
    world.wait("3s")
    until = world.run()
    assert until is not None
    assert until - world.now < timedelta(seconds=3), "it wakes for it"
    world.wait("3s")
    assert world.flex == 54


def test_a_dip_that_nobody_was_told_of_begins_the_wait_anew() -> None:
    """From 34 the dip to 35 is no edge for the watch, but the samples show it."""
    world = monitored()
    world.healthy(340)
    world.healthy(361)
    world.wait("20m")
    looks = world.looks()
    world.healthy(341)
    world.healthy(361)
    assert world.looks() == looks
    world.wait("11m")
    assert world.flex == 34
    world.wait("31m")
    assert world.flex == 55


def test_a_node_that_flaps_inside_the_band_costs_nothing() -> None:
    world = monitored()
    world.healthy(353)
    looks, entries = world.looks(), len(world.story)
    for _ in range(50):
        world.healthy(361)
        world.wait("20s")
        world.healthy(353)
        world.wait("20s")
    assert (world.looks(), len(world.story)) == (looks, entries)
    assert flex(world) == (47, [47])


def test_nothing_changes_and_nothing_is_done_but_the_safety_poll() -> None:
    world = monitored()
    before = len(world.actions)
    world.wait("1d")
    assert len(world.actions) - before <= 1


def test_a_band_of_zero_publishes_every_gpu_that_has_stood() -> None:
    world = monitored(flex_band_gpus=0)
    world.healthy(354)
    world.healthy(355)
    world.wait("31m")
    assert flex(world) == (49, [48, 49])


def test_a_shortage_leaves_no_flex_and_does_not_wait_for_the_breach() -> None:
    world = monitored()
    world.healthy(300)
    assert flex(world) == (0, [0])
    assert world.is_in(Stage.MONITORED)
    world.wait("11m")
    assert world.is_in(Stage.ROLLED_BACK)
    assert world.flex is None


def test_an_implausible_sample_moves_no_flex_until_it_is_believed() -> None:
    world = monitored(confirm_samples=2)
    world.healthy(200)
    assert world.r.sight.unknown
    assert flex(world) == (55, [])
    world.healthy(361)
    world.wait("2h")
    assert flex(world) == (55, [])


def test_flex_shrinks_in_a_declared_window_and_while_paused() -> None:
    world = monitored()
    world.window(WindowKind.MAINTENANCE, "4h", 40)
    world.say(Command.PAUSE)
    world.healthy(321)
    assert flex(world) == (15, [15])


def test_flex_is_what_the_present_quotas_leave_over_whoever_wrote_them() -> None:
    world = monitored(on_drift="hold")
    world.foreign("a", 150)
    assert "drift" in world.holds
    world.wait("2h")
    assert world.flex == 105
    world.limit = None
    world.foreign("a", 190)
    assert world.flex == 65, "a drift that is not resolved keeps no shrink waiting"


def test_somebody_elses_flex_is_put_right() -> None:
    world = monitored()
    world.flex = 300
    world.wait("2h")
    assert flex(world) == (55, [55])


def test_flex_that_cannot_be_published_is_tried_again_and_undoes_nothing() -> None:
    world = monitored()
    for _ in range(3):
        world.fail(EffectKind.FOLLOW)
    world.healthy(350)
    assert (world.is_in(Stage.MONITORED), world.flex) == (True, 55)
    tries = [a for a in world.actions if a == Perform(EffectKind.FOLLOW)]
    world.wait("10m")
    assert (world.is_in(Stage.MONITORED), flex(world)) == (True, (44, [44]))
    assert world.actions.count(Perform(EffectKind.FOLLOW)) == len(tries) + 3
    assert any("follow failed" in entry for entry in world.story)


def test_flex_whose_answer_was_lost_is_found_as_it_is() -> None:
    world = monitored()
    world.fail(EffectKind.FOLLOW, landed=True)
    world.healthy(350)
    world.wait("10m")
    assert flex(world) == (44, [44])
    assert world.stage is Stage.MONITORED


def test_a_rollback_ordered_while_flex_moves_undoes_it_too() -> None:
    world = monitored()
    world.meanwhile("follow", lambda: world.say(Command.ROLLBACK, run=False))
    world.healthy(350)
    assert (world.is_in(Stage.ROLLED_BACK), world.flex, world.follows) == (True, None, False)


def test_a_shadow_rollout_says_what_flex_would_be_and_writes_none() -> None:
    world = World(shadow=True, **QUICK)
    world.start().until(Stage.MONITORED)
    world.healthy(350)
    world.wait("1m")
    assert (world.flex, world.r.flex.gpus) == (None, 44)
    assert world.effects == []


def test_a_rollout_that_was_monitored_before_flex_was_published_begins_with_its_next_look() -> None:
    world = monitored()
    world.flex, world.flexes = None, []
    world.r = Rollout.model_validate(world.r.model_dump(exclude={"flex_gpus", "flex_since", "flex_failed_at", "rests"}))
    world.wait("2h")
    assert (flex(world), world.values) == ((55, [55]), CUT)


def test_an_adopted_rollout_publishes_its_own_surplus_where_another_one_s_is_still_followed() -> None:
    world = World(**QUICK)
    world.start().until(Stage.ENFORCED)
    world.follows, world.flex = True, 99
    world.r = world.r.but(standing=(*world.r.standing, EffectKind.FOLLOW))
    world.until(Stage.MONITORED)
    assert (world.flex, world.r.flex.gpus) == (55, 55)


@pytest.mark.parametrize("lost", [1, 9, 54])
def test_health_that_falls_while_flex_grows_is_followed(lost: int) -> None:
    world = monitored()
    world.healthy(330)
    world.healthy(361)
    world.meanwhile("follow", lambda: world.healthy_unnoticed(361 - lost))
    world.wait("31m")
    world.noticed()
    assert world.flex == 55 - lost


# --- drift ---------------------------------------------------------------------------------------


def test_a_drift_says_who_changed_what_and_when() -> None:
    world = monitored()
    world.foreign("a", 180, by="user slurmctl (psql)")
    (hold,) = world.status.holds
    assert hold.reason == "changed by others: a 200 -> 180, by user slurmctl (psql) at 2026-01-05 10:00:00Z"
    assert f"drift: {hold.reason.removeprefix('changed by others: ')}" in world.story
    (notice,) = [n for n in world.sent if n.kind is NoticeKind.HELD]
    assert (notice.audience, notice.detail) == ("tpm", hold.reason)


@pytest.mark.parametrize("policy", ["restore", "accept"])
def test_the_audit_names_them_where_policy_answers_too(policy: str) -> None:
    world = monitored(on_drift=policy)
    world.foreign("a", 180, by="user slurmctl")
    assert world.values["a"] == (200 if policy == "restore" else 180)
    assert "drift: a 200 -> 180, by user slurmctl at 2026-01-05 10:00:00Z" in world.story
    assert world.holds == set()


def test_whoever_changes_it_next_is_named() -> None:
    world = monitored()
    world.foreign("a", 180, by="ann")
    world.foreign("a", 190, by="bob")
    (hold,) = world.status.holds
    assert "ann" not in hold.reason
    assert hold.reason.startswith("changed by others: a 200 -> 190, by bob")


def test_a_mode_that_others_set_is_a_drift_and_holds() -> None:
    world = monitored()
    world.foreign("a", 200, mode=LimitMode.SOFT, by="ann")
    (hold,) = world.status.holds
    assert hold.reason.startswith("changed by others: a hard -> soft, by ann")
    world.foreign("a", 200, mode=LimitMode.HARD)
    assert world.holds == set()


def test_a_mode_is_restored_and_no_value_is_moved_for_it() -> None:
    world = monitored(on_drift="restore")
    world.foreign("b", 106, mode=LimitMode.SOFT)
    assert (world.values, world.modes, world.holds) == (CUT, {LimitMode.HARD}, set())
    assert world.effects.count(EffectKind.SET_SOFT) == 2


def test_a_value_and_its_mode_are_one_drift() -> None:
    world = monitored()
    world.foreign("a", 180, mode=LimitMode.SOFT)
    (hold,) = world.status.holds
    assert hold.reason == "changed by others: a 200 -> 180, hard -> soft"
    world.say(Command.RESOLVE, hold="drift", how="restore")
    assert (world.values, world.modes, world.holds) == (CUT, {LimitMode.HARD}, set())


@pytest.mark.parametrize("policy", ["accept", "hold"])
def test_an_accepted_mode_stays_and_an_undo_leaves_it(policy: str) -> None:
    world = monitored(on_drift=policy)
    world.foreign("a", 200, mode=LimitMode.SOFT)
    if policy == "hold":
        world.say(Command.RESOLVE, hold="drift", how="accept")
    assert world.holds == set()
    world.wait("3h")
    assert world.quotas["a"].mode is LimitMode.SOFT
    assert world.holds == set()
    world.foreign("b", 106, mode=LimitMode.SOFT)
    if policy == "hold":
        assert world.holds == {"drift"}
        world.say(Command.RESOLVE, hold="drift", how="restore")
        assert (world.quotas["a"].mode, world.quotas["b"].mode) == (LimitMode.SOFT, LimitMode.HARD)
    world.say(Command.ROLLBACK)
    assert world.quotas["a"].mode is LimitMode.SOFT
    assert world.values == {"a": 200, "b": 161}


def test_our_own_modes_are_no_drift_at_any_stage() -> None:
    world = World(**QUICK)
    world.start()
    for stage in (Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED):
        world.until(stage)
        assert world.holds == set()
    world.healthy(300)
    world.wait("11m")
    assert world.is_in(Stage.ROLLED_BACK)
    assert world.holds == set()


def test_a_quota_system_that_does_not_count_modes_is_not_asked_for_them() -> None:
    world = monitored()
    world.counts_modes = False
    world.foreign("a", 200, mode=LimitMode.SOFT)
    assert world.holds == set()


# --- long-run health -----------------------------------------------------------------------------


NO_BUFFER: dict[str, Any] = {**QUICK, "buffer": 0}
"""The ceiling follows health, one node below it: 353 of 361."""


def lived(world: World, healthy: int, length: str = "5d") -> World:
    """This many GPUs have been healthy for so long."""
    world.healthy(healthy)
    world.wait(length)
    return world


def worse(**policy: Any) -> World:
    """Made on 361, promising 353, of which 353 stay healthy: backed, and no node to spare for most of a week."""
    world = monitored(**{**NO_BUFFER, **policy})
    world.wait("8d")
    return lived(world, 353)


def better(**policy: Any) -> World:
    """Made on 330, promising 322 where 361 were promised; for most of a week there have been 361."""
    world = World(islands={"main": (361, 330)}, **{**NO_BUFFER, **policy})
    world.start().until(Stage.MONITORED)
    world.wait("8d")
    return lived(world, 361)


def test_worse_health_in_the_long_run_is_proposed_and_waits_for_approval() -> None:
    world = worse(replan_gpus=7)
    before = dict(world.values)
    proposal = world.status.proposal
    assert proposal is not None
    assert (proposal.healthy_gpus, proposal.planned_gpus, proposal.inside) == (353, 361, False)
    assert [(v.team, v.quota_gpus - v.proposed_gpus) for v in proposal.values] == [("b", 8)]
    assert sum(before.values()) == 353
    assert proposal.plan_hash in world.needs
    (notice,) = [n for n in world.sent if n.kind is NoticeKind.HELD]
    assert (notice.audience, proposal.plan_hash in notice.detail) == ("tpm", True)
    world.wait("3d")
    assert world.values == before, "nothing outside what was approved is written by itself"
    world.approve()
    assert (world.is_in(Stage.MONITORED), sum(world.values.values())) == (True, 345)
    assert (world.status.proposal, world.r.is_realigning, world.modes, world.limit) == (
        None,
        False,
        {LimitMode.HARD},
        345,
    )
    assert world.r.plan is not None
    assert (world.r.plan.hash, world.r.is_approved) == (proposal.plan_hash, True)
    assert world.told_of(NoticeKind.CHANGED) == ["b"]
    assert world.backing().surplus_gpus == 8
    assert world.flex == 0, "and no flex: a node is inside the band"


def test_better_health_in_the_long_run_gives_back_what_was_cut_by_itself() -> None:
    world = better()
    assert sum(world.values.values()) == 353
    assert world.status.proposal is None
    assert world.told_of(NoticeKind.CHANGED) == ["b"], "who gets something back is told, though still cut"
    assert any("inside what was approved" in text for text in world.story)
    world.say(Command.ROLLBACK)
    assert world.values == {"a": 200, "b": 161}


def test_a_policy_may_ask_for_a_person_even_inside_what_was_approved() -> None:
    world = better(on_long_run="propose")
    proposal = world.status.proposal
    assert proposal is not None
    assert proposal.inside
    assert sum(world.values.values()) == 322
    world.approve()
    assert sum(world.values.values()) == 353


def test_a_policy_may_ask_for_no_proposals() -> None:
    world = better(on_long_run="ignore")
    assert (world.status.proposal, sum(world.values.values()), len(world.plans)) == (None, 322, 1)


def test_health_that_is_not_the_usual_one_proposes_nothing() -> None:
    world = monitored(**NO_BUFFER, replan_gpus=7)
    world.wait("8d")
    lived(world, 353, "3d")
    assert (world.status.proposal, len(world.plans)) == (None, 1)


def test_too_short_a_history_proposes_nothing() -> None:
    world = monitored(**NO_BUFFER, replan_gpus=7)
    lived(world, 353, "6d")
    assert (world.status.proposal, len(world.plans)) == (None, 1)


def test_health_within_the_threshold_proposes_nothing() -> None:
    world = worse()  # one node by default, and it takes more than that
    assert (world.status.proposal, len(world.plans)) == (None, 1)


def test_a_plan_that_would_change_nothing_is_not_proposed_and_not_made_again_and_again() -> None:
    world = monitored(replan_gpus=7)
    world.wait("8d")
    lived(world, 340, "8d")  # the buffer's ceiling of 306 stays what it is
    assert (world.status.proposal, len(world.plans)) == (None, 2)
    assert not any("proposed" in text for text in world.story)


def test_at_most_one_plan_is_proposed_in_a_window() -> None:
    world = worse(replan_gpus=7)
    first = world.status.proposal
    assert first is not None
    for _ in range(40):
        world.wait("2h")
        world.healthy(354 if world.now.hour % 4 else 360)
    made = [text for text in world.story if text.startswith("proposed plan")]
    assert len(made) == 1
    assert world.told_of(NoticeKind.HELD) == ["tpm"]


def test_health_that_moves_on_within_the_window_brings_no_second_proposal() -> None:
    world = better(on_long_run="propose")
    world.say(Command.RESOLVE, hold="proposal")
    lived(world, 345, "4d")
    assert world.usual(timedelta(days=7)) == {"main": 345}
    assert world.status.proposal is None
    world.wait("4d")  # the rest of the window, and a day in which it does not look
    assert world.status.proposal is not None


def test_a_declined_proposal_does_not_come_back_on_the_same_health() -> None:
    world = worse(replan_gpus=7)
    said = world.say(Command.RESOLVE, hold="proposal")
    assert "declined" in said
    world.wait("30d")
    assert (world.status.proposal, sum(world.values.values()), world.needs) == (None, 353, "")


def test_only_the_proposed_plan_can_be_approved_and_only_once() -> None:
    world = worse(replan_gpus=7)
    assert world.r.plan is not None
    with pytest.raises(Refused, match="the proposed plan is"):
        world.say(Command.APPROVE, plan_hash=world.r.plan.hash)
    world.say(Command.PAUSE)
    world.approve()
    with pytest.raises(Refused, match="approved already, by tpm"):
        world.approve()
    world.wait("2h")
    assert sum(world.values.values()) == 353, "a hold waits"
    world.say(Command.RESUME)
    assert sum(world.values.values()) == 345


def test_a_change_by_others_makes_a_proposal_stale() -> None:
    world = worse(replan_gpus=7, on_drift="accept")
    assert world.status.proposal is not None
    world.foreign("a", 190)
    assert any("is dropped: others changed the cluster" in text for text in world.story)
    assert world.values["a"] == 190


def test_a_proposal_that_today_does_not_back_is_given_up_and_nothing_is_written() -> None:
    world = better(on_long_run="propose")
    world.meanwhile("look", lambda: world.healthy_unnoticed(340))
    world.meanwhile("reserve", lambda: world.healthy_unnoticed(340))
    world.healthy_unnoticed(361)
    before = dict(world.values)
    world.say(Command.APPROVE, plan_hash=world.r.proposal.plan.hash if world.r.proposal else "", run=False)
    world.hooks.clear()
    world.islands["main"] = world.islands["main"].model_copy(update={"healthy_gpus": 340})
    world.run()
    assert world.values == before
    assert world.is_in(Stage.MONITORED)
    assert not world.r.is_realigning


def test_a_breach_comes_before_a_proposal() -> None:
    world = worse(replan_gpus=7, on_breach="rollback")
    assert world.status.proposal is not None
    world.healthy(330)
    world.wait("11m")
    assert world.is_in(Stage.ROLLED_BACK)
    assert world.status.proposal is None


def test_a_proposal_past_the_blast_radius_waits_for_a_person() -> None:
    world = World(islands={"main": (361, 330)}, **{**NO_BUFFER, "max_moved_gpus": 40})
    world.start().until(Stage.MONITORED)
    world.wait("8d")
    world.healthy(361)
    while not world.holds and world.now < T0 + timedelta(days=20):
        world.moves = [(world.now, 30)]  # other rollouts
        world.wait("50m")
    assert world.holds == {"blast_radius"}
    assert sum(world.values.values()) == 322
    world.say(Command.RESOLVE, hold="blast_radius")
    assert sum(world.values.values()) == 353
