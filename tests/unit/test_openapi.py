"""The API's document: published as the code makes it, whole, and of every operation."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from client.operations import API, OPERATIONS, Operation, questions
from models.cluster.policy import Policy
from models.questions import QUESTIONS
from web.arguments import hints
from web.openapi import document

PUBLISHED = Path(__file__).parents[2] / "docs" / "openapi.json"


def test_what_is_published_is_what_the_code_says() -> None:
    """BACKSTOP_WRITE_OPENAPI=1 writes it."""
    text = json.dumps(document(), ensure_ascii=False, separators=(",", ":"), sort_keys=True) + "\n"
    if os.environ.get("BACKSTOP_WRITE_OPENAPI"):
        PUBLISHED.write_text(text)
    assert PUBLISHED.read_text() == text


def test_every_operation_is_described_under_a_name_of_its_own() -> None:
    found = {(verb.upper(), path): one for path, verbs in document()["paths"].items() for verb, one in verbs.items()}
    assert set(found) == {(one.verb, f"{API}{one.path}") for one in (*OPERATIONS, *questions())}
    names = [one["operationId"] for one in found.values()]
    assert len(set(names)) == len(names)
    assert all(one["summary"] and "default" in one["responses"] for one in found.values())


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


def test_what_it_refers_to_is_there_and_its_schemas_are_schemas() -> None:
    schemas = document()["components"]["schemas"]
    assert {name.removeprefix("#/components/schemas/") for name in references(document())} <= set(schemas)
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)


def test_a_path_that_ends_with_a_command_says_what_each_command_does() -> None:
    paths = document()["paths"]
    told = {path: one["post"]["parameters"] for path, one in paths.items() if path.endswith("/{command}")}
    assert len(told) == 4
    for path, parameters in told.items():
        (command,) = [one for one in parameters if one["name"] == "command"]
        names = [line.split("`")[1] for line in command["description"].splitlines()]
        assert names, path
    (pause,) = [one for one in told[f"{API}/rollouts/{{cluster}}/{{command}}"] if one["name"] == "command"]
    assert "- `pause`: Keep gates shut. Effects under way finish" in pause["description"]
    assert "- `retire`: Take a cluster out of production" in str(told[f"{API}/bringups/{{cluster}}/{{command}}"])


def test_a_message_in_a_body_is_described_whole_and_asks_for_nothing_that_the_front_fills_in() -> None:
    paths, schemas = document()["paths"], document()["components"]["schemas"]
    for one in OPERATIONS:
        if one.body:
            described = paths[f"{API}{one.path}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
            schema = schemas[described["$ref"].removeprefix("#/components/schemas/")]
            assert schema["type"] == "object", one.path
            assert not {"actor", "owner"} & set(schema.get("required", ())), one.path
            assert "ticket" not in schema["properties"], one.path


def test_a_part_of_an_import_is_valid_with_its_payload() -> None:
    schemas = document()["components"]["schemas"]
    given = {"import_id": "i", "part": 0, "of": 1, "kind": "stage_import", "payload": "YQ=="}
    body = {name: given[name] for name in (*schemas["StageImport"]["required"], "payload")}
    Draft202012Validator({**schemas["StageImport"], "components": {"schemas": schemas}}).validate(body)


def schemas_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from schemas_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from schemas_in(one)


def test_bounds_and_durations_are_as_json_schema_and_the_api_have_them() -> None:
    schemas = document()["components"]["schemas"]
    for one in schemas_in(schemas):
        assert not {"ge", "le", "gt", "lt"} & set(one), one
        assert one.get("format") != "duration", one
    assert schemas["QuotaAsk"]["properties"]["gpus"]["minimum"] == 1
    bake = schemas["Pace-Input"]["properties"]["bake"]
    assert (bake["default"], re.fullmatch(bake["pattern"], bake["default"]) is None) == ("24h", False)


def _name(operation: Any) -> str:
    return str(operation.question or operation.method)


@pytest.mark.parametrize("operation", sorted((*OPERATIONS, *questions()), key=_name), ids=_name)
def test_each_answer_is_described_by_its_own_type(operation: Operation) -> None:
    """A question may have the name of a method: `doctor`, `overview`."""
    described = document()["paths"][f"{API}{operation.path}"][operation.verb.lower()]["responses"]["200"]
    schema = described["content"]["application/json"]["schema"]
    adapter = QUESTIONS[operation.question].answers() if operation.question else hints(operation.method).answer
    own = adapter.json_schema(mode="serialization")
    assert schema.get("type", "object") == own.get("type", "object")
    refs = [ref.rpartition("/")[2].removesuffix("-Output") for ref in references(schema)]
    assert refs == [ref.rpartition("/")[2] for ref in references({**own, "$defs": {}})] or own.get("title") in refs


def test_an_exact_number_is_answered_as_text_and_taken_as_a_number() -> None:
    policy = Policy.model_json_schema(mode="serialization")["properties"]["plausible_drop"]
    assert policy["type"] == "string"
    assert Policy.model_json_schema()["properties"]["plausible_drop"]["type"] == "number"
    dumped = json.loads(Policy().model_dump_json())
    Draft202012Validator(Policy.model_json_schema(mode="serialization")).validate(dumped)
