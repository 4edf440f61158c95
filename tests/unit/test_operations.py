"""The table of what people can do: every method of the door and every question, once, as the door declares them."""

from __future__ import annotations

import inspect
from collections import Counter
from datetime import UTC
from typing import Any

import pytest

from cli.agents.read_only import ReadingDoor
from client.backstop import Backstop
from client.composed import Composed
from client.http_door import HttpDoor
from client.operations import COMPOSED, INNER, OPERATIONS, Operation, by_method, questions, type_of
from models.cluster.windows import Entry
from models.questions import QUESTIONS, Calendar
from web.arguments import types_in
from web.routing import all_routes

NOT_CALLS = {"connect", "client", "close", "ask", "check_fleet_takes", "check_not_brought_up"}
"""How one comes to the door and leaves it, what each question is asked by, and what a front asks before it keeps a
command for a second person."""


def test_every_public_method_stands_there_once() -> None:
    public = {name for name, _ in inspect.getmembers(Backstop) if not name.startswith("_")}
    listed = Counter([*(one.method for one in OPERATIONS), *COMPOSED])
    assert set(listed) == (public | set(COMPOSED)) - NOT_CALLS
    assert set(listed.values()) == {1}


def test_every_question_stands_there_once_but_what_nobody_asks_from_outside() -> None:
    assert Counter(one.question for one in questions()) == Counter(set(QUESTIONS) - INNER)


@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: one.method)
def test_each_is_as_the_door_declares_it(one: Operation) -> None:
    method = getattr(Backstop, one.method)
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    assert list(one.arguments) == names, "a call by position would mean something else"
    declared = types_in(method)
    assert type_of(one.answer) == declared["return"]
    if one.verb == "GET":
        assert {declared[name] for name in one.fields} <= {str}
        assert one.command == f"read.{one.method}"


def test_what_is_composed_needs_nothing_but_questions() -> None:
    assert {name for name in vars(Composed) if not name.startswith("_")} - {"ask"} == set(COMPOSED)
    for name in COMPOSED:
        assert name not in by_method()


def test_the_door_over_http_has_the_same_methods() -> None:
    door = HttpDoor(None, lambda: "")  # type: ignore[arg-type]  # nothing is said
    for name in (*by_method(), *COMPOSED, "ask", "close", "heard"):
        assert getattr(door, name) is not None
    with pytest.raises(AttributeError):
        _ = door.nothing_like_it


@pytest.mark.parametrize("kind", [HttpDoor, ReadingDoor])
async def test_what_is_composed_has_all_that_it_calls_on_each_door(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    door = kind(*(None for name in inspect.signature(kind).parameters))  # nothing is said
    for name in COMPOSED:
        for part in {*vars(Composed)[name].__code__.co_names} & {*vars(Composed)}:
            assert callable(getattr(door, part)), (name, part)
    asked: list[Calendar] = []

    async def ask(_: object, question: Calendar) -> tuple[Entry, ...]:
        asked.append(question)
        return ()

    monkeypatch.setattr(kind, "ask", ask)
    assert await door.calendar("alpha") == ()
    assert [(question.cluster, question.since.tzinfo) for question in asked] == [("alpha", UTC)]


def test_no_two_are_asked_for_in_the_same_way() -> None:
    places = Counter((one.verb, one.path) for one in (*OPERATIONS, *questions()))
    assert set(places.values()) == {1}


@pytest.mark.parametrize(
    ("verb", "path", "method", "found"),
    [
        ("GET", "/api/v1/rollouts", "rollouts", {}),
        ("GET", "/api/v1/rollouts/h100-worked", "status", {"cluster": "h100-worked"}),
        ("GET", "/api/v1/rollouts/a%2Fb", "status", {"cluster": "a/b"}),
        ("GET", "/api/v1/rollouts/..", "status", {"cluster": ".."}),
        ("GET", "/api/v1/rollouts/audit/audit", "audit", {"cluster": "audit"}),
        ("POST", "/api/v1/rollouts/h100%20one/pause", "command", {"cluster": "h100 one", "command": "pause"}),
        ("GET", "/api/v1/fleet/plan", "fleet_plan", {}),
        ("POST", "/api/v1/questions/flex", "ask", {}),
    ],
)
def test_a_path_is_divided_before_it_is_decoded(verb: str, path: str, method: str, found: dict[str, str]) -> None:
    asked = all_routes().route_of(verb, path.encode())
    assert (asked.operation.method, dict(asked.in_path)) == (method, found)
