"""What happened, taken into a rollout's state: looks, plans, receipts, failures, time.

Every function answers a new Rollout; none decides what to do next (models/interpreter.py does).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from models.audit import AuditKind
from models.commands import (
    holding,
    lifting,
    next_attempt,
    on_islands,
    restoring,
    taken_as_given,
    undoing,
    without_own_holds,
)
from models.effects import INVERSE, Change, EffectKind, Observation, QuotaReading, Receipt, ValueConflict
from models.gates import changed_by_others, drift_of, health_fresh, holds_now
from models.guard import Clocks, Sight
from models.interpreter import (
    answered,
    breach_due,
    change_for,
    clear_due,
    looked_recently,
    planned_on,
    retries_by_itself,
    retry_due,
    tests,
)
from models.messages import LaunchRequest, Opening, TellAnswer
from models.notices import Notice, NoticeKind
from models.plans import BreachTarget, Plan
from models.policy import OnBreach, OnDrift, RollbackTo
from models.rollout import (
    BACKSTOP,
    BREACH,
    RADIUS,
    REALIGN,
    REPLAN,
    ROLLBACK,
    Hold,
    HoldKind,
    Order,
    Rollout,
    Undone,
    Why,
)
from models.snapshot import Snapshot
from models.stages import STEP_FROM, Stage
from models.stuck import choices, not_undone, value_text, values_left

FORWARD = {inverse: forward for forward, inverse in INVERSE.items()}
_VALUES_TOLD = 20
"""Values that the notice of a stuck rollback lists; `status --json` has all."""
_KEEPS_STANDING = (EffectKind.RESERVE, EffectKind.SET_SOFT)
"""After a breach rollback these still stand, at other values: the baseline is not restored."""


# --- the beginning ---------------------------------------------------------------------------


def opened(launch: LaunchRequest, opening: Opening, now: datetime) -> Rollout:
    """A rollout at its start, wanting a plan. One that adopts a lost rollout's effects owes their undo."""
    adopted = bool(opening.adopted_from)
    follows = (EffectKind.FOLLOW,) if opening.reading.follows_health else ()
    r = Rollout(
        cluster=launch.cluster,
        id=launch.rollout,
        owner=launch.owner,
        shadow=launch.shadow,
        launched_at=now,
        policy=opening.policy,
        baseline=opening.baseline,
        modes=opening.modes,
        generation=opening.reading.generation,
        entered_at=now,
        soak_since=now,
        written=opening.reading.values,
        replan="the first plan",
        standing=(*_KEEPS_STANDING, *follows) if adopted else (),
        sight=Sight(known=opening.health),
    )
    by = launch.actor or launch.owner
    text = f"launched by {by}" + (" (shadow)" if launch.shadow else "")
    text += f", adopting {opening.adopted_from}" if adopted else ""
    return r.noting(
        AuditKind.COMMAND, text, now, actor=by, reason=launch.reason, command="launch", shadow=launch.shadow
    )


# --- plans -----------------------------------------------------------------------------------


def drafted(r: Rollout, baseline: Snapshot, reading: QuotaReading, plan: Plan, now: datetime) -> Rollout:
    """With a new plan, made from `baseline` (its quotas are the baseline; its islands are today's)."""
    if not _wants_plan(r):
        return r  # somebody's command came first
    first, was_approved = r.plan is None, r.approved
    if r.values_stand:
        r = r.but(baseline=on_islands(baseline.model_copy(update={"quotas": r.baseline.quotas}), baseline.islands))
    else:
        r = r.but(
            baseline=baseline,
            generation=reading.generation,
            modes={q.team: q.mode for q in reading.quotas},
            written=reading.values,
            foreign=(),
        )
    r = r.but(plan_before=r.plan_before or r.plan) if r.realigning else r.but(clocks=Clocks())
    r = r.but(plan=plan, replan="", done=(), look_asked=True).noting(
        AuditKind.PLAN,
        f"plan {plan.hash}: cut {plan.cut_gpus} of {plan.assigned_gpus} GPUs "
        f"({plan.phantom_gpus} never backed, {plan.to_flex_gpus} to flex), short by {plan.short_by_gpus}",
        now,
        plan=plan.hash,
        snapshot=plan.snapshot_hash,
        generation=plan.generation,
        approved=r.but(plan=plan).approved,
    )
    if first and not plan.backed and not r.effects_stand:
        why = "the plan is not backed by healthy GPUs, so it cannot be launched"
        if plan.suffices is not None:
            why += f"; max_tier {plan.suffices} would suffice"
        return r.but(ended_because=why).reaching(Stage.ABORTED, now, why)
    r = lifting(r, REPLAN, now, BACKSTOP, f"plan {plan.hash} was made")
    if r.realigning:
        return _proposed(r, now)
    if not first and not r.approved:
        r = r.but(waived=False)  # what was promised of an earlier plan does not hold for this one
        if was_approved:
            r = r.telling(NoticeKind.HELD, [], detail=f"plan {plan.hash} is outside what was approved")
    return r


