"""The next action of a rollout: one pure decision, taken again after every event.

Theory of operation. The workflow is a loop: decide, act once, apply the outcome, decide again. This module decides; the
reducers apply (plan_, look_, effect_ and time_reducers.py, and commands.py). There is no other control flow, so a
rollback is not an exception handler but a stage in which the next action is the next inverse, and tests can explore any
order of events without a server. Source: docs/design.md, "The state machine".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from models.cluster.policy import OnBreach
from models.cluster.readings import HealthSample, Observation
from models.lifecycle.holds import RADIUS, REALIGN, ROLLBACK, UNMERGED
from models.lifecycle.workflow_actions import Finish, Wait
from models.rollout.effect_changes import baseline_with
from models.rollout.effect_table import INVERSE, STEP_FROM
from models.rollout.effects import EffectKind
from models.rollout.flex_following import flex_wanted
from models.rollout.gates import conditions, drift_of, holds_now, is_health_fresh, is_open, values_of_others
from models.rollout.stages import Stage
from models.rollout.state import Rollout
from models.rollout.workflow_actions import Action, Aim, Draft, Look, Perform

RECHECK = timedelta(seconds=60)
"""The longest time between looks while a sample is suspect."""

TOLD_STALE = timedelta(minutes=30)
"""The age from which the shared watch reports a sample, even if the policy calls only older ones stale."""

FRESH = timedelta(seconds=5)
"""A gate opens only on a look that is not older than this."""


def decide(rollout: Rollout, now: datetime) -> Action:
    """Return the next action. It never returns the same action twice without an outcome in between."""
    if rollout.stage.has_ended:
        return Perform(EffectKind.CLOSE) if rollout.is_closing else Finish()
    if rollout.stage is Stage.STUCK:
        return Wait(None)
    if rollout.stage is Stage.ROLLING_BACK and rollout.stay.aiming:
        if rollout.look_asked:
            return Look("before it is aimed again", None)
        if not rollout.is_overtaken and not rollout.look_failed:
            return Aim()  # else the written values stay, and a person decides on the drift
    if rollout.stage is Stage.ROLLING_BACK and rollout.owed and rollout.hold(UNMERGED) is not None:
        return _await_merge(rollout, now)
    if rollout.stage is Stage.ROLLING_BACK:
        return Perform(INVERSE[rollout.owed[0]]) if rollout.owed else Wait(now)  # with nothing owed, `advance` ends it
    if rollout.stay.aiming:
        return Aim()
    if rollout.stay.replan:
        return Draft(rollout.stay.replan)
    if rollout.stay.restoring and rollout.hold(UNMERGED) is None:
        return Perform(EffectKind.SET_SOFT)
    if _wants_look(rollout, now):
        return Look(_why_look(rollout, now), _values_to_test(rollout))
    if (merged := merged_effect(rollout)) is not None:
        return Perform(merged)
    if (refit := _refit(rollout, now)) is not None:
        return refit
    flexed = _flex(rollout, now)
    if flexed is None and rollout.stay.outlook.reconsider:
        return Draft("long-run health has changed", rollout.stay.outlook.reconsider)
    action = flexed or _realignment(rollout, now) or _grant(rollout, now) or _step(rollout, now)
    return action or Wait(min((t for t in _times(rollout, now) if t > now), default=None))


def is_urgent(rollout: Rollout, action: Action) -> bool:
    """Return whether the action answers a breach: until then a promise is in force that hardware does not keep."""
    restores = isinstance(action, Perform) and EffectKind.SET_SOFT in rollout.owed
    return isinstance(action, Aim) or (rollout.answers_breach and restores)


def confirms_breach(rollout: Rollout, now: datetime) -> bool:
    """Return whether a breach waits for a look, and for nothing else."""
    due = breach_due(rollout)
    return due is not None and due <= now


def merged_effect(rollout: Rollout) -> EffectKind | None:
    """Return the forward effect that people have merged: it is in force, so no gate and no hold keeps it any more."""
    merged = rollout.seen is not None and rollout.seen.reading.merged and not rollout.stage.has_ended
    if not merged or rollout.look_failed or rollout.hold(UNMERGED) is None or rollout.stage is Stage.ROLLING_BACK:
        return None
    if rollout.stay.restoring or (rollout.is_realigning and EffectKind.RESERVE in rollout.stay.done):
        return EffectKind.SET_SOFT
    return _next_effect(rollout) if rollout.stage in STEP_FROM and not rollout.is_realigning else None


def _await_merge(rollout: Rollout, now: datetime) -> Action:
    """Look whether people have merged the inverse: when the watch says so, and from time to time."""
    due = now if rollout.looked_at is None else rollout.looked_at + rollout.policy.safety_poll
    return Look("whether the undo is merged", None) if rollout.look_asked or now >= due else Wait(due)


def _step(rollout: Rollout, now: datetime) -> Action | None:
    """Return the next effect of the step if its gate is open; a look comes before each."""
    if not is_open(rollout, now) or rollout.look_failed:
        return None
    return (
        Perform(_next_effect(rollout))
        if has_looked_recently(rollout, now)
        else Look("before the step", _values_to_test(rollout))
    )


def _refit(rollout: Rollout, now: datetime) -> Action | None:
    """Return the write that fits the limit above all quotas to accepted values.

    No hold stops it: no quota moves, and hardware backs all of them.
    """
    if (
        not rollout.stay.refitting
        or rollout.is_realigning
        or rollout.look_failed
        or rollout.seen is None
        or rollout.is_overtaken
    ):
        return None
    if rollout.seen.reading.generation != rollout.generation or drift_of(rollout) or not is_health_fresh(rollout):
        return None
    if not has_looked_recently(rollout, now) or not has_tested(rollout.seen, rollout.seen.reading.values):
        return Look("before the limit on the sum of the quotas changes", None)
    return Perform(EffectKind.SET_SOFT) if rollout.seen.is_backed else None


def _flex(rollout: Rollout, now: datetime) -> Action | None:
    """Return the write that updates the flex pool. No hold stops it: it moves no quota, and reports the hardware."""
    if flex_wanted(rollout) is None or (rollout.flex.failed_at is not None and now < rollout.flex.failed_at + RECHECK):
        return None
    return (
        Perform(EffectKind.FOLLOW)
        if has_looked_recently(rollout, now)
        else Look("before flex moves", _values_to_test(rollout))
    )


def flex_due(rollout: Rollout) -> datetime | None:
    """Return when a larger surplus will have lasted long enough, or when the next try to publish is due."""
    if rollout.stage is not Stage.MONITORED:
        return None
    if rollout.flex.failed_at is not None:
        return rollout.flex.failed_at + RECHECK
    if rollout.flex.more_since is None or rollout.looked_at is None:
        return None
    # A new look is needed, and none is made while the last one counts as fresh.
    return max(
        rollout.flex.more_since + rollout.policy.clear_after, rollout.looked_at + FRESH + timedelta(milliseconds=1)
    )


def _realignment(rollout: Rollout, now: datetime) -> Action | None:
    """Return the next write of a plan in place. It waits for no gate, but never writes what is not backed."""
    if (
        not rollout.is_realigning
        or rollout.plan is None
        or not (rollout.is_approved and not rollout.plan.fault and is_health_fresh(rollout))
        or rollout.look_failed
    ):
        return None
    if rollout.hold(REALIGN) is not None or rollout.hold(UNMERGED) is not None:
        return None
    values = beside_others(rollout, rollout.plan.values)
    if not has_looked_recently(rollout, now) or not has_tested(rollout.seen, values):
        return Look("before the realignment", values)
    if rollout.seen is None or not rollout.seen.is_backed:
        return None  # `apply_look` has asked for another plan, or holds
    return Perform(EffectKind.SET_SOFT if EffectKind.RESERVE in rollout.stay.done else EffectKind.RESERVE)


def _grant(rollout: Rollout, now: datetime) -> Action | None:
    """Return the write of a request's order once nothing else is wanted; more quota needs backing by today's health."""
    order = rollout.grant_order
    if order is None or not is_at_rest(rollout, now):
        return None
    if order.ends:
        return Perform(EffectKind.GRANT) if has_looked_recently(rollout, now) else Look("before a grant ends", None)
    values = baseline_with(rollout, order).values
    if not has_looked_recently(rollout, now) or not has_tested_all(rollout.seen, values):
        return Look("before the grant", values)
    return Perform(EffectKind.GRANT)


def is_at_rest(rollout: Rollout, now: datetime) -> bool:
    """Return whether the rollout is monitored and backed, with no drift, no hold, and nothing else wanted."""
    busy = (
        rollout.stay.restoring or rollout.stay.replan or rollout.stay.aiming or rollout.breach_of or rollout.look_failed
    )
    if (
        rollout.stage is not Stage.MONITORED
        or busy
        or rollout.seen is None
        or not rollout.seen.is_backed
        or not is_health_fresh(rollout)
    ):
        return False
    return (
        rollout.seen.reading.generation == rollout.generation and not drift_of(rollout) and not holds_now(rollout, now)
    )


def has_looked_recently(rollout: Rollout, now: datetime) -> bool:
    """Return whether the last look, successful or not, is fresh enough for an irreversible action."""
    return rollout.looked_at is not None and now - rollout.looked_at <= FRESH


def has_tested(seen: Observation | None, values: Mapping[str, int]) -> bool:
    """Return whether the look tested the backing of these values."""
    return seen is not None and all(seen.tested.get(team, gpus) == gpus for team, gpus in values.items())


def has_tested_all(seen: Observation | None, values: Mapping[str, int]) -> bool:
    """Return whether the look tested these values and left none of them out."""
    return seen is not None and all(seen.tested.get(team) == gpus for team, gpus in values.items())


def beside_others(rollout: Rollout, values: Mapping[str, int]) -> dict[str, int]:
    """Return these values, except where others have set a quota: theirs stays."""
    return {**values, **{team: gpus for team, gpus in values_of_others(rollout).items() if gpus is not None}}


def is_planned_on(rollout: Rollout, sample: HealthSample | None) -> bool:
    """Return whether a new plan would see the same health as the last one did."""
    return sample is None or all(island in rollout.baseline.islands for island in sample.islands)


def _next_effect(rollout: Rollout) -> EffectKind:
    step = STEP_FROM[rollout.stage]
    return next(kind for kind in step.effects if kind not in rollout.stay.done)


def _values_to_test(rollout: Rollout) -> dict[str, int] | None:
    """Return the values to test: the plan's before it is written; None: the present ones."""
    if rollout.plan is not None and rollout.stage in (Stage.PLANNED, Stage.ROLLED_BACK):
        return rollout.plan.values
    return rollout.written if rollout.shadow else None


