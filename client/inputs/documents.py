"""The documents that people hand in: a fleet and what else is YAML or JSON.

A file is read and checked whole before anything is done with it. What is wrong with it is one sentence
with the file, the line and the field, and the value.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from client.inputs import plain_yaml
from client.inputs.sentences import Problem, first_problem, shown
from models.base import Model
from models.cluster.fleet_file import Fleet, merged_policy
from models.cluster.policy import Policy
from models.errors import BadInput

if TYPE_CHECKING:  # each is imported where it is read: a plan of a fleet file needs none of them
    from models.flex.division import FlexDemand
    from models.flex.scenario import FlexStory
    from models.reports.milestones import MilestoneFile

STANDARD_INPUT = "-"
_JSON_PLACE = re.compile(r": line (\d+) column \d+ \(char \d+\)$")


class _GivenTwice(ValueError):
    pass


def read_fleet(path: str | Path) -> Fleet:
    """The fleet that the file describes, each cluster's policy checked with the default laid under it.

    JSON when the name ends in .json, or when the content is; else YAML. "-": standard input.
    Errors: BadInput.
    """
    name, text = _text(path)
    data = _parsed(name, text)
    if data is None:
        raise BadInput(f"{name} is empty: a fleet file has at least the field clusters")
    if not isinstance(data, dict):
        raise BadInput(f"{name} must be a mapping with the field clusters, not {shown(data)}")
    try:
        fleet = Fleet.model_validate(data)
    except ValidationError as error:
        raise _refused(name, text, first_problem(error, data)) from None
    for number, cluster in enumerate(fleet.clusters):
        try:
            fleet.policy_of(cluster)
        except ValidationError as error:
            under = ("clusters", number, "policy")
            raise _refused(name, text, first_problem(error, cluster.policy, under)) from None
    return fleet


def read_milestones(path: str | Path) -> MilestoneFile:
    """The plan's milestones, as YAML or JSON. "-": standard input. Errors: BadInput."""
    from models.reports.milestones import MilestoneFile

    return read_document(path, MilestoneFile, "the field milestones")


def read_flex_demand(path: str | Path) -> FlexDemand:
    """What is to be divided among whom, as YAML or JSON. "-": standard input. Errors: BadInput."""
    from models.flex.division import FlexDemand

    return read_document(path, FlexDemand, "the fields capacity_gpus and teams")


def read_flex_story(path: str | Path) -> FlexStory:
    """A cluster, its teams and what happens, as YAML or JSON. "-": standard input. Errors: BadInput."""
    from models.flex.scenario import FlexStory

    return read_document(path, FlexStory, "the fields capacity_gpus, teams and steps")


_ModelT = TypeVar("_ModelT", bound=Model)


def read_document(path: str | Path, model: type[_ModelT], fields: str) -> _ModelT:
    """A file that is one document. `fields`: what it has at least, in words. Errors: BadInput."""
    name, text = _text(path)
    data = _parsed(name, text)
    if not isinstance(data, dict):
        raise BadInput(f"{name} must be a mapping with {fields}, not {shown(data)}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _refused(name, text, first_problem(error, data)) from None


def read_policy(default: Policy, settings: Mapping[str, Any], options: Mapping[str, str]) -> Policy:
    """The default with single settings laid over it. `options`: how the person spelt each one.

    Errors: BadInput naming the option and the value.
    """
    try:
        return merged_policy(default, settings)
    except ValidationError as error:
        problem = first_problem(error, settings)
        field = str(problem.path[0]) if problem.path else ""
        option = options.get(field, f"--policy {field}")
        raise BadInput(f"{option}{problem.text.removeprefix(field)}" if field else problem.text) from None


def _text(path: str | Path) -> tuple[str, str]:
    """What to call the file, and its text."""
    name, raw = content(path)
    return name, decoded(name, raw)


def content(path: str | Path) -> tuple[str, bytes]:
    """What to call the file, and its bytes. Errors: BadInput."""
    if str(path) == STANDARD_INPUT:
        return "standard input", sys.stdin.buffer.read()
    name = str(path)
    try:
        return name, Path(path).read_bytes()
    except FileNotFoundError:
        raise BadInput(f"{name}: there is no such file") from None
    except IsADirectoryError:
        raise BadInput(f"{name} is a directory, not a file") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{name} cannot be read: {why}") from None


def decoded(name: str, raw: bytes) -> str:
    """The text of a file. Errors: BadInput naming the line."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{name}, line {line}: not UTF-8 text (byte 0x{raw[error.start]:02x})") from None


def _parsed(name: str, text: str) -> Any:
    called_json = name.lower().endswith(".json")
    if not called_json and text.lstrip()[:1] != "{":
        return plain_yaml.load(text, name)
    if not text.strip():
        return None
    try:
        return json.loads(text, object_pairs_hook=_once)
    except _GivenTwice as error:
        raise BadInput(f"{name}: {error} is given twice in one object") from None
    except (ValueError, RecursionError) as error:
        if not called_json:  # YAML may begin with { too
            return plain_yaml.load(text, name)
        place = _JSON_PLACE.search(str(error))
        what = "nested too deep" if isinstance(error, RecursionError) else _JSON_PLACE.sub("", str(error))
        raise BadInput(f"{name}{f', line {place[1]}' if place else ''}: not valid JSON: {what}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise _GivenTwice(next(name for name in names if names.count(name) > 1))
    return fields


def _refused(name: str, text: str, problem: Problem) -> BadInput:
    line = plain_yaml.line_of(text, problem.path)
    return BadInput(f"{name}{'' if line is None else f', line {line}'}: {problem.sentence}")