def _wants_plan(r: Rollout) -> bool:
    return bool(r.replan) and (r.stage is Stage.PLANNED or (r.stage.guarded and r.realigning))


def _proposed(r: Rollout, now: datetime) -> Rollout:
    """A realignment goes on by itself inside the envelope and where it is backed; else it holds."""
    assert r.plan is not None
    if r.approved and r.plan.backed:
        return lifting(r, REALIGN, now, BACKSTOP, f"plan {r.plan.hash} is inside what was approved")
    why = "outside what was approved: approve it or roll back"
    if not r.plan.backed:
        why = f"not backed by today's health within max_tier {r.plan.max_tier}: roll back, or wait for the hardware"
    return _breach_held(r, REALIGN, f"the realigned plan {r.plan.hash} is {why}", now)


def _breach_held(r: Rollout, hold_id: str, reason: str, now: datetime, kind: HoldKind = HoldKind.BREACH) -> Rollout:
    hold = Hold(id=hold_id, kind=kind, reason=reason, actor="guard", at=now)
    return holding(r, hold, now).telling(NoticeKind.HELD, [], detail=reason)


def draft_failed(r: Rollout, reason: str, now: datetime) -> Rollout:
    """No plan could be made: the first ends the rollout, a later one holds it."""
    if not _wants_plan(r):
        return r
    if r.plan is None and not r.effects_stand:
        return r.but(ended_because=reason).reaching(Stage.ABORTED, now, reason)
    if r.realigning:
        return _breach_held(r.but(replan=""), REALIGN, f"no new plan: {reason}", now)
    hold = Hold(id=REPLAN, kind=HoldKind.DRIFT, reason=f"no new plan: {reason}", actor="planner", at=now)
    r = r.but(replan="")
    if any(h.id == REPLAN and h.reason == hold.reason for h in r.holds):
        return r
    return holding(r, hold, now).telling(NoticeKind.HELD, [], detail=hold.reason)


# --- looks -----------------------------------------------------------------------------------


def looked(r: Rollout, seen: Observation, now: datetime, fence: int | None = None) -> Rollout:
    """After a fresh look: sight, timers, drift, holds that end by themselves.

    `fence`: the counter when the look began. A look that an effect overtook says nothing about drift.
    """
    before_risk, before_unknown = r.clocks.at_risk, r.sight.unknown
    before_ahead = r.seen is not None and r.seen.ahead_to is not None
    sight = (
        r.sight
        if seen.health is None
        else r.sight.seeing(seen.health, r.policy.plausible_drop, r.policy.confirm_samples)
    )
    # A missing sample, an older or an implausible one says nothing: the last known value stands.
    told = seen.health is not None and sight.known == seen.health
    r = r.but(
        sight=sight,
        seen=seen,
        looked_at=now,
        look_asked=False,
        look_failed="",
        looked_after=r.fence if fence is None else fence,
    )
    if told and _tested_what_counts(r):
        backed = seen.backed
        r = r.but(clocks=r.clocks.seeing(seen.counted, now, r.policy.clear_after, backed=backed))
    if sight.unknown and not before_unknown:
        r = r.noting(AuditKind.GUARD, "health is UNKNOWN: the drop is implausible and awaits confirmation", now)
    if (seen.ahead_to is not None) is not before_ahead:
        text = "health samples are dated ahead of now and left out: is the clock of the source right?"
        r = r.noting(AuditKind.GUARD, "no longer so: " * before_ahead + text, now, ahead_to=str(seen.ahead_to or ""))
    risk = r.clocks.at_risk
    if risk != before_risk:
        text = "; ".join(f"{t} lacks {gpus} GPUs" for t, gpus in risk.items())
        what = "at risk" if r.stage.guarded else "today's health does not back the plan"
        r = r.noting(
            AuditKind.GUARD,
            f"{what}: {text}" if risk else f"no longer so: {what}",
            now,
            at_risk=risk,
            healthy_gpus=None if seen.health is None else seen.health.healthy_gpus,
        )
    r = _drifted(r, now)
    return _overtaken(r, now) if told else r


