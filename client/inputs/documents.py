"""The files that people hand in: a fleet as YAML or JSON, health history as CSV.

A file is read and checked whole before anything is done with it. What is wrong with it is one sentence
with the file, the line and the field, and the value.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from client.inputs import plain_yaml
from client.inputs.sentences import Problem, first_problem, shown
from models.base import Model
from models.cluster.fleet_file import ClusterSpec, Fleet, merged_policy
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.readings import HealthSample
from models.errors import BadInput
from models.flex.division import FlexDemand
from models.flex.scenario import FlexStory
from models.reports.milestones import MilestoneFile

STANDARD_INPUT = "-"
_NEEDED = ("cluster", "time", "total_gpus", "healthy_gpus")
_OPTIONAL = ("island", "block_gpus")
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
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
    return read_document(path, MilestoneFile, "the field milestones")


def read_flex_demand(path: str | Path) -> FlexDemand:
    """What is to be divided among whom, as YAML or JSON. "-": standard input. Errors: BadInput."""
    return read_document(path, FlexDemand, "the fields capacity_gpus and teams")


def read_flex_story(path: str | Path) -> FlexStory:
    """A cluster, its teams and what happens, as YAML or JSON. "-": standard input. Errors: BadInput."""
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


def read_health(path: str | Path, clusters: Sequence[ClusterSpec]) -> tuple[HealthSample, ...]:
    """The samples of a health CSV by time, then cluster: one for each cluster and time.

    A row without an island (the column may be absent) speaks for its cluster's only island.
    Errors: BadInput.
    """
    name, text = _text(path)
    return _HealthFile(name, {c.name: tuple(i.name for i in c.islands) for c in clusters}).samples(text)


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
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _GivenTwice(next(name for name in names if names.count(name) > 1))
    return found


def _refused(name: str, text: str, problem: Problem) -> BadInput:
    line = plain_yaml.line_of(text, problem.path)
    return BadInput(f"{name}{'' if line is None else f', line {line}'}: {problem.sentence}")


class _HealthFile:
    """Reads one CSV, row by row."""

    def __init__(self, name: str, islands: Mapping[str, tuple[str, ...]]) -> None:
        self._name = name
        self._islands = islands
        self._line = 0
        self._times: dict[str, datetime] = {}
        self._lines: dict[tuple[datetime, str, str], int] = {}
        self._found: dict[tuple[datetime, str], list[Island]] = {}

    def samples(self, text: str) -> tuple[HealthSample, ...]:
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        try:
            header = self._header(next(rows, []))
            for row in rows:
                self._line = rows.line_num
                if row:
                    self._add(self._fields(header, row))
        except csv.Error as error:
            self._line = rows.line_num
            raise self._bad(f"not valid CSV: {error}") from None
        if not self._found:
            raise BadInput(f"{self._name} has no rows below its header")
        return tuple(
            HealthSample(cluster=cluster, at=at, islands=tuple(sorted(islands, key=lambda i: i.name)))
            for (at, cluster), islands in sorted(self._found.items())
        )

    def _header(self, row: list[str]) -> list[str]:
        header = [cell.strip() for cell in row]
        if not any(header):
            raise BadInput(f"{self._name} is empty: its first line names the columns {', '.join(_NEEDED)}")
        self._line = 1
        for column in header:
            if column not in (*_NEEDED, *_OPTIONAL):
                raise self._bad(f"column {column!r} is not known; known are {', '.join((*_NEEDED, *_OPTIONAL))}")
            if header.count(column) > 1:
                raise self._bad(f"column {column} is given twice")
        for column in _NEEDED:
            if column not in header:
                raise self._bad(f"column {column} is missing; the columns are {', '.join(header)}")
        return header

    def _fields(self, header: list[str], row: list[str]) -> dict[str, str]:
        if len(row) != len(header):
            raise self._bad(f"{len(row)} values for {len(header)} columns")
        return {column: cell.strip() for column, cell in zip(header, row, strict=True)}

    def _add(self, row: dict[str, str]) -> None:
        cluster, at = row["cluster"], self._time(row["time"])
        if cluster not in self._islands:
            raise self._bad(f"cluster {cluster!r} is not in the fleet")
        island = self._island(cluster, row.get("island", ""))
        earlier = self._lines.setdefault((at, cluster, island), self._line)
        if earlier != self._line:
            raise self._bad(f"island {island!r} of {cluster} at {row['time']} is given twice, first in line {earlier}")
        counts = {c: self._count(c, row[c]) for c in ("total_gpus", "healthy_gpus", "block_gpus") if row.get(c)}
        for column in ("total_gpus", "healthy_gpus"):
            if column not in counts:
                raise self._bad(f"{column} is missing")
        try:
            seen = Island.model_validate({"name": island, **counts})
        except ValidationError as error:
            raise self._bad(first_problem(error, counts).text) from None
        self._found.setdefault((at, cluster), []).append(seen)

    def _island(self, cluster: str, named: str) -> str:
        known = self._islands[cluster]
        if named in known:
            return named
        if named:
            raise self._bad(f"island {named!r} is not one of cluster {cluster} (it has {', '.join(known)})")
        if len(known) > 1:
            raise self._bad(f"island is missing, and cluster {cluster} has several: {', '.join(known)}")
        return known[0]

    def _count(self, column: str, text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise self._bad(f"{column} must be a whole number, zero or more, not {text!r}")
        return int(text)

    def _time(self, text: str) -> datetime:
        known = self._times.get(text)
        if known is None:
            try:
                known = datetime.fromisoformat(text)
            except ValueError:
                raise self._bad(f"time must be such as 2026-01-31T12:00:00Z, not {text!r}") from None
            if known.tzinfo is None:
                raise self._bad(f"time needs a time zone (for example a final Z): {text!r}")
            try:
                known = self._times[text] = known.astimezone(UTC)
            except OverflowError:
                raise self._bad(f"time must be such as 2026-01-31T12:00:00Z, not {text!r}") from None
        return known

    def _bad(self, what: str) -> BadInput:
        return BadInput(f"{self._name}, line {self._line}: {what}")
