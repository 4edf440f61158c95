"""Grants: what fits, what rises with it, and how a rollout takes an order. In a world without Temporal."""

from __future__ import annotations

from typing import Any

import pytest

from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.quota import QuotaTree
from models.cluster.readings import LimitMode
from models.cluster.snapshot import Snapshot
from models.cluster.windows import WindowKind
from models.planning.grants import GrantOrder, GrantOutcome, moved_values, raises, room
from models.rollout import effect_reducers, granting, request_builders
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from tests.unit.pure_world import World, parent, quota

QUICK: dict[str, Any] = {"notice": "0s", "soak_buffered": "1h", "soak_enforced": "1h"}
ROOMY = (quota("a", 200), quota("b", 90, busy=50))
"""290 of 361: C = 306, so no cut, and room for 16."""
CUT = (quota("a", 200), quota("b", 161, busy=100))
ONLY_LATER = "and Backstop writes grants only once it is monitored or has ended"


def monitored(quotas: Any = ROOMY, **more: Any) -> World:
    world = World(quotas, **{**QUICK, **more})
    world.start().until(Stage.MONITORED)
    return world


def snapshot(healthy: int, *quotas: Any, total: int = 100, **islands: tuple[int, int]) -> Snapshot:
    where = islands or {"main": (total, healthy)}
    made = tuple(Island(name=n, total_gpus=t, healthy_gpus=h) for n, (t, h) in where.items())
    return Snapshot(cluster="c1", islands=made, quotas=quotas)


# --- what fits ---------------------------------------------------------------------------------


def test_it_fits_up_to_the_ceiling() -> None:
    found = room(snapshot(100, quota("a", 40), quota("b", 30)), Policy(), "a", 20)
    assert (found.ceiling_gpus, found.assigned_gpus, found.fits_gpus) == (85, 70, 15)
    assert found.why == "c1 may promise 85 GPUs, and 70 are spoken for"
    assert room(snapshot(100, quota("a", 40), quota("b", 30)), Policy(), "a", 15).why == ""


def test_it_fits_up_to_the_healthy_hardware_of_the_team_s_own_islands() -> None:
    quotas = quota("a", 30, islands=("x",)), quota("b", 20)
    found = room(snapshot(0, *quotas, x=(50, 40), y=(50, 50)), Policy(), "a", 20)
    assert (found.ceiling_gpus, found.fits_gpus) == (82, 10)
    assert "have too few healthy GPUs today for this many more" in found.why
    assert room(snapshot(0, *quotas, x=(50, 40), y=(50, 50)), Policy(), "b", 20).fits_gpus == 20


def test_nothing_fits_where_more_is_promised_than_may_be() -> None:
    assert room(snapshot(60, quota("a", 80)), Policy(), "a", 1).fits_gpus == 0


def test_it_takes_nothing_from_behind_others_and_no_block_s_place() -> None:
    quotas = quota("a", 10), quota("b", 40, islands=("x",), protected_blocks=(40,))
    found = room(snapshot(0, *quotas, x=(40, 40), y=(60, 20)), Policy(spare_gpus=0), "a", 30)
    assert found.fits_gpus == 10, "a has y's 20 and nothing of x"


@pytest.mark.parametrize(
    ("top", "middle", "asked", "rises"),
    [
        (40, 40, 5, {"leaf": 5, "mid": 5, "top": 5}),
        (40, 43, 5, {"leaf": 5, "mid": 2, "top": 5}),
        (60, 40, 5, {"leaf": 5, "mid": 5}),
        (30, 40, 5, {"leaf": 5, "mid": 5, "top": 5}),  # the top withholds: without it the grant were worth nothing
        (60, 60, 5, {"leaf": 5}),
    ],
)
def test_quotas_above_rise_as_far_as_they_have_no_room(top: int, middle: int, asked: int, rises: Any) -> None:
    values = {"top": top, "mid": middle, "leaf": 25, "other": 15}
    quotas = [
        parent("top", top),
        parent("mid", middle, parent="top"),
        *(quota(t, values[t], parent="mid") for t in ("leaf", "other")),
    ]
    tree = QuotaTree(quotas)
    found = raises(tree, values, "leaf", asked)
    after = {**values, **moved_values(values, found)}
    assert found == rises
    assert tree.assigned_gpus(after) - tree.assigned_gpus(values) == asked
    assert {**after, **moved_values(after, found, ends=True)} == values


