"""The state machine as tables: stages, commands, and the answer to every pair of them.

Source: docs/design.md, "The state machine"; ADR 0002 settles what it leaves open. What a step does, and how that is
undone, is in models/rollout/effect_table.py.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from models.lifecycle.state_machine import STAY as _STAY
from models.lifecycle.state_machine import Refused, answers_by_cell


class Stage(StrEnum):
    PLANNED = "planned"
    BUFFERED = "buffered"
    ENFORCED = "enforced"
    MONITORED = "monitored"
    CLOSED = "closed"
    ABORTED = "aborted"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    STUCK = "stuck"

    @property
    def has_ended(self) -> bool:
        return self in (Stage.CLOSED, Stage.ABORTED)

    @property
    def is_guarded(self) -> bool:
        """True from buffered on: the guard may start a breach rollback."""
        return self in (Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED)

    @property
    def promises(self) -> bool:
        """True for the stages in which a quota is a promise (unless it is in breach)."""
        return self in (Stage.ENFORCED, Stage.MONITORED)


class Command(StrEnum):
    APPROVE = "approve"
    ACK = "ack"
    OBJECT = "object"
    PAUSE = "pause"
    RESUME = "resume"
    RESOLVE = "resolve"
    PROMOTE = "promote"
    ABORT = "abort"
    ROLLBACK = "rollback"
    RETRY = "retry"
    CLOSE = "close"


def command_line(command: str, cluster: str) -> str:
    """Return a cluster's command as people type it, without its options."""
    return f"backstop {command} {shlex.quote(cluster)}"


@dataclass(frozen=True)
class UndoOr:
    """Roll back if any effect is in force; otherwise go straight to `otherwise`.

    After a breach rollback a rollout is `planned` again while effects are in force. The stage alone cannot tell, and a
    second stage field could contradict the first.
    """

    otherwise: Stage | Refused


Answer = Stage | Refused | UndoOr

_P, _B, _E, _M = WAY = (Stage.PLANNED, Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED)
"""The stages of a rollout on which nothing goes wrong, in order."""
_BACK, _DONE, _HELD, _CLOSED = Stage.ROLLING_BACK, Stage.ROLLED_BACK, Stage.STUCK, Stage.CLOSED
_C, _No = Command, Refused
_RUNS = _No("a rollback is running and cannot be stopped; wait until it is done")
_STUCK = _No("the rollback is stuck: `retry` runs what is left of it, `close` ends the rollout and undoes nothing more")
_ENDED = _No("the rollout has ended; launch a new one")
_NO_PLAN = _No("no plan awaits approval: the next attempt makes a new one")
_AT_LAST = _No("already at the last stage")
_RETRY = _No("rolled back; `retry` starts the next attempt")
_UNDO_OR_END = UndoOr(Stage.ABORTED)
_UNDO = UndoOr(_No("nothing has been applied yet; `abort` ends the rollout"))
_UNDO_AGAIN = UndoOr(_No("already rolled back to the baseline"))
_FIRST = _No("nothing to retry: the rollout is waiting at its first gate")
_GOES_ON = _No("nothing to retry: the rollout goes on by itself when its gate opens")
_WATCHED = _No("nothing to retry: the rollout is done and being watched")
_UNPROMISED = _No("nothing is promised yet; `abort` ends the rollout")
_UNENFORCED = _No("not enforced yet; `abort` undoes the rollout and ends it")
_UNWATCHED = _No("not monitored yet; `promote` shortens the wait, `abort` undoes the rollout and ends it")

# fmt: off
_COLUMNS =                   (_P,           _B,          _E,         _M,       _BACK, _DONE,        _HELD)
_GRID: dict[tuple[Command, ...], tuple[Answer | None, ...]] = {
    (_C.APPROVE,):           (_STAY,        _STAY,       _STAY,      _STAY,    _RUNS, _NO_PLAN,     _STUCK),
    (_C.ACK, _C.OBJECT):     (_STAY,        _STAY,       _STAY,      _STAY,    _STAY, _STAY,        _STAY),
    (_C.PAUSE,):             (_STAY,        _STAY,       _STAY,      _STAY,    _RUNS, _STAY,        _STUCK),
    (_C.RESUME, _C.RESOLVE): (_STAY,        _STAY,       _STAY,      _STAY,    _STAY, _STAY,        _STUCK),
    (_C.PROMOTE,):           (_STAY,        _STAY,       _STAY,      _AT_LAST, _RUNS, _RETRY,       _STUCK),
    (_C.ABORT,):             (_UNDO_OR_END, _BACK,       _BACK,      _BACK,    _RUNS, _UNDO_OR_END, _STUCK),
    (_C.ROLLBACK,):          (_UNDO,        _BACK,       _BACK,      _BACK,    _RUNS, _UNDO_AGAIN,  _STUCK),
    (_C.RETRY,):             (_FIRST,       _GOES_ON,    _GOES_ON,   _WATCHED, _RUNS, _P,           _BACK),
    (_C.CLOSE,):             (_UNPROMISED,  _UNENFORCED, _UNWATCHED, _CLOSED,  _RUNS, _CLOSED,      _CLOSED),
}
# fmt: on

ANSWERS: dict[tuple[Stage, Command], Answer] = answers_by_cell(_COLUMNS, Command, _GRID, _ENDED)

TRANSITIONS: frozenset[tuple[Stage, Stage]] = frozenset(
    {
        *pairwise(WAY),
        *((stage, _BACK) for stage in Stage if not stage.has_ended and stage is not _BACK),
        (Stage.PLANNED, Stage.ABORTED),
        (Stage.ROLLING_BACK, Stage.ROLLED_BACK),
        (Stage.ROLLING_BACK, Stage.STUCK),
        # superseded: somebody newer owns the cluster, so Backstop may undo nothing
        *((stage, Stage.STUCK) for stage in WAY),
        (Stage.ROLLED_BACK, Stage.PLANNED),
        (Stage.ROLLED_BACK, Stage.ABORTED),
        (Stage.ROLLED_BACK, Stage.CLOSED),
        (Stage.STUCK, Stage.CLOSED),
        (Stage.MONITORED, Stage.CLOSED),
    }
)
"""Every possible change of stage; any other is a bug."""


def answer(stage: Stage, command: Command, *, effects_stand: bool) -> Stage | Refused:
    """Return the next stage, or the refusal with its reason."""
    cell = ANSWERS[stage, command]
    if isinstance(cell, UndoOr):
        return Stage.ROLLING_BACK if effects_stand else cell.otherwise
    return cell
