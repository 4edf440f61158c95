"""Reads the documents that people hand in: a fleet, and others in YAML or JSON.

A file is read and checked whole before anything is done with it. An error is one sentence with the file, the line, the
field and the value.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from client.inputs import plain_yaml
from client.inputs.sentences import Path, Problem, all_problems, first_problem, path_text, show_value
from models.base import Model
from models.cluster.fleet_file import ClusterSpec, Fleet, merged_policy
from models.cluster.policy import Policy
from models.errors import BadFile, BadInput
from models.hashes import GivenTwice, each_once

if TYPE_CHECKING:  # each is imported where it is read: a plan of a fleet file needs none of them
    from models.flex.division import FlexDemand
    from models.flex.story import FlexStory
    from models.reports.milestones import MilestoneFile

STANDARD_INPUT = "-"
_JSON_PLACE = re.compile(r": line (\d+) column \d+ \(char \d+\)$")


MOST_PROBLEMS = 20
"""Most problems of a file that one error lists."""


_ModelT = TypeVar("_ModelT", bound=Model)


@dataclass(frozen=True)
class Handed:
    """A document as a person handed it in."""

    name: str
    """The name of the file, or files, in messages."""
    data: dict[str, Any]
    places: Callable[[Sequence[Path]], list[str]]
    """Where parts of it are in the file, such as `recipes.yaml, line 12`."""

    def check(self, model: type[_ModelT]) -> _ModelT:
        """Validate the document. Errors: BadFile with all that is wrong with it."""
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            raise self.refusal(all_problems(error, self.data)) from None

    def refusal(self, problems: Sequence[Problem]) -> BadFile:
        first, more = problems[:MOST_PROBLEMS], max(0, len(problems) - MOST_PROBLEMS)
        where = self.places([problem.path for problem in first])
        return BadFile([f"{at}: {problem.text}" for at, problem in zip(where, first, strict=True)], more)


def read_unchecked(path: str | FilePath, fields: str, what: str = "") -> Handed:
    """Read a file that is one document, without checking it. `fields`: those it needs; `what` it is; both in words.

    JSON when the name ends in .json, or when the content is; else YAML. "-": standard input. Errors: BadInput.
    """
    name, raw = content(path)
    text = decode_text(name, raw)
    data = _parse(name, text)
    if data is None and what:
        raise BadInput(f"{name} is empty: {what} needs at least {fields}")
    if not isinstance(data, dict):
        raise BadInput(f"{name} must be a mapping with {fields}, not {show_value(data)}")

    def places(paths: Sequence[Path]) -> list[str]:
        return [f"{name}{'' if n is None else f', line {n}'}" for n in plain_yaml.lines_of(text, paths)]

    return Handed(name, data, places)


@dataclass(frozen=True)
class FleetDocument:
    """A fleet, and the document that a person handed in."""

    fleet: Fleet
    name: str
    """The name of the file, or files, in messages."""
    places: Callable[[Sequence[Path]], list[str]]
    """Where parts of the fleet are in the file, such as `fleet.yaml, line 12`."""
    partial: bool = False
    """The document is a table, which leaves fields without a column as they are."""


def read_fleet(path: str | FilePath) -> Fleet:
    """Read the file's fleet; each cluster's policy is checked on top of the default policy.

    JSON when the name ends in .json, or when the content is; else YAML. "-": standard input.
    Errors: BadFile with all that is wrong with it.
    """
    return read_fleet_document(path).fleet


def read_fleet_document(path: str | FilePath) -> FleetDocument:
    """Read the file's fleet, and the lines of its parts."""
    return fleet_document(read_unchecked(path, "the field clusters", "a fleet file"))


def fleet_document(handed: Handed, *, partial: bool = False) -> FleetDocument:
    """Return the fleet of a document. Errors: BadFile with all that is wrong with it."""
    fleet, problems = None, list[Problem]()
    try:
        fleet = Fleet.model_validate(handed.data)
    except ValidationError as error:
        problems = all_problems(error, handed.data)
        problems += _beside(handed.data, problems)
    else:
        problems = [p for n, c in enumerate(fleet.clusters) for p in _of_policy(fleet.policy, c.policy, n)]
    if fleet is None or problems:
        problems.sort(key=lambda p: [f"{step:09}" if isinstance(step, int) else step for step in p.path])
        raise handed.refusal(problems)
    return FleetDocument(fleet, handed.name, handed.places, partial)


