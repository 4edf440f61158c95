"""All that a fleet rollout says it waits for is true, and none of it is over."""

from __future__ import annotations

from datetime import timedelta

from models.cluster.windows import Window, WindowKind
from models.fleet import reducers
from models.fleet.commands import apply_cancel
from models.fleet.messages import FleetStatus, Noted, PickAnswer, Picked
from models.fleet.state import BudgetLeft, FleetStage, MemberState, Pace
from models.fleet.status import status_of
from tests.property.test_fleet_machine import START, Fleet, prospect
from views.fleet_rollout import facts_of

PACE = Pace(parallel=2, budget_per_hour=100, budget_per_day=1000, recheck=timedelta(minutes=10))


def status(fleet: Fleet) -> FleetStatus:
    return status_of(fleet.f, fleet.now)


def waits(fleet: Fleet) -> dict[str, str]:
    return {m.cluster: m.held or m.waits for m in status(fleet).members if m.state is MemberState.WAITING}


def test_a_budget_that_others_have_used_is_named_and_not_the_one_that_seems_left() -> None:
    fleet = Fleet([prospect(0, cut=70), prospect(1, cut=10)], PACE)
    assert {m.state for m in fleet.f.members.values()} == {MemberState.RUNNING}

    spent = Fleet([prospect(0, cut=70), prospect(1, cut=10)], PACE, booked=(40, 40))
    said = "it would move 70 GPUs, and 60 of this hour's budget are left"
    assert waits(spent) == {"c0000": said, "c0001": "waits for c0000, which goes first"}
    assert status(spent).waits_for == f"c0000 waits for the budget: {said}; Backstop looks again every 10m"
    assert (status(spent).hour_gpus, status(spent).day_gpus) == (60, 960)
    assert status(spent).needs == "", "nobody has to do anything: it goes on as the hour does"


def test_what_is_left_of_the_budget_is_of_the_last_look_at_the_book_and_later_only_a_bound() -> None:
    """By hand: of 100 others have moved 40 and it starts 10; an hour is far away, and nobody looks for 11 minutes."""

    def said() -> str:
        return next(text.plain for name, text in facts_of(status(fleet)) if name == "budget")

    fleet = Fleet([prospect(0, cut=10)], PACE, booked=(40, 40))
    assert (status(fleet).hour_gpus, status(fleet).day_gpus, status(fleet).budget_at) == (50, 950, START)
    assert said() == f"50 GPUs left for this hour, 950 for this day, as of {START:%Y-%m-%d %H:%M:%SZ}"
    fleet.now += timedelta(minutes=11)
    assert (status(fleet).hour_gpus, status(fleet).day_gpus, status(fleet).budget_at) == (90, 990, None)
    assert said() == ("at most 90 GPUs left for this hour, 990 for this day: GPUs that others moved are not counted")


def test_a_breaker_names_those_that_were_started_and_as_how_many_they_count() -> None:
    def said() -> str:
        return next(text.plain for name, text in facts_of(status(fleet)) if name == "breaker")

    fleet = Fleet([prospect(n, cut=1) for n in range(2)], PACE.but(parallel=1))
    assert (
        said()
        == "0 of 1 rolled back (the share is computed from at least 10 clusters); the fleet rollout stops above 10%"
    )
    fleet = Fleet([prospect(n, cut=1) for n in range(12)], PACE.but(parallel=11))
    assert said() == "0 of 11 rolled back; the fleet rollout stops above 10%"


def test_what_was_picked_as_somebody_paused_is_not_started_and_keeps_its_budget() -> None:
    fleet = Fleet([prospect(0, cut=10), prospect(1, cut=30), prospect(2, cut=5)], PACE.but(parallel=1))
    assert waits(fleet) == dict.fromkeys(("c0001", "c0002"), "waits until one of the clusters under way has finished")
    fleet.say("pause")
    late = PickAnswer(
        picked=(Picked(cluster="c0001", wave=fleet.f.wave, cut_gpus=30),), left=BudgetLeft(hour_gpus=60, day_gpus=960)
    )
    fleet.f = reducers.apply_picks(fleet.f, late, {"c0001": "c0001/1"}, fleet.now)
    assert (status(fleet).hour_gpus, status(fleet).day_gpus) == (90, 990)
    assert waits(fleet) == dict.fromkeys(("c0001", "c0002"), "the fleet rollout is held"), "and for nothing else"


def test_an_incident_that_is_over_is_no_reason() -> None:
    ends = START + timedelta(minutes=3)
    sev = Window(kind=WindowKind.SEV, starts=START, ends=ends, reason="a switch is down")
    fleet = Fleet([prospect(0)], PACE, windows={"c0000": (sev,)})
    assert "a switch is down" in waits(fleet)["c0000"]
    assert "a switch is down" in status(fleet).waits_for
    fleet.now = ends + timedelta(minutes=2)
    assert waits(fleet) == {"c0000": "its hold is over; Backstop looks at it again"}
    assert "a switch" not in status(fleet).waits_for
    fleet.step()
    assert fleet.f.members["c0000"].state is MemberState.RUNNING, "and it is not waited for the next look"


def test_a_member_that_somebody_launched_by_hand_is_followed_at_once() -> None:
    fleet = Fleet([prospect(0, cut=70), prospect(1, cut=90)], PACE)
    assert fleet.f.members["c0001"].state is MemberState.WAITING
    by_hand = Noted(rollout="c0001/by-hand", stage="buffered")
    fleet.f = reducers.join_open(fleet.f, {"c0001": by_hand, "c0000": by_hand}, fleet.now)
    one = fleet.f.members["c0001"]
    assert (one.state, one.rollout, one.joined) == (MemberState.RUNNING, "c0001/by-hand", True)
    assert fleet.f.members["c0000"].rollout == "c0000/1", "its own goes on as its own"
    assert fleet.f.outbox[-1].text == "from now on the fleet rollout follows the rollouts that others launched: c0001"


def test_a_cancel_by_temporal_aborts_unless_tickets_are_needed() -> None:
    fleet = Fleet([prospect(0, cut=10)], PACE)
    running = fleet.f
    ignored = apply_cancel(running, fleet.now, by_ticket=True)
    assert (ignored.stage, len(ignored.outbox)) == (FleetStage.RUNNING, len(running.outbox) + 1)
    assert (
        ignored.outbox[-1].text
        == "a cancel from Temporal was ignored, because this fleet rollout takes only commands with a ticket"
    )
    aborted = apply_cancel(running, fleet.now, by_ticket=False)
    assert (aborted.stage, aborted.undo) == (FleetStage.ABORTING, False)
    assert apply_cancel(aborted, fleet.now, by_ticket=False) == aborted
