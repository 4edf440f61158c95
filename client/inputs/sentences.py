"""Describes a refused value in one sentence: its place, what it must be, and what it is."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from models.access.access_file import AccessFile, Grant, Identity, Person, Service
from models.cluster.fleet_file import ClusterSpec, Fleet, Team
from models.cluster.policy import Policy
from models.cluster.quota import Quota
from models.cluster.windows import Window
from models.texts import brief

Path = tuple[str | int, ...]

_LONG = 400

# By pydantic's error type; {value} is what was given, the rest comes from the error's context.
_SAYS = {
    "missing": "is missing",
    "string_unicode": "must be valid Unicode text, not {value}",
    "string_type": "must be text, not {value}{quotes}",
    "string_too_short": "must not be empty",
    "string_too_long": "must be at most {max_length} characters long; it begins {value}",
    "string_pattern_mismatch": "must be one line without control characters, not {value}",
    "bool_type": "must be true or false, not {value}",
    "greater_than_equal": "must be at least {ge}, not {value}",
    "greater_than": "must be above {gt}, not {value}",
    "less_than_equal": "must be at most {le}, not {value}",
    "less_than": "must be below {lt}, not {value}",
    "enum": "must be {expected}, not {value}",
    "literal_error": "must be {expected}, not {value}",
    "tuple_type": "must be a list, not {value}",
    "list_type": "must be a list, not {value}",
    "model_type": "must be a mapping of fields, not {value}",
    "dict_type": "must be a mapping of fields, not {value}",
    "too_short": "must have at least {min_length} entry",
    "too_long": "must have at most {max_length} entries, not {actual_length}",
}
_TIME = "must be a time such as 2026-01-31T12:00:00Z, not {value}"
# How a sentence of our own validators goes on after the field's name.
_GOES_ON = ("must ", "is ", "has ", "names ", "sum ", "needs ", "cannot ")
_DESCRIBED = (Fleet, ClusterSpec, Quota, Window, Team, Policy, AccessFile, Grant, Person, Identity, Service)
_FIELDS = frozenset(name for model in _DESCRIBED for name in model.model_fields) | {
    "total_gpus",
    "healthy_gpus",
    "block_gpus",
    "$schema",
}


class Problem(NamedTuple):
    """A fault of a value. `text` begins with the field's path where it has one."""

    path: Path
    text: str
    more: int
    """The number of further problems."""

    @property
    def sentence(self) -> str:
        if not self.more:
            return self.text
        return f"{self.text} (and {self.more} more problem{'s' if self.more > 1 else ''})"


def path_text(path: Sequence[str | int]) -> str:
    """Return a path as `clusters[2].quotas[0].gpus`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def show_value(value: Any) -> str:
    """Return a value as a person wrote it, cut short where it is long."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else brief(value)


def first_problem(error: ValidationError, data: Any) -> Problem:
    """Return the first problem of a refused value. `data`: the input."""
    faults = _own(error.errors(include_url=False), data)
    return _problem(faults[0], data)._replace(more=len(faults) - 1)


def all_problems(error: ValidationError, data: Any, under: Path = ()) -> list[Problem]:
    """Return every problem of a refused value, in the order of its parts."""
    return [_problem(fault, data, under) for fault in _own(error.errors(include_url=False), data)]


def _problem(fault: ErrorDetails, data: Any, under: Path = ()) -> Problem:
    path, text = _describe(fault, data)
    text = join_path((*under, *path), text)
    return Problem((*under, *path), text if len(text) <= _LONG else f"{text[:_LONG]} ...", 0)


def join_path(path: Path, text: str) -> str:
    if not path:
        return text
    return f"{path_text(path)}{' ' if text.startswith(_GOES_ON) else ': '}{text}"


def _own(faults: list[ErrorDetails], data: Any) -> list[ErrorDetails]:
    """Return one fault for each place, none for a list that only lacks refused entries, one for a union."""
    seen: dict[Path, ErrorDetails] = {}
    for fault in faults:
        seen.setdefault(_place(fault, data), fault)
    return [
        fault
        for place, fault in seen.items()
        if not any(len(other) > len(place) and other[: len(place)] == place for other in seen)
    ]


def _place(fault: ErrorDetails, data: Any) -> Path:
    """Return the error's location, without the steps that name a validator and not a field."""
    place: list[str | int] = []
    for number, step in enumerate(fault["loc"]):
        last = number == len(fault["loc"]) - 1
        if isinstance(data, dict) and (step in data or (last and fault["type"] == "missing")):
            place.append(step)
            data = data.get(step)
        elif isinstance(data, list | tuple) and isinstance(step, int) and step < len(data):
            place.append(step)
            data = data[step]
    return tuple(place)


def _describe(fault: ErrorDetails, data: Any) -> tuple[Path, str]:
    place, value = _place(fault, data), fault["input"]
    context: dict[str, Any] = fault.get("ctx", {})
    kind = fault["type"]
    if kind == "value_error":
        inner = context.get("error")
        if isinstance(inner, ValidationError):
            problem = first_problem(inner, _at(data, place))
            return (*place, *problem.path), problem.text.removeprefix(path_text(problem.path)).lstrip(": ")
        return _closer(place, str(inner), data)
    if kind == "fault_at":
        return _closer((*place, *context["path"]), context["text"], data)
    if kind == "extra_forbidden":
        name = str(place[-1]) if place else "it"
        near = difflib.get_close_matches(name, _FIELDS, 1, 0.75)
        meant = f"; did you mean {near[0]}?" if near else ""
        return place, f"is not a known field (its value is {show_value(value)}{meant})"
    if kind.startswith(("datetime", "timezone", "date")):
        return place, _TIME.format(value=show_value(value))
    quotes = " (put it in quotes)" if isinstance(value, int | float) else ""
    if kind in _SAYS:
        return place, _SAYS[kind].format(value=show_value(value), quotes=quotes, **context)
    return place, f"{fault['msg'][:1].lower()}{fault['msg'][1:]}, not {show_value(value)}"


def _at(data: Any, path: Path) -> Any:
    for step in path:
        data = data[step]
    return data


def _closer(place: Path, text: str, data: Any) -> tuple[Path, str]:
    """Return the path down to the given field that our validator's sentence begins with, where it names one."""
    word, _, rest = text.partition(" ")
    here = _at(data, place)
    if rest and isinstance(here, dict) and word in here:
        return (*place, word), rest
    return place, text
