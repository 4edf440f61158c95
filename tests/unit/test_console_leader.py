"""The leader's page on what a buffer would cost: one question to a worker, and what its answer says."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import pytest

from models.access.second_persons import Emergency
from models.cluster.policy import Policy
from models.cluster.snapshot import Snapshot
from models.errors import Unavailable
from models.fleet_cut_questions import HaircutSums
from models.planning.fleet_haircut import FleetHaircut, haircut
from tests.unit.test_console_flex import BASE
from tests.unit.weeks import a_week
from web.console.pages.leader import _report_values, leader
from web.console.rendering import page
from web.console.visit import Visit

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


class _Asks:
    """A visit of whoever may, of a fleet whose week is not known."""

    def __init__(self, address: str, clusters: int, left_out: int) -> None:
        self.path, self.query, self.now = ("leader",), dict(parse_qsl(urlsplit(address).query)), NOW
        self.asked = list[Any]()
        self._fleet = [(one(n), Policy()) for n in range(clusters)]
        self._left_out = left_out

    async def ask(self, question: Any) -> Any:
        if not isinstance(question, HaircutSums):
            raise Unavailable("the week is not known here")
        self.asked.append(question)
        report = haircut(self._fleet, question.buffers).but(clusters={}, teams={})
        return FleetHaircut(report=report, untold=(0,) * len(question.buffers), left_out=self._left_out)

    async def try_read(self, reading: Any, _: float) -> Any:
        try:
            return await reading, ""
        except Unavailable as error:
            return None, str(error)


def one(number: int) -> Snapshot:
    return Snapshot.model_validate(
        {
            "cluster": f"c-{number}",
            "islands": [{"name": "main", "total_gpus": 100, "healthy_gpus": 100}],
            "quotas": [{"team": "a", "gpus": 90}],
        }
    )


def looked(address: str, clusters: int, left_out: int = 0) -> tuple[str, list[Any]]:
    visit = _Asks(address, clusters, left_out)
    made = asyncio.run(leader(cast("Visit", visit)))
    html = bytes(page(made.template, {**BASE, **made.values}).body).decode()
    return html, visit.asked


@pytest.mark.parametrize(("address", "buffer"), [("/leader?buffer=12", Fraction(12, 100)), ("/leader?buffer=x", None)])
def test_a_chosen_buffer_is_one_question_beside_the_usual_ones(address: str, buffer: Fraction | None) -> None:
    html, asked = looked(address, 3)
    usual = {Fraction(5, 100), Fraction(10, 100), Fraction(15, 100), Fraction(20, 100)}
    assert asked == [HaircutSums(buffers=tuple(sorted(usual | ({buffer} if buffer else set()))))]
    # Of 90 may be promised 88 at 12 % and 85 at 15 %, in each of three.
    assert ("At a buffer of 12%: 6 of 270" if buffer else "At a buffer of 15%: 15 of 270") in html
    assert "cannot be planned" not in html


def test_those_that_cannot_be_planned_are_counted() -> None:
    html = looked("/leader?buffer=12", 3, 1)[0]
    assert "1 cluster cannot be planned now and is left out" in html
    assert "backstop haircut" not in html
    assert "1,200 clusters cannot be planned now and are left out" in looked("/leader?buffer=12", 0, 1200)[0]
    assert "There is no cluster to plan yet" in looked("/leader?buffer=12", 0)[0]


def test_until_a_buffer_is_chosen_nothing_is_planned_and_the_page_says_how_long_it_takes() -> None:
    html, asked = looked("/leader", 3)
    assert asked == []
    assert "the first time takes some seconds for 1,000 clusters" in html


def test_a_long_list_leads_to_the_page_that_has_the_rest_and_names_no_command_for_it() -> None:
    week: dict[str, Any] = {"no_week": "", "curve": None, "percent": 15, "least": 0, "most": 50, "cost": [], "bars": []}
    rest = {"left_out": "", "no_cost": "", "asked_for": False}
    values = {**BASE, **week, **rest, "week": _report_values(a_week(300))}
    html = bytes(page("leader.html", values).body).decode()
    assert 'And 23 more. <a href="/">All of them</a>' in html, "held ones too, which need no person"
    assert "And 42 more." in html
    assert "--json" not in html
    assert "status --" not in html


def test_an_emergency_leads_to_the_form_that_reviews_it_and_names_no_command() -> None:
    alone = Emergency(number=3, by="user:sre", at=NOW, what="promote", reason="a SEV")
    rest: dict[str, Any] = {"left_out": "", "no_cost": "", "asked_for": False, "cost": [], "bars": []}
    week = a_week(3).but(emergencies=(alone,))
    values = {**BASE, "no_week": "", "curve": None, "percent": 15, "least": 0, "most": 50, **rest}
    html = bytes(page("leader.html", {**values, "week": _report_values(week)}).body).decode()
    assert 'No other admin has reviewed it. <a href="/access#emergencies">Review it</a>' in html
    assert "backstop access" not in html


def test_where_no_milestone_is_set_no_command_is_told() -> None:
    sections = _report_values(a_week(3).but(milestones=()))["sections"]
    assert [note for name, _, note, _ in sections if name == "Milestones"] == ["No milestone is set."]
