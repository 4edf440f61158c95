"""Reads a request into the arguments of its method, each checked against the method's declaration."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import QueryParams

from client.backstop import Backstop
from client.operations import Operation
from models.access.principals import Principal, bare_name
from models.base import Model, Name, in_one_sentence
from models.errors import BadInput
from models.hashes import GivenTwice, each_once
from models.questions import QUESTIONS
from models.texts import brief
from web.failures import not_json

PAYLOAD = "payload"
"""The field, beside a question's own, for a part of a large document in base64."""
OF_LISTS = ("limit", "after")
WATCH = "watch"

_SIGNED_IN = (
    "models.access.second_persons",
    *("models.bringup.commands", "models.bringup.messages", "models.bringup.stages", "models.bringup.status"),
    *("models.fleet.archived_state", "models.fleet.commands", "models.fleet.messages"),
    "models.health_pushes",
    *("models.requests.commands", "models.requests.state"),
    *("models.rollout.command_previews", "models.rollout.commands", "models.rollout.messages"),
    "models.rollout.status_models",
)
"""Modules with the types in the door's signatures; the door imports them only for type checkers."""


def types_in(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a method's arguments and answer."""
    names = {name: value for module in _SIGNED_IN for name, value in vars(import_module(module)).items()}
    return get_type_hints(function, names | inspect.unwrap(function).__globals__, include_extras=True)


class Hints:
    """The types of a method's arguments and answer."""

    def __init__(self, method: str) -> None:
        function = getattr(Backstop, method)
        self._types = types_in(function)
        self.answer = TypeAdapter(self._types["return"])
        parameters = inspect.signature(function).parameters.values()
        self.names = tuple(one.name for one in parameters if one.name != "self")
        self.needed = {one.name for one in parameters if one.name != "self" and one.default is one.empty}
        self._adapters = {name: TypeAdapter(Name if self._is_name(name) else self._types[name]) for name in self.names}

    def _is_name(self, name: str) -> bool:
        return name in _NAMES and name in self.needed and self._types[name] is str

    def type_of(self, name: str) -> Any:
        return self._types[name]

    def adapter(self, name: str) -> TypeAdapter[Any]:
        return self._adapters[name]

    def check_value(self, name: str, value: Any, *, of_json: bool = False) -> Any:
        """Check one argument. Errors: BadInput naming it."""
        adapter = self._adapters[name]
        try:
            return adapter.validate_json(json.dumps(value)) if of_json else adapter.validate_python(value)
        except ValidationError as error:
            raise BadInput(_sentence(name, value, error)) from None


_NAMES = ("cluster", "request", "build", "digest")
"""Arguments that must be names where they are required; `cluster` has a default where it may mean all."""


@cache
def hints(method: str) -> Hints:
    return Hints(method)


def arguments(
    operation: Operation, in_path: Mapping[str, str], query: QueryParams, body: bytes, who: Principal
) -> dict[str, Any]:
    """Return the arguments by name. Errors: BadInput, Problem 400."""
    _refuse_unknown(query, _in_query(operation), "parameter")
    if operation.question:
        return _question(operation.question, body)
    declared = hints(operation.method)
    arguments = {name: declared.check_value(name, _name(name, value)) for name, value in in_path.items()}
    if operation.body:
        fields = _object(body) | {name: _name(name, query[name]) for name in operation.in_query if name in query}
        wanted = declared.type_of(operation.body)
        arguments[operation.body] = set_caller(wanted, fields, who)
    elif operation.verb == "POST":
        fields = _object(body)
        _refuse_unknown(fields, operation.fields, "field")
        arguments |= {name: declared.check_value(name, value, of_json=True) for name, value in fields.items()}
    else:
        arguments |= {
            name: declared.check_value(name, _name(name, query[name])) for name in operation.fields if name in query
        }
    missing = declared.needed - arguments.keys()
    if missing:
        raise BadInput(f"{sorted(missing)[0]} is missing")
    return arguments


def _in_query(operation: Operation) -> tuple[str, ...]:
    """Return the names that may stand in the query."""
    if operation.verb == "POST":
        return operation.in_query
    return (*operation.fields, *(OF_LISTS if operation.paged else ()), *((WATCH,) if operation.watched else ()))


def set_caller(wanted: type[Model], content: dict[str, Any], who: Principal) -> Model:
    """Return the message with the caller as actor, and as owner where that is them or nobody. Errors: BadInput."""
    fields = wanted.model_fields
    if "owner" in fields and content.get("owner") in (None, "", content.get("actor")):
        content = {**content, "owner": bare_name(who.name)}
    if "actor" in fields:
        content = {**content, "actor": who.name}
    content.pop("ticket", None)
    try:
        return wanted.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise BadInput(in_one_sentence(error)) from None


def _question(kind: str, body: bytes) -> dict[str, Any]:
    fields = _object(body)
    payload = fields.pop(PAYLOAD, "") if kind == "stage_import" else ""
    if not isinstance(payload, str) or len(payload) > 1_500_000:
        raise BadInput("payload must be text of at most 1,500,000 characters")
    try:
        return {"question": QUESTIONS[kind].model_validate_json(json.dumps(fields)), PAYLOAD: payload}
    except ValidationError as error:
        raise BadInput(in_one_sentence(error)) from None


def _object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Errors: Problem 400 for no JSON; BadInput for no object, or a field that is there twice."""
    if not body:
        return {}
    try:
        document = json.loads(body, parse_constant=_no_number, object_pairs_hook=each_once)
    except GivenTwice as error:
        raise BadInput(f"the body: {error}") from None
    except (ValueError, RecursionError) as error:
        raise not_json(f"the body is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise BadInput(f"the body must be a JSON object, not {brief(document)}")
    return document


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")


def _name(name: str, value: str) -> str:
    if len(value) > 600 or any(c < " " or c == "\x7f" for c in value):
        raise BadInput(f"{name} must be one line of at most 600 characters, not {brief(value)}")
    return value


def _refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    for name in given:
        if name not in known:
            there = f"use {', '.join(known)}" if known else "there are none"
            raise BadInput(f"{brief(name)} is not a {what} here: {there}")


def _sentence(name: str, value: Any, error: ValidationError) -> str:
    return f"{name}: {in_one_sentence(error)}" if error.error_count() == 1 else f"{name} cannot be {brief(value)}"
