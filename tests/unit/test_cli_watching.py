"""`watch`: one line for each change in a pipe, a live picture in a terminal, and when it ends."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli import watching
from cli.main import run
from models.errors import Refusal, Unavailable
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from models.rollout.status_models import Condition, RolloutStatus, UndoStatus
from tests.unit.cli_fakes import NOON, FakeBackstop, answering, status
from tests.unit.pure_world import World, quota
from views.status import status_line, status_parts

DOCS = Path(__file__).parents[2] / "docs"
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
    undoing=UndoStatus(
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
        "NOT undone",
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
    assert "306 promised" in status_line(planned)


# --- stuck -------------------------------------------------------------------------------------


def stuck(*quotas: Any, total: int = 361, healthy: int | None = None) -> RolloutStatus:
    """A rollback whose values cannot be restored, as the state machine tells it."""
    world = World(
        quotas or (quota("a", 200), quota("b", 161, busy=100)),
        {"main": (total, healthy or total)},
        notice="0s",
        soak_buffered="0s",
        soak_enforced="0s",
        every_state=False,
    ).start()
    world.until(Stage.MONITORED)
    world.fail(EffectKind.RESTORE, "Refusal")
    world.say(Command.ROLLBACK)
    return world.status


STUCK = """\
c1  stuck since 2026-01-05 08:00:00Z (3h)
rollout     c1/1, owner tpm, attempt 1
plan        HASH, approved by tpm, wave unscheduled, cuts 55 GPUs
health      361 healthy of 361, as of 2026-01-05 08:00:00Z (3h ago)
last look   306 promised, 306 backed, 0 phantom; surplus 55, flex 61 (6 of it unused inside quotas)
rollback    undo, by tpm: because
undone      follow: the flex pool no longer follows health
undone      harden: the limits are soft again
undone      reserve: the freed capacity is released, so that others can raise quotas into it
NOT undone  set_soft: the quotas still have the rollout's values; restore failed: restore did not
            answer
still       b has 106 GPUs, not 161
needs       a person: nothing happens by itself
retry       backstop retry c1 --reason '...'
            runs restore again and nothing else (b to 161); then the rollout is rolled back and
            stays open. Mend the cause first: if it is still there, the rollout is stuck again, and
            nothing is lost
close       backstop close c1 --reason '...'
            ends the rollout as it is: b stays at 106, not 161; limits stay soft. Nothing more is
            undone: from then on you change quotas by hand

TEAM  BASELINE  QUOTA  PLAN  BACKING  VALUE     ACK
a          200    200   200      200  advisory  -
b          161    106   106      106  advisory  -
"""


def drawn(status: RolloutStatus, width: int) -> list[str]:
    """Return what a terminal of this width shows, three hours later."""
    screen = Console(width=width, file=io.StringIO(), force_terminal=False, markup=False)
    for part in status_parts(status, status.at + timedelta(hours=3)):
        screen.print(part)
    return [text.rstrip() for text in screen.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_a_stuck_rollout_says_what_is_undone_what_is_not_and_what_each_command_will_do() -> None:
    status = stuck()
    assert drawn(status, 100) == STUCK.replace("HASH", status.plan_hash or "").splitlines()


@pytest.mark.parametrize("unguarded", [True, False])
def test_a_rollout_that_needs_nobody_and_guards_nothing_yet_says_so(unguarded: bool) -> None:
    planned = status(**{**CALM, "stage": Stage.PLANNED, "unguarded": unguarded})
    sentence = "nobody guards the present quotas until the rollout is buffered; restore the baseline: "
    sentence += f"backstop abort {planned.cluster} --reason '...'"
    assert any(sentence in text for text in drawn(planned, 200)) is unguarded


def test_flex_beyond_the_surplus_is_what_quotas_leave_unused_as_the_readme_counts_it() -> None:
    """README's cluster: of 319 healthy none is without a quota on it, and of 345 promised 310 are in use."""
    readme = World((quota("research", 345, busy=310),), {"main": (361, 319)})
    (now,) = (text for text in drawn(readme.status, 100) if text.startswith("now "))
    assert now.endswith("345 promised, 319 backed, 26 phantom; surplus 0, flex 9 (9 of it unused inside quotas)")
    assert (319 - 319, 319 - 310) == (0, 9)
    full = World((quota("research", 300),), {"main": (361, 319)})
    (now,) = (text for text in drawn(full.status, 100) if text.startswith("now "))
    assert now.endswith("; surplus 19, flex 19"), "nothing is left unused"


