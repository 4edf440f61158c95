"""The API's OpenAPI document, made from the table of operations and from the models."""

from __future__ import annotations

import inspect
from datetime import timedelta
from functools import cache
from importlib import metadata
from typing import Any, Literal

from pydantic import TypeAdapter

from client.backstop import Backstop
from client.operations import API, OPERATIONS, Operation, questions
from client.problems import MEDIA
from models.base import duration_text
from models.bringup.command_rows import BRINGUP_ROWS
from models.fleet.command_rows import FLEET_ROWS
from models.questions import QUESTIONS
from models.requests.command_rows import REQUEST_ROWS
from models.rollout.command_rows import ROLLOUT_ROWS
from web.answers import MOST_LEFT_OUT, MOST_ROWS
from web.arguments import PAYLOAD, WATCH, Hints, hints

_ROWS = {
    "command": ROLLOUT_ROWS,
    "fleet_command": FLEET_ROWS,
    "decide_request": REQUEST_ROWS,
    "bringup_command": BRINGUP_ROWS,
}
"""Methods whose path ends with a command."""
_REF = "#/components/schemas/{model}"
_Mode = Literal["validation", "serialization"]
_PROBLEM = {
    "type": "object",
    "description": "A problem document (RFC 9457). `exit_code`: what the command line exits with: 1 if it "
    "failed, 2 for bad input, 3 if the command is not allowed now.",
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
    models = _plain(definitions.get("$defs", {}))
    for name in {schemas[f"{one.method}.{one.body}", "validation"]["$ref"] for one in every if one.body}:
        _say_what_the_front_fills_in(models[_model(name)])
    models["StageImport"]["properties"][PAYLOAD] = {"type": "string", "contentEncoding": "base64"}
    paths: dict[str, Any] = {}
    for one in every:
        paths.setdefault(f"{API}/{one.path.lstrip('/')}", {})[one.verb.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Backstop", "version": metadata.version("backstop"), "description": _ABOUT},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted((models | {"Problem": _PROBLEM}).items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


_FILLED_IN = {
    "actor": "The front puts the caller's name here.",
    "owner": "The person who answers for the rollout. Default: the caller.",
}
_IDS = {
    "rollout": "The new rollout's id. The caller makes it, such as `h100-worked/2026-11-21`, and uses it once.",
    "fleet": "The new fleet rollout's id. The caller makes it, such as `fleet/2026-11-21`, and uses it once.",
    "request": "The new request's id. The caller makes it, such as `q-1`, and uses it once.",
}


_BOUNDS = {"ge": "minimum", "le": "maximum"}
"""Pydantic's names for bounds checked after a validator, and JSON Schema's names."""
_DURATION = r"^[0-9]+(\.[0-9]+)?[smhdw]$"
"""Durations in requests. Pydantic's own schema says ISO 8601, which the front refuses."""


def _plain(node: Any) -> Any:
    """Return a schema with JSON Schema's own names for bounds, and durations as Backstop reads them."""
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, dict):
        return node
    if node.get("format") == "duration":
        node = {name: one for name, one in node.items() if name != "format"} | {"pattern": _DURATION}
        if "default" in node:
            node["default"] = duration_text(TypeAdapter(timedelta).validate_python(node["default"]))
    return {_BOUNDS.get(name, name): _plain(one) for name, one in node.items()}


def _model(ref: str) -> str:
    return ref.removeprefix(_REF.format(model=""))


def _say_what_the_front_fills_in(schema: dict[str, Any]) -> None:
    """Change a message's schema to what a caller sends: no ticket, and a name only of somebody else."""
    fields, required = schema["properties"], schema.get("required", [])
    fields.pop("ticket", None)
    for name, text in {**_FILLED_IN, **{one: _IDS[one] for one in _IDS if one in required}}.items():
        if name in fields:
            fields[name]["description"] = text
    schema["required"] = [name for name in required if name not in _FILLED_IN]


_ABOUT = (
    "This API has every command and every read of `backstop`. A caller at the front's own socket needs no token: the "
    "kernel identifies the caller. docs/api.md has examples."
)


def _adapters(every: tuple[Operation, ...]) -> dict[tuple[str, _Mode], TypeAdapter[Any]]:
    adapters: dict[tuple[str, _Mode], TypeAdapter[Any]] = {}
    for one in every:
        if one.question:
            adapters[f"?{one.question}", "validation"] = TypeAdapter(QUESTIONS[one.question])
            adapters[f"!?{one.question}", "serialization"] = QUESTIONS[one.question].answers()
            continue
        declared = hints(one.method)
        adapters[f"!{one.method}", "serialization"] = declared.answer
        for name in one.arguments:
            adapters[f"{one.method}.{name}", "validation"] = declared.adapter(name)
    return adapters


def _operation(one: Operation, schemas: dict[tuple[str, _Mode], Any]) -> dict[str, Any]:
    name = one.question or one.method
    asked = f"!?{one.question}" if one.question else f"!{one.method}"
    answers: dict[str, Any] = {"200": _answer(schemas[asked, "serialization"])}
    if one.watched:
        answers["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    if one.tagged:
        answers["304"] = {"description": "The answer has not changed: see If-None-Match."}
    answers["default"] = {
        "description": "A refusal or a failure, in one sentence.",
        "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    operation: dict[str, Any] = {
        "operationId": f"desk_{name}" if one.question else name,
        "summary": _summary(one),
        "x-backstop-command": one.command,
        "parameters": _parameters(one, schemas),
        "responses": answers,
    }
    if one.verb == "POST":
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _body(one, schemas)}}}
    return operation


