"""Bring-ups in the weekly report and the burn-down: times, touches and who waits for whom, counted by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from activities.desk.report_facts import ReportFacts
from client.doctor import bringups_checks
from models.bringup.messages import BringupRow
from models.bringup.stages import BringupStage
from models.questions import Tallies
from models.reports.bringups import BringupsWeek, bringups_week
from models.reports.milestones import Milestones
from models.reports.weekly import Live, Past, week
from views.report import markdown

UNTIL = datetime(2026, 3, 9, tzinfo=UTC)
SINCE = UNTIL - timedelta(days=7)
PLANNED, PROVISIONING = BringupStage.PLANNED, BringupStage.PROVISIONING
H = timedelta(hours=1)


def row(cluster: str, stage: BringupStage, days_ago: float = 1, entered: float = 3, **more: Any) -> BringupRow:
    return BringupRow.model_validate(
        {
            "cluster": cluster,
            "number": 1,
            "recipe": "bare-metal",
            "recipe_hash": "h",
            "owner": "tpm",
            "entered_by": "ada",
            "entered_at": UNTIL - timedelta(days=entered),
            "stage": stage,
            "nodes": 8,
            "stage_at": UNTIL - timedelta(days=days_ago),
            "gpus": 64,
            **more,
        }
    )


ROWS = (
    # Three are out of `planned`, after 2, 4 and 12 hours: the median is 4, the slowest c.
    row("a", BringupStage.IN_PRODUCTION, lasted={PLANNED: 2 * H, PROVISIONING: 3 * H}, touches=0),
    row("b", BringupStage.IN_PRODUCTION, 9, 20, lasted={PLANNED: 4 * H, PROVISIONING: 6 * H}, touches=3),
    row("c", BringupStage.PROVISIONING, lasted={PLANNED: 12 * H, PROVISIONING: 99 * H}, waits_for="nodes is running"),
    row("d", PLANNED, 2, lasted={PLANNED: 48 * H}, waited={"supply": 48 * H}, waits_for="waits for its supply"),
    row("e", BringupStage.BLOCKED, 1, blocked_from=PROVISIONING, waits_for="nodes failed", needs="retry nodes"),
    row("f", BringupStage.IN_PRODUCTION, 9, 20, touches=4, owed={"x": 5, "y": 3}, red=("health",)),
    row("late", PLANNED, -1, entered=-1),
)


def told() -> BringupsWeek:
    found = bringups_week(ROWS, SINCE, UNTIL)
    assert found is not None
    return found


def test_times_are_of_those_that_have_left_a_state() -> None:
    times = {t.stage: (t.bringups, t.median, t.slowest, t.slowest_of) for t in told().times}
    # c is still provisioning: of a and b the median is between 3 and 6.
    assert times == {PLANNED: (3, 4 * H, 12 * H, "c"), PROVISIONING: (2, 4.5 * H, 6 * H, "b")}
    assert [(w.whom, w.bringups, w.slowest_of) for w in told().waits] == [("supply", 1, "d")]


def test_touches_are_of_those_that_came_to_production() -> None:
    # 0, 3 and 4.
    assert (told().finished, told().touches_median, told().touches_most) == (3, 3.0, 4)
    assert (told().entered, told().owed_gpus) == (4, 8)


def test_what_needs_a_person_is_first_and_what_rests_in_production_is_left_out() -> None:
    assert [each.cluster for each in told().going] == ["e", "f", "d", "c"]
    assert [(each.cluster, each.took) for each in told().reached] == [("a", timedelta(days=2))]
    assert bringups_week((), SINCE, UNTIL) is None


def test_the_report_says_so_in_words() -> None:
    past = Past(
        since=SINCE,
        until=UNTIL,
        clusters=3,
        moves=(),
        monitored=(),
        monitored_before=0,
        steps=(),
        outcomes=(),
        points=(),
        week_ago=None,
        began=None,
        milestones=Milestones(),
        bringups=told(),
    )
    text = markdown(week(past, Live()))
    assert "| e | blocked | Sun 08 Mar | retry nodes | tpm | 0 |" in text
    assert "This week: a is in production, 2d after it was entered." in text
    assert "| provisioning | 2 | 4.5h | 6h | b |" in text
    assert (
        "3 clusters reached production. Actions by people for each, besides entry and check-in: 3 in the median, "
        "4 at most."
    ) in text
    assert "| e | blocked |" not in markdown(week(past, None)), "of a week that is over nobody knows it"
    assert "New clusters" not in markdown(week(past.but(bringups=None), Live()))


def test_doctor_names_those_that_nobody_drives() -> None:
    assert bringups_checks((), ()) == []
    for many, text in ((1, "the one"), (2, "all 2")):
        (well,) = bringups_checks(ROWS[:many], ())
        assert (well.ok, well.text) == (True, f"Temporal runs {text} that the ledger has open")
    (ill,) = bringups_checks(ROWS[:3], ROWS[2:3])
    assert (ill.ok, ill.text) == (
        False,
        "Temporal has lost 1 of 3 bring-ups that the ledger has open, so nothing drives c (provisioning)",
    )
    assert ill.remedy == (
        "add c again with the same entry, which continues the bring-up; or tear down by hand what it made, then: "
        "backstop bringup give-up c"
    )


def test_the_burn_down_names_clusters_that_came_in_its_time() -> None:
    nobody: Any = None

    class Tallied:
        def points(self, *_: Any) -> tuple[()]:
            return ()

        def begin_at(self, _: str) -> None:
            return None

    facts = ReportFacts(cast("Any", Tallied()), nobody, nobody, lambda _: ROWS)
    curve = facts.curve(Tallies(times=(SINCE, UNTIL), within_seconds=60))
    assert [(a.cluster, a.at, a.gpus) for a in curve.arrived] == [("a", UNTIL - timedelta(days=1), 64)]
    assert facts.curve(Tallies(cluster="b", times=(SINCE, UNTIL), within_seconds=60)).arrived == ()