def _wants_look(rollout: Rollout, now: datetime) -> bool:
    if rollout.look_asked or rollout.looked_at is None or now >= _next_look(rollout):
        return True
    return not has_looked_recently(rollout, now) and any(t <= now for t in _guard_times(rollout, now))


def _next_look(rollout: Rollout) -> datetime:
    assert rollout.looked_at is not None
    due = rollout.looked_at + (
        rollout.policy.resting_poll
        if rollout.rests and is_at_rest(rollout, rollout.looked_at)
        else rollout.policy.safety_poll
    )
    if rollout.rests and (stale := _stale_at(rollout)) is not None:
        due = min(due, stale)
    if rollout.sight.known is None or rollout.look_failed:
        due = min(due, rollout.looked_at + RECHECK)
    if rollout.sight.suspect is not None:  # looks become rarer while a source reports nothing new
        due = min(due, rollout.looked_at + max(RECHECK, rollout.looked_at - rollout.sight.suspect.at))
    for window in rollout.seen.windows if rollout.seen is not None else ():
        for edge in (window.starts, window.ends):
            if rollout.looked_at < edge:
                due = min(due, edge)
    return due


def _stale_at(rollout: Rollout) -> datetime | None:
    """Return when a sample that the watch reports as old becomes stale by the policy too; None if not ahead."""
    if rollout.sight.known is None or rollout.looked_at is None:
        return None
    at = rollout.sight.known.at + rollout.policy.stale_after
    return at if rollout.looked_at - rollout.sight.known.at >= TOLD_STALE and at > rollout.looked_at else None