def _tested_what_counts(r: Rollout) -> bool:
    """False for a look at a plan that is only proposed: the timers are those of what stands."""
    assert r.seen is not None
    if not r.stage.guarded:
        return r.plan is None or tests(r.seen, r.plan.values)
    return tests(r.seen, r.written if r.shadow else r.seen.reading.values)


def look_failed(r: Rollout, reason: str, now: datetime) -> Rollout:
    """The cluster could not be looked at; what was known stands."""
    return r.but(look_asked=False, look_failed=reason, looked_at=now)


def _overtaken(r: Rollout, now: datetime) -> Rollout:
    """Another plan is wanted where health has moved on from the one that waits."""
    assert r.seen is not None
    assert r.sight.known is not None
    if r.plan is None or r.replan:
        return r
    moved = not planned_on(r, r.sight.known)
    if r.stage is Stage.PLANNED and moved:
        better = r.envelope is not None and not r.approved and r.sight.known.healthy_gpus > r.plan.healthy_gpus
        if better or not r.plan.backed:
            return r.but(replan="health has changed since the plan was made")
    held = any(h.id == REALIGN for h in r.holds)
    if r.stage.guarded and r.realigning and not held and tests(r.seen, r.plan.values) and not r.seen.backed:
        if moved:
            return r.but(replan="health has changed since the realignment was planned")
        if r.approved and r.plan.backed:
            why = f"plan {r.plan.hash} is not backed beside what others changed"
            return _breach_held(r.but(look_asked=True), REALIGN, why, now)
    return r


def _drifted(r: Rollout, now: datetime) -> Rollout:
    assert r.seen is not None
    if r.looked_after != r.fence or not (r.stage.guarded or r.stage in (Stage.PLANNED, Stage.ROLLED_BACK)):
        return r
    moved = r.seen.reading.generation != r.generation
    values = drift_of(r)
    if r.stage is Stage.PLANNED and r.plan is not None:
        moved = moved or r.plan.generation != r.generation
    if not r.values_stand and not r.stage.guarded:
        # Nothing of ours stands: a plan is made from what is there, and without one there is nothing to say.
        if r.stage is Stage.PLANNED and not r.replan and (moved or values):
            r = r.but(replan="others changed the cluster")
        return lifting(r, "drift", now, BACKSTOP, "nothing of ours stands")
    if not values:
        r = lifting(r, "drift", now, BACKSTOP, "the values are ours again")
        return taken_as_given(r, now) if moved else r  # tree, islands, T or floors; no value of ours
    what = f"changed by others: {', '.join(values)}"
    held = next((h for h in r.holds if h.id == "drift"), None)
    if held is None or held.reason != what:
        r = r.noting(AuditKind.GUARD, f"drift: {', '.join(values)}", now, drift=list(values))
    match r.policy.on_drift:
        case OnDrift.ACCEPT:
            return taken_as_given(lifting(r, "drift", now, BACKSTOP, "accepted by policy"), now)
        case OnDrift.RESTORE if r.stage.guarded and not r.shadow and not r.realigning and not _held_otherwise(r, now):
            return restoring(lifting(r, "drift", now, BACKSTOP, "restored by policy"), now)
        case _:
            if held is not None and held.reason == what:
                return r
            hold = Hold(id="drift", kind=HoldKind.DRIFT, actor="guard", at=now, reason=what)
            return holding(r, hold, now)


def _held_otherwise(r: Rollout, now: datetime) -> bool:
    return any(h.id != "drift" for h in holds_now(r, now))


# --- time ------------------------------------------------------------------------------------


