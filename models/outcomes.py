"""What happened, taken into a rollout's state: looks, plans, receipts, failures, time.

Every function answers a new Rollout; none decides what to do next (models/interpreter.py does).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from models.audit import AuditKind
from models.commands import believing, holding, lifting, next_attempt, taken_as_given, undoing
from models.effects import INVERSE, Change, EffectKind, Observation, QuotaReading, Receipt
from models.gates import drift_of
from models.guard import Sight
from models.interpreter import breach_due, change_for, retries_by_itself, retry_due
from models.messages import LaunchRequest, Opening
from models.notices import Delivery, Notice, NoticeKind
from models.plans import BreachTarget, Plan
from models.policy import OnBreach, OnDrift, RollbackTo
from models.rollout import Hold, HoldKind, Order, Rollout, Undone, Why
from models.snapshot import Snapshot
from models.stages import STEP_FROM, Stage

FORWARD = {inverse: forward for forward, inverse in INVERSE.items()}
_KEEPS_STANDING = (EffectKind.RESERVE, EffectKind.SET_SOFT)
"""After a breach rollback these still stand, at other values: the baseline is not restored."""


# --- the beginning ---------------------------------------------------------------------------


def opened(launch: LaunchRequest, opening: Opening, now: datetime) -> Rollout:
    """A rollout at its start, wanting a plan. One that adopts a lost rollout's effects owes their undo."""
    adopted = bool(opening.adopted_from)
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
        standing=_KEEPS_STANDING if adopted else (),
        sight=Sight(known=opening.health),
    )
    text = f"launched by {launch.owner}" + (f", adopting {opening.adopted_from}" if adopted else "")
    return r.noting(
        AuditKind.COMMAND, text, now, actor=launch.owner, reason=launch.reason, command="launch", shadow=launch.shadow
    )


# --- plans -----------------------------------------------------------------------------------


def drafted(r: Rollout, baseline: Snapshot, reading: QuotaReading, plan: Plan, now: datetime) -> Rollout:
    """With a new plan, made from `baseline` (its quotas are the baseline; its islands are today's)."""
    first = r.plan is None
    if not r.effects_stand:
        r = r.but(
            baseline=baseline,
            generation=reading.generation,
            modes={q.team: q.mode for q in reading.quotas},
            written=reading.values,
        )
    r = r.but(plan=plan, replan="", look_asked=True).noting(
        AuditKind.PLAN,
        f"plan {plan.hash}: cut {plan.cut_gpus} of {plan.assigned_gpus} GPUs "
        f"({plan.phantom_gpus} never backed, {plan.to_flex_gpus} to flex), short by {plan.short_by_gpus}",
        now,
        plan=plan.hash,
        snapshot=plan.snapshot_hash,
        generation=plan.generation,
        approved=r.approved,
    )
    if first and not plan.backed and not r.effects_stand:
        why = "the plan is not backed by healthy GPUs, so it cannot be launched"
        if plan.suffices is not None:
            why += f"; max_tier {plan.suffices} would suffice"
        return r.but(ended_because=why).reaching(Stage.ABORTED, now, why)
    if not first and not r.approved:
        r = telling(r, NoticeKind.HELD, [], now, detail=f"plan {plan.hash} is outside what was approved")
        if r.realigning:
            hold = Hold(
                id="realign",
                kind=HoldKind.BREACH,
                actor="guard",
                at=now,
                reason=f"the realigned plan {plan.hash} is outside what was approved: approve it or roll back",
            )
            return holding(r, hold, now)
    return r


def draft_failed(r: Rollout, reason: str, now: datetime) -> Rollout:
    """No plan could be made: the first ends the rollout, a later one holds it."""
    if r.plan is None:
        return r.but(ended_because=reason, replan="").reaching(Stage.ABORTED, now, reason)
    hold = Hold(id="replan", kind=HoldKind.DRIFT, reason=f"no new plan: {reason}", actor="planner", at=now)
    return holding(r.but(replan="", realigning=False), hold, now)


# --- looks -----------------------------------------------------------------------------------


