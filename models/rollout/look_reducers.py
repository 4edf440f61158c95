"""Outcomes of a look at the cluster: drift, a proposal on long-run health, an overtaken realignment, flex."""

from __future__ import annotations

from datetime import datetime

from models.audit_chain import BACKSTOP, AuditKind
from models.cluster.policy import OnDrift
from models.cluster.readings import Observation
from models.lifecycle.holds import REALIGN, UNMERGED, Hold, HoldKind
from models.notices import NoticeKind
from models.rollout import mailing
from models.rollout.commands import add_breach_hold, add_hold, lift_hold
from models.rollout.decide import TOLD_STALE, beside_others, has_tested, is_planned_on, merged_effect
from models.rollout.drift import accept_changes, can_write, reclaim_values, restore_values
from models.rollout.flex_following import flex_band, flex_published
from models.rollout.gates import CHANGED_BY_OTHERS, drift_of, holds_now, is_health_fresh
from models.rollout.guard import Sight
from models.rollout.messages import HealthChanged, plain_sight
from models.rollout.proposals import consider_proposal, give_up_proposal
from models.rollout.stages import Stage
from models.rollout.state import Rollout
from models.texts import lacks_text


def apply_look(
    rollout: Rollout, seen: Observation, now: datetime, fence: int, *, rises: bool = True, asks: bool = False
) -> Rollout:
    """Apply a fresh look: sight, timers, drift, holds that end by themselves.

    `fence`: the counter when the look began. A look that an effect overtook says nothing about drift. `rises`: whether
    an implausible rise waits for more samples (`rise_waits`). `asks`: others' changes wait for a person.
    """
    if rollout.stage is Stage.ROLLING_BACK and rollout.hold(UNMERGED) is not None:
        # It says nothing else: the rollback's aim stands, and the guard starts over after it.
        sight = _sight(rollout, seen, rises=rises)
        return _end_wait(rollout.but(sight=sight, looked_at=now, look_asked=False, look_failed=""), seen, now)
    before_risk, before = rollout.clocks.at_risk, rollout.sight
    newer = rollout.seen is None or rollout.seen.reading.generation != seen.reading.generation
    before_ahead = rollout.seen is not None and rollout.seen.ahead_to is not None
    sight = _sight(rollout, seen, rises=rises)
    # After a missing, older or implausible sample, the last known value counts.
    news = seen.health is not None and sight.known == seen.health
    rollout = mailing.record_backing(
        rollout.but(
            sight=sight,
            asks=rollout.asks or asks,
            seen=seen,
            looked_at=now,
            look_asked=False,
            look_failed=_limits_unread(seen.reading.unread),
            looked_after=rollout.looked_after if seen.reading.unread else fence,
        )
    )
    if _has_tested_standing(rollout):
        rollout = _advance_clocks(rollout, now, is_news=news)
    rollout = _note_doubt(rollout, before, now)
    if (seen.ahead_to is not None) is not before_ahead:
        text = "health samples with times in the future do not count: check the clock of the source"
        rollout = rollout.record(
            AuditKind.GUARD,
            "no health sample has a time in the future any more" if before_ahead else text,
            now,
            ahead_to=str(seen.ahead_to or ""),
        )
    risk = rollout.clocks.at_risk
    if risk != before_risk:
        text = lacks_text(risk)
        what, over = "at risk", "no quota is at risk any more"
        if not rollout.stage.is_guarded:
            what, over = "today's health does not back the plan", "today's health backs the plan again"
        rollout = rollout.record(
            AuditKind.GUARD,
            f"{what}: {text}" if risk else over,
            now,
            at_risk=risk,
            healthy_gpus=None if seen.health is None else seen.health.healthy_gpus,
        )
    if seen.reading.unread:
        return rollout  # changes of others are unknown, and no plan can be made
    rollout = _take_drift(_end_wait(rollout, seen, now), now, newer=newer)
    rollout = _advance_flex(rollout, now) if news else rollout
    return consider_proposal(_replan_if_overtaken(rollout, now), now) if news else rollout


def _end_wait(rollout: Rollout, seen: Observation, now: datetime) -> Rollout:
    """Lift the hold of an effect whose branch waits no more: delivered again, it is declined, or made again.

    One that people have merged is delivered at once (models/rollout/decide.py).
    """
    if seen.reading.unread or seen.reading.unmerged or merged_effect(rollout) is not None:
        return rollout
    return lift_hold(rollout, UNMERGED, now, BACKSTOP, "its branch no longer waits for a merge")


def _limits_unread(why: str) -> str:
    return why and f"the limits could not be read ({why}); the last known ones are compared with today's health"


def has_lapsed(rollout: Rollout) -> bool:
    """Return whether the last look saw effects that the history lacks: it was reset, or is an older copy."""
    return (
        rollout.seen is not None
        and rollout.seen.reading.rollout == rollout.id
        and rollout.seen.reading.counter > rollout.fence
    )