def _why_look(rollout: Rollout, now: datetime) -> str:
    if rollout.looked_at is None:
        return "first look"
    if rollout.look_asked:
        return "asked"
    return "safety poll" if now >= _next_look(rollout) else "before the guard acts"


def _times(rollout: Rollout, now: datetime) -> Iterator[datetime]:
    if rollout.looked_at is not None:
        yield _next_look(rollout)
    for condition in conditions(rollout, now):
        if not condition.met and condition.until is not None:
            yield condition.until
    for hold in holds_now(rollout, now):
        if hold.until is not None:
            yield hold.until
    yield from _guard_times(rollout, now)


def _guard_times(rollout: Rollout, now: datetime) -> Iterator[datetime]:
    """Yield the times at which something happens by time alone, if a look confirms it."""
    for due in (breach_due(rollout), clear_due(rollout), retry_due(rollout, now), flex_due(rollout)):
        if due is not None:
            yield due


def breach_due(rollout: Rollout) -> datetime | None:
    """Return when the first short quota breaches; None if nothing would act on it."""
    if rollout.stage.is_guarded:
        return rollout.clocks.next_breach(
            rollout.policy.breach_after, but=rollout.breach_of if is_answering_breach(rollout) else ()
        )
    if (
        rollout.stage is Stage.PLANNED
        and rollout.plan is not None
        and not rollout.stay.replan
        and not is_planned_on(rollout, rollout.sight.known)
    ):
        return rollout.clocks.next_breach(rollout.policy.breach_after)
    return None