def advance(r: Rollout, now: datetime) -> Rollout:
    """What follows from the passing of time alone. Called before each decision; idempotent.

    The guard acts on a fresh look only, so that what ended unseen has no consequence; where looking
    fails, a breach goes by what is known, and nothing gets better by itself.
    """
    if r.stage is Stage.ROLLING_BACK and not r.owed:
        return _rolled_back(r, now)
    if r.stage is Stage.PLANNED:
        r = _noticing(r, now)
    if not looked_recently(r, now):
        return r
    due = breach_due(r)
    if due is not None and now >= due:
        return _breached(r, now)
    if r.look_failed or not health_fresh(r):
        return r
    retry = retry_due(r, now)
    if retry is not None and now >= retry:
        return next_attempt(r, now, BACKSTOP, "health has been good long enough")
    clear = clear_due(r)
    return _good_again(r, now) if clear is not None and now >= clear else r


def _good_again(r: Rollout, now: datetime) -> Rollout:
    """A held breach that has cleared for long enough is over; soaks start anew."""
    for hold_id in (BREACH, REALIGN, ROLLBACK):
        r = lifting(r, hold_id, now, "guard", "backed again")
    return r.but(
        breach_of=(),
        soak_since=now,
        realigning=False,
        replan="",
        done=(),
        plan=r.plan_before or r.plan,
        plan_before=None,
    ).noting(AuditKind.GUARD, "backed again: the promise holds", now)


def _breached(r: Rollout, now: datetime) -> Rollout:
    teams = r.clocks.breached(now, r.policy.breach_after)
    if r.stage is Stage.PLANNED:
        return r.but(replan="today's health no longer backs the plan", clocks=Clocks())
    news = tuple(t for t in teams if t not in r.breach_of)
    lacking = {t: r.clocks.at_risk.get(t, 0) for t in teams}
    text = ", ".join(f"{t} lacks {gpus} GPUs" for t, gpus in lacking.items())
    waits = answered(r)
    if news:
        r = r.but(breach_of=tuple(sorted({*r.breach_of, *news})))
        r = r.noting(AuditKind.GUARD, f"breach: {text}", now, breach=lacking)
        r = r.telling(NoticeKind.BREACH, news, detail=text)
    match r.policy.on_breach:
        case OnBreach.HOLD:
            return _breach_held(r, BREACH, text, now)
        case OnBreach.ROLLBACK if not waits:
            return r.but(aiming=r.breach_of)
        case OnBreach.REALIGN if not waits:
            return r.but(realigning=True, restoring=False, done=(), replan=f"realign: {text}")
        case _:
            return r


def aimed(r: Rollout, target: BreachTarget, now: datetime) -> Rollout:
    """The breach rollback begins, towards backed values (or the baseline, if the policy says so)."""
    if not r.aiming:
        return r  # a person's undo came first
    values = target.values
    if r.policy.rollback_to is RollbackTo.BASELINE:
        values = {q.team: q.gpus for q in r.baseline.quotas}
    text = ", ".join(f"{t} lacks {r.clocks.at_risk.get(t, 0)} GPUs" for t in r.aiming)
    order = Order(
        why=Why.BREACH,
        actor="guard",
        reason=f"breach: {text}",
        at=now,
        target=values,
        changed=changed_by_others(r),
        broken_floors=target.broken_floors,
    )
    begun = without_own_holds(r).but(
        order=order, owed=tuple(reversed(r.standing)), undone=(), stuck_on=(), failures=r.failures + 1
    )
    return begun.reaching(Stage.ROLLING_BACK, now, order.reason, "guard")


def aim_failed(r: Rollout, error: str, reason: str, now: datetime) -> Rollout:
    """The breach cannot be answered automatically: too many at once, or no target."""
    if not r.aiming:
        return r
    kind = HoldKind.BLAST_RADIUS if error == "BlastRadius" else HoldKind.BREACH
    return _breach_held(r.but(aiming=()), ROLLBACK, reason, now, kind)


