"""A command that fails at a page of the console: a sentence above the form, with what was typed still in it."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.service import RPCError, RPCStatusCode

from client.backstop import Backstop
from models.access.principals import Principal
from models.errors import AwaitsSecond, Refusal, Unavailable
from models.rollout.command_previews import ahead_of
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchAnswer
from models.rollout.stages import Command, Stage
from models.rollout.status import status_of
from tests.loop.turned_loop import TurnedLoop
from tests.unit.pure_world import World
from web.authorized_calls import Giving
from web.console.pages.cluster import cluster
from web.console.pages.launch import launch
from web.console.visit import Elsewhere, Page, Visit
from web.failures import forbidden_problem
from web.rights import Everybody
from web.temporal_connection import Doors

FAILURES = {
    "refused": (Refusal("not now"), "not now"),
    "nobody answers": (Unavailable("Temporal at h:1: connection refused"), "Temporal at h:1: connection refused"),
    "not allowed": (forbidden_problem("ana has no role here"), "ana has no role here"),
    "too slow": (
        TimeoutError(),
        (
            "there was no answer within N s: the command may have been carried out, so check the status before you "
            "give it again"
        ),
    ),
}
TYPED = "a flaky switch, seen by eve"


class Door:
    """Answers what a page reads, and fails what is given."""

    def __init__(self, failure: Exception | None) -> None:
        self.world, self.failure = World(), failure

    async def status(self, cluster: str) -> Any:
        return status_of(self.world.r, self.world.now)

    async def ahead(self, cluster: str) -> Any:
        return ahead_of(self.world.r, self.world.now)

    async def command(self, **_: Any) -> Any:
        raise cast("Exception", self.failure)

    async def launch(self, request: Any) -> LaunchAnswer:
        if self.failure is not None:
            raise self.failure
        by = ("bob",)
        return LaunchAnswer(
            launched=True, cluster=request.cluster, rollout="r", stage=Stage.PLANNED, lifters=by, deciders=by
        )

    async def ask(self, question: Any, payload: str) -> Any:
        raise forbidden_problem("ana may not see who has which role")


def given(page: Any, path: tuple[str, ...], failure: Exception | None) -> tuple[Page | Elsewhere, list[str]]:
    """Return the result of a form that ana sends, and the sentences on her next page."""

    class Stub(Doors):
        async def door_of(self, principal: Principal, **_: Any) -> Backstop:
            return cast("Backstop", Door(failure))

    said: list[str] = []
    visit = Visit(
        Giving(Stub(cast("Any", None))),
        Principal(name="ana", how="by link"),
        path,
        {},
        cast("Any", SimpleNamespace(said=said)),
        {"reason": TYPED, "owner": "ana"},
        "once",
    )
    return asyncio.run(page(visit)), said


WAYS = [(cluster, ("clusters", "c", "pause")), (launch, ("launch", "c"))]


@pytest.mark.parametrize(("page", "path"), WAYS, ids=["command", "launch"])
@pytest.mark.parametrize("case", FAILURES)
def test_a_command_that_fails_leaves_the_form_as_it_was_typed(page: Any, path: tuple[str, ...], case: str) -> None:
    failure, sentence = FAILURES[case]
    made, said = given(page, path, failure)
    assert isinstance(made, Page)
    typed = made.values["typed"]["reason"] if "typed" in made.values else made.values["reason"]
    failed = re.sub(r"\d+ s", "N s", made.values["failed"])
    assert (made.status, failed, typed, said) == (409, sentence, TYPED, [])


@pytest.mark.parametrize(("page", "path"), WAYS, ids=["command", "launch"])
def test_a_command_that_awaits_a_second_person_has_not_failed(page: Any, path: tuple[str, ...]) -> None:
    made, said = given(page, path, AwaitsSecond("bob has to say the same"))
    assert made == Elsewhere("/clusters/c")
    assert said == ["Nothing is done yet: bob has to say the same. The Access page lists the command."]


def test_a_launch_is_done_where_nobody_says_who_may_lift_its_holds() -> None:
    made, said = given(launch, ("launch", "c"), None)
    assert made == Elsewhere("/clusters/c")
    assert said == ["A rollout of c is open, and its plan waits for an approval."]


class Failing(Everybody):
    """Rights that nobody can read."""

    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure

    async def judge(self, *_: Any, **__: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        await asyncio.Event().wait()


UNREADABLE = {
    "nobody answers": (Unavailable("no worker answers"), "no worker answers"),
    "not allowed": (forbidden_problem("ana has no role here"), "ana has no role here"),
    "temporal fails": (
        RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b""),
        "Temporal does not answer: connection refused",
    ),
    "too slow": (TimeoutError(), "there was no answer within 15 s"),
    "never": (None, "there was no answer within 15 s"),
}


@pytest.mark.parametrize(("failure", "sentence"), UNREADABLE.values(), ids=UNREADABLE)
def test_whether_a_button_may_be_pressed_is_a_sentence_where_nobody_can_say(
    failure: Exception | None, sentence: str
) -> None:
    visit = Visit(Giving(Doors(cast("Any", None)), Failing(failure)), Principal(name="ana"), ("clusters", "a"), {})
    loop = TurnedLoop()
    try:
        asked = visit.why_not("command", cluster="a", command=Command.PAUSE, request=CommandRequest(actor="ana"))
        assert loop.run_until_complete(asked) == sentence
    finally:
        loop.close()
