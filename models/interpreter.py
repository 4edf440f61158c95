"""What a rollout does next: one pure decision, taken again after everything that happens.

Theory of operation. The workflow is a loop: decide, act once, take the outcome in, decide again. This
module decides; models/outcomes.py and models/commands.py take in. There is no other control flow, so a
rollback is not an exception handler but a stage in which the next action is the next inverse, and any
order of events can be explored without a server. Source: DESIGN.md, "The state machine".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from models.effects import INVERSE, Change, EffectKind, Fence, Mode, Reserve, ValueWrite
from models.gates import conditions, drift_of, health_fresh, holds_now, is_open
from models.quota import QuotaTree
from models.rollout import HoldKind, Rollout, Why
from models.stages import STEP_FROM, Stage

RECHECK = timedelta(seconds=60)
"""At most this long between looks while something is suspect."""

FRESH = timedelta(seconds=5)
"""A gate opens only on a look that is not older than this."""


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `until` (None: before somebody says something)."""

    until: datetime | None


@dataclass(frozen=True)
class Look:
    """Observe the cluster; test the backing of these values (None: of what it holds now)."""

    why: str
    values: dict[str, int] | None


@dataclass(frozen=True)
class Draft:
    """Make a plan from the baseline and today's health."""

    why: str


@dataclass(frozen=True)
class Aim:
    """Find where a breach rollback goes."""


@dataclass(frozen=True)
class Perform:
    """One effect, forward or inverse; the workflow gives it its fence."""

    kind: EffectKind


@dataclass(frozen=True)
class Finish:
    """The rollout has ended."""


Action = Wait | Look | Draft | Aim | Perform | Finish


def decide(r: Rollout, now: datetime) -> Action:
    """The next action. Never answers the same action twice without an outcome in between."""
    if r.stage is Stage.CLOSED and EffectKind.CLOSE not in r.done and not r.superseded:
        return Perform(EffectKind.CLOSE)
    if r.stage.ended:
        return Finish()
    if r.stage is Stage.STUCK:
        return Wait(None)
    if r.stage is Stage.ROLLING_BACK:
        return Perform(INVERSE[r.owed[0]])  # with nothing owed, `advance` has ended it
    if r.aiming:
        return Aim()
    if r.replan:
        return Draft(r.replan)
    if r.realigning and r.approved:
        return Perform(EffectKind.SET_SOFT if EffectKind.RESERVE in r.done else EffectKind.RESERVE)
    if r.done:  # a step under way goes on: its gate was open when it began
        return Perform(_next_effect(r))
    if _wants_look(r, now):
        return Look(_why_look(r, now), _tested(r))
    if is_open(r, now) and not r.look_failed:
        if r.looked_at is None or now - r.looked_at > FRESH:
            return Look("before the step", _tested(r))
        return Perform(_next_effect(r))
    return Wait(_wake(r, now))


def _next_effect(r: Rollout) -> EffectKind:
    step = STEP_FROM[r.stage]
    return next(forward for forward, _ in step.effects if forward not in r.done)


def _tested(r: Rollout) -> dict[str, int] | None:
    """Whose backing matters now: the plan's before it is written, else what stands."""
    if r.plan is not None and r.stage in (Stage.PLANNED, Stage.ROLLED_BACK):
        return r.plan.values
    return r.written if r.shadow else None


def _wants_look(r: Rollout, now: datetime) -> bool:
    return r.look_asked or r.looked_at is None or now >= _next_look(r)


def _next_look(r: Rollout) -> datetime:
    assert r.looked_at is not None
    due = r.looked_at + r.policy.safety_poll
    if r.sight.suspect is not None or (r.sight.known is None) or r.look_failed:
        due = min(due, r.looked_at + min(RECHECK, r.policy.safety_poll))
    for window in r.seen.windows if r.seen is not None else ():
        for edge in (window.starts, window.ends):
            if r.looked_at < edge:
                due = min(due, edge)
    return due


def _why_look(r: Rollout, now: datetime) -> str:
    if r.looked_at is None:
        return "first look"
    return "asked" if r.look_asked else "safety poll"


def _wake(r: Rollout, now: datetime) -> datetime | None:
    return min((t for t in _times(r, now) if t > now), default=None)


def _times(r: Rollout, now: datetime) -> Iterator[datetime]:
    if r.looked_at is not None:
        yield _next_look(r)
    for condition in conditions(r, now):
        if not condition.met and condition.until is not None:
            yield condition.until
    for hold in holds_now(r, now):
        if hold.until is not None:
            yield hold.until
    breach = breach_due(r)
    if breach is not None:
        yield breach
    retry = retry_due(r, now)
    if retry is not None:
        yield retry


def breach_due(r: Rollout) -> datetime | None:
    """When the first short quota breaches; None where nothing acts on it."""
    if r.stage.guarded and not r.breach_of and not r.aiming and not _breach_held(r):
        return r.clocks.next_breach(r.policy.breach_after)
    if r.stage is Stage.PLANNED and r.plan is not None and not r.replan:
        return r.clocks.next_breach(r.policy.breach_after)
    return None


