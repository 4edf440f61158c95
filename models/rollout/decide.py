"""What a rollout does next: one pure decision, taken again after everything that happens.

Theory of operation. The workflow is a loop: decide, act once, take the outcome in, decide again. This module decides;
the reducers take in (plan_, look_, effect_ and time_reducers.py, and commands.py). There is no other control flow, so a
rollback is not an exception handler but a stage in which the next action is the next inverse, and any order of events
can be explored without a server. Source: docs/design.md, "The state machine".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from models.cluster.policy import OnBreach
from models.cluster.readings import HealthSample, Observation
from models.lifecycle.actions import Finish, Wait
from models.rollout.actions import Action, Aim, Draft, Look, Perform
from models.rollout.changes import baseline_with
from models.rollout.effect_table import INVERSE, STEP_FROM
from models.rollout.effects import EffectKind
from models.rollout.flex_following import flex_wanted
from models.rollout.gates import conditions, drift_of, health_fresh, holds_now, is_open, theirs
from models.rollout.holds import RADIUS, REALIGN, ROLLBACK
from models.rollout.stages import Stage
from models.rollout.state import Rollout, UndoCause

RECHECK = timedelta(seconds=60)
"""At most this long between looks while something is suspect."""

TOLD_STALE = timedelta(minutes=30)
"""The age of a sample at which the shared watch tells of it, whatever a policy calls stale."""

FRESH = timedelta(seconds=5)
"""A gate opens only on a look that is not older than this."""


def decide(r: Rollout, now: datetime) -> Action:
    """The next action. Never answers the same action twice without an outcome in between."""
    if r.stage.ended:
        return Perform(EffectKind.CLOSE) if r.closing else Finish()
    if r.stage is Stage.STUCK:
        return Wait(None)
    if r.stage is Stage.ROLLING_BACK and r.stay.aiming:
        if r.look_asked:
            return Look("before it is aimed again", None)
        if r.looked_after == r.fence and not r.look_failed:  # else what is written stands, and the drift is asked about
            return Aim()
    if r.stage is Stage.ROLLING_BACK:
        return Perform(INVERSE[r.owed[0]]) if r.owed else Wait(now)  # with nothing owed, `advance` ends it
    if r.stay.aiming:
        return Aim()
    if r.stay.replan:
        return Draft(r.stay.replan)
    if r.stay.restoring:
        return Perform(EffectKind.SET_SOFT)
    if _wants_look(r, now):
        return Look(_why_look(r, now), _tested(r))
    if (refit := _refit(r, now)) is not None:
        return refit
    flexed = _flex(r, now)
    if flexed is None and r.stay.outlook.reconsider:
        return Draft("long-run health has changed", r.stay.outlook.reconsider)
    return flexed or _realignment(r, now) or _grant(r, now) or _step(r, now) or Wait(_wake(r, now))


def urgent(r: Rollout, action: Action) -> bool:
    """Whether it answers a breach: until then a promise stands that hardware does not keep."""
    breach = r.undo is not None and r.undo.why is UndoCause.BREACH
    return isinstance(action, Aim) or (breach and isinstance(action, Perform) and EffectKind.SET_SOFT in r.owed)


def confirms_breach(r: Rollout, now: datetime) -> bool:
    """Whether a breach waits for a look, and for nothing else."""
    due = breach_due(r)
    return due is not None and due <= now


def _step(r: Rollout, now: datetime) -> Action | None:
    """The next effect, while its gate is open; each is preceded by a look of its own."""
    if not is_open(r, now) or r.look_failed:
        return None
    return Perform(_next_effect(r)) if looked_recently(r, now) else Look("before the step", _tested(r))


def _refit(r: Rollout, now: datetime) -> Action | None:
    """The limit above all quotas as accepted values need it. No hold stops it: no quota moves, and all are backed."""
    if not r.stay.refitting or r.realigning or r.look_failed or r.seen is None or r.looked_after != r.fence:
        return None
    if r.seen.reading.generation != r.generation or drift_of(r) or not health_fresh(r):
        return None
    if not looked_recently(r, now) or not tests(r.seen, r.seen.reading.values):
        return Look("before the limit above all quotas moves", None)
    return Perform(EffectKind.SET_SOFT) if r.seen.backed else None


def _flex(r: Rollout, now: datetime) -> Action | None:
    """The flex pool as it should be. No hold stops it: it moves no quota, and says what hardware there is."""
    if flex_wanted(r) is None or (r.flex.failed_at is not None and now < r.flex.failed_at + RECHECK):
        return None
    return Perform(EffectKind.FOLLOW) if looked_recently(r, now) else Look("before flex moves", _tested(r))


def flex_due(r: Rollout) -> datetime | None:
    """When a larger surplus will have stood for long enough, or another try to publish one is due."""
    if r.stage is not Stage.MONITORED:
        return None
    if r.flex.failed_at is not None:
        return r.flex.failed_at + RECHECK
    if r.flex.more_since is None or r.looked_at is None:
        return None
    # It takes a new look, and while the last one counts as fresh none is made.
    return max(r.flex.more_since + r.policy.clear_after, r.looked_at + FRESH + timedelta(milliseconds=1))


def _realignment(r: Rollout, now: datetime) -> Action | None:
    """A new plan written in place. Like a rollback it waits for no gate, but never writes what is not backed."""
    if not r.realigning or r.plan is None or not (r.approved and not r.plan.fault and health_fresh(r)) or r.look_failed:
        return None
    if any(h.id == REALIGN for h in r.holds):
        return None
    values = beside_others(r, r.plan.values)
    if not looked_recently(r, now) or not tests(r.seen, values):
        return Look("before the realignment", values)
    if r.seen is None or not r.seen.backed:
        return None  # `looked` has asked for another plan, or holds
    return Perform(EffectKind.SET_SOFT if EffectKind.RESERVE in r.stay.done else EffectKind.RESERVE)


def _grant(r: Rollout, now: datetime) -> Action | None:
    """A request's order, once nothing else is wanted; more quota only where today's health backs it."""
    order = r.grant_order
    if order is None or not at_rest(r, now):
        return None
    if order.ends:
        return Perform(EffectKind.GRANT) if looked_recently(r, now) else Look("before a grant ends", None)
    values = {q.team: q.gpus for q in baseline_with(r, order).quotas}
    if not looked_recently(r, now) or r.seen is None or any(r.seen.tested.get(t) != g for t, g in values.items()):
        return Look("before the grant", values)
    return Perform(EffectKind.GRANT)


def at_rest(r: Rollout, now: datetime) -> bool:
    """Monitored, backed, no drift, no hold, and nothing else wanted."""
    busy = r.stay.restoring or r.stay.replan or r.stay.aiming or r.breach_of or r.look_failed
    if r.stage is not Stage.MONITORED or busy or r.seen is None or not r.seen.backed or not health_fresh(r):
        return False
    return r.seen.reading.generation == r.generation and not drift_of(r) and not holds_now(r, now)


def looked_recently(r: Rollout, now: datetime) -> bool:
    """Nothing irreversible is done on an older look, whether it succeeded or not."""
    return r.looked_at is not None and now - r.looked_at <= FRESH


def tests(seen: Observation | None, values: Mapping[str, int]) -> bool:
    """True when the backing that was looked at is that of these values."""
    return seen is not None and all(seen.tested.get(team, gpus) == gpus for team, gpus in values.items())


def beside_others(r: Rollout, values: Mapping[str, int]) -> dict[str, int]:
    """These values where they can be written: what others have set stays as it is."""
    return {**values, **{team: gpus for team, gpus in theirs(r).items() if gpus is not None}}


def planned_on(r: Rollout, sample: HealthSample | None) -> bool:
    """True when a new plan would find the same health as the last one did."""
    return sample is None or all(island in r.baseline.islands for island in sample.islands)


def _next_effect(r: Rollout) -> EffectKind:
    step = STEP_FROM[r.stage]
    return next(kind for kind in step.effects if kind not in r.stay.done)


def _tested(r: Rollout) -> dict[str, int] | None:
    """Whose backing matters now: the plan's before it is written, else what stands."""
    if r.plan is not None and r.stage in (Stage.PLANNED, Stage.ROLLED_BACK):
        return r.plan.values
    return r.written if r.shadow else None


