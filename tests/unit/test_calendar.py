"""Declared windows: what they take, foretold; iCalendar files; the commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import run
from cli.output import _plain
from client.inputs.calendars import read_calendar
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.quota import Quota
from models.cluster.windows import Declaration, Declared, Entry, Window, WindowKind, span_text
from models.errors import BadInput
from models.planning.window_forecast import forecast_windows, islands_during
from models.question_base import Question
from models.questions import Declare
from tests.unit.cli_fakes import WORKED, FakeBackstop, answering
from views.cluster_answer import ClusterAnswer
from views.fleet import cluster_parts

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MAIN = (Island(name="main", total_gpus=361, healthy_gpus=319),)
TEAM = (Quota(team="research", gpus=306),)


def window(starts: timedelta, ends: timedelta, gpus: int | None = None, **more: Any) -> Window:
    given = {"kind": WindowKind.MAINTENANCE, "reason": "new firmware"} | more
    return Window(starts=NOW + starts, ends=NOW + ends, gpus=gpus, **given)


def told(*windows: Window, islands: Sequence[Island] = MAIN, quotas: Sequence[Quota] = TEAM) -> list[dict[str, int]]:
    return [f.lacks for f in forecast_windows("c", quotas, islands, windows, NOW)]


# --- foretelling -----------------------------------------------------------------------------------------


def test_a_window_that_takes_more_than_is_to_spare_is_foretold() -> None:
    (found,) = forecast_windows("c", TEAM, MAIN, [window(3 * DAY, 4 * DAY, 39)], NOW)
    assert (found.starts, found.loses, found.lacks) == (NOW + 3 * DAY, {"research": 26}, {"research": 26})
    assert told(window(3 * DAY, 4 * DAY, 13)) == []
    assert told(window(3 * DAY, 4 * DAY)) == [{"research": 306}]


def test_a_freeze_takes_nothing_and_what_has_begun_is_not_foretold() -> None:
    assert told(window(DAY, 2 * DAY, kind=WindowKind.FREEZE)) == []
    assert told(window(-DAY, DAY, 100)) == []


def test_windows_that_overlap_take_together() -> None:
    assert told(window(DAY, 3 * DAY, 10), window(2 * DAY, 4 * DAY, 10)) == [{"research": 7}]
    assert told(window(DAY, 2 * DAY, 10), window(2 * DAY, 4 * DAY, 10)) == []


def test_what_another_window_takes_is_not_lost_again() -> None:
    """By hand: 319 healthy, 306 promised. The first leaves 300 and the inner one 290, of which 6 lack it before."""
    both = [window(DAY, 4 * DAY, 19), window(2 * DAY, 3 * DAY, 10)]
    found = forecast_windows("c", TEAM, MAIN, both, NOW)
    assert [(f.loses["research"], f.lacks["research"]) for f in found] == [(6, 6), (10, 16)]
    assert len(forecast_windows("c", TEAM, MAIN, [window(DAY, 4 * DAY), window(2 * DAY, 3 * DAY, 10)], NOW)) == 1
    at_once = [window(DAY, 4 * DAY, 19), window(DAY, 3 * DAY, 10, kind=WindowKind.SEV)]
    found = forecast_windows("c", TEAM, MAIN, at_once, NOW)
    assert [(f.loses["research"], f.lacks["research"]) for f in found] == [(6, 16), (10, 16)]


def test_a_window_after_one_that_takes_as_much_now_is_news() -> None:
    """By hand: 300 of 361 are healthy now, 361 once the first is over, 300 in the second: 6 of 306 lack it."""
    down = (Island(name="main", total_gpus=361, healthy_gpus=300),)
    found = forecast_windows("c", TEAM, down, [window(-DAY, DAY, 61), window(2 * DAY, 3 * DAY, 61)], NOW)
    assert [(f.loses, f.lacks) for f in found] == [({"research": 6}, {"research": 6})]


def test_what_a_window_takes_now_is_back_when_it_is_over() -> None:
    down = (Island(name="main", total_gpus=361, healthy_gpus=300),)
    assert told(window(-DAY, DAY, 61), window(2 * DAY, 3 * DAY, 50), islands=down) == []
    assert told(window(2 * DAY, 3 * DAY, 50), islands=down) == [{"research": 56}]
    (found,) = forecast_windows("c", TEAM, down, [window(2 * DAY, 3 * DAY, 50)], NOW)
    assert found.loses == {"research": 50}, "6 lack it today"


def test_a_quota_that_lacks_as_much_already_is_not_news() -> None:
    down = (Island(name="main", total_gpus=361, healthy_gpus=0),)
    assert told(window(DAY, 2 * DAY, 50), islands=down) == []


def test_an_island_that_only_a_quota_names_has_nothing_to_take() -> None:
    quotas = (Quota(team="a", gpus=5, islands=("gone",)), Quota(team="b", gpus=300))
    assert told(window(DAY, 2 * DAY, 20, islands=("main",)), quotas=quotas) == [{"b": 1}]


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 120) | st.none(), st.integers(0, 100))
def test_more_taken_never_leaves_more(one: int, other: int, gpus: int | None, quota: int) -> None:
    islands = (
        Island(name="a", total_gpus=60, healthy_gpus=one),
        Island(name="b", total_gpus=60, healthy_gpus=other, block_gpus=other),
    )
    left = islands_during(islands, [window(DAY, 2 * DAY, gpus)])
    healthy = sum(i.healthy_gpus for i in left)
    assert healthy == (0 if gpus is None else max(0, one + other - gpus))
    lacks = told(window(DAY, 2 * DAY, gpus), islands=islands, quotas=(Quota(team="q", gpus=quota),))
    short = max(0, quota - healthy)
    assert lacks == ([{"q": short}] if short > max(0, quota - one - other) else [])


def test_a_window_is_told_in_one_line() -> None:
    what = window(DAY, 2 * DAY, 1, islands=("a", "b"))
    assert span_text(what) == "maintenance of 1 GPU in a, b from 2026-11-22 12:00Z until 2026-11-23 12:00Z"


def test_a_window_that_takes_all_says_so_where_a_cluster_is_shown() -> None:
    windows = (window(DAY, 2 * DAY), window(DAY, 2 * DAY, 16), window(DAY, 2 * DAY, kind=WindowKind.FREEZE))
    spec = ClusterSpec(name="c", islands=MAIN, quotas=TEAM, windows=windows)
    shown = [text.split() for part in cluster_parts(ClusterAnswer.of(spec, None)) for text in _plain(part)]
    assert [row[5] for row in shown if row[:1] in (["maintenance"], ["freeze"])] == ["all", "16", "-"]


# --- iCalendar -------------------------------------------------------------------------------------------


def ics(tmp_path: Path, *events: str) -> str:
    made = "".join(f"BEGIN:VEVENT\r\n{event.strip()}\r\nEND:VEVENT\r\n" for event in events)
    file = tmp_path / "m.ics"
    file.write_text(f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//x//y//EN\r\n{made}END:VCALENDAR\r\n")
    return str(file)


EVENT = "UID:1\nDTSTAMP:20261101T000000Z\nSUMMARY:new firmware\nLOCATION:alpha\\, beta\nDTSTART:{}\nDTEND:{}\n{}"


def event(starts: str = "20261201T060000Z", ends: str = "20261201T180000Z", more: str = "") -> str:
    return EVENT.format(starts, ends, more)


def declared_in(*given: Any) -> tuple[Declared, ...]:
    """Return the windows of a file in which every event can be read."""
    found = read_calendar(*given)
    assert found.left_out == ()
    return found.declared


def test_an_event_declares_a_window_for_each_of_its_clusters(tmp_path: Path) -> None:
    (found,) = declared_in(ics(tmp_path, event(more="CATEGORIES:Ops,SEV\nX-BACKSTOP-GPUS:64")), NOW)
    assert found.source == "ics 1"
    assert [name for name, _ in found.windows] == ["alpha", "beta"]
    made = found.windows[0][1]
    assert (made.kind, made.gpus, made.islands, made.reason) == (WindowKind.SEV, 64, None, "new firmware")
    assert (made.starts, made.ends) == (
        datetime(2026, 12, 1, 6, tzinfo=UTC),
        datetime(2026, 12, 1, 18, tzinfo=UTC),
    )


def test_clusters_and_kind_may_be_given_for_the_whole_file(tmp_path: Path) -> None:
    (found,) = declared_in(ics(tmp_path, event(more="X-BACKSTOP-ISLANDS:pod-1")), NOW, ["gamma"], WindowKind.FREEZE)
    ((name, made),) = found.windows
    assert (name, made.kind, made.islands) == ("gamma", WindowKind.FREEZE, ("pod-1",))


def test_zones_days_and_durations_are_understood(tmp_path: Path) -> None:
    days = event("20261201", "20261203").replace("DTSTART:", "DTSTART;VALUE=DATE:")
    (found,) = declared_in(ics(tmp_path, days.replace("DTEND:", "DTEND;VALUE=DATE:")), NOW)
    assert found.windows[0][1].ends == datetime(2026, 12, 3, tzinfo=UTC)
    zoned = event("20261201T060000", "20261201T180000").replace("DTSTART:", "DTSTART;TZID=Europe/Paris:")
    (found,) = declared_in(ics(tmp_path, zoned.replace("DTEND:20261201T180000", "DURATION:PT2H")), NOW)
    assert found.windows[0][1].starts == datetime(2026, 12, 1, 5, tzinfo=UTC)
    assert found.windows[0][1].ends == datetime(2026, 12, 1, 7, tzinfo=UTC)


# Berlin's clock goes from 2:00 to 3:00 on 28 March 2027 and from 3:00 to 2:00 on 31 October.
@pytest.mark.parametrize(
    ("starts", "duration", "ends"),
    [
        ("20270327T220000", "PT12H", datetime(2027, 3, 28, 9, tzinfo=UTC)),
        ("20270327T220000", "PT720M", datetime(2027, 3, 28, 9, tzinfo=UTC)),
        ("20270327T220000", "P1D", datetime(2027, 3, 28, 20, tzinfo=UTC)),
        ("20270327T220000", "PT24H", datetime(2027, 3, 28, 21, tzinfo=UTC)),
        ("20270327T220000", "P1DT12H", datetime(2027, 3, 29, 8, tzinfo=UTC)),
        ("20270327T220000", "P1W", datetime(2027, 4, 3, 20, tzinfo=UTC)),
        ("20270326T220000", "P1DT12H", datetime(2027, 3, 28, 9, tzinfo=UTC)),
        ("20271030T220000", "PT12H", datetime(2027, 10, 31, 8, tzinfo=UTC)),
        ("20271030T220000", "P1D", datetime(2027, 10, 31, 21, tzinfo=UTC)),
        ("20271030T220000", "PT24H", datetime(2027, 10, 31, 20, tzinfo=UTC)),
    ],
)
@pytest.mark.parametrize("folded", [False, True])
def test_hours_of_a_duration_are_exact_and_days_are_on_the_wall_s_clock(
    starts: str, duration: str, ends: datetime, folded: bool, tmp_path: Path
) -> None:
    zoned = event(starts, "x").replace("DTSTART:", "DTSTART;TZID=Europe/Berlin:")
    text = f"DURATION:{duration[:2]}\n {duration[2:]}" if folded else f"DURATION:{duration}"
    file = ics(tmp_path, zoned.replace("DTEND:x", text))
    (found,) = declared_in(file, datetime(2027, 3, 1, tzinfo=UTC), ["c"])
    assert [made.ends for _, made in found.windows] == [ends]
    last_moment = ends - timedelta(minutes=1)
    assert len(declared_in(file, last_moment, ["c"])[0].windows) == 1, "it has not ended"
    assert declared_in(file, ends, ["c"])[0].windows == ()


def test_each_time_of_a_series_lasts_as_long_as_its_duration_says(tmp_path: Path) -> None:
    more = "RRULE:FREQ=DAILY;COUNT=3\nRDATE;TZID=Europe/Berlin;VALUE=PERIOD:20270410T220000/PT1H"
    zoned = event("20270326T220000", "x", more).replace("DTSTART:", "DTSTART;TZID=Europe/Berlin:")
    file = ics(tmp_path, zoned.replace("DTEND:x", "DURATION:PT12H"))
    (found,) = declared_in(file, datetime(2027, 3, 1, tzinfo=UTC), ["c"])
    in_order = sorted((made.starts, made.ends) for _, made in found.windows)
    hours = [(ends - starts) / HOUR for starts, ends in in_order]
    assert hours == [12, 12, 12, 1]


@pytest.mark.parametrize(
    "line",
    [
        "EXDATE;TZID=PDT:20261215T161500",
        "EXDATE:20261202T060000Z\nEXDATE;TZID=PDT:20261215T161500",
        "RDATE;TZID=PDT:20261215T161500",
        "RDATE;TZID=PDT;VALUE=PERIOD:20261215T161500/PT1H",
        "RECURRENCE-ID;TZID=PDT:20261215T161500",
    ],
)
def test_an_unknown_zone_of_any_property_leaves_the_event_out_and_is_named(line: str, tmp_path: Path) -> None:
    rule = "" if line.startswith("RECURRENCE") else "RRULE:FREQ=DAILY;COUNT=3\n"
    file = ics(tmp_path, event(more=rule + line), event().replace("UID:1", "UID:2"))
    read = read_calendar(file, NOW)
    field = line.rpartition("\n")[2].partition(";")[0]
    assert [each.source for each in read.declared] == ["ics 2"]
    (sentence,) = read.left_out
    assert sentence == f"m.ics: event 'new firmware': {field} has an unknown time zone, 'PDT': 2026-12-15T16:15"


def test_a_cancelled_time_without_a_zone_could_be_any(tmp_path: Path) -> None:
    floating = event(more="RRULE:FREQ=DAILY;COUNT=3\nEXDATE:20261202T060000")
    with pytest.raises(BadInput, match="EXDATE has no time zone: 2026-12-02T06:00"):
        read_calendar(ics(tmp_path, floating), NOW)
    whole_day = event(more="RRULE:FREQ=DAILY;COUNT=3\nEXDATE;VALUE=DATE:20261202")
    assert len(declared_in(ics(tmp_path, whole_day), NOW, ["c"])[0].windows) == 2


def test_a_series_is_followed_for_a_year_and_what_is_over_is_left_out(tmp_path: Path) -> None:
    weekly = event("20261101T060000Z", "20261101T070000Z", "RRULE:FREQ=WEEKLY\nEXDATE:20261129T060000Z")
    (found,) = declared_in(ics(tmp_path, weekly), NOW, ["c"])
    starts = [made.starts for _, made in found.windows]
    assert starts[0] == datetime(2026, 11, 22, 6, tzinfo=UTC)
    assert datetime(2026, 11, 29, 6, tzinfo=UTC) not in starts
    assert len(starts) == 52


def test_a_cancelled_event_takes_back_what_it_declared(tmp_path: Path) -> None:
    assert declared_in(ics(tmp_path, event(more="STATUS:CANCELLED")), NOW) == (Declared(source="ics 1"),)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], "m.ics has no event"),
        ([event().replace("UID:1\n", "")], "m.ics: event 'new firmware' has no UID, which a later import"),
        ([event().replace("LOCATION:alpha\\, beta\n", "")], "m.ics: event 'new firmware' has no location"),
        ([event("20261201T060000", "20261201T070000")], "m.ics: event 'new firmware': DTSTART has no time zone"),
        ([event(more="X-BACKSTOP-GPUS:many")], "m.ics: event 'new firmware': gpus must be a whole number"),
        ([event(more="RRULE:FREQ=SOMETIMES")], "m.ics"),
        ([event(more="RRULE:FREQ=DAILY;INTERVAL=0")], "m.ics: event 'new firmware' repeats at an INTERVAL below 1"),
        (
            [event("19001101T060000Z", "19001101T060001Z", "RRULE:FREQ=HOURLY")],
            "m.ics: event 'new firmware' began 1900-11-01, too long ago to follow its series: give a later DTSTART",
        ),
        (
            [event("20261101T060000Z", "20261101T060001Z", "RRULE:FREQ=SECONDLY")],
            "m.ics: event 'new firmware' repeats every second or minute, which is too often for a window",
        ),
        (
            [event("20261101T060000Z", "20261101T060001Z", "RRULE:FREQ=HOURLY")],
            "m.ics: event 'new firmware' takes place 8784 times within a year: the most is 5000",
        ),
        ([event("20261202T060000Z", "20261201T070000Z")], "m.ics: event 'new firmware' ends before it starts"),
        ([event().replace("DTSTART:20261201T060000Z\n", "")], "m.ics: event 'new firmware' has no DTSTART"),
        (
            [event().replace("DTSTART:20261201T060000Z\n", "DTSTART:-PT5H\n")],
            "m.ics: event 'new firmware': DTSTART is neither a day nor a time",
        ),
    ],
)
def test_a_bad_event_is_named(events: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        read_calendar(ics(tmp_path, *events), NOW)
    assert refused.value.message.startswith(said)


def test_what_is_no_calendar_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"hello", b"\xff\xfe\x00", b"BEGIN:VCALENDAR"):
        (tmp_path / "x.ics").write_bytes(content)
        with pytest.raises(BadInput, match=r"^x\.ics "):
            read_calendar(str(tmp_path / "x.ics"), NOW)
    with pytest.raises(BadInput, match="cannot be read"):
        read_calendar(str(tmp_path / "none.ics"), NOW)


# --- commands --------------------------------------------------------------------------------------------


def fake() -> FakeBackstop:
    ahead = window(timedelta(days=3650), timedelta(days=3651), 39, kind=WindowKind.MAINTENANCE)
    entry = Entry(id=7, cluster="h100-worked", window=ahead, source="hold 1", declared_by="tpm")
    return FakeBackstop(specs=(WORKED.model_copy(update={"windows": (ahead,)}),), entries=[entry])


def test_hold_declares_a_window_and_says_what_it_will_take(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(fake()) as door:
        words = "hold h100-worked --kind sev --until 4h --gpus 39 --reason fabric --actor oncall"
        assert run(words.split()) == 0
    (declared,) = door.declared
    ((name, made),) = declared.windows
    assert (name, made.kind, made.gpus, made.reason) == ("h100-worked", WindowKind.SEV, 39, "fabric")
    assert made.ends - made.starts == 4 * HOUR
    said = capsys.readouterr().out
    assert "39 GPUs of research (65 will then lack backing) lose their backing" in said


class Declaring(FakeBackstop):
    """Its clusters have the windows that were declared."""

    async def clusters_named(self, names: Collection[str]) -> list[ClusterSpec]:
        own = [(name, w) for each in self.declared for name, w in each.windows]
        return [
            spec.model_copy(update={"windows": tuple(w for name, w in own if name == spec.name)})
            for spec in await super().clusters_named(names)
        ]


@pytest.mark.parametrize("begins", ["", "--from 2h "], ids=["from now", "ahead"])
def test_hold_names_what_its_own_window_takes(begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    """319 healthy of 345 promised: without 39 of them 65 lack one, of which 26 lack it now."""
    with answering(Declaring(specs=(WORKED,))):
        words = f"hold h100-worked --kind maintenance {begins}--until 4h --gpus 39 --reason firmware --actor oncall"
        assert run(words.split()) == 0
    when = "in 2h" if begins else "from now on"
    assert (
        f"h100-worked: {when}, 39 GPUs of research (65 will then lack backing) lose their backing"
        in capsys.readouterr().out
    )


def test_one_gpu_loses_its_backing(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(Declaring(specs=(WORKED,))):
        words = "hold h100-worked --kind maintenance --until 4h --gpus 1 --reason fan --actor oncall"
        assert run(words.split()) == 0
    assert "from now on, 1 GPU of research (27 will then lack backing) loses its backing" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["h100-w* --until 4h", "'h100-w*' h100-worked --for 4h"])
def test_a_hold_takes_globs_of_the_ledger(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A glob may match more clusters than intended, so Backstop asks, as for several."""
    more = "--kind freeze --reason board --actor oncall"
    with answering(Declaring(specs=(WORKED,))) as door:
        assert run(shlex.split(f"hold {words} {more}")) == 2
        assert "Hold 1 cluster? There is no terminal to ask on" in capsys.readouterr().err
        assert run(shlex.split(f"hold {words} {more} --yes")) == 0
    ((declared,),) = [each.windows for each in door.declared]
    assert declared[0] == "h100-worked"
    with answering(Declaring(specs=(WORKED,))):
        capsys.readouterr()
        assert run(shlex.split(f"hold 'ord7-h*' --for 4h {more} --yes")) == 2
    assert "ord7-h*: the glob matches no cluster of the ledger" in capsys.readouterr().err