def _breach_held(r: Rollout) -> bool:
    return any(h.kind in (HoldKind.BREACH, HoldKind.BLAST_RADIUS) for h in r.holds)


def recovery_pause(r: Rollout) -> timedelta:
    """How long health must have been good before the next attempt: it doubles with each failure."""
    doubled: int = 2 ** min(max(0, r.failures - 1), 6)
    return r.policy.recover_after * doubled


def retries_by_itself(r: Rollout) -> bool:
    """True after a breach rollback with attempts left."""
    return (
        r.stage is Stage.ROLLED_BACK
        and r.order is not None
        and r.order.why is Why.BREACH
        and r.failures < r.policy.attempts
    )


def retry_due(r: Rollout, now: datetime) -> datetime | None:
    """When the next attempt begins by itself, if health stays good and nothing holds."""
    if not retries_by_itself(r) or r.clocks.all_good_since is None or not health_fresh(r):
        return None
    if holds_now(r, now):
        return None
    return r.clocks.all_good_since + recovery_pause(r)


# --- effects ---------------------------------------------------------------------------------


def change_for(r: Rollout, kind: EffectKind) -> Change:
    """The call that makes one effect, under the next fence."""
    fence = Fence(rollout=r.id, counter=r.fence + 1)
    match kind:
        case EffectKind.RESERVE:
            assert r.plan is not None
            return Change(
                cluster=r.cluster,
                kind=kind,
                fence=fence,
                expected_generation=r.generation,
                reserve=_reserve(r, r.plan.values),
            )
        case EffectKind.SET_SOFT:
            assert r.plan is not None
            return Change(
                cluster=r.cluster,
                kind=kind,
                fence=fence,
                expected_generation=r.generation,
                writes=_writes(r, r.plan.values, _modes_of_plan(r), skip=()),
            )
        case EffectKind.RESTORE:
            return Change(cluster=r.cluster, kind=kind, fence=fence, writes=_restoring(r))
        case EffectKind.RELEASE:
            target = _target(r)
            keeps = r.order is not None and r.order.why is Why.BREACH
            return Change(cluster=r.cluster, kind=kind, fence=fence, reserve=_reserve(r, target) if keeps else None)
        case EffectKind.HARDEN:
            return Change(cluster=r.cluster, kind=kind, fence=fence, expected_generation=r.generation, mode=Mode.HARD)
        case EffectKind.SOFTEN:
            return Change(cluster=r.cluster, kind=kind, fence=fence, mode=Mode.SOFT)
        case EffectKind.FOLLOW:
            return Change(cluster=r.cluster, kind=kind, fence=fence, expected_generation=r.generation)
        case EffectKind.UNFOLLOW | EffectKind.CLOSE:
            return Change(cluster=r.cluster, kind=kind, fence=fence)


def _modes_of_plan(r: Rollout) -> dict[str, Mode]:
    """Soft, but for a plan that is written in place where limits are hard already."""
    assert r.plan is not None
    mode = Mode.HARD if EffectKind.HARDEN in r.standing else Mode.SOFT
    return dict.fromkeys(r.plan.values, mode)


def _target(r: Rollout) -> dict[str, int]:
    assert r.order is not None
    return r.order.target


def _restoring(r: Rollout) -> tuple[ValueWrite, ...]:
    """Values back to the order's target; what others changed is left alone.

    An undo brings the baseline's modes back too; a breach leaves limits soft.
    """
    assert r.order is not None
    target = _target(r)
    modes = r.modes if r.order.why is Why.UNDO else dict.fromkeys(target, Mode.SOFT)
    return _writes(r, target, modes, skip=r.foreign)


def _writes(
    r: Rollout, values: dict[str, int], modes: dict[str, Mode], skip: tuple[str, ...]
) -> tuple[ValueWrite, ...]:
    tree = r.baseline.tree
    return tuple(
        ValueWrite(
            team=team,
            expected_gpus=r.written.get(team, gpus),
            gpus=gpus,
            mode=modes.get(team),
            leaf=team not in tree.children,
        )
        for team, gpus in sorted(values.items())
        if team not in skip
    )


def _reserve(r: Rollout, values: dict[str, int]) -> Reserve:
    """What the rollout keeps from others at these values."""
    tree: QuotaTree = r.baseline.tree
    before = {q.team: q.gpus for q in r.baseline.quotas}
    by_islands: dict[str, int] = {}
    for leaf in tree.leaves:
        islands = tree.by_team[leaf].islands
        if islands is not None:
            key = ",".join(sorted(islands))
            by_islands[key] = by_islands.get(key, 0) + values[leaf]
    return Reserve(
        freed_gpus=max(0, tree.assigned(before) - tree.assigned(values)),
        limit_gpus=sum(values[leaf] for leaf in tree.leaves),
        limits_by_islands=by_islands,
    )


__all__ = [
    "Action",
    "Aim",
    "Draft",
    "Finish",
    "Look",
    "Perform",
    "Wait",
    "breach_due",
    "change_for",
    "decide",
    "drift_of",
    "recovery_pause",
    "retries_by_itself",
    "retry_due",
]
