"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import io
import re
import sys
from datetime import UTC, datetime, timedelta

import pytest
from rich.text import Text

from cli.output import complain, show
from views.layout import wrap_lines
from views.words import clean, indent, line, moment, row, span, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def filled() -> object:
    made = table("NAME", "=WORD", ">GPUS")
    row(made, "[bold]a-name-that-is-rather-long :gpu:[/bold]", "unscheduled", 1234567, style="red")
    row(made, "b", None, 8)
    return made


def test_a_pipe_gets_columns_as_wide_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show(line(("Title", "bold"), ": ", "said"), filled(), *indent([Text("why")]))  # type: ignore[arg-type]
    assert capsys.readouterr().out.splitlines() == [
        "Title: said",
        "NAME                                           WORD            GPUS",
        "[bold]a-name-that-is-rather-long :gpu:[/bold]  unscheduled  1234567",
        "b                                              -                  8",
        "  why",
    ]


@pytest.mark.parametrize("columns", ["80", "45", "20"])
def test_a_terminal_breaks_no_name_and_cuts_no_number(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)  # here: pytest captures again for each test's call
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show(filled())  # type: ignore[arg-type]
    shown = terminal.getvalue()
    assert "\x1b[31m" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert {"1234567", "unscheduled", "8"} <= set(plain.split())
    first = "[bold]a-name-that-is-rather-long :gpu:[/bold]"
    if columns == "80":
        assert first in plain
    elif columns == "45":
        (short,) = re.findall(r"^\[.*(?=  unscheduled)", plain, re.MULTILINE)
        assert len(short) == 45 - len("  unscheduled  1234567")
        head, tail = short.split("…")
        assert first.startswith(head)
        assert first.endswith(tail)
    else:  # a line for each cell
        assert [text.split()[0] for text in plain.splitlines() if text][-3:] == ["NAME", "WORD", "GPUS"]


@pytest.mark.parametrize(("wide", "all_of_it"), [(True, True), (False, False), (None, False)])
def test_wide_shows_on_a_terminal_what_has_no_room_there(
    wide: bool | None, all_of_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    made = table("NAME", "OWNER", ">GPUS", least=("OWNER", "GPUS"))
    row(made, "a-name-of-a-cluster-of-some-length", "an-owner-of-some-length", 1234567)
    show(made, wide=wide)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    there = [word in plain for word in ("OWNER", "an-owner-of-some-length", "1234567")]
    assert all(there) is all_of_it
    assert ("No room for" in plain) is not all_of_it


def test_control_characters_are_spelt_out() -> None:
    assert clean("a\x1b[31mb\x9bc\rd\ne\u202ef\u2028") == "a\\x1b[31mb\\x9bc\\rd e\\u202ef\\u2028"
    assert clean("équipe 名") == "équipe 名"


@pytest.mark.parametrize(
    ("seconds", "said"), [(-5, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (86400, "24h"), (200_000, "2d")]
)
def test_spans_are_rough(seconds: int, said: str) -> None:
    assert span(timedelta(seconds=seconds)) == said


def test_moments_are_utc_to_the_second() -> None:
    assert moment(datetime(2026, 1, 31, 12, 0, 0, 999, tzinfo=UTC)) == "2026-01-31 12:00:00Z"
    assert moment(None) == "-"


NO_ROLLOUT = f"there is no rollout of {'h100-' * 8}: launch one with `backstop launch {'h100-' * 8} --owner capacity`"


def test_an_error_is_wrapped_at_a_terminal_and_its_command_stands_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    complain(NO_ROLLOUT)
    assert capsys.readouterr().err == f"backstop: {NO_ROLLOUT}\n", "a pipe gets one line"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    complain(NO_ROLLOUT)
    lines = terminal.getvalue().splitlines()
    assert f"  backstop launch {'h100-' * 8} --owner capacity" in lines
    assert [text for text in lines if len(text) > 80 and "backstop launch" not in text] == []
    assert len(lines) > 2


@pytest.mark.parametrize("name", ["../f2.yaml", "./f2.yaml", ".hidden/f2.yaml"])
def test_a_wrapped_sentence_keeps_the_dots_with_which_it_begins(name: str) -> None:
    text = f"{name}: differences: 2 added, 1 changed, 0 removed, 0 kept, 0 refused; unchanged: 38 clusters, 96 quotas."
    assert next(iter(wrap_lines(Text(text), 80))).plain.startswith(f"{name}: ")


def test_text_without_a_heading_has_no_empty_one_below_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table("TOKEN", "~SCOPE", "~")
    row(rows, "a-token-with-a-long-name", "viewer of all that there is in every cluster", "revoked by user:root of all")
    shown = [text.plain for text in rows.lines(40)]
    assert any(text.strip().startswith("revoked by") for text in shown)
    assert not any(text.strip().startswith(":") for text in shown)
