"""Commands to a bring-up, as they are typed: what is sent, and what is asked first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from cli.main import run
from models.bringup.commands import BringupOrder
from models.bringup.messages import BringupCommandAnswer
from models.bringup.stages import BringupCommand, BringupStage
from models.bringup.status import BringupStatus, status_of
from tests.unit.bringup_world import BringupWorld
from tests.unit.cli_fakes import FakeBackstop, answering

SENT: dict[str, dict[str, object]] = {
    "check-in h100-new": {},
    "check-in h100-new cabling --reason merged": {"step": "cabling", "reason": "merged"},
    "hold h100-new --reason r": {"reason": "r"},
    "release h100-new": {},
    "retry h100-new nodes --reason r": {"step": "nodes", "reason": "r"},
    "skip h100-new --check first-job --reason r": {"check": "first-job", "reason": "r"},
    "stop h100-new nodes --reason r --yes": {"step": "nodes", "reason": "r"},
    "revalidate h100-new": {},
    "cancel h100-new --reason r --stop -y": {"stop": True, "reason": "r"},
    "retire h100-new --reason r --yes": {"reason": "r"},
    "retire h100-new --deadline 2099-12-31T00:00Z --reason r --yes": {
        "deadline": datetime(2099, 12, 31, tzinfo=UTC),
        "reason": "r",
    },
}


class Commanded(FakeBackstop):
    """Takes every command to a bring-up."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[tuple[str, str, BringupOrder]] = []

    async def bringup_command(self, cluster: str, command: BringupCommand, order: BringupOrder) -> BringupCommandAnswer:
        self.orders.append((command.value, cluster, order))
        return BringupCommandAnswer(command=command, stage=BringupStage.PROVISIONING, said="so be it", undo="Undo: x")

    async def bringup_status(self, cluster: str) -> BringupStatus:
        world = BringupWorld()
        return status_of(world.b, world.now)


@pytest.fixture
def door() -> Iterator[Commanded]:
    fake = Commanded()
    with answering(fake):
        yield fake


def test_every_command_is_tried() -> None:
    assert {words.split()[0] for words in SENT} == set(BringupCommand)


@pytest.mark.parametrize("words", SENT)
def test_each_command_is_sent_as_it_is_typed(words: str, door: Commanded, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bringup", *words.split(), "--actor", "kim"]) == 0
    order = BringupOrder.model_validate({"actor": "kim", **SENT[words]})
    assert door.orders == [(words.split(maxsplit=1)[0], "h100-new", order)]
    assert capsys.readouterr().out == "h100-new: so be it.\nUndo: x\n"


@pytest.mark.parametrize("words", [words for words in SENT if "--reason r" in words])
def test_a_reason_is_asked_for(words: str, door: Commanded, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bringup", *words.replace("--reason r", "").split()]) == 2
    assert "Missing option '--reason'" in capsys.readouterr().err
    assert door.orders == []


@pytest.mark.parametrize(
    ("words", "question"),
    [
        ("stop h100-new --reason r", "Stop what runs of h100-new?"),
        ("stop h100-new nodes --reason r", "Stop nodes of h100-new?"),
        ("cancel h100-new --reason r", "Cancel the bring-up of h100-new?"),
        ("retire h100-new --reason r", "Retire h100-new?"),
    ],
)
@pytest.mark.parametrize("answer", ["nobody", "n", "y"])
def test_what_ends_something_shows_where_it_is_and_asks(
    words: str,
    question: str,
    answer: str,
    door: Commanded,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    questions: list[str] = []

    def confirm(asked: str) -> bool:
        questions.append(asked)
        return answer == "y"

    monkeypatch.setattr("typer.confirm", confirm)
    if answer != "nobody":
        monkeypatch.setattr("cli.consent.can_ask", lambda **_: True)
    assert run(["bringup", *words.split()]) == {"nobody": 2, "n": 1, "y": 0}[answer]
    assert len(door.orders) == (answer == "y")
    out, err = capsys.readouterr()
    if answer == "nobody":
        assert f"{question} There is no terminal to ask on, so nothing was changed" in err
    else:
        assert questions == [question]
        assert "planned" in out
