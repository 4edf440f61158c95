"""What a look at the cluster brings about: drift, a proposal on long-run health, a realignment overtaken, flex."""

from __future__ import annotations

from datetime import datetime

from models.audit import BACKSTOP, AuditKind
from models.base import lacks_text
from models.cluster.policy import OnDrift
from models.cluster.readings import Observation
from models.notices import NoticeKind
from models.rollout import mailing
from models.rollout.commands import (
    breach_holding,
    holding,
    lifting,
)
from models.rollout.decide import beside_others, planned_on, tests
from models.rollout.drift import restoring, taken_as_given, taken_back, writable
from models.rollout.flex_following import flex_band, flex_published
from models.rollout.gates import CHANGED_BY_OTHERS, drift_of, holds_now
from models.rollout.guard import Sight
from models.rollout.holds import REALIGN, Hold, HoldKind
from models.rollout.long_run import considered, given_up
from models.rollout.stages import Stage
from models.rollout.state import Rollout


def looked(
    r: Rollout,
    seen: Observation,
    now: datetime,
    fence: int | None = None,
    *,
    rises: bool = True,
    asks: bool = False,
) -> Rollout:
    """After a fresh look: sight, timers, drift, holds that end by themselves.

    `fence`: the counter when the look began. A look that an effect overtook says nothing about drift. `rises`: whether
    an implausible rise waits for more samples (`rise_waits`). `asks`: what others changed waits for a person.
    """
    before_risk, before = r.clocks.at_risk, r.sight
    newer = r.seen is None or r.seen.reading.generation != seen.reading.generation
    before_ahead = r.seen is not None and r.seen.ahead_to is not None
    sight = _sight(r, seen, rises=rises)
    # A missing sample, an older or an implausible one says nothing: the last known value stands.
    news = seen.health is not None and sight.known == seen.health
    r = mailing.seen_since(
        r.but(
            sight=sight,
            asks=r.asks or asks,
            seen=seen,
            looked_at=now,
            look_asked=False,
            look_failed=_limits_unread(seen.reading.unread),
            looked_after=r.looked_after if seen.reading.unread else r.fence if fence is None else fence,
        )
    )
    if _tested_what_counts(r):
        r = _timed(r, now, told=news)
    r = _noting_doubt(r, before, now)
    if (seen.ahead_to is not None) is not before_ahead:
        text = "health samples are dated ahead of now and left out: is the clock of the source right?"
        r = r.noting(AuditKind.GUARD, "no longer so: " * before_ahead + text, now, ahead_to=str(seen.ahead_to or ""))
    risk = r.clocks.at_risk
    if risk != before_risk:
        text = lacks_text(risk)
        what = "at risk" if r.stage.guarded else "today's health does not back the plan"
        r = r.noting(
            AuditKind.GUARD,
            f"{what}: {text}" if risk else f"no longer so: {what}",
            now,
            at_risk=risk,
            healthy_gpus=None if seen.health is None else seen.health.healthy_gpus,
        )
    if seen.reading.unread:
        return r  # what others changed is not known, and no plan can be made
    r = _drifted(r, now, newer=newer)
    r = _flexed(r, now) if news else r
    return considered(_overtaken(r, now), now) if news else r


def _limits_unread(why: str) -> str:
    return why and f"the limits could not be read ({why}); the last known ones are compared with today's health"


def has_lapsed(r: Rollout) -> bool:
    """The last look has seen effects of this rollout that its history lacks: it was reset, or is an older copy."""
    return r.seen is not None and r.seen.reading.rollout == r.id and r.seen.reading.counter > r.fence


def rise_waits(r: Rollout, seen: Observation) -> bool:
    """Whether what is believed after this look depends on `rises`."""
    return seen.health is not None and _sight(r, seen, rises=True) != _sight(r, seen, rises=False)


def asks_of(r: Rollout, seen: Observation) -> bool:
    """Whether what this look brings depends on `asks`, for the first time."""
    return not r.asks and (seen.reading.generation != r.generation or bool(r.unapproved))


def _sight(r: Rollout, seen: Observation, *, rises: bool) -> Sight:
    if seen.health is None:
        return r.sight
    if seen.doubt is not None:
        return r.sight.doubting(seen.health, seen.doubt)
    return r.sight.seeing(seen.health, r.policy.plausible_drop, r.policy.confirm_samples, rises=rises)


def _timed(r: Rollout, now: datetime, *, told: bool) -> Rollout:
    """With the timers going by what is believed.

    While a source is in doubt that is the shortage from before. While a rise is awaiting confirmation the timers of
    what it would mend stand still, so that a blip stays one, and health is not good yet.
    """
    assert r.seen is not None
    if told:
        counted, backed = r.seen.counted, r.seen.backed
    elif r.seen.doubt is not None:
        counted, backed = r.seen.doubt.counted, False
    elif r.sight.rising and r.seen.health == r.sight.suspect:
        counted, backed = r.seen.counted, False
    else:
        return r
    return r.but(clocks=r.clocks.seeing(counted, now, r.policy.clear_after, backed=backed))


def _noting_doubt(r: Rollout, before: Sight, now: datetime) -> Rollout:
    """Begin and end of what is not believed, for the archive."""
    assert r.seen is not None
    doubt = r.seen.doubt
    if doubt is not None and before.doubted != doubt.source:
        return r.noting(AuditKind.GUARD, f"health is UNKNOWN: {doubt.why}; a person has to confirm it", now)
    if before.doubted and doubt is None:
        return r.noting(AuditKind.GUARD, f"source {before.doubted} is no longer in doubt here", now)
    if not r.sight.unknown or before.unknown:
        return r
    what = "rise" if r.sight.rising else "drop"
    return r.noting(AuditKind.GUARD, f"health is UNKNOWN: the {what} is implausible and awaits confirmation", now)


