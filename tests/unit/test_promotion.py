"""The sentences about a promote, before it and in its answer, name exactly what it leaves as it was."""

from __future__ import annotations

import pytest

from cli.output import show
from models.rollout.command_previews import ahead_of
from models.rollout.promotion_text import WAIVED
from models.rollout.stages import Command, Stage
from tests.unit.pure_world import Refused, World
from tests.unit.test_ahead import AT, begun, waiting
from views.consequence import promote_parts
from web.console.pages.cluster import _consequence


def leaves(world: World) -> tuple[str, ...]:
    return ahead_of(world.r, world.now).promote_leaves


def promoted(world: World) -> str:
    """Return what the answer names beside what is waived; the sentence before the command named the same."""
    before = leaves(world)
    said = world.say(Command.PROMOTE)
    assert said.split("; ")[0] == WAIVED
    assert said == "; ".join((WAIVED, *before))
    return said.removeprefix(WAIVED)


def test_before_an_approval_nobody_was_told_and_after_it_nobody_has_notice() -> None:
    world = waiting()
    said = promoted(world)
    assert "the notice of 24h has not begun: teams (b) are notified once a plan is approved" in said
    assert "from then on their quotas may change at any time" in said
    assert "waits for approval: backstop approve" in said
    assert not world.sent
    at, before = world.now, world.values
    world.start()
    assert (world.now, world.stage) == (at, Stage.BUFFERED)
    changed = {team for team, gpus in world.values.items() if gpus != before[team]}
    assert changed == {"b"} == {notice.audience for notice in world.sent}


def test_another_plan_takes_the_promotion_back_as_it_says() -> None:
    world = waiting()
    assert "if another plan needs approval, the promotion no longer applies" in promoted(world)
    world.r = world.r.with_stay(replan="asked by the test")
    world.run()
    world.start()
    assert (world.stage, world.waits_for) == (Stage.PLANNED, {"notice"})


def test_a_notice_that_is_not_delivered_is_not_shortened_but_overtaken() -> None:
    world = waiting()
    world.mail_works = False
    world.start()
    assert (world.stage, world.waits_for) == (Stage.PLANNED, {"notice"})
    said = promoted(world)
    assert said == (
        "; the notice is not delivered yet, so its 24h have not begun: the quotas of b may change before "
        "those teams are notified"
    )
    assert world.is_in(Stage.BUFFERED)
    assert not world.sent


def test_once_the_notice_runs_and_nobody_objects_it_says_what_is_waived_alone() -> None:
    world = waiting().start()
    assert {notice.audience for notice in world.sent} == {"b"}
    assert promoted(world) == ""
    assert world.is_in(Stage.BUFFERED)


def test_it_says_who_objects_with_their_words_and_the_objection_holds() -> None:
    world = waiting().start()
    world.say(Command.OBJECT, actor="bea", team="b", reason="deadline on Friday")
    assert promoted(world) == '; held until these objections are resolved: b by bea ("deadline on Friday")'
    world.wait("30d")
    assert (world.stage, world.waits_for) == (Stage.PLANNED, {"holds"})
    world.say(Command.RESOLVE, hold="objection-b")
    assert world.is_in(Stage.BUFFERED)


def test_an_objection_that_came_too_late_is_named_and_holds_nothing() -> None:
    world = begun(Stage.ENFORCED, soak_enforced="3d")
    world.say(Command.OBJECT, actor="b", team="b", reason="too little")
    assert promoted(world) == '; these objections do not hold the rollout, but wait for an answer: b ("too little")'
    assert world.is_in(Stage.MONITORED)


def test_a_shadow_tells_nobody_so_that_nothing_is_said_of_notices() -> None:
    world = waiting(shadow=True)
    assert "notice" not in promoted(world).replace("waits for approval", "")


@pytest.mark.parametrize("stage", AT)
@pytest.mark.parametrize("paused", [False, True])
def test_it_goes_on_where_nothing_is_said_to_keep_the_gate_shut_and_there_alone(stage: str, paused: bool) -> None:
    world = AT[stage]()
    if paused and stage in ("planned", "approved", "buffered", "enforced"):
        world.say(Command.PAUSE, run=False, reason="a SEV")
    said, before = leaves(world), world.stage
    try:
        world.say(Command.PROMOTE)
    except Refused:
        assert said == (), "what is refused leads to nothing"
        return
    shut = any(text.startswith(("held", "waits for approval")) for text in said)
    assert (world.stage is before) == shut
    assert not leaves(world), "a second one would be refused"


def test_what_is_shown_before_it_names_the_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    world = waiting().start()
    world.say(Command.OBJECT, actor="bea", team="b", reason="[bold]deadline")
    show(*promote_parts([ahead_of(world.r, world.now)]))
    shown = " ".join(capsys.readouterr().out.split())
    on_the_page = _consequence(Command.PROMOTE, ahead_of(world.r, world.now), world.now)
    assert [str(part) for part in on_the_page] == [shown], "the console's page before it says the same"
    assert shown == f'{world.r.cluster}: held until these objections are resolved: b by bea ("[bold]deadline").'