def _rolled_back(r: Rollout, now: datetime) -> Rollout:
    assert r.order is not None
    if r.stuck_on:
        why = "; ".join(f"{u.kind} is not undone: {u.reason}" for u in r.stuck_on)
        return _stuck(r, f"{r.order.why}, by {r.order.actor}: {r.order.reason}").reaching(Stage.STUCK, now, why)
    order, breach = r.order, r.order.why is Why.BREACH
    notes = [f"broken floors: {'; '.join(order.broken_floors)}"] if order.broken_floors else []
    if r.foreign:
        notes.append(f"left as others changed it: {', '.join(r.foreign)}")
    more = "".join(f"; {note}" for note in notes)
    r = r.but(
        standing=_KEEPS_STANDING if breach else (),
        foreign=r.foreign if breach else (),
        attempted={},
        clocks=Clocks(),
        breach_of=(),
    )
    data = {"breach_seconds": (now - order.at).total_seconds()} if breach else {}
    r = r.reaching(Stage.ROLLED_BACK, now, f"{order.why}{more}", order.actor, **data)
    told = list(r.baseline.tree.leaves) if breach else r.affected
    r = r.telling(NoticeKind.ROLLED_BACK, told, detail=order.reason + more)
    if order.then is Stage.ABORTED:
        return r.but(ended_because=order.reason).reaching(Stage.ABORTED, now, order.reason, order.actor)
    if breach and not retries_by_itself(r):
        r = r.telling(NoticeKind.HELD, [], detail=f"{r.failures} attempts have failed; `retry` or `close` it")
    if not breach and order.actor == BACKSTOP:
        r = r.telling(NoticeKind.HELD, [], detail=f"undone: {order.reason}; `retry` or `close` it")
    return r


def _stuck(r: Rollout, detail: str) -> Rollout:
    """With a word to the owner: what is not undone, and what can be done."""
    left = values_left(r)
    values = [value_text(v) for v in left[:_VALUES_TOLD]]
    hidden, all_of_them = len(left) - _VALUES_TOLD, f"backstop status {shlex.quote(r.cluster)} --json"
    more = [f"and {hidden} quotas more: {all_of_them}"] if hidden > 0 else []
    facts = {
        "left": [*not_undone(r), *values, *more],
        "commands": [{"does": c.does, "line": c.line} for c in choices(r)],
    }
    return r.telling(NoticeKind.STUCK, [], detail=detail, facts=facts)


# --- effects ---------------------------------------------------------------------------------


def began(r: Rollout, kind: EffectKind) -> tuple[Rollout, Change]:
    """The call to make, and the state that owes its inverse from before the call on."""
    change = change_for(r, kind)
    begun = r.but(fence=r.fence + 1, stood=r.standing)
    if kind in INVERSE and kind not in begun.standing:
        begun = begun.but(standing=(*begun.standing, kind))
    return begun, change


def landed(r: Rollout, change: Change, receipt: Receipt, now: datetime) -> Rollout:
    """After an effect's receipt: values, conflicts, and the next stage where the step is done."""
    kind = change.kind
    r = r.but(written={**r.written, **receipt.after})
    moved = {t: (receipt.before.get(t), v) for t, v in receipt.after.items() if receipt.before.get(t) != v}
    changes = ", ".join(f"{t} {old} -> {new}" for t, (old, new) in sorted(moved.items()))
    r = r.noting(
        AuditKind.EFFECT,
        f"{kind}{': ' + changes if changes else ''}" + (" (shadow)" if r.shadow else ""),
        now,
        effect=kind.value,
        fence=receipt.fence.counter,
        before=receipt.before,
        after=receipt.after,
        receipt=receipt.model_dump(mode="json"),
    )
    ours = [c for c in receipt.conflicts if c.found_gpus is not None and r.attempted.get(c.team) == c.found_gpus]
    theirs = [c for c in receipt.conflicts if c not in ours]
    r = _conflicted(r, change, theirs, now)
    if kind is EffectKind.RESTORE and ours:
        # The write that was never answered had landed. Its fence is dead now: once more, expecting its values.
        found = {c.team: c.found_gpus for c in ours if c.found_gpus is not None}
        return r.but(written={**r.written, **found}, attempted={})
    if kind in FORWARD:
        return _inverted(r, FORWARD[kind])
    if kind is EffectKind.CLOSE:
        return _closed(r)
    if r.stage is Stage.ROLLING_BACK or r.stage.ended:
        return r  # an undo was ordered while this was under way; it is owed already
    if r.restoring:
        return r.but(restoring=False, exempt=False, look_asked=True)
    r = r.but(done=(*r.done, kind))
    return _realigned(r, now) if r.realigning else _stepped(r, now)