def test_a_pipe_gets_the_same_words_unwrapped(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    status = stuck()
    fake.statuses = [status]
    assert run(["status", "c1"]) == 0
    lines = [re.sub(" {2,}", "  ", text) for text in capsys.readouterr().out.splitlines()]
    assert status.undoing is not None
    for choice in status.undoing.choices:
        at = lines.index(f"{choice.command}  {choice.line}")
        assert lines[at + 1].strip() == choice.does
    assert [text for text in lines if text.startswith("NOT undone")] == [f"NOT undone  {status.undoing.not_undone[0]}"]
    assert [text.split("  ")[1] for text in lines if text.startswith("undone")] == [*status.undoing.undone]


def test_a_stuck_status_is_the_same_in_json(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    fake.statuses = [stuck()]
    assert run(["status", "c1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    undoing = told["undoing"]
    assert undoing["undone"][-1] == "reserve: the freed capacity is released, so that others can raise quotas into it"
    assert undoing["not_undone"] == [
        "set_soft: the quotas still have the rollout's values; restore failed: restore did not answer"
    ]
    assert undoing["values"] == [{"team": "b", "gpus": 106, "target_gpus": 161, "by_others": False, "unsure": False}]
    assert [(c["command"], c["line"]) for c in undoing["choices"]] == [
        ("retry", "backstop retry c1 --reason '...'"),
        ("close", "backstop close c1 --reason '...'"),
    ]
    assert undoing["commands"] == ["retry", "close"]
    assert all(c["line"] in told["needs"] for c in undoing["choices"])


def test_three_hundred_quotas_that_are_not_restored_fill_one_screen() -> None:
    """The quotas that are short of their value are the first of those that are shown."""
    kept = [quota(f"a{n:03d}", 10) for n in range(20)]
    cut = [quota(f"team-with-a-long-name-{n:03d}", 10, busy=1) for n in range(300)]
    status = stuck(*kept, *cut, total=3200)
    left = {v.team for v in status.undoing.values} if status.undoing is not None else set()
    assert left == {q.team for q in cut}
    lines = drawn(status, 100)
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    still = [text for text in lines if text.startswith("still")]
    assert len(still) == 10
    assert lines[lines.index(still[-1]) + 1].strip() == "and 290 more quotas: backstop status c1 --json"
    begins = next(n for n, text in enumerate(lines) if text.startswith("TEAM"))
    assert all(text.startswith("team-with-a-long-name-") for text in lines[begins + 1 : -1])
    assert len(lines[begins + 1 : -1]) == 10
    assert lines[-1] == "and 310 more teams: backstop status c1 --json"
    text = "\n".join(lines)
    assert text.index("backstop close c1") < text.index("TEAM")


def test_the_stuck_status_in_the_docs_is_real() -> None:
    status = stuck(quota("research", 345, busy=310), healthy=319)
    text = status.model_dump_json(by_alias=True)
    for made_up, meant in (
        (r"\bc1\b", "h100-worked"),
        (r"\bbecause\b", "research needs the GPUs"),
        ("restore did not answer", "the quota system is read-only"),
    ):
        text = re.sub(made_up, meant, text)
    status = RolloutStatus.model_validate_json(text)
    shown = "\n".join(drawn(status, 100))
    assert f"$ backstop status h100-worked\n{shown}\n```" in (DOCS / "what-happens-when.md").read_text()


def test_a_watched_rollout_that_is_stuck_names_the_commands_in_its_line() -> None:
    assert status_line(stuck()).endswith(
        "rollback (undo): because; needs: mend the cause, then give: backstop retry c1 --reason '...', "
        "or end the rollout as it is: backstop close c1 --reason '...'"
    )
