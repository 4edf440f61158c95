"""iCalendar files that people hand in, fuzzed: windows or one sentence, never a traceback."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client.inputs.calendars import read_calendar
from models.cluster.windows import Declared
from models.errors import BadInput
from tests.mangling import as_bytes
from tests.tried import TRIED, examples

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
VALUES = st.one_of(
    st.sampled_from(
        (
            *(
                "20261201T060000Z",
                "20261201T060000",
                "20261201",
                "99991231T235959Z",
                "00010101",
                "-PT5H",
                "PT5H",
                "P999999W",
            ),
            *(
                "FREQ=WEEKLY",
                "FREQ=YEARLY;BYMONTHDAY=31",
                "FREQ=DAILY;COUNT=0",
                "FREQ=HOURLY;INTERVAL=0",
                "FREQ=X",
                "FREQ=",
            ),
            *(
                "CANCELLED",
                "alpha\\, beta",
                "alpha,,beta",
                "SEV,freeze",
                "-1",
                "1e9",
                "9" * 400,
                "\\n\\;",
                "",
                '"',
                "🔥\u202e",
            ),
        )
    ),
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20),
)
NAMES = st.sampled_from(
    (
        *(
            "UID",
            "DTSTART",
            "DTEND",
            "DTSTART;VALUE=DATE",
            "DTEND;TZID=Europe/Paris",
            "DTSTART;TZID=Mars/Olympus",
            "DURATION",
        ),
        *("RRULE", "EXDATE", "RDATE", "RECURRENCE-ID", "SUMMARY", "LOCATION", "CATEGORIES", "STATUS"),
        *("X-BACKSTOP-GPUS", "X-BACKSTOP-ISLANDS", "BEGIN", "END"),
    )
)
GOOD = ("UID:1", "DTSTAMP:20261101T000000Z", "LOCATION:alpha", "DTSTART:20261201T060000Z", "DTEND:20261201T070000Z")


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """An event with some of its lines spoilt, gone or added; now and then in a strange encoding, or cut."""
    lines = [line for line in GOOD if draw(st.integers(0, 6))]
    lines += [f"{draw(NAMES)}:{draw(VALUES)}" for _ in range(draw(st.integers(0, 4)))]
    event = ["BEGIN:VEVENT", *draw(st.permutations(lines)), "END:VEVENT"]
    text = "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:x", *event, "END:VCALENDAR", ""])
    return as_bytes(draw, text) if draw(st.integers(0, 9)) == 0 else text.encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calendars")


@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(content=files())
def test_a_calendar_is_windows_or_one_sentence(folder: Path, content: bytes) -> None:
    path = folder / "c.ics"
    path.write_bytes(content)
    TRIED["calendars"] += 1
    said = ""
    declared: tuple[Declared, ...] = ()
    try:
        declared, left_out = read_calendar(str(path), NOW)
        assert all(one.startswith("c.ics") for one in left_out)
    except BadInput as error:
        said = error.message
    TRIED["calendars that were refused"] += bool(said)
    assert said == "" or (said.startswith("c.ics") and "\n" not in said and len(said) < 1000)
    assert all(window.ends > window.starts for each in declared for _, window in each.windows)