def _conflicted(r: Rollout, change: Change, conflicts: Iterable[ValueConflict], now: datetime) -> Rollout:
    """Quotas that others changed are left alone, and known as theirs; those we wrote are ours again."""
    gone = {c.team for c in conflicts}
    moved = {w.team for w in change.writes if w.gpus != w.expected_gpus}
    foreign = ({*r.foreign} - moved) | gone
    written = dict(r.written)
    for conflict in conflicts:
        if conflict.found_gpus is None:
            written.pop(conflict.team, None)
        else:
            written[conflict.team] = conflict.found_gpus
        r = r.noting(
            AuditKind.EFFECT,
            f"conflict: {conflict.team} holds {conflict.found_gpus}, not {conflict.expected_gpus}; left alone",
            now,
            conflict=conflict.model_dump(mode="json"),
        )
    restored, undo = change.kind is EffectKind.RESTORE, r.order is not None and r.order.why is Why.UNDO
    if r.order is not None and (restored or undo):
        # A restore that is made (again) would expect their value, and overwrite it. An undo that has restored names
        # them no more; else theirs is the value to come to.
        unnamed = gone if restored and undo else gone - written.keys()
        kept = {t: written[t] if t in gone else v for t, v in r.order.target.items() if t not in unnamed}
        changed = {} if restored else r.order.changed
        r = r.but(order=r.order.model_copy(update={"target": kept, "changed": changed}))
    return r.but(foreign=tuple(sorted(foreign)), written=written)


def _closed(r: Rollout) -> Rollout:
    told = list(r.baseline.tree.leaves) if r.values_stand else r.affected
    return r.telling(NoticeKind.CLOSED, told, detail=r.ended_because).but(done=(EffectKind.CLOSE,), standing=())


def _inverted(r: Rollout, forward: EffectKind) -> Rollout:
    """An inverse has landed. What a breach rollback keeps, at other values, goes on standing."""
    r = r.but(undone=(*r.undone, forward), unanswered=tuple(k for k in r.unanswered if k is not forward))
    if forward is EffectKind.SET_SOFT:
        r = r.but(attempted={})
    if forward in _KEEPS_STANDING and r.order is not None and r.order.why is Why.BREACH:
        return r.but(owed=tuple(k for k in r.owed if k is not forward))
    return _undone(r, forward)


def _undone(r: Rollout, forward: EffectKind) -> Rollout:
    return r.but(
        owed=tuple(k for k in r.owed if k is not forward),
        standing=tuple(k for k in r.standing if k is not forward),
    )


def _realigned(r: Rollout, now: datetime) -> Rollout:
    if EffectKind.SET_SOFT not in r.done:
        return r
    r = lifting(r, REALIGN, now, BACKSTOP, "written")
    r = r.but(
        realigning=False,
        plan_before=None,
        done=(),
        exempt=False,
        breach_of=(),
        clocks=Clocks(),
        soak_since=now,
        look_asked=True,
    )
    return r.telling(NoticeKind.CHANGED, r.affected, detail="the quotas were realigned in place")


_NOTICE_AT = {
    Stage.BUFFERED: NoticeKind.BUFFERED,
    Stage.ENFORCED: NoticeKind.ENFORCED,
    Stage.MONITORED: NoticeKind.MONITORED,
}


def _stepped(r: Rollout, now: datetime) -> Rollout:
    step = STEP_FROM[r.stage]
    if any(forward not in r.done for forward, _ in step.effects):
        return r
    if step.target is Stage.BUFFERED:
        r = r.but(clocks=Clocks())
    if step.target is Stage.MONITORED:
        r = r.but(completed=True, failures=0)
    r = r.reaching(step.target, now, "all conditions of the gate were met")
    return r.telling(_NOTICE_AT[step.target], r.affected)


