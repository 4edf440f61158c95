"""What happened, taken into a rollout's state: its opening, plans, looks, time.

Effects: models/rollout/effect_reducers.py.

Every function answers a new Rollout; none decides what to do next (models/rollout/decide.py does).
"""

from __future__ import annotations

from datetime import datetime

from models.audit import BACKSTOP, AuditKind
from models.cluster.policy import OnBreach, RollbackTo
from models.cluster.snapshot import on_islands
from models.notices import NoticeKind
from models.planning.plan import BreachTarget
from models.rollout import granting
from models.rollout.commands import (
    breach_holding,
    holding,
    lifting,
    next_attempt,
    without_own_holds,
)
from models.rollout.decide import (
    answered,
    breach_due,
    clear_due,
    looked_recently,
    retries_by_itself,
    retry_due,
)
from models.rollout.effect_table import KEPT_IN_A_BREACH
from models.rollout.effects import EffectKind
from models.rollout.gates import changed_by_others, health_fresh
from models.rollout.guard import Clocks, Sight
from models.rollout.holds import BREACH, REALIGN, REPLAN, ROLLBACK, Hold, HoldKind
from models.rollout.long_run import given_up
from models.rollout.mailing import noticing
from models.rollout.messages import Drafted, LaunchRequest, Opening
from models.rollout.stages import Stage
from models.rollout.state import Approval, PublishedFlex, Realigning, Rollout, Stay, Undo, UndoCause
from models.rollout.stuck import calling

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
        stay=Stay(since=now, soak_since=now, replan="the first plan"),
        written=opening.reading.values,
        flex=PublishedFlex(gpus=opening.reading.flex_gpus if adopted else None),
        standing=(*KEPT_IN_A_BREACH, *follows) if adopted else (),
        sight=Sight(known=opening.health),
        approval=None if opening.envelope is None else Approval(envelope=opening.envelope, by=launch.approved_by),
    )
    by = launch.actor or launch.owner
    text = f"launched by {by}" + (" (shadow)" if launch.shadow else "")
    text += f" in fleet rollout {launch.fleet}" if launch.fleet else ""
    text += f", adopting {opening.adopted_from}" if adopted else ""
    return r.noting(
        AuditKind.COMMAND, text, now, actor=by, reason=launch.reason, command="launch", shadow=launch.shadow
    )


# --- plans -----------------------------------------------------------------------------------


def drafted(r: Rollout, draft: Drafted, now: datetime) -> Rollout:
    """With a new plan, made from the draft's baseline (its quotas are the baseline; its islands are today's)."""
    if not _wants_plan(r):
        return r  # somebody's command came first
    baseline, reading, plan = draft.baseline, draft.reading, draft.plan
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
    if r.stay.realigning is None:
        r = r.but(clocks=Clocks())
    else:
        r = r.staying(realigning=r.stay.realigning.but(before=r.plan_standing))
    r = (
        r.but(plan=plan, look_asked=True)
        .staying(replan="", done=())
        .noting(
            AuditKind.PLAN,
            f"plan {plan.hash}: cut {plan.cut_gpus} of {plan.assigned_gpus} GPUs "
            f"({plan.phantom_gpus} never backed, {plan.to_flex_gpus} to flex), short by {plan.short_by_gpus}",
            now,
            plan=plan.hash,
            snapshot=plan.snapshot_hash,
            generation=plan.generation,
            approved=r.but(plan=plan).approved,
        )
    )
    if first and plan.fault and not r.effects_stand:
        why = "the plan is not backed by healthy GPUs, so it cannot be launched" if plan.honest else plan.fault
        if plan.honest and plan.suffices is not None:
            why += f"; max_tier {plan.suffices} would suffice"
        return r.but(ended_because=why).reaching(Stage.ABORTED, now, why)
    r = lifting(r, REPLAN, now, BACKSTOP, f"plan {plan.hash} was made")
    if r.realigning:
        return _proposed(r, now)
    if not first and not r.approved:
        r = r.staying(waived=False)  # what was promised of an earlier plan does not hold for this one
        if was_approved:
            r = r.telling(NoticeKind.HELD, [], detail=f"plan {plan.hash} is outside what was approved")
    return r


def _wants_plan(r: Rollout) -> bool:
    return bool(r.stay.replan) and (r.stage is Stage.PLANNED or (r.stage.guarded and r.realigning))


def _proposed(r: Rollout, now: datetime) -> Rollout:
    """A realignment goes on by itself inside the envelope and where it is backed; else it holds."""
    assert r.plan is not None
    if r.approved and not r.plan.fault:
        return lifting(r, REALIGN, now, BACKSTOP, f"plan {r.plan.hash} is inside what was approved")
    why = "outside what was approved: approve it or roll back"
    if not r.plan.backed:
        why = f"not backed by today's health within max_tier {r.plan.max_tier}: roll back, or wait for the hardware"
    if not r.plan.honest:
        why = f"nothing to go by: {r.plan.fault}"
    return breach_holding(r, REALIGN, f"the realigned plan {r.plan.hash} is {why}", now)


def draft_failed(r: Rollout, reason: str, now: datetime) -> Rollout:
    """No plan could be made: the first ends the rollout, a later one holds it."""
    if not _wants_plan(r):
        return r
    if r.plan is None and not r.effects_stand:
        return r.but(ended_because=reason).reaching(Stage.ABORTED, now, reason)
    if r.realigning:
        return breach_holding(r.staying(replan=""), REALIGN, f"no new plan: {reason}", now)
    hold = Hold(id=REPLAN, kind=HoldKind.DRIFT, reason=f"no new plan: {reason}", actor="planner", at=now)
    r = r.staying(replan="")
    if any(h.id == REPLAN and h.reason == hold.reason for h in r.holds):
        return r
    return holding(r, hold, now).telling(NoticeKind.HELD, [], detail=hold.reason)