def _beside(data: dict[str, Any], problems_before: Sequence[Problem]) -> list[Problem]:
    """Return the other problems, between valid parts: the checks of the whole document stop at the first fault."""
    paths = {problem.path for problem in problems_before}
    faulty = {path[1] for path in paths if path[:1] == ("clusters",) and len(path) > 1}
    try:
        default = Policy.model_validate(data.get("policy", {}))
    except ValidationError:
        default = Policy()
    problems = list[Problem]()
    for number, entry in enumerate(data["clusters"] if isinstance(data.get("clusters"), list) else ()):
        if number in faulty:
            continue
        try:
            cluster = ClusterSpec.model_validate(entry)
        except ValidationError as error:  # the whole was refused for a key of its own, and nobody looked at this
            problems += all_problems(error, entry, ("clusters", number))
            continue
        problems += _of_policy(default, cluster.policy, number)
        try:
            Fleet(clusters=(cluster,), policy=default)
        except ValidationError as error:
            (floor,) = all_problems(error, {"clusters": [entry]})
            path = ("clusters", number, *floor.path[2:])
            text = floor.text.replace("clusters[0]", f"clusters[{number}]", 1)
            problems.append(Problem(path, text, 0))
    return [*_find_repeated(data, paths), *(p for p in problems if p.path not in paths)]


def _find_repeated(data: dict[str, Any], paths: Collection[Path]) -> Iterator[Problem]:
    for what in ("cluster", "team"):
        entries, seen = data.get(f"{what}s"), set[str]()
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            name, path = entry.get("name") if isinstance(entry, dict) else None, (f"{what}s", number, "name")
            if isinstance(name, str):
                if name in seen and path not in paths:
                    yield Problem(path, f"{path_text(path)}: {what} {name!r} is given twice", 0)
                seen.add(name)


def _of_policy(default: Policy, own: Mapping[str, Any], number: int) -> list[Problem]:
    try:
        merged_policy(default, own)
    except ValidationError as error:
        return all_problems(error, own, ("clusters", number, "policy"))
    return []


def read_milestones(path: str | FilePath) -> MilestoneFile:
    """Read the plan's milestones, as YAML or JSON. "-": standard input. Errors: BadInput."""
    from models.reports.milestones import MilestoneFile

    return read_document(path, MilestoneFile, "the field milestones")


def read_flex_demand(path: str | FilePath) -> FlexDemand:
    """Read the GPUs and the teams to divide them among, as YAML or JSON. "-": standard input. Errors: BadInput."""
    from models.flex.division import FlexDemand

    return read_document(path, FlexDemand, "the fields capacity_gpus and teams")


def read_flex_story(path: str | FilePath) -> FlexStory:
    """Read a story, as YAML or JSON: a cluster, its teams and events. "-": standard input. Errors: BadInput."""
    from models.flex.story import FlexStory

    return read_document(path, FlexStory, "the fields capacity_gpus, teams and steps")


def read_document(path: str | FilePath, model: type[_ModelT], fields: str) -> _ModelT:
    """Read one document. `fields`: its least fields, in words. Errors: BadInput: the first fault, and how many more."""
    handed = read_unchecked(path, fields)
    try:
        return handed.check(model)
    except BadFile as fault:
        raise BadInput(fault.message) from None


def read_policy(default: Policy, settings: Mapping[str, Any], options: Mapping[str, str]) -> Policy:
    """Return the default policy with single settings laid over it. `options`: how the person spelt each one.

    Errors: BadInput naming the option and the value.
    """
    try:
        return merged_policy(default, settings)
    except ValidationError as error:
        problem = first_problem(error, settings)
        field = str(problem.path[0]) if problem.path else ""
        option = options.get(field, f"--policy {field}")
        raise BadInput(f"{option}{problem.text.removeprefix(field)}" if field else problem.text) from None


def content(path: str | FilePath) -> tuple[str, bytes]:
    """Return the file's name for messages, and its bytes. Errors: BadInput."""
    if str(path) == STANDARD_INPUT:
        return "standard input", sys.stdin.buffer.read()
    name = str(path)
    try:
        return name, FilePath(path).read_bytes()
    except FileNotFoundError:
        raise BadInput(f"{name}: there is no such file") from None
    except IsADirectoryError:
        raise BadInput(f"{name} is a directory, not a file") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{name} cannot be read: {why}") from None


def decode_text(name: str, raw: bytes) -> str:
    """Return the text of a file. Errors: BadInput naming the line."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{name}, line {line}: not UTF-8 text (byte 0x{raw[error.start]:02x})") from None


def _parse(name: str, text: str) -> Any:
    called_json = name.lower().endswith(".json")
    if not called_json and text.lstrip()[:1] != "{":
        return plain_yaml.load(text, name)
    if not text.strip():
        return None
    try:
        return json.loads(text, object_pairs_hook=each_once)
    except GivenTwice as error:
        try:
            plain_yaml.load(text, name)  # nearly all JSON is YAML too, and this reader names the line
        except BadInput as placed:
            if plain_yaml.GIVEN_TWICE in placed.message:
                raise placed from None
        raise BadInput(f"{name}: {error}") from None
    except (ValueError, RecursionError) as error:
        if not called_json:  # YAML may begin with { too
            return plain_yaml.load(text, name)
        place = _JSON_PLACE.search(str(error))
        what = "nested too deeply" if isinstance(error, RecursionError) else _JSON_PLACE.sub("", str(error))
        raise BadInput(f"{name}{f', line {place[1]}' if place else ''}: not valid JSON: {what}") from None