def failed(r: Rollout, change: Change, error: str, reason: str, now: datetime) -> Rollout:
    """An effect failed for good. `error`: the class name of models.errors, or Temporal's own."""
    kind = change.kind
    r = r.noting(AuditKind.EFFECT, f"{kind} failed: {reason}", now, effect=kind.value, error=error, failed=True)
    if error == "Conflict":
        r = r.but(superseded=reason, owed=())
        if r.stage.ended:
            return r.telling(NoticeKind.HELD, [], detail=f"{r.stage}, and somebody newer owns the cluster: {reason}")
        return _stuck(r, reason).reaching(Stage.STUCK, now, f"superseded: {reason}")
    if kind is EffectKind.CLOSE:
        return _closed(r).telling(NoticeKind.HELD, [], detail=f"closed, but what is reserved may stay so: {reason}")
    if kind in FORWARD:
        forward = FORWARD[kind]
        return r.but(
            owed=tuple(k for k in r.owed if k is not forward),
            stuck_on=(*r.stuck_on, Undone(kind=forward, reason=reason)),
        )
    unwritten = error in ("Drift", "BlastRadius")  # both say that nothing was written
    if unwritten and kind not in r.stood:
        r = _undone(r, kind)
    if not unwritten and kind not in r.stood:
        r = r.but(unanswered=(*r.unanswered, kind))
    if not unwritten and kind is EffectKind.SET_SOFT:
        r = r.but(attempted={w.team: w.gpus for w in change.writes})
    if r.stage is Stage.ROLLING_BACK or r.stage.ended:
        return r
    if error == "Drift":
        plan_again = "others changed the cluster" if r.stage is Stage.PLANNED else ""
        return r.but(look_asked=True, done=(), replan=plan_again, **_not_in_place(r))
    if error == "BlastRadius":
        hold = Hold(id=RADIUS, kind=HoldKind.BLAST_RADIUS, reason=reason, actor=BACKSTOP, at=now)
        held = holding(r.but(done=(), **_not_in_place(r)), hold, now)
        return held.telling(NoticeKind.HELD, [], detail=reason)
    return undoing(r, now, actor=BACKSTOP, reason=f"{kind} failed: {reason}")


def _not_in_place(r: Rollout) -> dict[str, Any]:
    """What changes when a write in place came to nothing: the guard and the drift check begin anew."""
    return {"realigning": False, "restoring": False, "plan": r.plan_before or r.plan, "plan_before": None}


# --- notices and the archive -----------------------------------------------------------------


def _noticing(r: Rollout, now: datetime) -> Rollout:
    """Once a plan is approved, tell whom it cuts; later only those whose cut grew."""
    if r.plan is None or r.replan or not r.approved:
        return r
    cuts = {q.team: q.cut_gpus for q in r.plan.quotas if q.leaf and q.cut_gpus}
    grown = [t for t, cut in cuts.items() if cut > r.told_cuts.get(t, 0)]
    if grown:
        kind = NoticeKind.CHANGED if r.told_cuts else NoticeKind.PLANNED
        r = r.but(
            told_cuts={**r.told_cuts, **{t: cuts[t] for t in grown}},
            acks=tuple(t for t in r.acks if t not in grown or t not in r.told_cuts),
            notified_at=None,
            undelivered=(),
        )
        return r.telling(kind, grown, effective_at=now + r.policy.notice)
    if r.notified_at is None and not r.undelivered and not _in_the_mail(r):
        return r.but(notified_at=now)
    return r


def _in_the_mail(r: Rollout) -> bool:
    return any(n.kind in (NoticeKind.PLANNED, NoticeKind.CHANGED) for n in r.mail)


def mailed(r: Rollout, batch: Sequence[Notice], answer: TellAnswer, now: datetime) -> Rollout:
    """What became of some notices: delivered, not deliverable at all, which a person has to know, or kept."""
    gone = answer.delivered.keys() | answer.refused.keys()
    r = r.but(mail=tuple(n for n in r.mail if n.key not in gone))
    for notice in batch:
        if notice.key in answer.delivered:
            r = r.noting(
                AuditKind.NOTICE,
                f"{notice.audience} was told: {notice.kind}",
                now,
                notice=notice.kind.value,
                key=notice.key,
                deliveries=[d.model_dump(mode="json") for d in answer.delivered[notice.key]],
            )
        elif notice.key in answer.refused:
            reason = answer.refused[notice.key]
            if notice.kind in (NoticeKind.PLANNED, NoticeKind.CHANGED):
                r = r.but(undelivered=(*r.undelivered, f"{notice.audience}: {reason}"))
            r = r.noting(AuditKind.NOTICE, f"{notice.audience} could not be told: {reason}", now, failed=True)
    return r.but(mail_trouble="; ".join(sorted(set(answer.failed.values()))))


def recorded(r: Rollout, keys: Iterable[str], stage: Stage) -> Rollout:
    """Entries are archived and the registry shows the stage."""
    done = set(keys)
    return r.but(outbox=tuple(e for e in r.outbox if e.key not in done), noted=stage)


__all__ = [
    "INVERSE",
    "advance",
    "aim_failed",
    "aimed",
    "began",
    "draft_failed",
    "drafted",
    "failed",
    "landed",
    "look_failed",
    "looked",
    "mailed",
    "opened",
    "recorded",
]