# --- time ------------------------------------------------------------------------------------


def advance(r: Rollout, now: datetime) -> Rollout:
    """What follows from the passing of time alone. Called before each decision; idempotent.

    The guard acts on a fresh look only, so that what ended unseen has no consequence; where looking
    fails, a breach goes by what is known, and nothing gets better by itself.
    """
    r = granting.looked(granting.settled(r), now)
    if r.stage is Stage.ROLLING_BACK and not r.owed:
        return _rolled_back(r, now)
    if r.stage is Stage.PLANNED:
        r = noticing(r, now)
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
    r = r.but(breach_of=(), plan=r.plan_standing).staying(soak_since=now, realigning=None, replan="", done=())
    return r.noting(AuditKind.GUARD, "backed again: the promise holds", now)


def _breached(r: Rollout, now: datetime) -> Rollout:
    teams = r.clocks.breached(now, r.policy.breach_after)
    if r.stage is Stage.PLANNED:
        return r.but(clocks=Clocks()).staying(replan="today's health no longer backs the plan")
    news = tuple(t for t in teams if t not in r.breach_of)
    lacking = {t: r.clocks.at_risk.get(t, 0) for t in teams}
    text = ", ".join(f"{t} lacks {gpus} GPUs" for t, gpus in lacking.items())
    if r.proposing:
        r = given_up(r, "a quota is in breach", now)
    r = r.looking_out(proposal=None, reconsider=())
    waits = answered(r)
    if news:
        r = r.but(breach_of=tuple(sorted({*r.breach_of, *news})))
        r = r.noting(AuditKind.GUARD, f"breach: {text}", now, breach=lacking)
        r = r.telling(NoticeKind.BREACH, news, detail=text)
    match r.policy.on_breach:
        case OnBreach.HOLD:
            return breach_holding(r, BREACH, text, now)
        case OnBreach.ROLLBACK if not waits:
            return r.staying(aiming=r.breach_of)
        case OnBreach.REALIGN if not waits:
            realigning = Realigning(before=r.plan_standing)
            return r.staying(realigning=realigning, restoring=False, done=(), replan=f"realign: {text}")
        case _:
            return r


def aimed(r: Rollout, target: BreachTarget, now: datetime) -> Rollout:
    """The breach rollback begins, towards backed values (or the baseline, if the policy says so)."""
    if not r.stay.aiming:
        return r  # a person's undo came first
    values = target.values
    if r.policy.rollback_to is RollbackTo.BASELINE:
        values = {q.team: q.gpus for q in r.baseline.quotas}
    text = ", ".join(f"{t} lacks {r.clocks.at_risk.get(t, 0)} GPUs" for t in r.stay.aiming)
    undo = Undo(
        why=UndoCause.BREACH,
        actor="guard",
        reason=f"breach: {text}",
        at=now,
        target=values,
        changed=changed_by_others(r),
        broken_floors=target.broken_floors,
        owed=tuple(reversed(r.standing)),
    )
    begun = without_own_holds(r).but(undo=undo, failures=r.failures + 1)
    return begun.reaching(Stage.ROLLING_BACK, now, undo.reason, "guard")


def aim_failed(r: Rollout, error: str, reason: str, now: datetime) -> Rollout:
    """The breach cannot be answered automatically: too many at once, or no target."""
    if not r.stay.aiming:
        return r
    kind = HoldKind.BLAST_RADIUS if error == "BlastRadius" else HoldKind.BREACH
    return breach_holding(r.staying(aiming=()), ROLLBACK, reason, now, kind)


def _rolled_back(r: Rollout, now: datetime) -> Rollout:
    assert r.undo is not None
    if r.stuck_on:
        why = "; ".join(f"{u.kind} is not undone: {u.reason}" for u in r.stuck_on)
        return calling(r, f"{r.undo.why}, by {r.undo.actor}: {r.undo.reason}").reaching(Stage.STUCK, now, why)
    undo, breach = r.undo, r.undo.why is UndoCause.BREACH
    notes = [f"broken floors: {'; '.join(undo.broken_floors)}"] if undo.broken_floors else []
    if r.foreign:
        notes.append(f"left as others changed it: {', '.join(r.foreign)}")
    more = "".join(f"; {note}" for note in notes)
    r = r.but(
        standing=KEPT_IN_A_BREACH if breach else (),
        foreign=r.foreign if breach else (),
        attempted={},
        clocks=Clocks(),
        breach_of=(),
    )
    data = {"breach_seconds": (now - undo.at).total_seconds()} if breach else {}
    r = r.reaching(Stage.ROLLED_BACK, now, f"{undo.why}{more}", undo.actor, **data)
    told = list(r.baseline.tree.leaves) if breach else r.affected
    r = r.telling(NoticeKind.ROLLED_BACK, told, detail=undo.reason + more)
    if undo.then is Stage.ABORTED:
        return r.but(ended_because=undo.reason).reaching(Stage.ABORTED, now, undo.reason, undo.actor)
    if breach and not retries_by_itself(r):
        r = r.telling(NoticeKind.HELD, [], detail=f"{r.failures} attempts have failed; `retry` or `close` it")
    if not breach and undo.actor == BACKSTOP:
        r = r.telling(NoticeKind.HELD, [], detail=f"undone: {undo.reason}; `retry` or `close` it")
    return r
