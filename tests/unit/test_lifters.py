"""The people named for a hold may resolve it, and nobody else may: the rollout itself is asked, name by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.main import run
from client.who_could_act import could_act_now, name_other_lifters
from models.access.access_versions import AccessStands, AccessVersion, HowImported
from models.access_questions import AimOf
from models.rollout.commands import CommandRequest, refusal
from models.rollout.messages import LaunchAnswer
from models.rollout.stages import Command, Stage
from models.rollout.status import launch_answer
from tests.unit.access_world import access, grant
from tests.unit.cli_fakes import NOON, FakeBackstop, answering, status
from tests.unit.pure_world import World
from tests.unit.test_ahead import begun, waiting

PEOPLE = ("tpm", "sre", "hw-lead", "kim", "b")
POLICY: dict[str, Any] = {"authorities": ["sre"], "owners": ["hw-lead"]}
FILE = AccessStands(
    version=AccessVersion(
        version=1, hash="f", file=access(grant("user:kim", "approver")), by="user:tpm", at=NOON, how=HowImported.FIRST
    )
)
NONE = AccessStands()


def stands(answer: AccessStands) -> Any:
    async def ask(question: Any) -> Any:
        return question.target if isinstance(question, AimOf) else answer

    return ask


def may_resolve(world: World, hold: str) -> set[str]:
    """Return who may resolve the hold, by asking the rollout, where no access file says it."""
    return {
        name
        for name in PEOPLE
        if refusal(world.r, Command.RESOLVE, CommandRequest(actor=name, reason="r", hold=hold), by_roles=False) is None
    }


def objected() -> World:
    world = waiting(**POLICY).start()
    world.say(Command.OBJECT, actor="kim", team="b", reason="deadline")
    return world


def drifted() -> World:
    world = begun(Stage.BUFFERED, **POLICY)
    world.foreign("b", 90)
    return world


@pytest.mark.parametrize("made", [objected, drifted])
async def test_a_status_names_those_who_may_resolve_what_it_needs(made: Any) -> None:
    world = made()
    (hold,) = world.status.holds
    assert f"--hold {hold.id}" in world.status.needs
    assert world.status.needs.startswith(
        "held (objection by kim: deadline): " if made is objected else f"held (drift: {hold.reason}): "
    )
    named = world.status.lifters
    assert (
        set(named) == may_resolve(world, hold.id) == ({"tpm", "sre"} if made is objected else {"tpm", "sre", "hw-lead"})
    )
    assert await could_act_now(stands(NONE), world.status) == named
    assert await could_act_now(stands(FILE), world.status) == ("user:kim",), "by the file, and not by the policy"


@pytest.mark.parametrize("made", [objected, drifted])
def test_a_status_names_for_each_hold_those_who_may_resolve_it(made: Any) -> None:
    world = made()
    world.say(Command.PAUSE, reason="a SEV")
    assert {hold: set(names) for hold, names in world.status.may_lift.items()} == {
        hold.id: may_resolve(world, hold.id) for hold in world.status.holds if hold.id != "paused"
    }
    assert len(world.status.may_lift) == 1


def test_where_no_resolve_is_needed_nobody_is_named() -> None:
    world = waiting(**POLICY)
    assert "approve" in world.status.needs
    assert world.status.lifters == ()
    world.say(Command.PAUSE, reason="a SEV")
    assert world.status.lifters == ()


@pytest.mark.parametrize("launcher", PEOPLE)
async def test_whoever_launched_it_for_another_owner_hears_that_they_may_not_resolve(launcher: str) -> None:
    objection, drift = objected(), drifted()
    objects, holds = may_resolve(objection, "objection-b"), may_resolve(drift, "drift")
    text = await name_other_lifters(stands(NONE), launch_answer(objection.r), launcher)
    assert (not text) == (launcher in objects)
    assert await name_other_lifters(stands(FILE), launch_answer(objection.r), launcher) == "", "roles say it"
    if text:
        assert ("can resolve only other holds" in text) == (launcher in holds)
        assert all(name in text for name in objects)


def test_the_words_of_both() -> None:
    answer = launch_answer(objected().r)
    assert (answer.lifters, answer.deciders) == (("tpm", "sre"), ("tpm", "sre", "hw-lead"))


@pytest.mark.parametrize("words", [["h100-worked"], ["h100-a", "h100-b", "--yes"]])
def test_a_launch_says_it_where_it_is_so_and_in_json_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    class Door(FakeBackstop):
        async def launch(self, request: Any) -> LaunchAnswer:
            return (await super().launch(request)).but(lifters=(request.owner, "sre"), deciders=(request.owner, "sre"))

        async def ask(self, question: Any) -> Any:
            return NONE if question.kind == "access" else await super().ask(question)

    sentence = "Holds can be resolved by gpu-tpm, sre, not by ana, who launched the rollout."
    for owner, expected in (("gpu-tpm", True), ("ana", False)):
        line = ["launch", *words, "--owner", owner, "--actor", "ana", "--reason", "r"]
        with answering(Door(free=("h100-a", "h100-b"))):
            assert run(line) == 0
            shown = capsys.readouterr().out
            assert run([*line, "--json"]) == 0
        assert (sentence in shown) is expected
        document = json.loads(capsys.readouterr().out)
        opened = document.get("launched", [document])
        assert {one["resolves"] for one in opened} == {sentence if expected else ""}


def test_a_status_shows_them_beside_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    needs = 'held (objection by b: deadline): backstop resolve h100-worked --hold objection-b --reason "..."'
    with answering(FakeBackstop(statuses=[status().but(needs=needs, lifters=("tpm", "sre"))])):
        assert run(["status", "h100-worked"]) == 0
    assert [text.split() for text in capsys.readouterr().out.splitlines() if text.startswith("could act")] == [
        ["could", "act", "tpm,", "sre"]
    ]
