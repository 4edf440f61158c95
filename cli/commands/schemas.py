"""`backstop schema`: JSON Schemas of the fleet file and of every JSON answer; docs/schemas keeps them.

They are made from the models. What pydantic does not know is added: a count's bounds are in a validator, a duration is
text, a share is a number in a file and text in an answer, and an answer may grow fields within its version.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cli.lazy import command
from cli.options import LOOK, arg, opt
from models.base import Documented, duration_text
from models.errors import BadInput, Unavailable

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DURATION = {
    "anyOf": [
        {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?[smhdw]$", "examples": ["30s", "10m", "24h", "14d"]},
        {"type": "number", "minimum": 0, "description": "seconds"},
    ]
}
_SHARE = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}


@command(LOOK, "backstop schema", "backstop schema plan", "backstop schema --write docs/schemas")
def schema(
    name: Annotated[str, arg("NAME", "The schema. Default: list all names.")] = "",
    write: Annotated[str, opt("DIR", "Write all schemas into this folder.")] = "",
) -> None:
    """Print the JSON Schema of a file that people write, or of a JSON answer.

    Files: fleet, access-file, bringup-file, recipe-file, flex-demand, flex-story.
    """
    from cli.output import show_json

    schemas = makers()
    if write:
        write_all(Path(write))
    elif not name:
        typer.echo("\n".join(schemas))
    elif name in schemas:
        show_json(schemas[name]())
    else:
        raise BadInput(f"NAME must be one of {', '.join(schemas)}, not {name!r}")


def write_all(folder: Path) -> None:
    """Write one file for each schema."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in makers().items():
            (folder / f"{name}.json").write_text(file_text(make()), encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"{folder} cannot be written: {error.strerror}") from None


def file_text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def makers() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the function that makes each schema, by name."""
    # The others add their own to BY_SCHEMA.
    import cli.json_answers_access
    import cli.json_answers_audit
    import cli.json_answers_bringup
    import cli.json_answers_fleet_file
    import cli.json_answers_haircut
    import cli.json_answers_keys
    import cli.json_answers_login
    import cli.json_answers_status  # noqa: F401
    from cli import json_answers as answers
    from cli.json_answer_base import BY_SCHEMA
    from models.access.access_file import AccessFile
    from models.bringup.entry import BringupFile
    from models.bringup.recipe import RecipeFile
    from models.bringup.status import BringupStatus
    from models.buffers.backtest import Record
    from models.fleet.messages import FleetStatus
    from models.flex.division import FlexDemand
    from models.flex.story import FlexStory
    from models.rollout.status_models import RolloutStatus

    models: dict[str, type[BaseModel]] = {**BY_SCHEMA, "fleet-status": FleetStatus, "status": RolloutStatus}
    models["bringup-status"] = BringupStatus
    schemas = {name: partial(_answer_schema, model) for name, model in models.items()}
    schemas["recipe-file"] = partial(_plain_schema, RecipeFile, "recipe-file", "validation")
    schemas["access-file"] = partial(_plain_schema, AccessFile, "access-file", "validation")
    schemas["bringup-file"] = partial(_plain_schema, BringupFile, "bringup-file", "validation")
    schemas["backtest"] = partial(_list_schema, "backtest", Record)
    schemas["flex-shares"] = partial(_plain_schema, answers.FlexShares, "flex-shares", "serialization")
    schemas["flex-scenes"] = partial(_plain_schema, answers.FlexScenes, "flex-scenes", "serialization")
    schemas["flex-story"] = partial(_plain_schema, FlexStory, "flex-story", "validation")
    schemas["flex-demand"] = partial(_plain_schema, FlexDemand, "flex-demand", "validation")
    return {"fleet": fleet_schema, **dict(sorted(schemas.items()))}


def fleet_models() -> tuple[type[Documented], ...]:
    """Return the models of a fleet file's parts."""
    from models.cluster import sources
    from models.cluster.derived_buffer import HealthTerms
    from models.cluster.fleet_file import ClusterSpec, Fleet, Team
    from models.cluster.island import Island
    from models.cluster.policy import Policy
    from models.cluster.quota import Quota
    from models.cluster.windows import Window

    of_sources = (sources.PrometheusSource, sources.KubernetesSource, sources.SlurmSource, sources.Yield)
    writers = (sources.GitSource, sources.KueueSource)
    return (Fleet, ClusterSpec, *of_sources, *writers, Island, Quota, Window, Team, Policy, HealthTerms)


