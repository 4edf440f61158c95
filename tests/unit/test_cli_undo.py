"""Each change says how it is undone: every command is in the table, or only looks, or is of another kind."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer

from cli.app import app
from cli.main import run
from cli.undo import THE_FLEET, THE_REQUEST, THE_ROLLOUT, UNDOING
from models.cluster.windows import Entry, Window, WindowKind
from models.fleet.commands import FLEET_COMMANDS
from models.requests.commands import RequestCommand, RequestOrder, obey, refusal, undo_line
from models.requests.state import RequestStage
from models.rollout.stages import Command
from tests.unit.cli_fakes import FakeBackstop, answering
from tests.unit.test_cli_request import asked

LOOK = """
    up worker migrate backup demo doctor docs plan haircut buffer backtest simulate-health why status watch burndown
    report audit schema flex builds fleet milestones calendar request
"""
"""First words of commands that change nothing, start a process, or are of files and builds (their own pages say how
they are taken back)."""


def typed(group: Any = None, before: str = "") -> Iterator[str]:
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        words = f"{before} {name}".strip()
        if hasattr(command, "commands"):
            yield from typed(command, words)
        else:
            yield words


def test_each_command_that_changes_something_is_in_the_table() -> None:
    every = set(typed())
    assert set(UNDOING) <= every
    looks = set(LOOK.split())
    assert {words for words in every - set(UNDOING) if words.split()[0] not in looks} == set()
    assert {words for words, who in UNDOING.items() if who is THE_ROLLOUT} == {c.value for c in Command}
    assert {words.removeprefix("fleet ") for words, who in UNDOING.items() if who is THE_FLEET} == set(FLEET_COMMANDS)
    decisions = {words.removeprefix("request ") for words, who in UNDOING.items() if who is THE_REQUEST}
    assert decisions == {"new", *RequestCommand}


def entry(**changes: Any) -> Entry:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    given = {
        "kind": WindowKind.SEV,
        "starts": now - timedelta(hours=1),
        "ends": now + timedelta(hours=3),
        "reason": "r",
    }
    return Entry(id=7, cluster="h100 b", window=Window(**{**given, **changes}), source="hold x", declared_by="tpm")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["--kind", "sev"]),
        ({"islands": ("x", "y"), "gpus": 8}, ["--islands", "x,y", "--gpus", "8"]),
        ({"starts": datetime.now(UTC) + timedelta(hours=1)}, ["--from"]),
    ],
)
def test_a_window_that_was_ended_is_declared_again_as_it_was(
    changes: dict[str, Any], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ended = entry(**changes)
    with answering(FakeBackstop(entries=[ended])) as door:
        assert run(["calendar", "end", "h100 b", "7", "--reason", "r", "--actor", "tpm"]) == 0
        (undo,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Undo: ")]
        said = shlex.split(undo.removeprefix("Undo: "))
        assert set(words) <= set(said)
        assert run([*said[1:], "--actor", "tpm"]) == 0
        ((cluster, again),) = door.declared[0].windows
        assert cluster == "h100 b"
        assert (again.kind, again.islands, again.gpus) == (ended.window.kind, ended.window.islands, ended.window.gpus)
        assert again.ends == ended.window.ends
        assert "backstop calendar end 'h100 b' 1 --reason '...'" in capsys.readouterr().out


def test_one_that_is_over_cannot_be_declared_again(capsys: pytest.CaptureFixture[str]) -> None:
    past = datetime.now(UTC) - timedelta(hours=2)
    with answering(FakeBackstop(entries=[entry(starts=past, ends=past + timedelta(hours=1))])):
        assert run(["calendar", "end", "h100 b", "7", "--reason", "r", "--actor", "tpm"]) == 0
    assert "It cannot be undone: its time is over." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (RequestStage.ASKED, "Undo: backstop request withdraw"),
        (RequestStage.APPROVED, "Undo: backstop request withdraw"),
        (RequestStage.DECLINED, "It cannot be undone; to ask anew: backstop request new a c1 16"),
        (RequestStage.WITHDRAWN, "It cannot be undone; to ask anew: backstop request new a c1 16"),
        (RequestStage.REFUSED, ""),
    ],
)
def test_a_request_says_how_it_is_undone_in_each_stage(stage: RequestStage, said: str) -> None:
    state = asked().but(stage=stage)
    line = undo_line(state)
    assert line.startswith(said)
    assert bool(line) is bool(said)
    if line.startswith("Undo"):
        order = RequestOrder(actor=state.ask.actor, reason="why")
        assert refusal(state, RequestCommand.WITHDRAW, order, ()) is None
        assert obey(state, RequestCommand.WITHDRAW, order, state.asked_at).stage is RequestStage.WITHDRAWN
