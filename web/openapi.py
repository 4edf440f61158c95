"""The API's OpenAPI document, made from the table of operations and from the models."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import metadata
from typing import Any, Literal

from pydantic import TypeAdapter

from client.backstop import Backstop
from client.operations import API, OPERATIONS, Operation, questions
from client.problems import MEDIA
from models.bringup.command_rows import BRINGUP_ROWS
from models.fleet.command_rows import FLEET_ROWS
from models.questions import QUESTIONS
from models.requests.command_rows import REQUEST_ROWS
from models.rollout.command_rows import ROLLOUT_ROWS
from web.arguments import OF_LISTS, PAYLOAD, WATCH, Hints, hints

_ROWS = {
    "command": ROLLOUT_ROWS,
    "fleet_command": FLEET_ROWS,
    "decide_request": REQUEST_ROWS,
    "bringup_command": BRINGUP_ROWS,
}
"""Whose last part of the path is a command."""
_REF = "#/components/schemas/{model}"
_Mode = Literal["validation", "serialization"]
_PROBLEM = {
    "type": "object",
    "description": "RFC 9457. `exit_code` of the command line: 1 it failed, 2 bad input, 3 not allowed now.",
    "required": ["type", "title", "status", "detail", "instance", "exit_code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "One sentence for a person."},
        "instance": {"type": "string"},
        "exit_code": {"type": "integer"},
        "sentences": {"type": "array", "items": {"type": "string"}},
        "until": {"type": "string", "format": "date-time"},
        "hash": {"type": "string", "description": "The hash of the command that waits for a second person."},
    },
}


@cache
def document() -> dict[str, Any]:
    every = (*OPERATIONS, *questions())
    adapters = _adapters(every)
    named, definitions = TypeAdapter.json_schemas(
        [(key, key[1], adapter) for key, adapter in adapters.items()], ref_template=_REF
    )
    schemas = {key: named[key, key[1]] for key in adapters}
    paths: dict[str, Any] = {}
    for one in every:
        paths.setdefault(f"{API}/{one.path.lstrip('/')}", {})[one.verb.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Backstop", "version": metadata.version("backstop"), "description": _ABOUT},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted((definitions.get("$defs", {}) | {"Problem": _PROBLEM}).items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


_ABOUT = (
    "Every command and every read of `backstop`. Over the socket on the machine itself the kernel says who calls, "
    "and no token is needed. docs/api.md has examples."
)


def _adapters(every: tuple[Operation, ...]) -> dict[tuple[str, _Mode], TypeAdapter[Any]]:
    found: dict[tuple[str, _Mode], TypeAdapter[Any]] = {}
    for one in every:
        if one.question:
            found[f"?{one.question}", "validation"] = TypeAdapter(QUESTIONS[one.question])
            found[f"!{one.question}", "serialization"] = QUESTIONS[one.question].answers()
            continue
        declared = hints(one.method)
        found[f"!{one.method}", "serialization"] = declared.answer
        for name in one.arguments:
            found[f"{one.method}.{name}", "validation"] = declared.adapter(name)
    return found


def _operation(one: Operation, schemas: dict[tuple[str, _Mode], Any]) -> dict[str, Any]:
    name = one.question or one.method
    answers: dict[str, Any] = {"200": _answer(schemas[f"!{name}", "serialization"])}
    if one.watched:
        answers["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    if one.tagged:
        answers["304"] = {"description": "The answer has not changed: see If-None-Match."}
    answers["default"] = {
        "description": "A refusal or a failure, in one sentence.",
        "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    made: dict[str, Any] = {
        "operationId": f"desk_{name}" if one.question else name,
        "summary": _summary(one),
        "x-backstop-command": one.command,
        "parameters": _parameters(one, schemas),
        "responses": answers,
    }
    if one.verb == "POST":
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": _body(one, schemas)}}}
    return made


def _summary(one: Operation) -> str:
    """Return the first paragraph of the method's or question's docstring, without its errors."""
    described = QUESTIONS[one.question] if one.question else getattr(Backstop, one.method)
    first = (inspect.getdoc(described) or "").partition("\n\n")[0].partition(" Errors:")[0]
    return first.replace("\n", " ").replace("None", "null")


def _answer(schema: Any) -> dict[str, Any]:
    return {"description": "The answer.", "content": {"application/json": {"schema": schema}}}


def _body(one: Operation, schemas: dict[tuple[str, _Mode], Any]) -> Any:
    if one.question == "stage_import":
        extra = {"type": "object", "properties": {PAYLOAD: {"type": "string", "contentEncoding": "base64"}}}
        return {"allOf": [schemas[f"?{one.question}", "validation"], extra]}
    if one.question:
        return schemas[f"?{one.question}", "validation"]
    if one.body:
        return schemas[f"{one.method}.{one.body}", "validation"]
    declared: Hints = hints(one.method)
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: schemas[f"{one.method}.{name}", "validation"] for name in one.fields},
        "required": [name for name in one.fields if name in declared.needed],
    }


def _parameters(one: Operation, schemas: dict[tuple[str, _Mode], Any]) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": schemas[f"{one.method}.{name}", "validation"]}
        for name in one.in_path
    ]
    if one.method in _ROWS:
        rows = _ROWS[one.method].values()
        found[-1]["description"] = "\n".join(f"- `{row.name}`: {row.summary}" for row in rows)
    if one.verb == "GET":
        found += [{"name": n, "in": "query", "schema": schemas[f"{one.method}.{n}", "validation"]} for n in one.fields]
    found += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in one.in_query]
    if one.paged:
        found += [{"name": n, "in": "query", "schema": {"type": "integer", "minimum": 0}} for n in OF_LISTS]
    if one.watched:
        found.append({"name": WATCH, "in": "query", "schema": {"type": "string"}, "description": _WATCH})
    if one.tagged:
        found.append({"name": "If-None-Match", "in": "header", "schema": {"type": "string"}})
    if one.verb == "POST":
        found.append({"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}, "description": _KEY})
        found.append({"name": "Backstop-Emergency", "in": "header", "schema": {"const": "1"}, "description": _ALONE})
    return found


_WATCH = "Server-sent events: `status` at each change, `problem`, and `end`."
_KEY = "A repeat under the same key, with the same body, gets the first answer and is not carried out again."
_ALONE = "An approver acts alone, with a reason, where a second person is needed: all admins are notified."