# --- under a rollout ---------------------------------------------------------------------------


def test_a_monitored_rollout_writes_it_and_what_an_undo_brings_back_has_it() -> None:
    world = monitored()
    answer = world.grant("b", 16)
    assert (answer.outcome, answer.raised) == (GrantOutcome.DONE, {"b": 16})
    assert world.values == {"a": 200, "b": 106}
    assert world.limit == 306, "others may not raise the sum above that"
    assert {q.mode for q in world.quotas.values()} == {LimitMode.HARD}
    world.wait("1d")
    assert (world.r.stage, world.r.holds, world.r.undo) == (Stage.MONITORED, (), None)
    world.say(Command.ROLLBACK)
    world.until(Stage.ROLLED_BACK)
    assert world.values == {"a": 200, "b": 106}


def test_it_ends_and_may_be_ended_twice() -> None:
    world = monitored()
    raised = world.grant("b", 16).raised
    for _ in range(2):
        assert world.grant("b", 16, ends=raised).outcome is GrantOutcome.DONE
        assert world.values == {"a": 200, "b": 90}
    assert (world.limit, world.effects.count(EffectKind.GRANT)) == (290, 2)


def test_asked_again_it_is_written_once() -> None:
    world = monitored()
    assert world.grant("b", 5).raised == world.grant("b", 5).raised == {"b": 5}
    assert (world.values["b"], world.effects.count(EffectKind.GRANT)) == (95, 1)


def test_above_the_ceiling_it_is_refused() -> None:
    world = monitored()
    answer = world.grant("b", 17)
    assert (answer.outcome, answer.said) == (GrantOutcome.NO, "c1 may promise 306 GPUs, and 290 are spoken for")
    assert world.values == {"a": 200, "b": 90}


def test_what_the_rollout_freed_is_nobody_s_to_take() -> None:
    world = monitored(CUT)
    assert sum(world.values.values()) == 306
    answer = world.grant("b", 1)
    assert answer.outcome is GrantOutcome.NO
    assert answer.said == "c1 may promise 306 GPUs, and 361 are spoken for, counting what its rollout cut"


def test_hardware_that_does_not_back_it_refuses_it_and_no_clock_starts() -> None:
    world = monitored((quota("a", 20, islands=("x",)), quota("b", 20)), islands={"x": (25, 25), "y": (75, 75)})
    answer = world.grant("a", 6)
    assert answer.outcome is GrantOutcome.NO
    assert "cannot back the requested GPUs" in answer.said
    world.wait("2h")
    assert (world.r.stage, world.r.clocks.at_risk) == (Stage.MONITORED, {})
    assert world.grant("a", 5, "r-2").outcome is GrantOutcome.DONE


@pytest.mark.parametrize("stage", [Stage.PLANNED, Stage.BUFFERED, Stage.ENFORCED])
def test_a_rollout_on_its_way_has_it_wait(stage: Stage) -> None:
    world = World(ROOMY, **QUICK)
    if stage is not Stage.PLANNED:
        world.start().until(stage)
    answer = world.grant("b", 1)
    assert (answer.outcome, answer.said) == (GrantOutcome.LATER, f"a rollout of c1 is {stage}, {ONLY_LATER}")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("pause", "paused by tpm: "),
        ("sev", "sev by calendar: "),
        ("risk", "health is unknown or stale"),
        ("drift", "changed by others: a 200 -> 199"),
    ],
)
def test_whatever_holds_a_rollout_holds_a_grant_and_the_answer_names_it(what: str, why: str) -> None:
    world = monitored()
    if what == "pause":
        world.say(Command.PAUSE)
    elif what == "sev":
        world.window(WindowKind.SEV, "1d")
    elif what == "risk":
        world.healthy(280)
    else:
        world.foreign("a", 199)
    answer = world.grant("b", 1)
    assert answer.outcome is GrantOutcome.LATER
    assert answer.said.startswith(f"the rollout of c1 cannot write a grant yet: {why}")
    assert world.values["b"] == 90
    assert EffectKind.GRANT not in world.effects


def test_a_grant_names_its_order_even_if_no_ticket_was_required_when_the_rollout_was_launched() -> None:
    """An access file may have come into force since: then the worker looks for the decision on this order."""
    world, order = monitored(), GrantOrder(request="r-1", team="b", gpus=16, actor="capacity")
    assert not world.r.ticketed
    rollout, change = effect_reducers.begin_effect(granting.take_order(world.r, order), EffectKind.GRANT)
    assert request_builders.effect(rollout, change, world.now).order == order


