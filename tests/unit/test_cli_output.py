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


@pytest.mark.parametrize("columns", ["80", "40", "20"])
def test_a_terminal_folds_names_and_never_cuts_numbers(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)  # here: pytest captures anew for each test's call
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show(filled())  # type: ignore[arg-type]
    shown = terminal.getvalue()
    assert "\x1b[31m" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "…" not in plain
    assert "1234567" in plain
    assert "unscheduled" in plain
    folded = "".join(text[: plain.index("WORD")].strip() for text in plain.splitlines()[1:-1])
    assert folded.replace(" ", "") == "[bold]a-name-that-is-rather-long:gpu:[/bold]"


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
