"""Reads the access file whole, and reports all that is wrong with it at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from client.inputs.documents import Handed, read_unchecked
from client.inputs.sentences import Path, Problem, all_problems, join_path, path_text
from models.access.access_file import AccessFile, Grant, Person, Service
from models.errors import BadInput

ACCESS_FILE_BYTES = 1_000_000
"""Most bytes of an access file, which goes to the ledger in one message."""
_PARTS: dict[str, type[Person] | type[Service] | type[Grant]] = {"people": Person, "services": Service, "grants": Grant}


def read_access(path: str | FilePath) -> AccessFile:
    """Read an access file. Errors: BadFile with all that is wrong with it, each with line, field and value."""
    handed = read_unchecked(path, "the field grants", "an access file")
    try:
        file = AccessFile.model_validate(handed.data)
    except ValidationError as error:
        problems = all_problems(error, handed.data)
        paths = {problem.path for problem in problems}
        problems += [problem for problem in _beside(handed) if problem.path not in paths]
        problems.sort(key=lambda p: [f"{step:09}" if isinstance(step, int) else step for step in p.path])
        raise handed.refusal(problems) from None
    if len(file.model_dump_json()) > ACCESS_FILE_BYTES:
        raise BadInput(f"{handed.name} is too long: an access file may have at most {ACCESS_FILE_BYTES:,} bytes")
    return file


def _beside(handed: Handed) -> Iterator[Problem]:
    """Yield contradictions between entries that are valid by themselves: the model's own check stops at the first."""
    parts: dict[str, list[Any]] = {}
    places: dict[str, list[int]] = {}
    complete = True
    for field, model in _PARTS.items():
        entries = handed.data.get(field)
        parts[field], places[field] = [], []
        complete &= entries is None or isinstance(entries, list)
        for number, one in enumerate(entries if isinstance(entries, list) else ()):
            try:
                parts[field].append(model.model_validate(one))
            except ValidationError:  # which is told of the whole
                complete = False
                continue
            places[field].append(number)
    whole = AccessFile.model_construct(
        people=tuple(parts["people"]), services=tuple(parts["services"]), grants=tuple(parts["grants"])
    )
    for where, text in whole.faults():
        if len(where) == 1 and not complete:
            continue  # an admin may be meant by a grant that is refused
        path: Path = where if len(where) == 1 else (where[0], places[str(where[0])][int(where[1])], *where[2:])
        yield Problem(path, f"{path_text(path)}: {text}" if " is given twice" in text else join_path(path, text), 0)
