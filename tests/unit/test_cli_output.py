"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import io
import re
import sys
from datetime import UTC, datetime, timedelta

import pytest
from rich.text import Text

from cli.output import clean, indented, line, moment, row, show, span, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def filled() -> object:
    made = table("NAME", "=WORD", ">GPUS")
    row(made, "[bold]a-name-that-is-rather-long :gpu:[/bold]", "unscheduled", 1234567, style="red")
    row(made, "b", None, 8)
    return made


def test_a_pipe_gets_columns_as_wide_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show(line(("Title", "bold"), ": ", "said"), filled(), *indented([Text("why")]))  # type: ignore[arg-type]
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
    monkeypatch.setattr(sys, "stdout", terminal)  # here: pytest captures anew for each test's call
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
