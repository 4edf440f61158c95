"""`watch`: one line for each change in a pipe, a live picture in a terminal, and when it ends."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from cli import watching
from cli.main import run
from cli.status_view import status_line, status_parts
from models.errors import Refusal, Unavailable
from models.gates import Condition
from models.messages import RolloutStatus, Undoing
from models.stages import Stage
from tests.unit.cli_fakes import NOON, FakeBackstop, answering, status

CALM: dict[str, Any] = {"holds": (), "at_risk": (), "needs": ""}


@pytest.fixture
def fake() -> Iterator[FakeBackstop]:
    with answering(FakeBackstop()) as door:
        yield door


def watched(*arguments: str) -> int:
    return run(["watch", "h100-worked", "--every", "0.1", *arguments])


def test_each_change_is_one_line_until_the_rollout_ends(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    buffered = status(**CALM)
    fake.statuses = [
        buffered,
        buffered.model_copy(update={"history_events": 99}),
        status(),
        status(Stage.CLOSED, **CALM, ended_because="closed by tpm"),
    ]
    assert watched() == 0
    assert capsys.readouterr().out.splitlines() == [
        "12:00:00Z  buffered; 300 healthy of 361; 306 promised",
        f"12:00:00Z  {status_line(status())}",
        "12:00:00Z  closed; 300 healthy of 361; closed by tpm",
    ]
    assert status_line(status()) == (
        "buffered; 300 healthy of 361; 306 promised; at risk: research has 300 healthy GPUs behind a quota of 306; "
        "hold: paused by oncall, a SEV; needs: paused by oncall: backstop resume h100-worked"
    )


def test_a_server_that_is_away_is_waited_for(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    away = Unavailable("no worker is running")
    fake.statuses = [status(**CALM), away, away, status(Stage.CLOSED, **CALM)]
    assert watched() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "no answer: no worker is running"
    assert len(lines) == 3


def test_a_server_that_was_never_there_is_not(fake: FakeBackstop) -> None:
    fake.statuses = [Unavailable("no worker is running")]
    assert watched() == 1
    fake.statuses = [Refusal("there is no rollout")]
    assert watched() == 3


def test_a_rollout_that_is_gone_is_an_end(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    fake.statuses = [status(**CALM), Refusal("the rollout of h100-worked has ended")]
    assert watched() == 0
    assert capsys.readouterr().out.endswith("the rollout of h100-worked has ended\n")


def test_once_looks_once(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert watched("--once") == 0
    assert "at risk" in capsys.readouterr().out
    assert len(fake.asked) == 1


def test_json_is_a_document_a_line(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    fake.statuses = [status(**CALM), Unavailable("away"), status(), status(Stage.CLOSED, **CALM)]
    assert watched("--json") == 0
    stages = [json.loads(text)["stage"] for text in capsys.readouterr().out.splitlines()]
    assert stages == ["buffered", "buffered", "closed"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_live_picture(fake: FakeBackstop, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    fake.statuses = [status(**CALM), Unavailable("no worker is running"), status(Stage.CLOSED, **CALM)]
    asyncio.run(watching.follow(fake, "h100-worked", every=0.01, once=False, as_json=False))  # type: ignore[arg-type]
    shown = screen.getvalue()
    assert "No answer: no worker is running" in shown
    assert "closed" in shown.rsplit("No answer", 1)[-1]


BUSY = status(
    Stage.STUCK,
    waiting_for=(Condition(name="soak", met=False, text="soak of 24h from 2026-01-31 12:00:00Z", until=NOON),),
    breach_of=("research",),
    undoing=Undoing(
        why="breach",
        reason="research had 300 healthy GPUs behind 306 for 10m",
        actor="backstop",
        left=("restore", "release"),
        stuck_on=("restore: the quota system refuses the write",),
    ),
    teams=tuple(
        status().teams[0].model_copy(update={"team": f"team-with-a-rather-long-name-{n}", "quota_gpus": 1234567})
        for n in range(3)
    ),
)


def test_the_picture_is_readable_in_80_columns() -> None:
    screen = Console(width=80, file=io.StringIO(), force_terminal=False, markup=False)
    for part in status_parts(BUSY, NOON):
        screen.print(part)
    out = screen.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    for said in (
        "in breach",
        "1234567",
        "left to undo:",
        "stuck on",
        "the quota system refuses the write",
        "soak of 24h",
    ):
        assert said in out
    assert out.count("1234567") == 3


def test_the_line_says_everything_in_one_line() -> None:
    said = status_line(BUSY.model_copy(update={"holds": ()}))
    assert "in breach: research has 300 healthy GPUs behind a quota of 306" in said
    assert "rollback (breach): research had 300 healthy GPUs behind 306 for 10m; left to undo: restore, release" in said
    assert "waits for soak of 24h from 2026-01-31 12:00:00Z" in said
    assert "\n" not in said


def test_a_plan_that_waits_is_not_called_promised() -> None:
    planned: RolloutStatus = status(Stage.PLANNED, **CALM)
    assert "306 to be promised" in status_line(planned)