def test_the_calendar_is_shown_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(fake()):
        assert run(["calendar", "show", "h100-worked", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [w["id"] for w in answer["windows"]] == [7]
    assert answer["foretold"]["h100-worked"][0]["lacks"] == {"research": 65}


def test_a_window_is_ended_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(fake()) as door:
        assert run(["calendar", "end", "h100-worked", "7", "--reason", "done"]) == 0
    assert door.asked == [("calendar", "h100-worked"), ("end_window", "h100-worked", 7, "done")]
    assert capsys.readouterr().out.startswith("Cancelled: maintenance of 39 GPUs from ")  # it had not begun


def test_what_one_hold_declared_is_one_line_and_ended_by_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    """For 46 clusters it was 46 lines, and 46 commands to undo it."""
    names = [f"h100-{n:02}" for n in range(46)]
    ends = datetime.now(UTC) + timedelta(days=15)
    freeze = Window(kind=WindowKind.FREEZE, starts=datetime.now(UTC), ends=ends, reason="year end")
    specs = tuple(WORKED.model_copy(update={"name": name}) for name in names)
    with answering(Declaring(specs=specs)) as door:
        assert run(shlex.split("hold --fleet --kind freeze --until 15d --reason 'year end' --yes")) == 0
    (declared,) = door.declared
    assert declared.source.startswith("fleet hold ")
    name = declared.source.removeprefix("fleet hold ")
    said = capsys.readouterr().out
    assert f"Undo: backstop calendar end --hold {name} --reason '...'" in said
    entries = [
        Entry(id=n, cluster=c, window=freeze, source=declared.source, declared_by="tpm") for n, c in enumerate(names, 1)
    ]
    with answering(FakeBackstop(entries=entries, specs=())):
        assert run(["calendar", "show"]) == 0
    (row,) = [text for text in capsys.readouterr().out.splitlines() if "year end" in text]
    assert row.startswith("every cluster (46)")
    assert name in row
    with answering(FakeBackstop(entries=entries)) as door:
        assert run(["calendar", "end", "--hold", name, "--reason", "it is January"]) == 0
    assert door.asked == [("calendar", ""), ("end_hold", declared.source, tuple(names), "it is January")]
    said = capsys.readouterr().out
    assert said.startswith("Ended: freeze from ")
    assert "of 46 clusters.\nUndo: backstop hold --fleet --kind freeze --until " in said


def test_a_missing_word_is_asked_for_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hold", "h100-worked", "--until", "4h"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "backstop: Missing option '--kind'. Choose from: maintenance, sev, freeze (see: backstop hold --help)\n"
    )


def test_one_that_had_begun_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(fake()) as door:
        begun = door.entries[0].window.but(starts=datetime.now(UTC) - timedelta(hours=1))
        door.entries[0] = door.entries[0].but(window=begun)
        assert run(["calendar", "end", "h100-worked", "7", "--reason", "done"]) == 0
    assert capsys.readouterr().out.startswith("Ended: maintenance of 39 GPUs from ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["calendar", "end", "c", "7", "--reason", " "], "--reason must say why"),
        (["calendar", "end", "--reason", "r"], "CLUSTER is missing: name a window by CLUSTER and ID, or give --hold"),
        (["calendar", "end", "c", "--reason", "r"], "ID is missing: name a window by CLUSTER and ID, or give --hold"),
        (
            ["calendar", "end", "c", "7", "--hold", "x", "--reason", "r"],
            "--hold 'x' is given together with CLUSTER 'c': give one of them",
        ),
        (
            ["hold", "c", "--kind", "sev", "--from", "9999-12-31T23:00Z", "--until", "4h", "--reason", "x"],
            "--until 4h gives a time outside the years 1 to 9999",
        ),
        (["hold", "", "--kind", "sev", "--until", "1h", "--reason", "x"], "CLUSTER is empty: name a cluster"),
        (["approve", " ", "--plan", "x"], "CLUSTER is empty: name a cluster"),
        (["plan", ""], "CLUSTER is empty: name a cluster, or leave it out"),
        (["status", ""], "CLUSTER is empty: name a cluster, or leave it out"),
        (["plan", "--cluster", ""], "--cluster is empty: give it a value, or leave it out"),
        (["plan", "--buffer="], "--buffer is empty: give it a value, or leave it out"),
        (["launch", "c", "--max-tier", "", "--yes"], "--max-tier is empty: give it a value, or leave it out"),
    ],
)
def test_what_an_empty_word_leaves_open_is_asked_for(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(fake()) as door:
        assert run(words) == 2
    assert door.asked == []
    assert capsys.readouterr().err == f"backstop: {said}\n"


def test_an_import_says_what_it_took_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = fake().entries[0]

    class Taking(FakeBackstop):
        async def ask(self, question: Question[Any]) -> Declaration:
            assert isinstance(question, Declare)
            return Declaration(stand=(), new=(), gone=(gone,))

    with answering(Taking()):
        assert run(["calendar", "import", ics(tmp_path, event(more="STATUS:CANCELLED"))]) == 0
    assert capsys.readouterr().out.startswith("Taken back: maintenance of 39 GPUs from ")


def test_what_is_left_out_of_an_import_is_named_and_the_rest_is_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One event cannot be read, one is of a cluster that the ledger has not."""
    asked = []

    class Strict(FakeBackstop):
        async def ask(self, question: Question[Any]) -> Declaration:
            assert isinstance(question, Declare)
            asked.append([d.source for d in question.declared])
            if any(name == "alpha" for d in question.declared for name, _ in d.windows):
                raise BadInput("the ledger has no cluster 'alpha'")
            return Declaration(stand=tuple(fake().entries), new=(), gone=())

    other = event().replace("UID:1", "UID:2").replace("LOCATION:alpha\\, beta", "LOCATION:h100-worked")
    nonsense = event(more="X-BACKSTOP-GPUS:many").replace("UID:1", "UID:3")
    with answering(Strict()):
        assert run(["calendar", "import", ics(tmp_path, event(), other, nonsense), "--json"]) == 1
    assert asked == [["ics 1", "ics 2"], ["ics 1"], ["ics 2"]]
    said = capsys.readouterr()
    assert [w["id"] for w in json.loads(said.out)["windows"]] == [7]
    assert said.err.splitlines() == [
        "backstop: left out: m.ics: event 'new firmware': gpus must be a whole number, not 'many'",
        "backstop: left out: the ledger has no cluster 'alpha'",
    ]
    assert len(json.loads(said.out)["left_out"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--until never", "--until must be a time such as 2026-12-01T18:00Z, or a duration such as 4h, not 'never'"),
        ("--until 2026-12-01T18:00", "--until needs a time zone (for example a final Z): 2026-12-01T18:00"),
        (
            "--until 2001-01-01T00:00Z --from 2000-01-01T00:00Z",
            "--until 2001-01-01T00:00Z is in the past: the time is ",
        ),
        ("--until 2000-01-01T00:00Z --from 2001-01-01T00:00Z", "--until 2000-01-01T00:00Z is not after its start, "),
        ("--until 0s", "--until 0s is not after its start, "),
        ("--until 10000d", "--until a duration cannot be longer than ten years: '10000d'"),
        ("--until 1h --kind freeze --gpus 5", "--gpus is given, but a freeze takes no capacity: leave this option out"),
        (
            "--until 1h --kind freeze --islands a",
            "--islands is given, but a freeze takes no capacity: leave this option out",
        ),
        ("--until 1h --kind party", "Invalid value for '--kind': 'party' is not one of 'maintenance', 'sev', 'freeze'"),
    ],
)
def test_a_bad_time_is_one_sentence(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(fake()) as door:
        assert run(["hold", "c", "--kind", "sev", "--reason", "x", *words.split()]) == 2
    assert door.declared == []
    assert capsys.readouterr().err.startswith(f"backstop: {said}")
