"""Milestones: where each stands by one simple rule, and what keeps its start."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import run
from cli.output import _plain
from client.inputs.documents import read_milestones
from models.errors import BadInput, Refusal
from models.reports.milestones import (
    Milestone,
    MilestoneNote,
    Milestones,
    Planned,
    State,
    measure_standing,
    replace_plan,
    standings,
)
from tests.unit.cli_fakes import FakeBackstop, answering
from views.milestones import milestones_parts

BEGAN = datetime(2026, 11, 2, tzinfo=UTC)
DAY = timedelta(days=1)
DUE = date(2026, 11, 11)
"""Ten days from the beginning to its last moment."""


def planned(target: int, started_from: int | None = 0, measure: str = "monitored_clusters") -> Planned:
    milestone = Milestone(name="m", measure=measure, target=target, due=DUE)
    return Planned(milestone=milestone, began=BEGAN, started_from=started_from)


@pytest.mark.parametrize(
    ("number", "day", "state"),
    [
        (0, 0, State.ON_TRACK),
        (2, 5, State.ON_TRACK),  # the line is at 2.5: half a cluster is none
        (1, 5, State.BEHIND),
        (5, 1, State.DONE),
        (4, 9.9, State.ON_TRACK),
        (4, 10, State.BEHIND),  # its last day is over
        (5, 99, State.DONE),
        (None, 5, State.UNKNOWN),
    ],
)
def test_what_grows(number: int | None, day: float, state: State) -> None:
    assert measure_standing(planned(5), number, BEGAN + day * DAY).state is state


@pytest.mark.parametrize(
    ("number", "day", "state"),
    [
        (105, 0, State.ON_TRACK),
        (63, 4.2, State.ON_TRACK),  # the line is at 63
        (64, 4.2, State.BEHIND),
        (6, 10, State.BEHIND),
        (5, 0, State.DONE),
        (0, 99, State.DONE),
    ],
)
def test_what_falls(number: int, day: float, state: State) -> None:
    assert measure_standing(planned(5, 105, "phantom_gpus"), number, BEGAN + day * DAY).state is state


def test_where_the_start_is_not_known_nothing_is_claimed_until_it_is_due() -> None:
    unknown = planned(5, None, "phantom_gpus")
    assert measure_standing(unknown, 50, BEGAN + 9 * DAY).state is State.UNKNOWN
    assert measure_standing(unknown, 5, BEGAN + 9 * DAY).state is State.DONE
    assert measure_standing(unknown, 50, BEGAN + 10 * DAY).state is State.BEHIND


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 60), st.integers(0, 86_400 * 12))
def test_more_is_never_worse_and_waiting_never_better(start: int, target: int, number: int, seconds: int) -> None:
    order = [State.BEHIND, State.ON_TRACK, State.DONE]
    at = BEGAN + timedelta(seconds=seconds)

    def rank(number: int, at: datetime) -> int:
        return order.index(measure_standing(planned(target, min(start, target)), number, at).state)

    assert rank(number, at) <= rank(number + 1, at)
    assert rank(number, at) >= rank(number, at + timedelta(hours=5))


def test_people_work_stands_where_it_was_last_noted_by_then() -> None:
    notes = tuple(
        MilestoneNote(milestone="m", at=BEGAN + n * DAY, number=number, actor="ana", reason="x")
        for n, number in ((5, 7), (1, 3), (3, 9))
    )
    plan = Milestones(planned=(planned(10, 0, "users trained"),), notes=notes)
    assert [standings(plan, {}, BEGAN + d * DAY)[0].number for d in (0, 1, 4, 5)] == [0, 3, 9, 7]
    (found,) = standings(plan, {}, BEGAN + 4 * DAY)
    assert found.note is not None
    assert found.note.number == 9


def test_a_new_plan_keeps_starts_of_what_keeps_its_name_and_measure() -> None:
    def given_one(name: str, measure: str, target: int = 5) -> Milestone:
        return Milestone(name=name, measure=measure, target=target, due=DUE)

    first = replace_plan((), [given_one("a", "monitored_clusters"), given_one("b", "phantom_gpus")], BEGAN, {})
    assert [p.started_from for p in first] == [None, None]
    measured = {"monitored_clusters": 3, "phantom_gpus": 40}
    later = BEGAN + DAY
    again = [
        given_one("b", "phantom_gpus", 9),
        given_one("a", "users trained"),
        given_one("c", "monitored_clusters"),
    ]
    second = replace_plan(first, again, later, measured)
    assert [(p.milestone.name, p.began, p.started_from) for p in second] == [
        ("b", later, 40),  # its start was not known
        ("a", later, 0),
        ("c", later, 3),
    ]
    third = replace_plan(second, [given_one("b", "phantom_gpus", 1)], later + DAY, {"phantom_gpus": 10})
    assert [(p.milestone.target, p.began, p.started_from) for p in third] == [(1, later, 40)]


# --- files and commands ------------------------------------------------------------------------------------


def test_the_example_is_a_plan() -> None:
    found = read_milestones(Path(__file__).parents[2] / "examples" / "milestones.yaml").milestones
    assert [m.name for m in found][:2] == ["pilot", "first wave"]
    assert found[0].due == date(2026, 12, 4)


ONE = "milestones:\n  - name: pilot\n    measure: monitored_clusters\n    target: 2\n    due: 2026-12-04\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "m.yaml must be a mapping with the field milestones, not null"),
        ("milestones: []\n", "m.yaml, line 1: milestones"),
        (ONE.replace("target: 2", "target: many"), "m.yaml, line 4: milestones[0].target must be a whole number"),
        (ONE.replace("target: 2", "target: 0"), "m.yaml, line 4: milestones[0].target is 0, which is reached from"),
        (ONE.replace("2026-12-04", "soon"), "m.yaml, line 5: milestones[0].due must be a day such as 2026-12-04"),
        (ONE.replace("2026-12-04", "20261204"), "m.yaml, line 5: milestones[0].due must be a day such as 2026-12-04"),
        (
            ONE.replace("monitored_clusters", "monitored_cluster"),
            "m.yaml, line 3: milestones[0].measure must be monitored_clusters, phantom_gpus, rolled_out_waves, or",
        ),
        (ONE + ONE.removeprefix("milestones:\n"), "m.yaml, line 1: milestone 'pilot' is given twice"),
        (ONE + "    done: true\n", "m.yaml, line 6: milestones[0].done is not a known field"),
    ],
)
def test_a_bad_plan_is_one_sentence(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.yaml").write_text(text)
    with answering(FakeBackstop()) as door:
        assert run(["milestones", "set", "m.yaml"]) == 2
    assert door.asked == []
    error = capsys.readouterr().err
    assert error.startswith(f"backstop: {said}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["m", "3", "--reason", " "], "--reason must say why"),
        ([" ", "3", "--reason", "x"], "NAME must be a milestone's name"),
        (["m\x1b", "3", "--reason", "x"], "NAME must be a milestone's name"),
        (["m", "-3", "--reason", "x"], "No such option: -3"),
        (["m", "3.5", "--reason", "x"], "Invalid value for 'NUMBER': "),
        (["m", "3"], "Missing option '--reason'"),
    ],
)
def test_a_bad_note_is_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop()) as door:
        assert run(["milestones", "note", *words]) == 2
    assert door.asked == []
    assert capsys.readouterr().err.startswith(f"backstop: {said}")


def test_a_refused_note_is_not_allowed_now(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop(refuses=Refusal("there is no milestone 'm'"))):
        assert run(["milestones", "note", "m", "3", "--reason", "x"]) == 3
    assert capsys.readouterr().err == "backstop: there is no milestone 'm'\n"


def test_a_number_that_nobody_has_noted_yet_is_of_no_time() -> None:
    note = MilestoneNote(milestone="m", at=BEGAN, number=3, actor="ana", reason="x")
    by_people = Milestones(planned=(planned(10, 0, "users trained"),))
    plans = (Milestones(planned=(planned(10),)), by_people, by_people.but(notes=(note,)))
    rows = [list(_plain(milestones_parts(standings(p, {"monitored_clusters": 2}, BEGAN + DAY))[0]))[1] for p in plans]
    assert [f"{BEGAN:%Y-%m-%d %H:%MZ}" in row for row in rows] == [False, False, True]
    assert [" now " in row for row in rows] == [True, False, False]


def test_the_plan_is_shown_with_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop()):
        assert run(["milestones", "show", "--json"]) == 0
    shown = {
        m["milestone"]["name"]: (m["number"], m["state"]) for m in json.loads(capsys.readouterr().out)["milestones"]
    }
    assert shown["pilot"] == (2, "done")
    assert shown["first wave"][0] == 0
    assert shown["users trained"][0] == 9  # the last that was noted up to now
    plain = FakeBackstop()
    plain.plan = plain.plan.model_copy(update={"plan": Milestones()})
    with answering(plain):
        assert run(["milestones", "show"]) == 0
    assert capsys.readouterr().out.startswith("There is no milestone yet.")


def test_what_is_no_file_is_refused() -> None:
    with pytest.raises(BadInput, match="there is no such file"):
        read_milestones("nowhere.yaml")
