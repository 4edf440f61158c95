"""What a rollback that cannot finish leaves to a person: what is undone, what is not and why, what can be said.

Every sentence goes by what the rollout knows: what was never answered, and what somebody newer may have changed
since, it says with "may". Source: docs/design.md, "How a rollback runs": stuck says what is left to undo, and waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from models.base import count_text, gpus_text, some_of
from models.cluster.policy import RollbackTo
from models.cluster.readings import LimitMode
from models.notices import NoticeKind
from models.rollout.commands import left_to_undo
from models.rollout.decide import retries_by_itself
from models.rollout.effect_table import EFFECT, INVERSE, Said
from models.rollout.effects import EffectKind
from models.rollout.shown import Choice, UndoStatus, ValueLeft, value_text
from models.rollout.stages import Command, Stage, command_line
from models.rollout.state import Rollout, UndoCause, Undone

LAUNCH = "launch"
_FEW = 3
_VALUES_TOLD = 20
"""Values that the notice of a stuck rollback lists; `status --json` has all."""
_BEFORE = "as before the rollout"


def undoing_of(r: Rollout) -> UndoStatus | None:
    """The rollback under way, done, or stuck; None where there is none."""
    if r.stage not in (Stage.ROLLING_BACK, Stage.STUCK, Stage.ROLLED_BACK):
        return None
    stuck = r.stage is Stage.STUCK
    ways = choices(r) if stuck else ()
    shown = UndoStatus(
        why="superseded",
        reason=r.superseded,
        actor="ledger",
        left=tuple(kind.value for kind in r.owed),
        stuck_on=tuple(f"{u.kind}: {u.reason}" for u in r.stuck_on),
        commands=tuple(c.command for c in ways if c.command != LAUNCH),
        undone=undone(r),
        not_undone=not_undone(r),
        values=values_left(r) if stuck else (),
        choices=ways,
    )
    if r.undo is None:
        return shown if stuck else None
    missing, reason = r.undo.unbacked_gpus, r.undo.reason
    if missing:
        reason += f"; {gpus_text(missing)} of the target {'has' if missing == 1 else 'have'} no healthy hardware"
    if r.superseded:
        reason += f"; then superseded: {r.superseded}"
    return shown.model_copy(update={"why": r.undo.why.value, "reason": reason, "actor": r.undo.actor})


def calling(r: Rollout, detail: str) -> Rollout:
    """With a word to the owner: what is not undone, and what can be done."""
    left = values_left(r)
    values = [value_text(v) for v in left[:_VALUES_TOLD]]
    hidden, all_of_them = len(left) - _VALUES_TOLD, f"{command_line('status', r.cluster)} --json"
    more = [f"and {count_text(hidden, 'more quota')}: {all_of_them}"] if hidden > 0 else []
    facts = {
        "left": [*not_undone(r), *values, *more],
        "commands": [{"does": c.does, "line": c.line} for c in choices(r)],
    }
    return r.telling(NoticeKind.STUCK, [], detail=detail, facts=facts)


# --- what is undone, and what is not -----------------------------------------------------------


def undone(r: Rollout) -> tuple[str, ...]:
    """The effects whose inverse has landed, in that order, each with what that means."""
    return tuple(f"{kind}: {'rehearsed' if r.shadow else _now_undone(r, kind)}" for kind in r.undone)


def _now_undone(r: Rollout, kind: EffectKind) -> str:
    if kind is EffectKind.HARDEN and EffectKind.SET_SOFT in r.undone and not _breach(r):
        return f"the limits are {_BEFORE}"
    open_to_others = kind is EffectKind.RESERVE and any(u.kind is EffectKind.SET_SOFT for u in r.stuck_on)
    text = _said(r, kind).undone.format(goal=_goal(r), limits=_limits(r), others=_but_others(r))
    return text + (", so that others can raise quotas into it" if open_to_others and not _breach(r) else "")


def _said(r: Rollout, kind: EffectKind) -> Said:
    effect = EFFECT[kind]
    return effect.said_in_a_breach or effect.said if _breach(r) else effect.said


def not_undone(r: Rollout) -> tuple[str, ...]:
    """The effects whose inverse cannot land, each with what that means and why; superseded, all that stand."""
    if r.superseded:
        return tuple(f"{kind}: {_still(r, kind)}" for kind in reversed(r.standing))
    return tuple(_failed(r, u) for u in r.stuck_on)


def _failed(r: Rollout, u: Undone) -> str:
    if r.shadow:
        return f"{u.kind}: the rehearsal of {INVERSE[u.kind]} failed: {u.reason}"
    return f"{u.kind}: {_still(r, u.kind)}; {INVERSE[u.kind]} failed: {u.reason}"


def _still(r: Rollout, kind: EffectKind) -> str:
    phrases, sure = _said(r, kind), not _unsure(r, kind)
    if kind is EffectKind.HARDEN and EffectKind.SET_SOFT in r.undone:
        return f"the limits are {_limits(r)} all the same, by restore{_but_others(r)}"
    if kind is EffectKind.SET_SOFT and sure:
        left = values_left(r)
        sure = not any(v.unsure for v in left)
        if sure and all(v.by_others for v in left):  # what was to be restored is there already
            limits = "" if _limits_are_right(r) else f", but limits are {_limits(r)}"
            return f"the quotas have {_goal(r)}{limits}{_but_others(r)}"
    return phrases.stands if sure else phrases.may_stand


def _unsure(r: Rollout, kind: EffectKind) -> bool:
    return bool(r.superseded) or kind in r.unanswered


def _breach(r: Rollout) -> bool:
    return r.undo is not None and r.undo.why is UndoCause.BREACH


def _goal(r: Rollout) -> str:
    """Where the values of a rollback go."""
    if _breach(r) and r.policy.rollback_to is RollbackTo.BACKED:
        return "the values that hardware backed when the rollback began"
    return "their earlier values"


def _limits(r: Rollout) -> str:
    """What the limits are; `restore` writes them too."""
    if EffectKind.SET_SOFT in r.undone:
        return "soft" if _breach(r) else _BEFORE
    if EffectKind.HARDEN in r.standing:
        return "hard"
    return "soft" if EffectKind.SET_SOFT in r.standing else _BEFORE


def _limits_are_right(r: Rollout) -> bool:
    wanted = {LimitMode.SOFT} if _breach(r) else {*r.modes.values()}
    return _limits(r) == _BEFORE or {m.value for m in wanted} <= {_limits(r)}


def _but_others(r: Rollout) -> str:
    """The quotas that others changed: left alone."""
    if r.undo is None:
        return ""
    if _breach(r):
        names = [*r.foreign]
    else:
        before = {q.team: q.gpus for q in r.baseline.quotas}
        names = sorted(t for t, gpus in before.items() if r.written.get(t) != gpus and t not in r.undo.target)
    return f", but for {_few(names)}: changed by others, left alone" if names else ""


# --- values -------------------------------------------------------------------------------------


def values_left(r: Rollout) -> tuple[ValueLeft, ...]:
    """The quotas that have, or may have, another value than they should come back to."""
    if r.shadow:
        return ()
    before = {q.team: q.gpus for q in r.baseline.quotas}
    theirs = {team: gpus for team, gpus in r.unapproved.items() if gpus is not None}
    back = {**theirs, **r.undo.target} if r.undo is not None and _breach(r) else before
    targets = back if r.undo is None else r.undo.target
    changed = {} if r.undo is None else r.undo.changed
    values_now = {**r.written, **r.attempted, **changed}
    return tuple(
        ValueLeft(
            team=team,
            gpus=values_now[team],
            target_gpus=gpus,
            by_others=team in changed or team not in targets,
            unsure=bool(r.superseded) or (team in r.attempted and team not in changed),
        )
        for team, gpus in sorted(back.items())
        if team in values_now and values_now[team] != gpus
    )


# --- what can be said -----------------------------------------------------------------------------


def choices(r: Rollout) -> tuple[Choice, ...]:
    """The commands that lead on, each with what it will do."""
    close = f"{command_line(Command.CLOSE, r.cluster)} --reason '...'"
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
                line=f"{command_line(LAUNCH, r.cluster)} --adopt --reason '...'",
                does="after the close, and only if no other rollout of the cluster is alive elsewhere (another "
                "Temporal on the same ledger): takes over the baseline and what still stands, so that its abort "
                "restores them",
            ),
        )
    return (
        Choice(
            command=Command.RETRY.value,
            line=f"{command_line(Command.RETRY, r.cluster)} --reason '...'",
            does=_retrying(r),
        ),
        Choice(command=Command.CLOSE.value, line=close, does=_closing(r)),
    )


def _retrying(r: Rollout) -> str:
    left = left_to_undo(r)
    *most, last = (INVERSE[kind].value for kind in left)
    again = f"{', '.join(most)} and {last}" if most else last
    moves = [f"{v.team} to {v.target_gpus:,}" for v in values_left(r) if not v.by_others]
    moves_text = f" ({_few(moves)})" if moves and EffectKind.SET_SOFT in left else ""
    if r.undo is not None and r.undo.then is Stage.ABORTED:
        then = "the rollout ends, aborted"
    elif retries_by_itself(r.but(stage=Stage.ROLLED_BACK)):
        then = "the rollout is rolled back, and makes its next attempt once health has been good"
    else:
        then = "the rollout is rolled back, and open"
    return (
        f"{'rehearses' if r.shadow else 'runs'} {again} again and nothing else{moves_text}; then {then}. "
        "Mend the cause first: where it is not mended, this comes back here and nothing is lost"
    )


def _closing(r: Rollout) -> str:
    if r.shadow:
        return "ends the rehearsal; no quota was ever written"
    left = values_left(r)
    kept = [f"{v.team} stays at {v.gpus:,}, not {v.target_gpus:,}" for v in left if not v.unsure]
    kept += [f"{v.team} stays as it is, maybe at {v.gpus:,}" for v in left if v.unsure]
    if not kept:
        kept = [f"the quotas stay at {_goal(r)}"]
    sure = not {EffectKind.SET_SOFT, EffectKind.HARDEN} & {*r.unanswered}
    stay = f"limits stay {_limits(r) if sure else 'as they are'}"
    ends = ["what is reserved is released"] if EffectKind.RESERVE in r.standing else []
    ends += ["the flex pool stops following health"] if EffectKind.FOLLOW in r.standing else []
    after = f" Then {' and '.join(ends)} (you are told if that fails)." if ends else ""
    return (
        f"ends the rollout as it is: {_few(kept)}; {stay}.{after} "
        "Nothing more is undone: from then on you change quotas by hand"
    )


def _few(texts: Iterable[str]) -> str:
    return some_of([*texts], _FEW)