def knows_already(rollout: Rollout, edge: HealthChanged) -> bool:
    """Return whether the last look saw what the watch reports: all is well, and nothing changed since.

    The watch reports it to a rollout that it sees for the first time, or that is guarded since its last round, or no
    longer is. If anything is wrong, or may be, the rollout looks.
    """
    seen, sample = rollout.seen, rollout.sight.known
    if seen is None or sample is None or sample != seen.health or rollout.look_failed:
        return False
    reading, stage = seen.reading, rollout.stage
    if seen.windows or seen.fault or seen.doubt or reading.unread or reading.unmerged or reading.merged:
        return False
    if not is_health_fresh(rollout) or edge.at - sample.at >= min(TOLD_STALE, rollout.policy.stale_after):
        return False
    if reading.generation != rollout.generation or stage is Stage.ROLLING_BACK:
        return False
    guarded = stage.is_guarded and not rollout.shadow
    if guarded and (not seen.is_backed or rollout.is_overtaken or rollout.clocks.at_risk):
        return False
    if guarded and (rollout.flex.more_since is not None or rollout.flex.failed_at is not None):
        return False
    return edge.why == plain_sight(reading.generation, sample.islands, guarded=guarded)


def rise_waits(rollout: Rollout, seen: Observation) -> bool:
    """Return whether `rises` changes what is believed after this look."""
    return seen.health is not None and _sight(rollout, seen, rises=True) != _sight(rollout, seen, rises=False)


def asks_of(rollout: Rollout, seen: Observation) -> bool:
    """Return whether `asks` changes, for the first time, what this look leads to."""
    return not rollout.asks and (seen.reading.generation != rollout.generation or bool(rollout.unapproved))


def _sight(rollout: Rollout, seen: Observation, *, rises: bool) -> Sight:
    if seen.health is None:
        return rollout.sight
    if seen.doubt is not None:
        return rollout.sight.after_doubted_sample(seen.health, seen.doubt)
    return rollout.sight.after_sample(
        seen.health, rollout.policy.plausible_drop, rollout.policy.confirm_samples, rises=rises
    )


def _advance_clocks(rollout: Rollout, now: datetime, *, is_news: bool) -> Rollout:
    """Advance the timers by the believed health.

    While a source is in doubt, the shortage from before counts. While a rise awaits confirmation, the timers of the
    quotas it would mend stand still, so that a blip stays one, and health is not good yet.
    """
    assert rollout.seen is not None
    if is_news:
        counted, backed = rollout.seen.counted, rollout.seen.is_backed
    elif rollout.seen.doubt is not None:
        counted, backed = rollout.seen.doubt.counted, False
    elif rollout.sight.is_rising and rollout.seen.health == rollout.sight.suspect:
        counted, backed = rollout.seen.counted, False
    else:
        return rollout
    return rollout.but(clocks=rollout.clocks.after_shortage(counted, now, rollout.policy.clear_after, backed=backed))


def _note_doubt(rollout: Rollout, before: Sight, now: datetime) -> Rollout:
    """Record the begin and the end of a doubt, or of an implausible sample, for the archive."""
    assert rollout.seen is not None
    doubt = rollout.seen.doubt
    if doubt is not None and before.doubted != doubt.source:
        return rollout.record(AuditKind.GUARD, f"health is UNKNOWN: {doubt.why}; a person has to confirm it", now)
    if before.doubted and doubt is None:
        return rollout.record(
            AuditKind.GUARD, f"health source {before.doubted} is no longer in doubt for this cluster", now
        )
    if not rollout.sight.unknown or before.unknown:
        return rollout
    what = "rise" if rollout.sight.is_rising else "drop"
    return rollout.record(AuditKind.GUARD, f"health is UNKNOWN: the {what} is implausible and awaits confirmation", now)


def _advance_flex(rollout: Rollout, now: datetime) -> Rollout:
    """Start a clock when surplus exceeds the published one by more than the band; stop it when it does not."""
    assert rollout.seen is not None
    published = flex_published(rollout)
    if rollout.stage is not Stage.MONITORED or rollout.seen.flex is None or published is None:
        return rollout if rollout.flex.more_since is None else rollout.but(flex=rollout.flex.but(more_since=None))
    if rollout.seen.flex.surplus_gpus - published <= flex_band(rollout):
        return rollout.but(flex=rollout.flex.but(more_since=None))
    begun = rollout.flex.more_since is not None and now - rollout.flex.more_since < rollout.policy.clear_after
    return rollout if begun else rollout.but(flex=rollout.flex.but(more_since=now))


def _has_tested_standing(rollout: Rollout) -> bool:
    """Return whether the look tested the values in force; the timers do not run on one that tested a proposed plan."""
    assert rollout.seen is not None
    if not rollout.stage.is_guarded:
        return rollout.plan is None or has_tested(rollout.seen, rollout.plan.values)
    return has_tested(rollout.seen, rollout.written if rollout.shadow else rollout.seen.reading.values)


