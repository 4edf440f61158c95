"""One row for each command that people give to a lifecycle: all that does not depend on the state in which it is given.

The command line (cli/commands_from_rows.py), completion, docs/commands.md, the HTTP API's document and the console's
buttons are made of the rows, and `refusal` of each core asks them whether a command needs a reason. What else refuses
a command and what it changes is in the core's `commands`; who may give it is in models/access/rights.py. Only the
standard library is imported: `backstop --help` reads the rows of rollouts.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from enum import StrEnum

from models.access.rights import RIGHTS, Second

REASON = "--reason '...'"
"""How a reason stands in a line that people complete."""
NEVER = "It cannot be undone"
DECIDE = "Decide"
HALT = "Hold, undo, end"


class NeedsReason(StrEnum):
    """Whether a command needs one."""

    ALWAYS = "always"
    SOMETIMES = "in some states: the core's `commands` says which"
    NEVER = "never"


class Asks(StrEnum):
    """When a person at the terminal is asked before a command is given, and what they are shown."""

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
    """One field of a command's request, as people type it: an option, or with `argument` a word."""

    name: str
    help: str
    metavar: str = ""
    """Without one it is a flag."""
    needed: bool = False
    argument: bool = False
    many: bool = False
    option: str = ""
    """The option's name if it is not that of the field."""
    otherwise: str = ""
    """What holds if it is left out, in the help."""


@dataclass(frozen=True)
class CommandRow:
    name: str
    help: str
    """The first paragraph alone stands in lists, in the API's document and beside the console's button."""
    examples: str
    """One a line."""
    fields: tuple[CommandField, ...] = ()
    reason: NeedsReason = NeedsReason.ALWAYS
    asks: Asks = Asks.NEVER
    question: str = "{label} {of}?"
    """What a person is asked, with names in braces."""
    undo: str = ""
    """How it is undone, one line with names in braces; empty: it depends on the state, and `undo_lines` makes it."""
    button: str = ""
    """The console's button, if it is called something else than the command."""
    lifecycle: str = ""
    panel: str = ""
    """The heading of `backstop --help`; a command of a group has none."""

    @property
    def key(self) -> str:
        """Its right in models/access/rights.py: `fleet.skip`."""
        return f"{self.lifecycle}.{self.name}"

    @property
    def command_words(self) -> str:
        """The command as people type it."""
        return self.name if self.panel else f"{self.lifecycle} {self.name}"

    @property
    def summary(self) -> str:
        """What it does, without the details."""
        return self.help.partition("\n\n")[0]

    @property
    def label(self) -> str:
        return self.button or self.name.capitalize()

    @property
    def needs_reason(self) -> bool:
        return self.reason is NeedsReason.ALWAYS

    @property
    def by_two(self) -> bool:
        """It takes a second person, at least in some circumstances."""
        return any(right.second is not Second.NONE for _, right in RIGHTS[self.key].with_cases)

    def question_text(self, **names: str) -> str:
        """`question` with its names filled in."""
        return self.question.format(label=self.label, **names)

    def undo_line(self, **names: str) -> str:
        """`undo` with names as a shell takes them."""
        return self.undo.format(**{name: shlex.quote(value) for name, value in names.items()})


def rows_of(lifecycle: str, *rows: CommandRow, panel: str = "") -> dict[str, CommandRow]:
    """By the command, in the order of the help."""
    return {row.name: replace(row, lifecycle=lifecycle, panel=panel) for row in rows}
