"""Calendars with rubbish in them, beside events and rows that are well: the file that is imported, and the table."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.adapters.ledger.facade import Ledger
from client.inputs.calendars import read_calendar
from client.inputs.health_samples import read_health
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.windows import Declared, Window, WindowKind
from models.errors import BadInput
from tests.hostile import COUNTS, Rubbish, table, threw
from tests.integration.ledger.world import stage
from tests.servers import new_ledger

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GOOD = """\
BEGIN:VEVENT
UID:{uid}
SUMMARY:firmware
LOCATION:{cluster}
DTSTART:20261201T060000Z
DTEND:20261201T180000Z
END:VEVENT
"""
BAD = "BEGIN:VEVENT\nUID:bad\nSUMMARY:rubbish\nLOCATION:bad\nDTSTART:{}\nDTEND:20261201T180000Z\n{}\nEND:VEVENT\n"
STARTS = "20261201T060000Z"

EVENTS = [
    Rubbish("no zone", BAD.format("20261201T060000", "")),
    Rubbish("no day", BAD.format("20260230T000000Z", "")),
    Rubbish("no time", BAD.format("", "")),
    Rubbish("the word now", BAD.format("now", "")),
    Rubbish("a duration for a start", BAD.format("-PT5H", "")),
    Rubbish("after its end", BAD.format("20261202T060000Z", "")),
    Rubbish("GPUs in words", BAD.format(STARTS, "X-BACKSTOP-GPUS:many")),
    Rubbish("minus one GPU", BAD.format(STARTS, "X-BACKSTOP-GPUS:-1")),
    Rubbish("twenty million GPUs", BAD.format(STARTS, "X-BACKSTOP-GPUS:20000000")),
    Rubbish("every second", BAD.format(STARTS, "RRULE:FREQ=SECONDLY")),
    Rubbish("every hour", BAD.format("20261101T060000Z", "RRULE:FREQ=HOURLY").replace("20261201T18", "20261101T07")),
    Rubbish("a rule of rubbish", BAD.format(STARTS, "RRULE:FREQ=SOMETIMES")),
    Rubbish("an interval of zero", BAD.format(STARTS, "RRULE:FREQ=DAILY;INTERVAL=0")),
    Rubbish("for 125 years", BAD.format("19001101T060000Z", "RRULE:FREQ=DAILY")),
    Rubbish("no place", BAD.format(STARTS, "").replace("LOCATION:bad\n", "")),
    Rubbish("no UID", BAD.format(STARTS, "").replace("UID:bad\n", "")),
    Rubbish("a UID of 300 letters", BAD.format(STARTS, "").replace("UID:bad", f"UID:{'x' * 300}")),
    Rubbish("a place with half a name", BAD.format(STARTS, "").replace("LOCATION:bad", f"LOCATION:{'x' * 300}")),
    Rubbish("an exception that is none", BAD.format(STARTS, "RRULE:FREQ=DAILY\nEXDATE:rubbish")),
]


@table(EVENTS)
def test_one_bad_event_costs_itself_alone_and_is_named(rubbish: Rubbish, tmp_path: Path) -> None:
    events = [GOOD.format(uid="east", cluster="east"), rubbish.value, GOOD.format(uid="west", cluster="west")]
    whole = f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\n{''.join(events)}END:VCALENDAR\n"
    (tmp_path / "m.ics").write_text(whole.replace("\n\n", "\n").replace("\n", "\r\n"))
    found = read_calendar(str(tmp_path / "m.ics"), NOW)
    well = {d.source: d.windows for d in found.declared if d.source != "ics bad"}
    assert {source: [name for name, _ in windows] for source, windows in well.items()} == {
        "ics east": ["east"],
        "ics west": ["west"],
    }
    if rubbish.what == "a place with half a name":  # whether there is such a cluster the ledger knows
        assert len(found.left_out) <= 1
    else:
        assert len(found.left_out) == 1
        assert found.left_out[0].startswith("m.ics")
        assert "ics bad" not in {d.source for d in found.declared}, "and takes nothing back"
    threw("calendars")


# --- the table ---------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[tuple[Ledger, Path]]:
    path = tmp_path / "ledger.db"
    new_ledger(path)
    clusters = [
        {"name": name, "islands": [{"name": "main", "total_gpus": 16, "healthy_gpus": 16}]}
        for name in ("bad", "east", "west")
    ]
    with Ledger(f"sqlite:///{path}") as made:
        stage(made, {"clusters": clusters}, "first")
        made.fleet.commit_import("first", 2, "tpm", NOW)
        window = Window(kind=WindowKind.SEV, starts=NOW, ends=NOW + timedelta(hours=4), reason="fabric")
        made.calendar.declare(
            [Declared(source="hold 1", windows=(("bad", window), ("east", window), ("west", window)))], "tpm", NOW
        )
        yield made, path


ROWS = [
    Rubbish("a kind that is none", "kind = 'party'"),
    Rubbish("no reason", "reason = ''"),
    Rubbish("a reason of 10,000 letters", f"reason = '{'x' * 10_000}'"),
    Rubbish("islands of nobody", "islands = ',,'"),
    Rubbish("minus one GPU", "gpus = -1"),
    Rubbish("an end before its start", "ends = starts"),
    Rubbish("an island with a line break", "islands = 'a' || char(10) || 'b'"),
]


SENSE = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name GLOB '*_sense_*'"


@table(ROWS)
def test_a_row_that_is_no_window_costs_itself_alone_and_is_named(rubbish: Rubbish, ledger: tuple[Ledger, Path]) -> None:
    made, path = ledger
    assert made.calendar.faults() == {}
    with sqlite3.connect(path) as plain:
        plain.execute("PRAGMA ignore_check_constraints = ON")  # as a database that was made before there were any
        for (name,) in plain.execute(SENSE).fetchall():
            plain.execute(f"DROP TRIGGER {name}")
        plain.execute(f"UPDATE windows SET {rubbish.value} WHERE cluster = 'bad'")
    found = made.calendar.windows(["bad", "east", "west"])
    assert {name: len(windows) for name, windows in found.items()} == {"bad": 0, "east": 1, "west": 1}
    assert [entry.cluster for entry in made.calendar.calendar("", NOW)] == ["east", "west"]
    assert list(made.calendar.faults()) == ["bad"]
    assert "is none: " in made.calendar.faults()["bad"]
    threw("calendars")


# --- health files ------------------------------------------------------------------------------

SPECS = [
    ClusterSpec(name=name, islands=(Island(name="main", total_gpus=16, healthy_gpus=16),))
    for name in ("bad", "east", "west")
]
HEADER = "cluster,island,time,total_gpus,healthy_gpus\n"
AT = "2026-11-21T11:00:00Z"
CSV = [
    *(
        Rubbish(row.what, f"bad,main,{AT},16,{row.value}\n")
        for row in COUNTS
        if row.what not in ("a count as text", "a list")
    ),
    Rubbish("a time of no zone", "bad,main,2026-11-21T11:00:00,16,15\n"),
    Rubbish("milliseconds", "bad,main,1767225600000,16,15\n"),
    Rubbish("the word now", "bad,main,now,16,15\n"),
    Rubbish("year 9999", "bad,main,9999-12-31T23:59:59Z,16,15\n"),
    Rubbish("an island that it has not", f"bad,other,{AT},16,15\n"),
    Rubbish("a cluster that nobody has", f"nobody,main,{AT},16,15\n"),
    Rubbish("a row twice", f"bad,main,{AT},16,15\nbad,main,{AT},16,14\n"),
]


@table(CSV)
def test_one_bad_row_of_health_costs_its_cluster_alone_and_is_named(rubbish: Rubbish, tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text(
        f"{HEADER}east,main,{AT},16,15\nbad,main,2026-11-21T10:00:00Z,16,16\n{rubbish.value}west,,{AT},16,14\n"
    )
    left_out: dict[str, str] = {}
    found = read_health(path, SPECS, NOW, left_out)
    named = "nobody" if rubbish.value.startswith("nobody") else "bad"
    assert list(left_out) == [named]
    assert left_out[named].startswith(f"{path}, line ")
    assert {s.cluster: s.healthy_gpus for s in found if s.cluster != "bad"} == {"east": 15, "west": 14}
    assert "bad" not in {s.cluster for s in found} or named != "bad"
    with pytest.raises(BadInput):
        read_health(path, SPECS, NOW)
    threw("health files")