def _summary(one: Operation) -> str:
    """Return the first paragraph of the method's or question's docstring, without its errors."""
    described = QUESTIONS[one.question] if one.question else getattr(Backstop, one.method)
    first = (inspect.getdoc(described) or "").partition("\n\n")[0].partition(" Errors:")[0]
    return first.replace("\n", " ").replace("None", "null")


def _answer(schema: Any) -> dict[str, Any]:
    return {"description": "The answer.", "content": {"application/json": {"schema": schema}}}


def _body(one: Operation, schemas: dict[tuple[str, _Mode], Any]) -> Any:
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
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schemas[f"{one.method}.{name}", "validation"]}
        for name in one.in_path
    ]
    if one.method in _ROWS:
        rows = _ROWS[one.method].values()
        parameters[-1]["description"] = "\n".join(f"- `{row.name}`: {row.summary}" for row in rows)
    if one.verb == "GET":
        parameters += [
            {"name": n, "in": "query", "schema": schemas[f"{one.method}.{n}", "validation"]} for n in one.fields
        ]
    parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in one.in_query]
    if one.paged:
        parameters += [
            {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": MOST_ROWS}},
            {
                "name": "after",
                "in": "query",
                "schema": {"type": "integer", "minimum": 0, "maximum": MOST_LEFT_OUT},
                "description": _AFTER,
            },
        ]
    if one.watched:
        parameters.append({"name": WATCH, "in": "query", "schema": {"type": "string"}, "description": _WATCH})
    if one.tagged:
        parameters.append({"name": "If-None-Match", "in": "header", "schema": {"type": "string"}})
    if one.verb == "POST":
        parameters.append(
            {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}, "description": _KEY}
        )
        parameters.append(
            {"name": "Backstop-Emergency", "in": "header", "schema": {"const": "1"}, "description": _ALONE}
        )
    return parameters


_AFTER = "How many rows to skip. The header `Link` has the address of the next part."
_WATCH = "Server-sent events: `status` at each change, `problem`, and `end`."
_KEY = "A request that repeats an earlier key and body gets the answer of that request, and is not carried out again."
_ALONE = (
    "This header lets an approver alone give a command that needs a second person. The command needs a reason, and "
    "Backstop notifies all admins."
)
