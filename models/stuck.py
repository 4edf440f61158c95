"""What a rollback that cannot finish leaves to a person: what is undone, what is not and why, what can be said.

Source: DESIGN.md, "The state machine": stuck says what is left to undo, and waits.
"""

from __future__ import annotations

import shlex

from models.effects import INVERSE, EffectKind
from models.messages import Choice, Undoing, ValueLeft
from models.rollout import Rollout, Why
from models.stages import Command, Stage

LAUNCH = "launch"
_UNDONE = {
    EffectKind.RESERVE: "the freed capacity is released",
    EffectKind.SET_SOFT: "the quotas have their earlier values",
    EffectKind.HARDEN: "the limits are soft again",
    EffectKind.FOLLOW: "the flex pool no longer follows health",
}
_AFTER_A_BREACH = {
    EffectKind.RESERVE: "what is reserved fits the new values",
    EffectKind.SET_SOFT: "the quotas have values that healthy hardware backs",
}
_STANDS = {
    EffectKind.RESERVE: "the freed capacity is still reserved, and nobody may raise a quota into it",
    EffectKind.SET_SOFT: "the quotas still have the rollout's values",
    EffectKind.HARDEN: "the limits are still hard",
    EffectKind.FOLLOW: "the flex pool still follows health",
}


def undoing_of(r: Rollout) -> Undoing | None:
    """The rollback under way, done, or stuck; None where there is none."""
    if r.stage not in (Stage.ROLLING_BACK, Stage.STUCK, Stage.ROLLED_BACK):
        return None
    stuck = r.stage is Stage.STUCK
    shown = Undoing(
        why="superseded",
        reason=r.superseded,
        actor="ledger",
        left=tuple(kind.value for kind in r.owed),
        stuck_on=tuple(f"{u.kind}: {u.reason}" for u in r.stuck_on),
        commands=tuple(c.command for c in choices(r) if c.command != LAUNCH) if stuck else (),
        undone=undone(r),
        not_undone=not_undone(r),
        values=values_left(r) if stuck else (),
        choices=choices(r) if stuck else (),
    )
    if r.order is None:
        return shown if stuck else None
    missing, reason = r.order.unbacked_gpus, r.order.reason
    if missing:
        reason += f"; {missing} GPUs of the target have no healthy hardware"
    if r.superseded:
        reason += f"; then superseded: {r.superseded}"
    return shown.model_copy(update={"why": r.order.why.value, "reason": reason, "actor": r.order.actor})


def undone(r: Rollout) -> tuple[str, ...]:
    """The effects whose inverse has landed, in that order."""
    words = _UNDONE | (_AFTER_A_BREACH if r.order is not None and r.order.why is Why.BREACH else {})
    return tuple(f"{kind}: {words[kind]}" for kind in r.undone)


def not_undone(r: Rollout) -> tuple[str, ...]:
    """The effects whose inverse cannot land, each with the reason; superseded, all that stand."""
    if r.superseded:
        return tuple(f"{kind}: {_STANDS[kind]}, as far as this rollout knows" for kind in reversed(r.standing))
    return tuple(f"{u.kind}: {_STANDS[u.kind]}; {INVERSE[u.kind]} failed: {u.reason}" for u in r.stuck_on)


def values_left(r: Rollout) -> tuple[ValueLeft, ...]:
    """The quotas that have another value than they should come back to."""
    target = {q.team: q.gpus for q in r.baseline.quotas} if r.order is None else r.order.target
    return tuple(
        ValueLeft(team=team, gpus=r.written[team], target_gpus=gpus, by_others=team in r.foreign)
        for team, gpus in sorted(target.items())
        if team in r.written and r.written[team] != gpus
    )


def choices(r: Rollout) -> tuple[Choice, ...]:
    """The commands that lead on, each with what it will do."""
    close = f"backstop close {shlex.quote(r.cluster)} --reason '...'"
    if r.superseded:
        return (
            Choice(
                command=Command.CLOSE.value,
                line=close,
                does="ends this rollout and writes nothing: quotas, limits and what is reserved stay as they are, "
                "for whoever owns the cluster now",
            ),
            Choice(
                command=LAUNCH,
                line=f"backstop launch {shlex.quote(r.cluster)} --adopt --reason '...'",
                does="after the close, and only if no other rollout of the cluster is alive elsewhere (another "
                "Temporal on the same ledger): takes over the baseline and what "
                "still stands, so that its abort restores them",
            ),
        )
    return (
        Choice(
            command=Command.RETRY.value,
            line=f"backstop retry {shlex.quote(r.cluster)} --reason '...'",
            does=_retrying(r),
        ),
        Choice(command=Command.CLOSE.value, line=close, does=_closing(r)),
    )


def _retrying(r: Rollout) -> str:
    again = ", ".join(INVERSE[u.kind] for u in r.stuck_on)
    moves = [f"{v.team} {v.gpus} -> {v.target_gpus}" for v in values_left(r) if not v.by_others]
    ends = r.order is not None and r.order.then is Stage.ABORTED
    then = "the rollout ends, aborted" if ends else "the rollout is rolled back, and open"
    return (
        f"runs {again} again and nothing else{f' ({_few(moves)})' if moves else ''}; then {then}. "
        "Mend the cause first: if it is not mended, this comes back here and nothing is lost"
    )


def _closing(r: Rollout) -> str:
    kept = [f"{v.team} stays at {v.gpus}, not {v.target_gpus}" for v in values_left(r)]
    hard = any(u.kind is EffectKind.HARDEN for u in r.stuck_on)
    return (
        f"ends the rollout as it is: {_few(kept) if kept else 'the quotas stay as they are'}"
        f"{'; limits stay hard' if hard else ''}. What is reserved is released, and flex no longer follows health. "
        "Nothing is undone any more: from then on you change quotas by hand"
    )


def _few(texts: list[str]) -> str:
    return ", ".join(texts[:6]) + (f" and {len(texts) - 6} more" if len(texts) > 6 else "")