def looked(r: Rollout, seen: Observation, now: datetime, fence: int | None = None) -> Rollout:
    """After a fresh look: sight, timers, drift, holds that end by themselves.

    `fence`: the counter when the look began. A look that an effect overtook says nothing about drift.
    """
    before_risk, before_unknown = r.clocks.at_risk, r.sight.unknown
    sight = (
        r.sight
        if seen.health is None
        else r.sight.seeing(seen.health, r.policy.plausible_drop, r.policy.confirm_samples)
    )
    believed = sight.suspect is None and sight.known is not None
    r = r.but(
        sight=sight,
        seen=seen,
        looked_at=now,
        look_asked=False,
        look_failed="",
        looked_after=r.fence if fence is None else fence,
    )
    if believed:
        r = r.but(clocks=r.clocks.seeing(seen.counted, now, r.policy.clear_after))
    if sight.unknown and not before_unknown:
        r = r.noting(AuditKind.GUARD, "health is UNKNOWN: the drop is implausible and awaits confirmation", now)
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
    return _drifted(r, now)


def look_failed(r: Rollout, reason: str, now: datetime) -> Rollout:
    """The cluster could not be looked at; what was known stands."""
    return r.but(look_asked=False, look_failed=reason, looked_at=now)


def _drifted(r: Rollout, now: datetime) -> Rollout:
    assert r.seen is not None
    if r.looked_after != r.fence:
        return r
    moved = r.seen.reading.generation != r.generation
    values = drift_of(r)
    if not moved and not values:
        return lifting(r, "drift", now, "backstop", "the values are ours again")
    if r.stage is Stage.PLANNED and not r.effects_stand:
        return r if r.replan else r.but(replan="others changed the cluster")
    if any(h.id == "drift" for h in r.holds):
        return r
    if not values:  # tree, islands, T or floors changed; no value of ours was touched
        return taken_as_given(r, now)
    what = ", ".join(values)
    r = r.noting(AuditKind.GUARD, f"drift: {what}", now, drift=list(values))
    match r.policy.on_drift:
        case OnDrift.ACCEPT:
            return taken_as_given(r, now)
        case OnDrift.RESTORE if r.stage.guarded and r.plan is not None and not r.shadow:
            return believing(r).but(realigning=True, done=())
        case _:
            hold = Hold(id="drift", kind=HoldKind.DRIFT, actor="guard", at=now, reason=f"changed by others: {what}")
            return holding(r, hold, now)


# --- time ------------------------------------------------------------------------------------


def advance(r: Rollout, now: datetime) -> Rollout:
    """What follows from the passing of time alone. Called before each decision; idempotent."""
    if r.stage is Stage.ROLLING_BACK and not r.owed:
        return _rolled_back(r, now)
    if r.stage is Stage.PLANNED:
        r = _noticing(r, now)
    due = breach_due(r)
    if due is not None and now >= due:
        return _breached(r, now)
    retry = retry_due(r, now)
    if retry is not None and now >= retry:
        return next_attempt(r, now, "backstop", "health has been good long enough")
    return _good_again(r, now)


def _good_again(r: Rollout, now: datetime) -> Rollout:
    """A held breach that has cleared for long enough is over; soaks start anew."""
    if r.breach_of and r.stage.guarded and not r.aiming and r.clocks.good_for(now) >= r.policy.clear_after:
        for hold_id in ("breach", "realign"):
            r = lifting(r, hold_id, now, "guard", "backed again")
        if r.realigning:
            r = r.but(realigning=False, replan="backed again")
        return r.but(breach_of=(), soak_since=now).noting(AuditKind.GUARD, "backed again: the promise holds", now)
    return r


def _breached(r: Rollout, now: datetime) -> Rollout:
    teams = r.clocks.breached(now, r.policy.breach_after)
    if not teams:
        return r
    if r.stage is Stage.PLANNED:
        return r.but(replan="today's health no longer backs the plan", clocks=type(r.clocks)())
    lacking = {t: r.clocks.at_risk.get(t, 0) for t in teams}
    text = ", ".join(f"{t} lacks {gpus} GPUs" for t, gpus in lacking.items())
    r = r.noting(AuditKind.GUARD, f"breach: {text}", now, breach=lacking)
    r = telling(r.but(breach_of=teams), NoticeKind.BREACH, teams, now, detail=text)
    match r.policy.on_breach:
        case OnBreach.ROLLBACK:
            return r.but(aiming=teams)
        case OnBreach.HOLD:
            hold = Hold(id="breach", kind=HoldKind.BREACH, reason=text, actor="guard", at=now)
            return telling(holding(r, hold, now), NoticeKind.HELD, [], now, detail=text)
        case OnBreach.REALIGN:
            return r.but(realigning=True, done=(), replan=f"realign: {text}")


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
        broken_floors=target.broken_floors,
    )
    begun = r.but(
        order=order,
        owed=tuple(reversed(r.standing)),
        stuck_on=(),
        aiming=(),
        failures=r.failures + 1,
        realigning=False,
        replan="",
    )
    return begun.reaching(Stage.ROLLING_BACK, now, order.reason, "guard")


