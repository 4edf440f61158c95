"""A rollback that cannot finish: effects undone and not undone, the reasons, and the commands that help.

Each sentence says only what the rollout knows: it says "may" about calls that were never answered, and about quotas
that somebody newer may have changed since. Source: docs/design.md, "How a rollback runs": stuck says what is left to
undo, and waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from models.cluster.policy import RollbackTo
from models.cluster.readings import LimitMode
from models.notices import NoticeKind
from models.rollout.commands import effects_to_undo
from models.rollout.decide import retries_by_itself
from models.rollout.effect_table import EFFECT, INVERSE, Said
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage, command_line
from models.rollout.state import Rollout, Undone
from models.rollout.status_models import Choice, UndoStatus, ValueLeft, value_text
from models.texts import count_text, gpus_text, some_of, verb_of

LAUNCH = "launch"
_FEW = 3
_VALUES_TOLD = 20
"""The most values that the notice of a stuck rollback lists; `status --json` has all."""
_BEFORE = "as before the rollout"


def undo_status(rollout: Rollout) -> UndoStatus | None:
    """Return the status of a rollback under way, done, or stuck; None if there is none."""
    if rollout.stage not in (Stage.ROLLING_BACK, Stage.STUCK, Stage.ROLLED_BACK):
        return None
    stuck = rollout.stage is Stage.STUCK
    ways = choices(rollout) if stuck else ()
    shown = UndoStatus(
        why="superseded",
        reason=rollout.superseded,
        actor="ledger",
        left=tuple(kind.value for kind in rollout.owed),
        stuck_on=tuple(f"{u.kind}: {u.reason}" for u in rollout.stuck_on),
        commands=tuple(c.command for c in ways if c.command != LAUNCH),
        undone=tuple(
            f"{kind}: {'rehearsed' if rollout.shadow else _undone_text(rollout, kind)}" for kind in rollout.undone
        ),
        not_undone=not_undone(rollout),
        values=values_left(rollout) if stuck else (),
        choices=ways,
    )
    if rollout.undo is None:
        return shown if stuck else None
    missing, reason = rollout.undo.unbacked_gpus, rollout.undo.reason
    if missing:
        reason += (
            f"; {gpus_text(missing)} of the quotas to restore {verb_of(missing, 'has', 'have')} no healthy hardware"
        )
    if rollout.superseded:
        reason += f"; then superseded: {rollout.superseded}"
    return shown.model_copy(update={"why": rollout.undo.why.value, "reason": reason, "actor": rollout.undo.actor})


def call_owner(rollout: Rollout, detail: str) -> Rollout:
    """Notify the owner of a stuck rollback: effects not undone, and commands that help."""
    left = values_left(rollout)
    values = [value_text(v) for v in left[:_VALUES_TOLD]]
    hidden, all_of_them = len(left) - _VALUES_TOLD, f"{command_line('status', rollout.cluster)} --json"
    more = [f"and {count_text(hidden, 'more quota')}: {all_of_them}"] if hidden > 0 else []
    facts = {
        "left": [*not_undone(rollout), *values, *more],
        "commands": [{"does": c.does, "line": c.line} for c in choices(rollout)],
    }
    return rollout.notify(NoticeKind.STUCK, [], detail=detail, facts=facts)


# --- what is undone, and what is not -----------------------------------------------------------


def _undone_text(rollout: Rollout, kind: EffectKind) -> str:
    if kind is EffectKind.HARDEN and EffectKind.SET_SOFT in rollout.undone and not rollout.answers_breach:
        return f"the limits are {_BEFORE}"
    open_to_others = kind is EffectKind.RESERVE and any(u.kind is EffectKind.SET_SOFT for u in rollout.stuck_on)
    text = phrases_of(rollout, kind).undone.format(
        goal=_goal_text(rollout), limits=_limits(rollout), others=_others_text(rollout)
    )
    return text + (", so that others can raise quotas into it" if open_to_others and not rollout.answers_breach else "")


def phrases_of(rollout: Rollout, kind: EffectKind) -> Said:
    """Return the sentences about the effect, as they are for this rollback."""
    effect = EFFECT[kind]
    return effect.said_in_a_breach or effect.said if rollout.answers_breach else effect.said


def not_undone(rollout: Rollout) -> tuple[str, ...]:
    """Return the effects whose inverse cannot land, with meaning and reason; if superseded, all in force."""
    if rollout.superseded:
        return tuple(f"{kind}: {_still_text(rollout, kind)}" for kind in reversed(rollout.standing))
    return tuple(_failure_text(rollout, u) for u in rollout.stuck_on)


def _failure_text(rollout: Rollout, undone: Undone) -> str:
    if rollout.shadow:
        return f"{undone.kind}: the rehearsal of {INVERSE[undone.kind]} failed: {undone.reason}"
    return f"{undone.kind}: {_still_text(rollout, undone.kind)}; {INVERSE[undone.kind]} failed: {undone.reason}"


def _still_text(rollout: Rollout, kind: EffectKind) -> str:
    phrases, sure = phrases_of(rollout, kind), not rollout.superseded and kind not in rollout.unanswered
    if kind is EffectKind.HARDEN and EffectKind.SET_SOFT in rollout.undone:
        return f"the limits are {_limits(rollout)} because `restore` wrote them{_others_text(rollout)}"
    if kind is EffectKind.SET_SOFT and sure:
        left = values_left(rollout)
        sure = not any(v.unsure for v in left)
        if sure and all(v.by_others for v in left):  # the values to restore are already there
            limits = "" if _limits_are_right(rollout) else f", but limits are {_limits(rollout)}"
            return f"the quotas have {_goal_text(rollout)}{limits}{_others_text(rollout)}"
    return phrases.stands if sure else phrases.may_stand


def _goal_text(rollout: Rollout) -> str:
    """Name the target values of a rollback."""
    if rollout.answers_breach and rollout.policy.rollback_to is RollbackTo.BACKED:
        return "the values that hardware backed when the rollback began"
    return "their earlier values"


def _limits(rollout: Rollout) -> str:
    """Name the present limits; `restore` writes them too."""
    if EffectKind.SET_SOFT in rollout.undone:
        return "soft" if rollout.answers_breach else _BEFORE
    if EffectKind.HARDEN in rollout.standing:
        return "hard"
    return "soft" if EffectKind.SET_SOFT in rollout.standing else _BEFORE


def _limits_are_right(rollout: Rollout) -> bool:
    wanted = {LimitMode.SOFT} if rollout.answers_breach else {*rollout.modes.values()}
    return _limits(rollout) == _BEFORE or {m.value for m in wanted} <= {_limits(rollout)}


def _others_text(rollout: Rollout) -> str:
    """Name the quotas that others changed, which stay."""
    if rollout.undo is None:
        return ""
    if rollout.answers_breach:
        names = [*rollout.foreign]
    else:
        before = rollout.baseline.values
        names = sorted(
            t for t, gpus in before.items() if rollout.written.get(t) != gpus and t not in rollout.undo.target
        )
    return f", except {_join_few(names)}: others changed it, and Backstop left it alone" if names else ""


# --- values -------------------------------------------------------------------------------------


def values_left(rollout: Rollout) -> tuple[ValueLeft, ...]:
    """Return the quotas that have, or may have, another value than the rollback should restore."""
    if rollout.shadow:
        return ()
    before = rollout.baseline.values
    theirs = {team: gpus for team, gpus in rollout.unapproved.items() if gpus is not None}
    back = {**theirs, **rollout.undo.target} if rollout.undo is not None and rollout.answers_breach else before
    targets = back if rollout.undo is None else rollout.undo.target
    changed = {} if rollout.undo is None else rollout.undo.changed
    values_now = {**rollout.written, **rollout.attempted, **changed}
    return tuple(
        ValueLeft(
            team=team,
            gpus=values_now[team],
            target_gpus=gpus,
            by_others=team in changed or team not in targets,
            unsure=bool(rollout.superseded) or (team in rollout.attempted and team not in changed),
        )
        for team, gpus in sorted(back.items())
        if team in values_now and values_now[team] != gpus
    )


# --- what can be said -----------------------------------------------------------------------------


def choices(rollout: Rollout) -> tuple[Choice, ...]:
    """The commands that lead on, each with what it will do."""
    close = f"{command_line(Command.CLOSE, rollout.cluster)} --reason '...'"
    if rollout.superseded:
        return (
            Choice(
                command=Command.CLOSE.value,
                line=close,
                does="ends this rollout and writes nothing: quotas, limits and reserved GPUs stay as they are, "
                "for the rollout that owns the cluster now",
            ),
            Choice(
                command=LAUNCH,
                line=f"{command_line(LAUNCH, rollout.cluster)} --adopt --reason '...'",
                does="for after the close, and only if no rollout of the cluster runs in another Temporal on the same "
                "ledger: the new rollout takes over the baseline and what is not undone yet, so that aborting it "
                "restores the baseline",
            ),
        )
    return (
        Choice(
            command=Command.RETRY.value,
            line=f"{command_line(Command.RETRY, rollout.cluster)} --reason '...'",
            does=_retry_text(rollout),
        ),
        Choice(command=Command.CLOSE.value, line=close, does=_closing_text(rollout)),
    )


def _retry_text(rollout: Rollout) -> str:
    left = effects_to_undo(rollout)
    *most, last = (INVERSE[kind].value for kind in left)
    again = f"{', '.join(most)} and {last}" if most else last
    moves = [f"{v.team} to {v.target_gpus:,}" for v in values_left(rollout) if not v.by_others]
    moves_text = f" ({_join_few(moves)})" if moves and EffectKind.SET_SOFT in left else ""
    if rollout.undo is not None and rollout.undo.then is Stage.ABORTED:
        then = "the rollout ends, aborted"
    elif retries_by_itself(rollout.but(stage=Stage.ROLLED_BACK)):
        then = "the rollout is rolled back, and makes its next attempt after health has been good for long enough"
    else:
        then = "the rollout is rolled back and stays open"
    return (
        f"{'rehearses' if rollout.shadow else 'runs'} {again} again and nothing else{moves_text}; then {then}. "
        "Mend the cause first: if it is still there, the rollout is stuck again, and nothing is lost"
    )


def _closing_text(rollout: Rollout) -> str:
    if rollout.shadow:
        return "ends the rehearsal; no quota was ever written"
    left = values_left(rollout)
    kept = [f"{v.team} stays at {v.gpus:,}, not {v.target_gpus:,}" for v in left if not v.unsure]
    kept += [f"{v.team} stays as it is, maybe at {v.gpus:,}" for v in left if v.unsure]
    if not kept:
        kept = [f"the quotas stay at {_goal_text(rollout)}"]
    sure = not {EffectKind.SET_SOFT, EffectKind.HARDEN} & {*rollout.unanswered}
    stay = f"limits stay {_limits(rollout) if sure else 'as they are'}"
    ends = ["the reserved GPUs are released"] if EffectKind.RESERVE in rollout.standing else []
    ends += ["the flex pool stops following health"] if EffectKind.FOLLOW in rollout.standing else []
    after = f" Then {' and '.join(ends)} (Backstop notifies you if that fails)." if ends else ""
    return (
        f"ends the rollout as it is: {_join_few(kept)}; {stay}.{after} "
        "Nothing more is undone: from then on you change quotas by hand"
    )


def _join_few(texts: Iterable[str]) -> str:
    return some_of([*texts], _FEW)
