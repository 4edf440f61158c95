"""Every help text as it is read in a terminal of eighty columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import typer

from cli.app import app
from cli.commands.backtest import PolicyOption
from cli.list_options import Form
from cli.main import run


def every(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from every(command.commands[name], (*path, name))


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


@pytest.mark.usefixtures("narrow")
def test_no_help_is_cut_off_or_broken_where_the_next_word_had_room(capsys: pytest.CaptureFixture[str]) -> None:
    seen = 0
    for path in every(typer.main.get_command(app)):
        assert run([*path, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if len(line) > 80 or "\u2026" in line or "......" in line] == [], path
        prose = [line.rstrip() for line in lines[: next(n for n, line in enumerate(lines) if line[:1] == "\u256d")]]
        for one, following in pairwise(prose):
            if one.strip() and following.strip() and "Usage:" not in one:
                assert len(one) + 1 + len(following.split()[0]) > 79, (path, one)
        seen += 1
    assert seen > 80


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(("words", "named"), [(["backtest"], PolicyOption), (["status"], Form)], ids=str)
def test_words_too_wide_for_their_column_are_named_in_the_help(
    words: list[str], named: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--help"]) == 0
    said = re.findall(r"[\w-]+", capsys.readouterr().out)
    assert [word.value for word in named if word.value not in said] == []