def aim_failed(r: Rollout, error: str, reason: str, now: datetime) -> Rollout:
    """The breach cannot be answered automatically: too many at once, or no target."""
    kind = HoldKind.BLAST_RADIUS if error == "BlastRadius" else HoldKind.BREACH
    hold = Hold(id=kind.value, kind=kind, reason=reason, actor="guard", at=now)
    return telling(holding(r.but(aiming=()), hold, now), NoticeKind.HELD, [], now, detail=reason)


def _rolled_back(r: Rollout, now: datetime) -> Rollout:
    assert r.order is not None
    if r.stuck_on:
        why = "; ".join(f"{u.kind} is not undone: {u.reason}" for u in r.stuck_on)
        stuck = telling(r, NoticeKind.STUCK, [], now, detail=why)
        return stuck.reaching(Stage.STUCK, now, why)
    order, breach = r.order, r.order.why is Why.BREACH
    r = r.but(
        standing=_KEEPS_STANDING if breach else (),
        foreign=() if not breach else r.foreign,
        clocks=type(r.clocks)(),
        breach_of=(),
    )
    floors = f"; broken floors: {'; '.join(order.broken_floors)}" if order.broken_floors else ""
    r = r.reaching(Stage.ROLLED_BACK, now, f"{order.why}{floors}", order.actor)
    told = r.affected if not breach else list(r.baseline.tree.leaves)
    r = telling(r, NoticeKind.ROLLED_BACK, told, now, detail=order.reason + floors)
    if order.then is Stage.ABORTED:
        return r.but(ended_because=order.reason).reaching(Stage.ABORTED, now, order.reason, order.actor)
    if breach and not retries_by_itself(r):
        detail = f"{r.failures} attempts have failed; `retry` or `close` it"
        r = telling(r, NoticeKind.HELD, [], now, detail=detail)
    return r


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
    r = r.but(receipts=(*r.receipts[-20:], receipt), written={**r.written, **receipt.after})
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
    for conflict in receipt.conflicts:
        r = r.but(foreign=tuple(sorted({*r.foreign, conflict.team}))).noting(
            AuditKind.EFFECT,
            f"conflict: {conflict.team} holds {conflict.found_gpus}, not {conflict.expected_gpus}; left alone",
            now,
            conflict=conflict.model_dump(mode="json"),
        )
    if kind in FORWARD:
        return _undone(r, FORWARD[kind])
    if kind is EffectKind.CLOSE:
        return r.but(done=(EffectKind.CLOSE,), standing=())
    if r.stage is Stage.ROLLING_BACK or r.stage.ended:
        return r  # an undo was ordered while this was under way; it is owed already
    r = r.but(done=(*r.done, kind), exempt=False)
    return _realigned(r, now) if r.realigning else _stepped(r, now)


def _undone(r: Rollout, forward: EffectKind) -> Rollout:
    return r.but(
        owed=tuple(k for k in r.owed if k is not forward),
        standing=tuple(k for k in r.standing if k is not forward),
    )


def _realigned(r: Rollout, now: datetime) -> Rollout:
    if EffectKind.SET_SOFT not in r.done:
        return r
    r = lifting(lifting(r, "realign", now, "backstop", "written"), "drift", now, "backstop", "written")
    r = r.but(realigning=False, done=(), breach_of=(), clocks=type(r.clocks)(), soak_since=now, look_asked=True)
    return telling(r, NoticeKind.CHANGED, r.affected, now, detail="the quotas were realigned in place")


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
        r = r.but(clocks=type(r.clocks)())
    if step.target is Stage.MONITORED:
        r = r.but(completed=True, failures=0)
    r = r.reaching(step.target, now, f"{step.gate} was open")
    return telling(r, _NOTICE_AT[step.target], r.affected, now)