def default_of(field: FieldInfo) -> Any:
    """Return the default as a person would write it; None if there is none, or it is no value."""
    if isinstance(field.default, timedelta):
        return duration_text(field.default)
    if isinstance(field.default, Fraction):
        return float(field.default)
    return field.default if isinstance(field.default, str | int) and field.default != "" else None


def fleet_schema() -> dict[str, Any]:
    """Return the schema of a fleet file, in the form that its author writes."""
    from models.cluster.fleet_file import Fleet

    document = _tidy(Fleet.model_json_schema(), _input)
    for model in fleet_models():
        properties = (document if model is Fleet else document["$defs"][model.__name__])["properties"]
        for name, field in model.model_fields.items():
            node = properties[field.alias or name]
            node.pop("default", None)
            if (default := default_of(field)) is not None:
                node["default"] = default
    # Sibling keywords of $ref are allowed in this dialect: the description stays.
    document["$defs"]["Policy"]["description"] = "Settings of one cluster, or the default of all."
    own = document["$defs"]["ClusterSpec"]["properties"]["policy"]
    document["$defs"]["ClusterSpec"]["properties"]["policy"] = {
        "$ref": "#/$defs/Policy",
        "description": own["description"],
    }
    return {"$schema": _DIALECT, **document, "title": "Backstop fleet file, version 1"}


def _answer_schema(model: type[BaseModel]) -> dict[str, Any]:
    fields = _tidy(model.model_json_schema(by_alias=True, mode="serialization"), _output)
    version = fields["properties"]["schema"]["const"]
    fields["required"] = list(dict.fromkeys(("schema", *fields.get("required", ()))))
    return {"$schema": _DIALECT, **fields, "title": version}


def _list_schema(name: str, model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of an answer that is a list, and so has no room for its version beside it."""
    fields = _tidy(model.model_json_schema(mode="serialization"), _output)
    return {"$schema": _DIALECT, "title": f"backstop.{name}/1", "type": "array", "items": fields}


def _plain_schema(model: type[BaseModel], name: str, mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """Return the schema of a document that does not name its version."""
    fields = _tidy(model.model_json_schema(mode=mode), _input if mode == "validation" else _output)
    return {"$schema": _DIALECT, **fields, "title": f"backstop.{name}/1"}


def _input(node: dict[str, Any]) -> dict[str, Any]:
    described = {"description": node["description"]} if "description" in node else {}
    if node.get("format") == "duration":
        return _DURATION | described
    if node.get("exclusiveMaximum") == 1:
        return _SHARE | described
    bounds = {"ge": "minimum", "le": "maximum"}
    return {bounds.get(key, key): value for key, value in node.items()}


def _output(node: dict[str, Any]) -> dict[str, Any]:
    bounds = {"ge": "minimum", "le": "maximum"}
    return {
        bounds.get(key, key): value for key, value in node.items() if (key, value) != ("additionalProperties", False)
    }


def _tidy(node: Any, change: Callable[[dict[str, Any]], dict[str, Any]], named: bool = False) -> Any:
    """Return the node with every schema in it changed, without pydantic's titles and all but a docstring's first line.

    `named`: the keys of this mapping are people's names for things, not keywords.
    """
    if isinstance(node, list):
        return [_tidy(each, change) for each in node]
    if not isinstance(node, dict):
        return node
    if named:
        return {name: _tidy(each, change) for name, each in node.items()}
    changed = change({key: value for key, value in node.items() if key != "title"})
    if "description" in changed:
        changed["description"] = changed["description"].split("\n\n")[0].replace("\n", " ")
    return {
        key: value
        if key in ("default", "examples", "enum", "const")
        else _tidy(value, change, named=key in ("properties", "$defs"))
        for key, value in changed.items()
    }