def _flexed(r: Rollout, now: datetime) -> Rollout:
    """More surplus than the band lets pass starts a clock; the samples since then say whether it has stood."""
    assert r.seen is not None
    published = flex_published(r)
    if r.stage is not Stage.MONITORED or r.seen.flex is None or published is None:
        return r if r.flex.more_since is None else r.but(flex=r.flex.but(more_since=None))
    if r.seen.flex.surplus_gpus - published <= flex_band(r):
        return r.but(flex=r.flex.but(more_since=None))
    begun = r.flex.more_since is not None and now - r.flex.more_since < r.policy.clear_after
    return r if begun else r.but(flex=r.flex.but(more_since=now))


def _tested_what_counts(r: Rollout) -> bool:
    """False for a look at a plan that is only proposed: the timers are those of what stands."""
    assert r.seen is not None
    if not r.stage.guarded:
        return r.plan is None or tests(r.seen, r.plan.values)
    return tests(r.seen, r.written if r.shadow else r.seen.reading.values)


def look_failed(r: Rollout, reason: str, now: datetime) -> Rollout:
    """The cluster could not be looked at; what was known stands."""
    return mailing.unseen_for_good(r.but(look_asked=False, look_failed=reason, looked_at=now))


def _overtaken(r: Rollout, now: datetime) -> Rollout:
    """Another plan is wanted where health has moved on from the one that waits."""
    assert r.seen is not None
    assert r.sight.known is not None
    if r.plan is None or r.stay.replan:
        return r
    moved = not planned_on(r, r.sight.known)
    if r.stage is Stage.PLANNED and moved:
        better = r.envelope is not None and not r.approved and r.sight.known.healthy_gpus > r.plan.healthy_gpus
        if better or r.plan.fault:
            return r.staying(replan="health has changed since the plan was made")
    if r.proposing:
        short = tests(r.seen, r.plan.values) and not r.seen.backed
        return given_up(r, "today's health does not back it", now) if short else r
    held = any(h.id == REALIGN for h in r.holds)
    tested = tests(r.seen, beside_others(r, r.plan.values))
    if r.stage.guarded and r.realigning and not held and tested and not r.seen.backed:
        if moved:
            return r.staying(replan="health has changed since the realignment was planned")
        if r.approved and r.plan.backed:
            why = f"plan {r.plan.hash} is not backed beside what others changed"
            return breach_holding(r.but(look_asked=True), REALIGN, why, now)
    return r


def _drifted(r: Rollout, now: datetime, *, newer: bool) -> Rollout:
    """`newer`: others have changed something since the look before."""
    assert r.seen is not None
    if r.looked_after != r.fence or not (r.stage.guarded or r.stage in (Stage.PLANNED, Stage.ROLLED_BACK)):
        return r
    moved, r = r.seen.reading.generation != r.generation, taken_back(r)
    if r.stay.restoring and not (newer if r.asks else moved):
        return r  # a look that was under way when it was answered: this is about to be put right
    if r.stay.restoring and r.asks:
        r = r.staying(restoring=False)  # nobody has seen what else has changed
    values = drift_of(r)
    if r.stage is Stage.PLANNED and r.plan is not None:
        moved = moved or r.plan.generation != r.generation
    if not r.values_stand and not r.stage.guarded:
        # Nothing of ours stands: a plan is made from what is there, and without one there is nothing to say.
        if r.stage is Stage.PLANNED and not r.stay.replan and (moved or values):
            r = r.staying(replan="others changed the cluster")
        return lifting(r, "drift", now, BACKSTOP, "nothing of ours stands")
    if values:
        return _answered(r, values, now)
    r = lifting(r, "drift", now, BACKSTOP, "the values are ours again")
    return taken_as_given(r, now) if moved else r  # tree, islands, T or floors; no value of ours


def _answered(r: Rollout, values: tuple[str, ...], now: datetime) -> Rollout:
    """A drift is answered as the policy says: taken as given, written over, or held for a person."""
    what = f"{CHANGED_BY_OTHERS}: {', '.join(values)}"
    same_hold = any(h.id == "drift" and h.reason == what for h in r.holds)
    if not same_hold:
        r = r.noting(AuditKind.GUARD, f"drift: {', '.join(values)}", now, drift=list(values))
    if r.policy.on_drift is OnDrift.ACCEPT:
        return taken_as_given(lifting(r, "drift", now, BACKSTOP, "accepted by policy"), now)
    if r.policy.on_drift is OnDrift.RESTORE and _may_restore(r, now) and (writable(r) or not r.asks):
        return restoring(lifting(r, "drift", now, BACKSTOP, "restored by policy"), now)
    if same_hold:
        return r
    r = holding(r, Hold(id="drift", kind=HoldKind.DRIFT, actor="guard", at=now, reason=what), now)
    # A quota system that does not say who, as all did once, leaves nobody to be asked.
    return r.telling(NoticeKind.HELD, [], detail=what) if r.seen is not None and r.seen.changes else r


def _may_restore(r: Rollout, now: datetime) -> bool:
    return r.stage.guarded and not r.shadow and not r.realigning and not _held_otherwise(r, now)


def _held_otherwise(r: Rollout, now: datetime) -> bool:
    return any(h.id != "drift" for h in holds_now(r, now))