def failed(r: Rollout, change: Change, error: str, reason: str, now: datetime) -> Rollout:
    """An effect failed for good. `error`: the class name of models.errors, or Temporal's own."""
    kind = change.kind
    r = r.noting(AuditKind.EFFECT, f"{kind} failed: {reason}", now, effect=kind.value, error=error, failed=True)
    if error == "Conflict":
        stuck = telling(r.but(superseded=reason, owed=(), aiming=()), NoticeKind.STUCK, [], now, detail=reason)
        return stuck if r.stage.ended else stuck.reaching(Stage.STUCK, now, f"superseded: {reason}")
    if kind is EffectKind.CLOSE:
        return r.but(done=(EffectKind.CLOSE,))
    if kind in FORWARD:
        forward = FORWARD[kind]
        return r.but(
            owed=tuple(k for k in r.owed if k is not forward),
            stuck_on=(*r.stuck_on, Undone(kind=forward, reason=reason)),
        )
    if error in ("Drift", "BlastRadius") and kind not in r.stood:
        r = _undone(r, kind)  # both say that nothing was written, so nothing is owed for this call
    if r.stage is Stage.ROLLING_BACK:
        return r
    if error == "Drift":
        return r.but(look_asked=True, done=(), realigning=False)
    if error == "BlastRadius":
        hold = Hold(id="blast_radius", kind=HoldKind.BLAST_RADIUS, reason=reason, actor="backstop", at=now)
        held = holding(r.but(done=(), realigning=False), hold, now)
        return telling(held, NoticeKind.HELD, [], now, detail=reason)
    return undoing(r, now, actor="backstop", reason=f"{kind} failed: {reason}")


# --- notices and the archive -----------------------------------------------------------------


def _noticing(r: Rollout, now: datetime) -> Rollout:
    """Once a plan is approved, tell whom it cuts; later only those whose cut grew."""
    if r.plan is None or r.replan or not r.approved:
        return r
    cuts = {q.team: q.cut_gpus for q in r.plan.quotas if q.leaf and q.cut_gpus}
    grown = [t for t, cut in cuts.items() if cut > r.told_cuts.get(t, 0)]
    if grown:
        kind = NoticeKind.CHANGED if r.told_cuts else NoticeKind.PLANNED
        r = r.but(told_cuts={**r.told_cuts, **{t: cuts[t] for t in grown}}, notified_at=None, undelivered=())
        return telling(r, kind, grown, now, effective_at=now + r.policy.notice)
    if r.notified_at is None and not r.undelivered and not _in_the_mail(r):
        return r.but(notified_at=now)
    return r


def _in_the_mail(r: Rollout) -> bool:
    return any(n.kind in (NoticeKind.PLANNED, NoticeKind.CHANGED) for n in r.mail)


def telling(r: Rollout, kind: NoticeKind, teams: Iterable[str], now: datetime, **fields: Any) -> Rollout:
    """With a notice to each team in the mail; to the owner where no team is named."""
    audiences = list(teams) or ([r.owner] if kind in (NoticeKind.HELD, NoticeKind.STUCK) else [])
    rows = {} if r.plan is None else {q.team: q for q in r.plan.quotas}
    before = {q.team: q.gpus for q in r.baseline.quotas}
    backing = {} if r.seen is None else r.seen.backing
    for audience in audiences:
        row = rows.get(audience)
        after = r.written.get(audience) if kind is NoticeKind.ROLLED_BACK else None
        if after is None and row is not None:
            after = row.after_gpus
        notice = Notice(
            key=f"{r.id}/{r.serial + 1:06d}/{kind}",
            kind=kind,
            cluster=r.cluster,
            audience=audience,
            owner=r.owner,
            before_gpus=before.get(audience),
            after_gpus=after,
            phantom_gpus=row.phantom_gpus if row is not None else 0,
            to_flex_gpus=row.to_flex_gpus if row is not None else 0,
            reasons=tuple(c.reason for c in row.cuts) if row is not None else (),
            backing_gpus=backing.get(audience),
            stage=r.stage.value,
            shadow=r.shadow,
            **fields,
        )
        r = r.but(serial=r.serial + 1, mail=(*r.mail, notice))
    return r


def posted(r: Rollout, notice: Notice, deliveries: tuple[Delivery, ...], now: datetime) -> Rollout:
    """A notice has been delivered."""
    return r.but(mail=tuple(n for n in r.mail if n.key != notice.key)).noting(
        AuditKind.NOTICE,
        f"{notice.audience} was told: {notice.kind}",
        now,
        notice=notice.kind.value,
        key=notice.key,
        deliveries=[d.model_dump(mode="json") for d in deliveries],
    )


def undeliverable(r: Rollout, notice: Notice, reason: str, now: datetime) -> Rollout:
    """A notice cannot be delivered at all: a person has to know."""
    r = r.but(
        mail=tuple(n for n in r.mail if n.key != notice.key),
        undelivered=(*r.undelivered, f"{notice.audience}: {reason}")
        if notice.kind in (NoticeKind.PLANNED, NoticeKind.CHANGED)
        else r.undelivered,
    )
    return r.noting(AuditKind.NOTICE, f"{notice.audience} could not be told: {reason}", now, failed=True)


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
    "opened",
    "posted",
    "recorded",
    "telling",
    "undeliverable",
]
