"""How each command to a bring-up is undone: one line, as people type it, or why there is none."""

from __future__ import annotations

from collections.abc import Callable

from models.bringup.commands import BringupOrder
from models.bringup.stages import BringupCommand, BringupStage
from models.bringup.state import Bringup
from models.bringup.troubles import line

_REASON = "--reason '...'"
_FOR_GOOD = "It cannot be undone"


def bringup_undo_line(before: Bringup, after: Bringup, command: BringupCommand, order: BringupOrder) -> str:
    """What to say to undo a command that has just been obeyed."""
    return BRINGUP_UNDO[command](before, after, order)


def undo_of_entry(cluster: str) -> str:
    return f"Undo: backstop bringup cancel {cluster} {_REASON}"


def _or_cancel(after: Bringup) -> str:
    if after.direction.unmakes or after.stage is BringupStage.IN_PRODUCTION:
        return f"{_FOR_GOOD}."
    return f"{_FOR_GOOD}; to unmake all of it: {line(after, 'cancel', _REASON)}"


BRINGUP_UNDO: dict[BringupCommand, Callable[[Bringup, Bringup, BringupOrder], str]] = {
    BringupCommand.HOLD: lambda _, after, __: f"Undo: {line(after, 'release')}",
    BringupCommand.RELEASE: lambda _, after, __: f"Undo: {line(after, 'hold', _REASON)} (what has begun goes on)",
    BringupCommand.CHECK_IN: lambda _, after, __: _or_cancel(after),
    BringupCommand.RETRY: lambda _, after, __: _or_cancel(after),
    BringupCommand.SKIP: lambda _, after, __: _or_cancel(after),
    BringupCommand.STOP: lambda _, after, order: (
        f"{_FOR_GOOD}; to run it again: {line(after, 'retry', order.step, _REASON)}"
    ),
    BringupCommand.REVALIDATE: lambda *_: f"{_FOR_GOOD}: the answers before are gone.",
    BringupCommand.CANCEL: lambda *_: f"{_FOR_GOOD}. When it has ended: backstop bringup add",
    BringupCommand.RETIRE: lambda *_: f"{_FOR_GOOD}. When it has ended: backstop bringup add",
}