def _wants_look(r: Rollout, now: datetime) -> bool:
    if r.look_asked or r.looked_at is None or now >= _next_look(r):
        return True
    return not looked_recently(r, now) and any(t <= now for t in _guard_times(r, now))


def _next_look(r: Rollout) -> datetime:
    assert r.looked_at is not None
    due = r.looked_at + (r.policy.resting_poll if r.rests and at_rest(r, r.looked_at) else r.policy.safety_poll)
    if r.rests and (stale := _stale_at(r)) is not None:
        due = min(due, stale)
    if r.sight.known is None or r.look_failed:
        due = min(due, r.looked_at + RECHECK)
    if r.sight.suspect is not None:  # the longer a source says nothing new, the seldomer it is asked
        due = min(due, r.looked_at + max(RECHECK, r.looked_at - r.sight.suspect.at))
    for window in r.seen.windows if r.seen is not None else ():
        for edge in (window.starts, window.ends):
            if r.looked_at < edge:
                due = min(due, edge)
    return due


def _stale_at(r: Rollout) -> datetime | None:
    """When a sample that the watch has told of as old is so by the policy as well; None where none is about to be."""
    if r.sight.known is None or r.looked_at is None:
        return None
    at = r.sight.known.at + r.policy.stale_after
    return at if r.looked_at - r.sight.known.at >= TOLD_STALE and at > r.looked_at else None


