"""The tables of fields in docs/fleet-file.md, docs/bringup.md and docs/access.md, as the models describe them.

`python -m tests.docs.field_tables docs/fleet-file.md docs/bringup.md docs/access.md` writes the tables again; a test
finds out when that is needed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from cli.commands.schemas import default_of, fleet_models
from models.access.access_file import AccessFile, Grant, Identity, Person, Service, SlackUser
from models.base import Documented
from models.bringup.entry import BringupEntry, BringupFile, IslandOrdered
from models.bringup.recipe import ClusterRecipe, Reading, RecipeCheck, RecipeFile, RecipeStep, RecipeUndo, Supply

BRINGUP_DESCRIBED: tuple[type[Documented], ...] = (
    *(RecipeFile, ClusterRecipe, RecipeStep, RecipeUndo, RecipeCheck, Supply, Reading),
    *(BringupFile, BringupEntry, IslandOrdered),
)
ACCESS_DESCRIBED: tuple[type[Documented], ...] = (AccessFile, Grant, Person, Identity, SlackUser, Service)
OTHERWISE = " Default: "
"""In a field's docstring: what holds where it is left out and its default is no value."""
_COUNTS_GPUS = re.compile("gpus|blocks")


def unit_of(name: str, schema: dict[str, Any], types: dict[str, Any]) -> str:
    """Return the unit of a field's values, read from its JSON Schema."""
    match schema:
        case {"exclusiveMaximum": 1}:
            return "0 to below 1"
        case {"exclusiveMinimum": 0, "maximum": 1}:
            return "above 0 to 1"
        case {"anyOf": [first, *_]}:  # the others are null, or forms that the text tells of
            return unit_of(name, first, types)
        case {"$ref": reference}:
            return "word" if "enum" in types[reference.rsplit("/")[-1]] else "mapping"
        case {"items": {"$ref": _}}:
            return "list"
        case {"items": items}:
            unit = unit_of(name, items, types)
            return f"list of {unit}{'s' if unit == 'name' else ''}"
        case {"type": "integer"}:
            return "GPUs" if _COUNTS_GPUS.search(name) else "count"
        case {"format": "duration"}:
            return "duration"
        case {"format": "date-time"}:
            return "time with zone"
        case {"pattern": _}:
            return "name"
    return {"number": "number", "string": "text", "boolean": "yes or no", "object": "mapping"}[schema["type"]]


def table_of(model: type[Documented]) -> str:
    """Return the model's fields as a Markdown table."""
    lines = ["| field | unit | default | |", "|---|---|---|---|"]
    schema, described = model.model_json_schema(), model.field_docs()
    for attribute, field in model.model_fields.items():
        name, default = field.alias or attribute, default_of(field)
        text, _, otherwise = " ".join(described.get(attribute, "").split()).partition(OTHERWISE)
        shown = "required" if field.is_required() else otherwise.rstrip(".") if default is None else f"`{default}`"
        unit = unit_of(name, schema["properties"][name], schema.get("$defs", {}))
        lines.append(f"| `{name}` | {unit} | {shown} | {text} |")
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """Return the document with the table between each pair of `<!-- fields NAME -->` and `<!-- end -->` made again."""
    models = {model.__name__: model for model in (*fleet_models(), *BRINGUP_DESCRIBED, *ACCESS_DESCRIBED)}
    return re.sub(
        r"(<!-- fields (\w+) -->\n).*?(<!-- end -->)",
        lambda table: f"{table[1]}{table_of(models[table[2]])}\n{table[3]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
