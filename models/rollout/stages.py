"""The state machine as tables: stages, commands, steps, and the answer to every pair.

Source: DESIGN.md, "The state machine"; ADR 0002 settles what it leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from models.rollout.effects import EffectKind


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
    def ended(self) -> bool:
        return self in (Stage.CLOSED, Stage.ABORTED)

    @property
    def guarded(self) -> bool:
        """From buffered on the guard may start a breach rollback."""
        return self in (Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED)

    @property
    def promises(self) -> bool:
        """In these stages a quota is a promise (unless it is in breach)."""
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


class Gate(StrEnum):
    MAY_START = "may_start"
    MAY_ENFORCE = "may_enforce"
    MAY_MONITOR = "may_monitor"


@dataclass(frozen=True)
class Step:
    source: Stage
    target: Stage
    gate: Gate
    effects: tuple[tuple[EffectKind, EffectKind], ...]
    """Forward effects, each with its inverse, in the order they are made."""


STEPS: tuple[Step, ...] = (
    Step(
        Stage.PLANNED,
        Stage.BUFFERED,
        Gate.MAY_START,
        ((EffectKind.RESERVE, EffectKind.RELEASE), (EffectKind.SET_SOFT, EffectKind.RESTORE)),
    ),
    Step(Stage.BUFFERED, Stage.ENFORCED, Gate.MAY_ENFORCE, ((EffectKind.HARDEN, EffectKind.SOFTEN),)),
    Step(Stage.ENFORCED, Stage.MONITORED, Gate.MAY_MONITOR, ((EffectKind.FOLLOW, EffectKind.UNFOLLOW),)),
)
STEP_FROM: dict[Stage, Step] = {step.source: step for step in STEPS}


@dataclass(frozen=True)
class Refused:
    """Why a command has no place in a stage."""

    reason: str


@dataclass(frozen=True)
class UndoOr:
    """Roll back where effects stand; where none does, go straight to `otherwise`.

    After a breach rollback a rollout is `planned` again with effects standing: the stage alone cannot
    tell, and a second stage field would be a second truth.
    """

    otherwise: Stage | Refused


Answer = Stage | Refused | UndoOr

_ENDED = Refused("the rollout has ended; launch a new one")
_ROLLING = Refused("a rollback is running and nothing stops it; wait for rolled_back")
_STUCK = Refused("the rollback is stuck: `retry` runs what is left of it, `close` ends the rollout as it stands")
_S, _C = Stage, Command

# Total on purpose: a missing cell fails a unit test, not an operator at 3 a.m.
ANSWERS: dict[tuple[Stage, Command], Answer] = {
    (_S.PLANNED, _C.APPROVE): _S.PLANNED,
    (_S.PLANNED, _C.ACK): _S.PLANNED,
    (_S.PLANNED, _C.OBJECT): _S.PLANNED,
    (_S.PLANNED, _C.PAUSE): _S.PLANNED,
    (_S.PLANNED, _C.RESUME): _S.PLANNED,
    (_S.PLANNED, _C.RESOLVE): _S.PLANNED,
    (_S.PLANNED, _C.PROMOTE): _S.PLANNED,
    (_S.PLANNED, _C.ABORT): UndoOr(otherwise=_S.ABORTED),
    (_S.PLANNED, _C.ROLLBACK): UndoOr(otherwise=Refused("nothing has been applied yet; `abort` ends the rollout")),
    (_S.PLANNED, _C.RETRY): Refused("nothing to retry: the rollout is waiting at its first gate"),
    (_S.PLANNED, _C.CLOSE): Refused("nothing is promised yet; `abort` ends the rollout"),
    (_S.BUFFERED, _C.APPROVE): _S.BUFFERED,
    (_S.BUFFERED, _C.ACK): _S.BUFFERED,
    (_S.BUFFERED, _C.OBJECT): _S.BUFFERED,
    (_S.BUFFERED, _C.PAUSE): _S.BUFFERED,
    (_S.BUFFERED, _C.RESUME): _S.BUFFERED,
    (_S.BUFFERED, _C.RESOLVE): _S.BUFFERED,
    (_S.BUFFERED, _C.PROMOTE): _S.BUFFERED,
    (_S.BUFFERED, _C.ABORT): _S.ROLLING_BACK,
    (_S.BUFFERED, _C.ROLLBACK): _S.ROLLING_BACK,
    (_S.BUFFERED, _C.RETRY): Refused("nothing to retry: the rollout goes on by itself when its gate opens"),
    (_S.BUFFERED, _C.CLOSE): Refused("not enforced yet; `abort` undoes it and ends the rollout"),
    (_S.ENFORCED, _C.APPROVE): _S.ENFORCED,
    (_S.ENFORCED, _C.ACK): _S.ENFORCED,
    (_S.ENFORCED, _C.OBJECT): _S.ENFORCED,
    (_S.ENFORCED, _C.PAUSE): _S.ENFORCED,
    (_S.ENFORCED, _C.RESUME): _S.ENFORCED,
    (_S.ENFORCED, _C.RESOLVE): _S.ENFORCED,
    (_S.ENFORCED, _C.PROMOTE): _S.ENFORCED,
    (_S.ENFORCED, _C.ABORT): _S.ROLLING_BACK,
    (_S.ENFORCED, _C.ROLLBACK): _S.ROLLING_BACK,
    (_S.ENFORCED, _C.RETRY): Refused("nothing to retry: the rollout goes on by itself when its gate opens"),
    (_S.ENFORCED, _C.CLOSE): Refused("not monitored yet; `promote` shortens the wait, `abort` undoes it"),
    (_S.MONITORED, _C.APPROVE): _S.MONITORED,
    (_S.MONITORED, _C.ACK): _S.MONITORED,
    (_S.MONITORED, _C.OBJECT): _S.MONITORED,
    (_S.MONITORED, _C.PAUSE): _S.MONITORED,
    (_S.MONITORED, _C.RESUME): _S.MONITORED,
    (_S.MONITORED, _C.RESOLVE): _S.MONITORED,
    (_S.MONITORED, _C.PROMOTE): Refused("already at the last stage"),
    (_S.MONITORED, _C.ABORT): _S.ROLLING_BACK,
    (_S.MONITORED, _C.ROLLBACK): _S.ROLLING_BACK,
    (_S.MONITORED, _C.RETRY): Refused("nothing to retry: the rollout is done and being watched"),
    (_S.MONITORED, _C.CLOSE): _S.CLOSED,
    (_S.ROLLING_BACK, _C.APPROVE): _ROLLING,
    (_S.ROLLING_BACK, _C.ACK): _S.ROLLING_BACK,
    (_S.ROLLING_BACK, _C.OBJECT): _S.ROLLING_BACK,
    (_S.ROLLING_BACK, _C.PAUSE): _ROLLING,
    (_S.ROLLING_BACK, _C.RESUME): _S.ROLLING_BACK,
    (_S.ROLLING_BACK, _C.RESOLVE): _S.ROLLING_BACK,
    (_S.ROLLING_BACK, _C.PROMOTE): _ROLLING,
    (_S.ROLLING_BACK, _C.ABORT): _ROLLING,
    (_S.ROLLING_BACK, _C.ROLLBACK): _ROLLING,
    (_S.ROLLING_BACK, _C.RETRY): _ROLLING,
    (_S.ROLLING_BACK, _C.CLOSE): _ROLLING,
    (_S.ROLLED_BACK, _C.APPROVE): Refused("no plan awaits approval: the next attempt makes a new one"),
    (_S.ROLLED_BACK, _C.ACK): _S.ROLLED_BACK,
    (_S.ROLLED_BACK, _C.OBJECT): _S.ROLLED_BACK,
    (_S.ROLLED_BACK, _C.PAUSE): _S.ROLLED_BACK,
    (_S.ROLLED_BACK, _C.RESUME): _S.ROLLED_BACK,
    (_S.ROLLED_BACK, _C.RESOLVE): _S.ROLLED_BACK,
    (_S.ROLLED_BACK, _C.PROMOTE): Refused("rolled back; `retry` starts the next attempt"),
    (_S.ROLLED_BACK, _C.ABORT): UndoOr(otherwise=_S.ABORTED),
    (_S.ROLLED_BACK, _C.ROLLBACK): UndoOr(otherwise=Refused("already rolled back to the baseline")),
    (_S.ROLLED_BACK, _C.RETRY): _S.PLANNED,
    (_S.ROLLED_BACK, _C.CLOSE): _S.CLOSED,
    (_S.STUCK, _C.APPROVE): _STUCK,
    (_S.STUCK, _C.ACK): _S.STUCK,
    (_S.STUCK, _C.OBJECT): _S.STUCK,
    (_S.STUCK, _C.PAUSE): _STUCK,
    (_S.STUCK, _C.RESUME): _STUCK,
    (_S.STUCK, _C.RESOLVE): _STUCK,
    (_S.STUCK, _C.PROMOTE): _STUCK,
    (_S.STUCK, _C.ABORT): _STUCK,
    (_S.STUCK, _C.ROLLBACK): _STUCK,
    (_S.STUCK, _C.RETRY): _S.ROLLING_BACK,
    (_S.STUCK, _C.CLOSE): _S.CLOSED,
    **{(ended, command): _ENDED for ended in (_S.CLOSED, _S.ABORTED) for command in Command},
}

TRANSITIONS: frozenset[tuple[Stage, Stage]] = frozenset(
    {
        *((step.source, step.target) for step in STEPS),
        *((stage, Stage.ROLLING_BACK) for stage in Stage if not stage.ended and stage is not Stage.ROLLING_BACK),
        (Stage.PLANNED, Stage.ABORTED),
        (Stage.ROLLING_BACK, Stage.ROLLED_BACK),
        (Stage.ROLLING_BACK, Stage.STUCK),
        # superseded: somebody newer owns the cluster, so nothing may be undone
        *((step.source, Stage.STUCK) for step in STEPS),
        (Stage.MONITORED, Stage.STUCK),
        (Stage.ROLLED_BACK, Stage.PLANNED),
        (Stage.ROLLED_BACK, Stage.ABORTED),
        (Stage.ROLLED_BACK, Stage.CLOSED),
        (Stage.STUCK, Stage.CLOSED),
        (Stage.MONITORED, Stage.CLOSED),
    }
)
"""Every change of stage there is; any other is our bug."""


def answer(stage: Stage, command: Command, *, effects_stand: bool) -> Stage | Refused:
    """The next stage, or the refusal with its reason."""
    cell = ANSWERS[stage, command]
    if isinstance(cell, UndoOr):
        return Stage.ROLLING_BACK if effects_stand else cell.otherwise
    return cell