def _why_look(r: Rollout, now: datetime) -> str:
    if r.looked_at is None:
        return "first look"
    if r.look_asked:
        return "asked"
    return "safety poll" if now >= _next_look(r) else "before the guard acts"


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
    yield from _guard_times(r, now)


def _guard_times(r: Rollout, now: datetime) -> Iterator[datetime]:
    """When time alone brings something about, if a look confirms it."""
    for due in (breach_due(r), clear_due(r), retry_due(r, now), flex_due(r)):
        if due is not None:
            yield due


def breach_due(r: Rollout) -> datetime | None:
    """When the first short quota breaches; None where nothing acts on it."""
    if r.stage.guarded:
        return r.clocks.next_breach(r.policy.breach_after, but=r.breach_of if answered(r) else ())
    if r.stage is Stage.PLANNED and r.plan is not None and not r.stay.replan and not planned_on(r, r.sight.known):
        return r.clocks.next_breach(r.policy.breach_after)
    return None


def answered(r: Rollout) -> bool:
    """The breach of `breach_of` is being answered, or waits for a person: only other teams' is news."""
    match r.policy.on_breach:
        case OnBreach.HOLD:
            return True
        case OnBreach.ROLLBACK:
            return bool(r.stay.aiming) or any(h.id == ROLLBACK for h in r.holds)
        case OnBreach.REALIGN:
            return (r.realigning and not r.proposing) or any(h.id in (REALIGN, RADIUS) for h in r.holds)


def clear_due(r: Rollout) -> datetime | None:
    """When a breach that was not rolled back is over, if health stays good."""
    if not r.breach_of or not r.stage.guarded or r.stay.aiming or r.clocks.all_good_since is None:
        return None
    return r.clocks.all_good_since + r.policy.clear_after


def recovery_pause(r: Rollout) -> timedelta:
    """How long health must have been good before the next attempt: it doubles with each failure."""
    doubled: int = 2 ** min(max(0, r.failures - 1), 6)
    return r.policy.recover_after * doubled


def retries_by_itself(r: Rollout) -> bool:
    """True after a breach rollback with attempts left."""
    return (
        r.stage is Stage.ROLLED_BACK
        and r.undo is not None
        and r.undo.why is UndoCause.BREACH
        and r.failures < r.policy.attempts
    )


def retry_due(r: Rollout, now: datetime) -> datetime | None:
    """When the next attempt begins by itself, if health stays good and nothing holds."""
    if not retries_by_itself(r) or r.clocks.all_good_since is None or not health_fresh(r):
        return None
    if holds_now(r, now):
        return None
    return r.clocks.all_good_since + recovery_pause(r)