def test_a_breach_cuts_what_was_granted_too_and_the_end_takes_only_what_is_left_of_it() -> None:
    world = monitored()
    raised = world.grant("b", 16).raised
    world.healthy(250)
    world.until(Stage.ROLLED_BACK)
    assert sum(world.values.values()) == 250
    assert world.grant("b", 16, ends=raised).outcome is GrantOutcome.LATER
    world.healthy(361)
    world.until(Stage.MONITORED)
    assert world.values == {"a": 200, "b": 106}, "planned again from the baseline, the grant in it"
    assert world.grant("b", 16, ends=raised).outcome is GrantOutcome.DONE
    assert world.values == {"a": 200, "b": 90}


def test_a_grant_from_before_the_launch_is_taken_back_from_what_the_plan_left_of_it() -> None:
    world = monitored((quota("a", 200), quota("b", 130, busy=100)))
    assert world.values == {"a": 200, "b": 106}
    answer = world.grant("b", 40, ends={"b": 40})
    assert answer.outcome is GrantOutcome.DONE, "90 without it, and 24 of it are cut already"
    assert world.values == {"a": 200, "b": 90}
    assert answer.said == "b 106 -> 90", "what was taken, and not the 40 of the grant"


def test_a_grant_on_top_of_a_cut_quota_is_taken_back_from_there() -> None:
    """130 was cut to 119 when hardware was short; 5 on top of these end where they began, and not at 124."""
    quotas = (quota("a", 200), quota("b", 130, busy=100))
    world = World(quotas, {"main": (361, 319)}, **QUICK, buffer=0, spare_gpus=0, on_long_run="ignore")
    world.start().until(Stage.MONITORED)
    cut = world.values["b"]
    assert cut < 130
    world.healthy(361)
    raised = world.grant("b", 5).raised
    assert world.values["b"] == cut + 5
    answer = world.grant("b", 5, ends=raised)
    assert (world.values["b"], answer.said) == (cut, f"b {cut + 5} -> {cut}")
    world.grant("b", 5, "r-2")
    world.grant("b", 3, "r-3")
    assert world.grant("b", 5, "r-2", ends={"b": 5}).said == f"b {cut + 8} -> {cut + 3}", "the other stands on"
    assert world.grant("b", 3, "r-3", ends={"b": 3}).said == f"b {cut + 3} -> {cut}"


def test_the_end_of_a_grant_that_a_plan_has_cut_whole_says_that_nothing_is_left() -> None:
    world = monitored((quota("a", 200), quota("b", 161, busy=100)))
    answer = world.grant("b", 40, ends={"b": 40})
    assert (answer.outcome, answer.said) == (GrantOutcome.DONE, "nothing of it was left")
    assert world.values == {"a": 200, "b": 106}


def test_what_others_changed_since_is_not_taken_back() -> None:
    world = monitored(on_drift="accept")
    raised = world.grant("b", 16).raised
    world.foreign("b", 100)
    world.wait("1h")
    answer = world.grant("b", 16, ends=raised)
    assert (answer.outcome, answer.said) == (GrantOutcome.NO, "others have changed the quota of b since the grant")
    assert world.values["b"] == 100


def test_an_undo_that_is_ordered_while_it_is_written_keeps_it() -> None:
    world = monitored()
    world.meanwhile("grant", lambda: world.say(Command.ROLLBACK, run=False))
    assert world.grant("b", 16).outcome is GrantOutcome.DONE
    world.until(Stage.ROLLED_BACK)
    assert world.values == {"a": 200, "b": 106}


def test_a_generation_that_moved_while_it_is_written_has_it_come_again() -> None:
    world = monitored()
    world.fail(EffectKind.GRANT, "Drift")
    assert world.grant("b", 16).outcome is GrantOutcome.LATER
    assert (world.values["b"], world.grant("b", 16).outcome) == (90, GrantOutcome.DONE)


def test_a_shadow_rollout_writes_no_grant() -> None:
    world = World(ROOMY, shadow=True, **QUICK)
    world.start().until(Stage.MONITORED)
    said = "a shadow rollout of c1 is monitored, and Backstop writes grants only after it has ended"
    assert world.grant("b", 1).said == said