def fail_look(rollout: Rollout, reason: str, now: datetime) -> Rollout:
    """Note that the cluster could not be looked at; the last known facts still count."""
    return mailing.give_up_backing(rollout.but(look_asked=False, look_failed=reason, looked_at=now))


def _replan_if_overtaken(rollout: Rollout, now: datetime) -> Rollout:
    """Ask for another plan if health has moved on from the one that waits."""
    assert rollout.seen is not None
    assert rollout.sight.known is not None
    if rollout.plan is None or rollout.stay.replan:
        return rollout
    moved = not is_planned_on(rollout, rollout.sight.known)
    if rollout.stage is Stage.PLANNED and moved:
        better = (
            rollout.envelope is not None
            and not rollout.is_approved
            and rollout.sight.known.healthy_gpus > rollout.plan.healthy_gpus
        )
        if better or rollout.plan.fault:
            return rollout.with_stay(replan="health has changed since the plan was made")
    if rollout.is_proposing:
        short = has_tested(rollout.seen, rollout.plan.values) and not rollout.seen.is_backed
        return give_up_proposal(rollout, "today's health does not back it", now) if short else rollout
    held = rollout.hold(REALIGN) is not None
    tested = has_tested(rollout.seen, beside_others(rollout, rollout.plan.values))
    if rollout.stage.is_guarded and rollout.is_realigning and not held and tested and not rollout.seen.is_backed:
        if moved:
            return rollout.with_stay(replan="health has changed since the realignment was planned")
        if rollout.is_approved and rollout.plan.backed:
            why = f"too few GPUs are healthy to back both plan {rollout.plan.hash} and the quotas that others changed"
            return add_breach_hold(rollout.but(look_asked=True), REALIGN, why, now)
    return rollout


def _take_drift(rollout: Rollout, now: datetime, *, newer: bool) -> Rollout:
    """Answer a drift, or accept a change that moved no value. `newer`: others changed something since the last look."""
    assert rollout.seen is not None
    if rollout.is_overtaken or not (rollout.stage.is_guarded or rollout.stage in (Stage.PLANNED, Stage.ROLLED_BACK)):
        return rollout
    moved, rollout = rollout.seen.reading.generation != rollout.generation, reclaim_values(rollout)
    if rollout.stay.restoring and not (newer if rollout.asks else moved):
        return rollout  # the look was under way when the drift was answered, and the answer is about to be written
    if rollout.stay.restoring and rollout.asks:
        rollout = rollout.with_stay(restoring=False)  # there are changes that nobody has seen
    values = drift_of(rollout)
    if rollout.stage is Stage.PLANNED and rollout.plan is not None:
        moved = moved or rollout.plan.generation != rollout.generation
    if not rollout.values_stand and not rollout.stage.is_guarded:
        # No effect of ours is in force: the next plan starts from the present values, and without one nothing is due.
        if rollout.stage is Stage.PLANNED and not rollout.stay.replan and (moved or values):
            rollout = rollout.with_stay(replan="others changed the cluster")
        return lift_hold(rollout, "drift", now, BACKSTOP, "nothing of ours stands")
    if values:
        return _answer_drift(rollout, values, now)
    rollout = lift_hold(rollout, "drift", now, BACKSTOP, "the values are ours again")
    return accept_changes(rollout, now) if moved else rollout  # a change of tree, islands, T or floors alone


def _answer_drift(rollout: Rollout, values: tuple[str, ...], now: datetime) -> Rollout:
    """Answer a drift as the policy says: accept it, write over it, or hold for a person."""
    what = f"{CHANGED_BY_OTHERS}: {', '.join(values)}"
    same_hold = any(h.id == "drift" and h.reason == what for h in rollout.holds)
    if not same_hold:
        rollout = rollout.record(AuditKind.GUARD, f"drift: {', '.join(values)}", now, drift=list(values))
    if rollout.policy.on_drift is OnDrift.ACCEPT:
        return accept_changes(lift_hold(rollout, "drift", now, BACKSTOP, "accepted by policy"), now)
    if (
        rollout.policy.on_drift is OnDrift.RESTORE
        and _may_restore(rollout, now)
        and (can_write(rollout) or not rollout.asks)
    ):
        return restore_values(lift_hold(rollout, "drift", now, BACKSTOP, "restored by policy"), now)
    if same_hold:
        return rollout
    rollout = add_hold(rollout, Hold(id="drift", kind=HoldKind.DRIFT, actor="guard", at=now, reason=what), now)
    # Ask nobody if the quota system does not say who changed it, as in older histories.
    changes = () if rollout.seen is None else rollout.seen.changes
    return rollout.notify(NoticeKind.HELD, [], detail=what) if changes else rollout


def _may_restore(rollout: Rollout, now: datetime) -> bool:
    return (
        rollout.stage.is_guarded
        and not rollout.shadow
        and not rollout.is_realigning
        and all(h.id == "drift" for h in holds_now(rollout, now))
    )
