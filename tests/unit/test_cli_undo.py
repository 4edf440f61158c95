"""Every change has an undo: each command has a row, prints its own undo, or only reads."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.app import app
from cli.main import run
from models.bringup.command_rows import BRINGUP_ROWS
from models.cluster.implausible_falls import DoubtedSource
from models.cluster.windows import Declaration, Entry, Window, WindowKind
from models.fleet.command_rows import FLEET_ROWS
from models.questions import ConfirmSource, Detach
from models.requests.command_rows import REQUEST_ROWS
from models.requests.commands import RequestCommand, RequestOrder, obey, refusal
from models.requests.state import RequestStage
from models.requests.undo_lines import undo_of_ask
from models.rollout.command_rows import ROLLOUT_ROWS
from tests.unit.cli_fakes import WORKED, FakeBackstop, answering
from tests.unit.test_calendar import event, ics
from tests.unit.test_cli_request import asked
from tests.unit.test_cli_selection import rollout as summary

LOOK = """
    up worker serve login open logout whoami migrate backup demo doctor docs plan haircut buffer backtest
    simulate-health why status watch burndown report audit schema flex builds keys fleet milestones calendar request
    access countersign mcp
"""
"""First words of commands that change nothing, start a process, or are of files and builds (their own pages say how
they are taken back)."""


ITSELF = {
    *("launch", "hold", "calendar import", "calendar end", "confirm", "detach", "request new"),
    *("bringup add", "bringup give-up", "access token new", "access token revoke", "access seen"),
    *("countersign give", "countersign withdraw"),
}
"""Commands that are no order to a lifecycle and print their undo themselves."""
BRINGUP_LOOKS = {f"bringup {words}" for words in ("status", "watch", "audit", "template", "recipe check")}


def typed(group: Any = None, before: str = "") -> Iterator[str]:
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        words = f"{before} {name}".strip()
        if hasattr(command, "commands"):
            yield from typed(command, words)
        else:
            yield words


def test_each_command_that_changes_something_has_a_row_or_says_its_undo_itself() -> None:
    every = set(typed())
    of_rows = {
        row.command_words for rows in (ROLLOUT_ROWS, FLEET_ROWS, REQUEST_ROWS, BRINGUP_ROWS) for row in rows.values()
    }
    assert of_rows | ITSELF <= every
    looks = set(LOOK.split())
    assert {words for words in every - of_rows - ITSELF - BRINGUP_LOOKS if words.split()[0] not in looks} == set()


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
        ({"starts": timedelta(hours=1)}, ["--from"]),  # from when it runs: it was collected long before
    ],
)
def test_a_window_that_was_ended_is_declared_again_as_it_was(
    changes: dict[str, Any], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if "starts" in changes:
        changes = {**changes, "starts": datetime.now(UTC) + changes["starts"]}
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
    assert "It cannot be undone: the window's time is over." in capsys.readouterr().out


UNDO_ENDED = [
    (timedelta(hours=-1), "Undo: backstop hold"),  # under way: it is cut short at now, and has three hours to go
    (timedelta(hours=1), "Undo: backstop hold"),
    (timedelta(hours=-9), "It cannot be undone: the window's time is over."),
]


@pytest.mark.parametrize(("begins", "said"), UNDO_ENDED)
def test_the_undo_of_an_end_is_in_the_json_too(
    begins: timedelta, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = datetime.now(UTC) + begins
    with answering(FakeBackstop(entries=[entry(starts=starts, ends=starts + timedelta(hours=4))])):
        assert run(["calendar", "end", "h100 b", "7", "--reason", "r", "--actor", "tpm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["undo"].startswith(said)


def numbered(number: int, **changes: Any) -> Entry:
    return entry(**changes).model_copy(update={"id": number, "source": f"ics {number}"})


@pytest.mark.parametrize(
    ("stand", "new", "gone", "undo"),
    [
        ([7], [], [], []),  # as it was: there is nothing to undo
        ([7, 8], [8], [], ["Undo: backstop calendar end 'h100 b' 8 --reason '...'"]),
        (
            [7, 8, 9],
            [8, 9],
            [],
            ["Undo: backstop calendar end CLUSTER ID --reason '...', for each of 'h100 b' 8, 'h100 b' 9"],
        ),
        ([], [], [5], ["Undo: backstop hold 'h100 b' --kind sev --until "]),
        (
            [7, 8],
            [8],
            [5],
            [
                "Undo: backstop calendar end 'h100 b' 8 --reason '...'",
                "Undo: backstop hold 'h100 b' --kind sev --until ",
            ],
        ),
    ],
)
def test_the_undo_of_an_import_is_of_what_it_changed(
    stand: list[int],
    new: list[int],
    gone: list[int],
    undo: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Known(FakeBackstop):
        async def ask(self, question: Any) -> Declaration:
            made = {number: numbered(number) for number in (*stand, *gone)}
            return Declaration(
                stand=tuple(made[n] for n in stand), new=tuple(made[n] for n in new), gone=tuple(made[n] for n in gone)
            )

    words = ["calendar", "import", ics(tmp_path, event()), "--actor", "tpm"]
    with answering(Known()):
        assert run(words) == 0
        lines = [text for text in capsys.readouterr().out.splitlines() if text.startswith("Undo")]
        assert run([*words, "--json"]) == 0
    assert [text.startswith(said) for text, said in zip(lines, undo, strict=True)] == [True] * len(undo), lines
    assert json.loads(capsys.readouterr().out)["undo"].splitlines() == lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("launch h100-worked --yes --json", "Undo: backstop abort h100-worked --reason '...'"),
        ("launch --fleet --json", "Undo: backstop fleet abort --reason '...'"),
        (
            "hold h100-worked --kind sev --until 4h --reason r --json",
            "Undo: backstop calendar end h100-worked 1 --reason",
        ),
        (
            "detach h100-worked --reason r --yes --json",
            "Undo: import the cluster with its quota system again: backstop fleet import",
        ),
        ("confirm --source prometheus/local --reason r --json", "It cannot be undone. If the source is wrong"),
    ],
)
def test_programs_read_the_undo_as_people_do(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    class Slurm(FakeBackstop):
        async def ask(self, question: Any) -> Any:
            match question:
                case Detach():
                    return {}
                case ConfirmSource():
                    return DoubtedSource(
                        source=question.source, since=datetime.now(UTC), clusters=("h100-worked",), why=""
                    )
            return await super().ask(question)

    with answering(Slurm()):
        assert run([*words.split(), "--actor", "tpm"]) == 0
        assert json.loads(capsys.readouterr().out)["undo"].startswith(said)
        plain = [word for word in words.split() if word != "--json"]
        assert run([*plain, "--actor", "tpm"]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("words", ["hold h100-worked b", "hold --fleet"])
@pytest.mark.parametrize("answer", ["nobody", "n", "y"])
def test_a_hold_of_several_is_asked_for(
    words: str, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if answer != "nobody":
        monkeypatch.setattr("cli.consent.can_ask", lambda **_: True)
    questions: list[str] = []

    def confirm(question: str) -> bool:
        questions.append(question)
        return answer == "y"

    monkeypatch.setattr("typer.confirm", confirm)
    specs = (WORKED, WORKED.model_copy(update={"name": "b"}))
    summaries = [summary("b"), summary("elsewhere")]
    starts = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%MZ}"
    line = f"{words} --kind maintenance --from {starts} --until 4h --gpus 39 --reason firmware --actor tpm"
    with answering(FakeBackstop(specs=specs, summaries=summaries)) as door:
        assert run(line.split()) == {"nobody": 2, "n": 1, "y": 0}[answer]
    out, err = capsys.readouterr()
    held = [name for each in door.declared for name, _ in each.windows]
    assert held == (["h100-worked", "b"] if answer == "y" else [])
    if answer == "nobody":
        assert "give --yes if you mean it" in err
        return
    assert questions == ["Hold 2 clusters?"]
    assert "2 clusters: h100-worked, b." in out
    assert "1 open rollout: its gate stays shut during the window (b)." in out
    # 319 healthy of 345 promised; without 39 of them 65 lack one, of which 26 lack it now.
    assert out.count("39 GPUs of research (65 will then lack backing) lose their backing") >= 2


def test_a_request_for_a_time_is_not_asked_anew_for_good() -> None:
    until = datetime(2026, 11, 24, tzinfo=UTC)
    state = asked(until=until, namespace="nightly jobs").but(stage=RequestStage.DECLINED)
    anew = "backstop request new a c1 16 --until '...' --namespace 'nightly jobs' --reason '...'"
    assert undo_of_ask(state) == f"It cannot be undone; to ask anew: {anew}"


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
    line = undo_of_ask(state)
    assert line.startswith(said)
    assert bool(line) is bool(said)
    if line.startswith("Undo"):
        order = RequestOrder(actor=state.ask.actor, reason="why")
        assert refusal(state, RequestCommand.WITHDRAW, order, ()) is None
        assert obey(state, RequestCommand.WITHDRAW, order, state.asked_at).stage is RequestStage.WITHDRAWN
