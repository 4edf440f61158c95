"""Rows for the commands that people give to a lifecycle: everything that does not depend on its state.

The command line (cli/commands_from_rows.py), completion, docs/commands.md, the HTTP API's document and the console's
buttons come from the rows, and `refusal` of each core asks them whether a command needs a reason. The core's `commands`
has the other refusals and the effect of each command; models/access/rights.py says who may give it. Only the standard
library is imported, because `backstop --help` reads the rows of rollouts.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVarTuple

from models.access.rights import RIGHTS, Second

REASON = "--reason '...'"
"""The reason's option in a printed command that people complete."""
NEVER = "It cannot be undone"
DECIDE = "Decide"
HALT = "Hold, undo, end"
_States = TypeVarTuple("_States")


class NeedsReason(StrEnum):
    """The rule that says when a command needs a reason."""

    ALWAYS = "always"
    SOMETIMES = "in some states: the core's `commands` says which"
    NEVER = "never"


class Asks(StrEnum):
    """The rule that says when the command line asks before a command, and what it shows."""

    NEVER = "never"
    SEVERAL = "if several clusters are meant: where each of them is"
    PLAN = "always: the plan"
    UNDO = "always: what every team gets back, and how much of it hardware can back"
    RISK = "if a promise does not hold: who is at risk"
    NOTICE = "if something is left that the person may not know: which teams are not notified yet"
    FAILED = "if clusters have failed: which"
    STATUS = "always: where it is"


@dataclass(frozen=True)
class CommandField:
    """A field of a command's request, as people type it: an option, or with `argument` a word."""

    name: str
    help: str
    metavar: str = ""
    """The name of the value in the help; empty: the field is a flag."""
    needed: bool = False
    argument: bool = False
    many: bool = False
    option: str = ""
    """The option's name; empty: the same as the field's."""
    otherwise: str = ""
    """The default, as the help states it."""


@dataclass(frozen=True)
class CommandRow:
    name: str
    help: str
    """The help; lists, the API's document and the console use only its first paragraph."""
    examples: str
    """Examples, one a line."""
    fields: tuple[CommandField, ...] = ()
    reason: NeedsReason = NeedsReason.ALWAYS
    asks: Asks = Asks.NEVER
    question: str = "{label} {of}?"
    """The question to a person, with names in braces."""
    undo: str = ""
    """The undo in one line, with names in braces; empty: the undo depends on the state, and `undo_lines` builds it."""
    button: str = ""
    """The label of the console's button; empty: the command's name."""
    lifecycle: str = ""
    panel: str = ""
    """The command's heading in `backstop --help`; empty: the command belongs to a group."""

    @property
    def key(self) -> str:
        """The name of its right in models/access/rights.py: `fleet.skip`."""
        return f"{self.lifecycle}.{self.name}"

    @property
    def command_words(self) -> str:
        """The command as people type it."""
        return self.name if self.panel else f"{self.lifecycle} {self.name}"

    @property
    def summary(self) -> str:
        """The first paragraph of the help."""
        return self.help.partition("\n\n")[0]

    @property
    def label(self) -> str:
        return self.button or self.name.capitalize()

    @property
    def needs_reason(self) -> bool:
        return self.reason is NeedsReason.ALWAYS

    @property
    def by_two(self) -> bool:
        """True if it takes a second person, at least in some circumstances."""
        return any(right.second is not Second.NONE for _, right in RIGHTS[self.key].with_cases)

    def question_text(self, **names: str) -> str:
        """Fill in the names in `question`."""
        return self.question.format(label=self.label, **names)

    def undo_line(self, by_state: Mapping[Any, Callable[[*_States], str]], *states: *_States, **names: str) -> str:
        """Return the undo: the row's own with these names, quoted for a shell, or the line that the state decides."""
        if not self.undo:
            return by_state[self.name](*states)
        return self.undo.format(**{name: shlex.quote(value) for name, value in names.items()})


def rows_of(lifecycle: str, *rows: CommandRow, panel: str = "") -> dict[str, CommandRow]:
    """Return the rows by command, in the order of the help."""
    return {row.name: replace(row, lifecycle=lifecycle, panel=panel) for row in rows}