def is_answering_breach(rollout: Rollout) -> bool:
    """Return whether the breach is being answered or waits for a person; then only a breach of other teams is news."""
    match rollout.policy.on_breach:
        case OnBreach.HOLD:
            return True
        case OnBreach.ROLLBACK:
            return bool(rollout.stay.aiming) or rollout.hold(ROLLBACK) is not None
        case OnBreach.REALIGN:
            return (rollout.is_realigning and not rollout.is_proposing) or any(
                h.id in (REALIGN, RADIUS) for h in rollout.holds
            )


def clear_due(rollout: Rollout) -> datetime | None:
    """Return when a breach that was not rolled back is over, if health stays good."""
    if (
        not rollout.breach_of
        or not rollout.stage.is_guarded
        or rollout.stay.aiming
        or rollout.clocks.all_good_since is None
    ):
        return None
    return rollout.clocks.all_good_since + rollout.policy.clear_after


def recovery_pause(rollout: Rollout) -> timedelta:
    """Return how long health must be good before the next attempt; it doubles with each failure."""
    doubled: int = 2 ** min(max(0, rollout.failures - 1), 6)
    return rollout.policy.recover_after * doubled


def retries_by_itself(rollout: Rollout) -> bool:
    """Return whether a breach rollback has attempts left."""
    spent = rollout.failures >= rollout.policy.attempts
    return rollout.stage is Stage.ROLLED_BACK and rollout.answers_breach and not spent


def retry_due(rollout: Rollout, now: datetime) -> datetime | None:
    """Return when the next attempt begins by itself, if health stays good and nothing holds."""
    if not retries_by_itself(rollout) or rollout.clocks.all_good_since is None or not is_health_fresh(rollout):
        return None
    if holds_now(rollout, now):
        return None
    return rollout.clocks.all_good_since + recovery_pause(rollout)
