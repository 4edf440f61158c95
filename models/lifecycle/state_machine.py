"""A state machine as one table: the answer to each command in each stage, a stage or a refusal with its reason.

The table is total on purpose: a missing cell fails when the module is imported, not for an operator at 3 a.m.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

STAY = None
"""The next stage of a command that does not change the stage."""


@dataclass(frozen=True)
class Refused:
    """The reason a command has no place in a stage. It may have names in braces, which the state fills in."""

    reason: str


_Stage = TypeVar("_Stage", bound=StrEnum)
_Command = TypeVar("_Command", bound=str)
_Cell = TypeVar("_Cell")


def answers_by_cell(
    columns: Sequence[_Stage],
    commands: Iterable[_Command],
    rows: Mapping[tuple[_Command, ...], Sequence[_Stage | Refused | _Cell | None]],
    ended: Refused,
) -> dict[tuple[_Stage, _Command], _Stage | Refused | _Cell]:
    """Return the answer to each stage and command. `rows`: commands with a cell for each column; a cell may be STAY.

    A stage without a column refuses all commands as `ended`.
    """
    of_row = {command: row for alike, row in rows.items() for command in alike}
    answers: dict[tuple[_Stage, _Command], _Stage | Refused | _Cell] = {}
    for command in commands:
        answers |= {(stage, command): ended for stage in type(columns[0])}
        for stage, cell in zip(columns, of_row[command], strict=True):
            answers[stage, command] = stage if cell is None else cell
    return answers
