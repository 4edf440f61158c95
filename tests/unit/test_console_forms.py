"""Input in forms of the console: numbers and days, or one sentence that names what is wrong."""

from __future__ import annotations

import html
import re
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from models.errors import BadInput
from models.fleet.command_rows import FLEET_ROWS
from models.fleet.state import Pace
from models.lifecycle.command_rows import CommandRow
from models.rollout.command_rows import ROLLOUT_ROWS
from models.rollout.commands import CommandRequest
from views.fleet_rollout import PACE_WORDS
from web.console.command_page import command_page
from web.console.forms import day_ahead, day_behind, fill_model, number
from web.console.rendering import page

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
NO_REASON = {"rollout.approve", "rollout.ack", "rollout.resume", "rollout.retry", "fleet.approve"}
LEFT_OUT = {"file"}
"""A file of the person's machine: the page shows the plan itself."""
SETTINGS = {"pace": "parallel"}
"""A field of many settings has an input for each of them."""


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("7d", datetime(2026, 12, 1, 12, tzinfo=UTC)),
        ("2026-12-24", datetime(2026, 12, 25, tzinfo=UTC)),
        ("2026-11-24", datetime(2026, 11, 25, tzinfo=UTC)),
        ("2026-12-24T18:00+02:00", datetime(2026, 12, 24, 16, tzinfo=UTC)),
        ("2026-12-24T18:00", datetime(2026, 12, 24, 18, tzinfo=UTC)),
    ],
)
def test_a_day_ahead_is_meant_to_its_end(text: str, end: datetime) -> None:
    assert day_ahead("Until", text, NOW) == end


def test_a_day_behind_is_meant_from_its_beginning() -> None:
    assert day_behind("Since", "2026-11-20", NOW) == datetime(2026, 11, 20, tzinfo=UTC)
    assert day_behind("Since", "12h", NOW) == datetime(2026, 11, 24, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["soon", "7", "-7d", "9999-12-31T23:59-23:00", "9999-12-31", "9" * 400 + "d", "2026-13-01"]
)
def test_what_is_no_day_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadInput, match="Until"):
        day_ahead("Until", text, NOW)


def test_a_day_that_is_over_is_no_day_ahead() -> None:
    with pytest.raises(BadInput, match="Until 2026-11-23 is in the past"):
        day_ahead("Until", "2026-11-23", NOW)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1e3", "٣", "1" * 400, "10000001"])
def test_what_is_no_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadInput, match="How many more must be a whole number from 1"):
        number("How many more", text)
    assert number("How many more", "16") == 16


def test_a_fault_of_a_field_is_one_sentence() -> None:
    with pytest.raises(BadInput, match="reason"):
        fill_model(CommandRequest, actor="user:ana", reason="x" * 2001)


def test_a_command_that_cannot_be_given_says_why_and_nothing_of_what_it_would_lead_to() -> None:
    around = {
        "form_token": "t",
        "once": "o",
        "said": (),
        "here": "/",
        "navigation": (),
        "who": "",
        "how": "",
        "mark": "",
    }
    silent = "no plan of the fleet rollout awaits approval: its stage is running"
    for why_not, words in (("it is approved already", False), ("", True)):
        values: dict[str, Any] = {"plan_hash": "3f0c", "silent": silent, "why_not": why_not, "typed": {"reason": ""}}
        shown = command_page(FLEET_ROWS["approve"], "the fleet rollout", ("/back", "back"), "/give", **values)
        text = bytes(page(shown.template, {**around, "title": shown.title, **shown.values}).body).decode()
        assert why_not in text
        assert (silent in text) is words


def test_every_setting_of_the_pace_has_a_name_of_its_own_for_people() -> None:
    assert PACE_WORDS.keys() == Pace.model_fields.keys()
    assert len(set(PACE_WORDS.values())) == len(PACE_WORDS)
    assert not {word for text in PACE_WORDS.values() for word in text.split() if "_" in word}


@pytest.mark.parametrize("row", [*ROLLOUT_ROWS.values(), *FLEET_ROWS.values()], ids=lambda row: row.key)
def test_the_page_of_a_command_has_an_input_for_each_field_of_its_row(row: CommandRow) -> None:
    around = {"form_token": "t", "once": "o", "said": (), "here": "/", "navigation": (), "missed": False}
    around |= dict.fromkeys(("who", "how", "mark"), "")
    values: dict[str, Any] = {
        "plan_hash": "3f0c",
        "holds": [("drift", "a drift")],
        "teams": ["research"],
        "waves": [("busy", "busy")],
        "clusters": ["h100-7"],
        "pace": {"parallel": "3"},
        "typed": defaultdict(str, {"clusters": "h100-7", "reason": "as typed before"}),
    }
    shown = command_page(row, "h100", ("/back", "back"), "/give", why_not="", silent="", **values)
    text = bytes(page(shown.template, {**around, "title": shown.title, **shown.values}).body).decode()
    inputs = set(re.findall(r'name="(\w+)"', text)) - {"form_token", "once", "viewport"}
    assert inputs == {SETTINGS.get(field.name, field.name) for field in row.fields} - LEFT_OUT | {"reason"}
    assert f"<p>{row.help.splitlines()[0].replace('`', '')}</p>" in html.unescape(re.sub("</?b>", "", text))
    assert '<form method="post" action="/give"' in text
    assert "as typed before</textarea>" in text
    assert ("Reason (needed)" in text) is (row.key not in NO_REASON)
