"""The soak clock: what starts it again, what stops it, and how long an answer counts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from models.bringup.check_state import CheckState, Terms, colour_at
from models.bringup.checks import CheckAnswer, Colour
from models.bringup.soak_clock import SoakClock, gathered_time, tick_clock, turn_clock
from tests.unit.bringup_world import NOON, BringupWorld, entry, recipe

FIVE, HALF = Terms(timedelta(minutes=5)), timedelta(minutes=30)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def green(at: float = 0) -> CheckState:
    return CheckState().take_answer(CheckAnswer(colour=Colour.GREEN, said="good", at=NOON + minutes(at)))


@pytest.mark.parametrize(
    ("after", "colour"),
    [(0, "green"), (10, "green"), (10.1, "unknown"), (39.9, "unknown"), (40, "red"), (500, "red")],
)
def test_an_answer_counts_for_two_intervals_and_is_red_stale_after_then(after: float, colour: str) -> None:
    assert colour_at(green(), FIVE, NOON + minutes(after), HALF) == colour


def test_an_answer_that_is_asked_for_once_counts_for_good() -> None:
    assert colour_at(green(), Terms(minutes(5), once=True), NOON + timedelta(days=9), HALF) is Colour.GREEN


def test_an_unknown_answer_is_red_after_so_long_whatever_it_says_again() -> None:
    check = green()
    for at in (5, 20, 34):
        check = check.take_answer(CheckAnswer(colour=Colour.UNKNOWN, said="no answer", at=NOON + minutes(at)))
    assert colour_at(check, FIVE, NOON + minutes(34.9), HALF) is Colour.UNKNOWN
    assert colour_at(check, FIVE, NOON + minutes(35), HALF) is Colour.RED


def test_the_clock_stands_while_an_answer_no_longer_counts() -> None:
    checks, rules = {"a": green(0), "b": green(4)}, {"a": FIVE, "b": FIVE}
    clock = turn_clock(SoakClock(), {"a": Colour.GREEN, "b": Colour.GREEN}, NOON + minutes(4))
    at = NOON + minutes(25)
    clock = tick_clock(clock, checks, rules, at, HALF)
    assert (gathered_time(clock, at), clock.since) == (minutes(6), None)  # from 4 to 10, when `a` ran out


def test_red_starts_it_anew_and_unknown_does_not() -> None:
    clock = SoakClock(gathered=minutes(7), since=NOON)
    at = NOON + minutes(3)
    assert turn_clock(clock, {"a": Colour.UNKNOWN}, at) == SoakClock(gathered=minutes(10))
    assert turn_clock(clock, {"a": Colour.RED, "b": Colour.UNKNOWN}, at) == SoakClock()
    assert turn_clock(clock, {"a": Colour.GREEN}, at) == clock


def validating(**changes: object) -> BringupWorld:
    world = BringupWorld(recipe(**changes), entry())
    world.run()
    world.say("check-in")
    assert world.stage == "provisioned"
    return world


def in_production_after(world: BringupWorld) -> timedelta:
    world.wait("20h")
    assert world.b.production is not None
    return world.b.production.at - NOON


def test_production_comes_when_all_were_green_together_for_the_soak() -> None:
    assert in_production_after(validating()) == minutes(120)


def test_a_red_answer_starts_the_soak_anew_and_is_counted() -> None:
    world = validating()
    world.wait("62m")
    world.says["drift"] = Colour.RED
    world.wait("20m")  # asked at 75
    del world.says["drift"]  # asked again at 90
    assert in_production_after(world) == minutes(210)
    assert [world.b.checks[n].reds for n in ("health", "drift", "first-job")] == [0, 1, 0]


def test_an_unknown_answer_stops_the_clock_and_no_more() -> None:
    world = validating()
    world.wait("62m")
    world.says["drift"] = Colour.UNKNOWN
    world.wait("20m")  # asked at 75
    del world.says["drift"]  # asked again at 90
    assert in_production_after(world) == minutes(135)
    assert world.b.checks["drift"].reds == 0


def test_what_stays_unknown_for_too_long_is_red() -> None:
    world = validating(stale_after="10m")
    world.wait("62m")
    world.says["drift"] = Colour.UNKNOWN
    world.wait("20m")
    del world.says["drift"]
    assert in_production_after(world) == minutes(210)


def test_a_once_check_waits_for_the_others_and_runs_again_after_repairs() -> None:
    world = validating()
    assert world.asked.count("first-job") == 1
    world.says["health"] = Colour.RED
    world.wait("10m")
    assert world.asked.count("first-job") == 1
    del world.says["health"]
    world.wait("10m")
    assert world.asked.count("first-job") == 2
    world.wait("30m")
    assert world.asked.count("first-job") == 2


def test_a_skipped_check_is_asked_no_more_and_says_why() -> None:
    world = validating()
    world.says["drift"] = Colour.RED
    world.wait("20m")
    world.say("skip", check="drift", reason="known drift")
    asked = world.asked.count("drift")
    assert in_production_after(world) == minutes(140)
    assert world.asked.count("drift") == asked
    assert world.b.checks["drift"].skipped == "known drift"


def test_checks_that_stay_red_block_it_and_a_retry_gives_as_long_again() -> None:
    world = BringupWorld(recipe(), entry())
    world.says["drift"] = Colour.RED
    world.run()
    world.say("check-in")
    world.wait("24h")
    assert world.stage == "blocked"
    assert world.b.because == (
        "its checks were not green in 24h: drift is red (drift is red), first-job is unknown (not asked yet)"
    )
    world.say("retry")
    assert world.stage == "provisioned"
    world.wait("24h")
    assert world.stage == "blocked"
    del world.says["drift"]
    world.wait("3h")
    assert world.stage == "in_production"  # nothing blocks it any more


def test_revalidate_asks_everything_again_and_leaves_the_state() -> None:
    world = validating()
    world.wait("1h")
    before = len(world.asked)
    world.say("revalidate")
    assert world.stage == "provisioned"
    assert sorted(world.asked[before:]) == ["capacity", "drift", "first-job", "health"]


def test_checks_go_on_in_probation_and_a_red_one_is_told() -> None:
    world = validating()
    world.wait("3h")
    asked = world.asked.count("health")
    world.says["health"] = Colour.RED
    world.wait("61m")
    assert world.asked.count("health") == asked + 1
    assert world.told()[-1] == "in probation, check health of h100-new turned red: health is red"
    world.wait("8d")
    asked = len(world.asked)
    world.wait("2d")
    assert len(world.asked) == asked
