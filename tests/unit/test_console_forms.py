"""What people type into a form of the console: numbers and days, or one sentence that names what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from models.errors import BadInput
from models.rollout.commands import CommandRequest
from web.console.forms import day_ahead, day_behind, filled, number

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


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
    with pytest.raises(BadInput, match="Until 2026-11-23 is past"):
        day_ahead("Until", "2026-11-23", NOW)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1e3", "٣", "1" * 400, "10000001"])
def test_what_is_no_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadInput, match="How many more must be a whole number from 1"):
        number("How many more", text)
    assert number("How many more", "16") == 16


def test_a_fault_of_a_field_is_one_sentence() -> None:
    with pytest.raises(BadInput, match="reason"):
        filled(CommandRequest, actor="user:ana", reason="x" * 2001)
