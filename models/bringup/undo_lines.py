"""The undo of each command to a bring-up: one line, as people type it, or the reason there is none."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from models.bringup.command_rows import BRINGUP_ROWS
from models.bringup.commands import BringupOrder
from models.bringup.stages import BringupCommand, BringupStage
from models.bringup.state import Bringup
from models.bringup.troubles import line
from models.lifecycle.command_rows import NEVER, REASON


def bringup_undo_line(before: Bringup, after: Bringup, command: BringupCommand, order: BringupOrder) -> str:
    """Return the line that undoes the command just obeyed."""
    return BRINGUP_ROWS[command].undo_line(BRINGUP_UNDO, before, after, order, cluster=after.cluster)


def undo_of_entry(cluster: str) -> str:
    return f"Undo: backstop bringup cancel {shlex.quote(cluster)} {REASON}"


def _or_cancel(before: Bringup, after: Bringup, order: BringupOrder) -> str:
    if after.direction.unmakes or after.stage is BringupStage.IN_PRODUCTION:
        return f"{NEVER}."
    return f"{NEVER}; to tear down the whole bring-up: {line(after, 'cancel', REASON)}"


BRINGUP_UNDO: dict[BringupCommand, Callable[[Bringup, Bringup, BringupOrder], str]] = {
    BringupCommand.CHECK_IN: _or_cancel,
    BringupCommand.RETRY: _or_cancel,
    BringupCommand.SKIP: _or_cancel,
    BringupCommand.STOP: lambda _, after, order: (
        f"{NEVER}; to run it again: {line(after, 'retry', order.step, REASON)}"
    ),
}
