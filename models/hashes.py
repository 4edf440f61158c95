"""JSON texts and their hashes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel


class GivenTwice(ValueError):
    """An object of a JSON text has a field twice; a parser keeps the last value. The message is a clause."""


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a parsed object's fields: an `object_pairs_hook` of json.loads. Errors: GivenTwice."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise GivenTwice(f"{twice[:100]} is given twice in one object")
    return fields


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; JSON of another kind gives an empty one. Errors: ValueError for text that is no JSON."""
    value = json.loads(text)
    return value if isinstance(value, dict) else {}


def canonical_json(value: Any) -> str:
    """Return the one text of a value: sorted keys, no spaces, so that its hash means something."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def hash_of(text: str) -> str:
    """Return the first sixteen hex digits (64 bits) of its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def content_hash(model: BaseModel, exclude: set[str] | None = None, *, exclude_defaults: bool = False) -> str:
    """Return sixteen hex digits (64 bits) of the SHA-256 of a model's canonical JSON.

    `exclude_defaults`: a default hashes alike whether or not it is written out, and a new field with a default changes
    no hash.
    """
    return hash_of(canonical_json(model.model_dump(mode="json", exclude=exclude, exclude_defaults=exclude_defaults)))
