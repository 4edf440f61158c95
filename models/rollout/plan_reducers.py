"""What planning brought, taken into a rollout's state: its opening, plans, the target of a breach rollback.

Every function answers a new Rollout; none decides what to do next (models/rollout/decide.py does).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from models.audit import BACKSTOP, AuditEntry, AuditKind
from models.base import gpus_text
from models.cluster.policy import RollbackTo
from models.cluster.snapshot import Snapshot, on_islands
from models.notices import NoticeKind
from models.planning.breach import BreachTarget
from models.planning.plan import Envelope
from models.rollout.commands import (
    breach_holding,
    holding,
    lifting,
    undoing,
    without_own_holds,
)
from models.rollout.drift import met
from models.rollout.effect_table import KEPT_IN_A_BREACH
from models.rollout.effects import EffectKind
from models.rollout.gates import changed_by_others, theirs
from models.rollout.guard import Clocks, Sight
from models.rollout.holds import REALIGN, REPLAN, ROLLBACK, Hold, HoldKind
from models.rollout.messages import Drafted, LaunchRequest, Opening
from models.rollout.shown import UNGUARDED
from models.rollout.stages import Command, Stage, command_line
from models.rollout.state import Approval, PublishedFlex, Rollout, Stay, Undo, UndoCause

_LAPSED = "its history was cut short and lacks effects that the ledger has"


def opened(launch: LaunchRequest, opening: Opening, now: datetime) -> Rollout:
    """A rollout at its start, wanting a plan. One that adopts a lost rollout's effects owes their undo.

    What others have changed since the lost one wrote is drift to it as it was to that one.
    """
    adopted = bool(opening.adopted_from)
    follows = (EffectKind.FOLLOW,) if opening.reading.follows_health else ()
    r = Rollout(
        cluster=launch.cluster,
        id=opening.rollout or launch.rollout,
        owner=launch.owner,
        shadow=launch.shadow,
        ticketed=opening.ticketed,
        launched_at=now,
        policy=opening.policy,
        baseline=opening.baseline,
        modes=opening.modes,
        generation=opening.reading.generation,
        stay=Stay(since=now, soak_since=now, replan="the first plan"),
        written=opening.written or opening.reading.values,
        unapproved=_added_since(opening.envelope, opening.baseline),
        flex=PublishedFlex(gpus=opening.reading.flex_gpus if adopted else None),
        standing=(*KEPT_IN_A_BREACH, *follows) if adopted else (),
        sight=Sight(known=opening.health),
        approval=None if opening.envelope is None else Approval(envelope=opening.envelope, by=launch.approved_by),
    )
    if opening.rollout:
        why = f"{_LAPSED}. It has adopted them, and {UNGUARDED}: see `{command_line('status', r.cluster)}` and approve "
        why += f"the plan, or restore the baseline with `{command_line(Command.ABORT, r.cluster)}`"
        r = r.telling(NoticeKind.HELD, [], detail=why)
    by = launch.actor or launch.owner
    text = f"launched by {by}" + (" (shadow)" if launch.shadow else "")
    text += f" in fleet rollout {launch.fleet}" if launch.fleet else ""
    text += f", adopting {opening.adopted_from}" if adopted else ""
    text += f", because {_LAPSED}" if opening.rollout else ""
    return r.noting(
        AuditKind.COMMAND,
        text,
        now,
        actor=by,
        reason=launch.reason,
        command="launch",
        shadow=launch.shadow,
        **({"warrant": on.warrant} if (on := opening.admitted) and on.warrant else {}),
    )


def _added_since(envelope: Envelope | None, baseline: Snapshot) -> dict[str, int | None]:
    """Quotas that were not there when it was approved."""
    return {} if envelope is None else {q.team: None for q in baseline.quotas if q.team not in envelope.largest_cut}


def opened_again(
    r: Rollout, launch: LaunchRequest, opening: Opening, now: datetime, heard: Sequence[AuditEntry] = ()
) -> Rollout:
    """The rollout begins anew from what the ledger has, as its history lacked effects: people are asked again.

    What people hold it for and an undo that a person ordered still count. `heard`: of these entries, which no call
    archives, the commands are archived under other keys: the lost history had used those.
    """
    held = tuple(h for h in r.holds if h.kind in (HoldKind.PAUSED, HoldKind.OBJECTION))
    again = opened(launch, opening, now).but(holds=held)
    for entry in heard:
        if entry.kind is AuditKind.COMMAND:
            again = again.noting(
                entry.kind, entry.text, entry.at, actor=entry.actor, reason=entry.reason, **dict(entry.data)
            )
    undo = r.undo
    if undo is not None and undo.why is UndoCause.UNDO and r.stage in (Stage.ROLLING_BACK, Stage.STUCK):
        return undoing(again, now, actor=undo.actor, reason=undo.reason, then=undo.then)
    if r.stage is Stage.ABORTED:  # as if nothing had been applied
        return undoing(again, now, actor=BACKSTOP, reason=r.ended_because, then=Stage.ABORTED)
    return again


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
            unapproved=_added_since(r.envelope, baseline),
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
            f"plan {plan.hash}: cut {plan.cut_gpus:,} of {gpus_text(plan.assigned_gpus)} {plan.composition}, "
            f"short by {plan.short_by_gpus:,}",
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


def aimed(r: Rollout, target: BreachTarget, now: datetime) -> Rollout:
    """The breach rollback begins, towards backed values (or the baseline, if the policy says so)."""
    if not r.stay.aiming:
        return r  # a person's undo came first
    if r.stage is Stage.ROLLING_BACK:
        return _aimed_again(r, target, now)
    values, others = target.values, theirs(r)
    if r.policy.rollback_to is RollbackTo.BASELINE:
        values = {q.team: q.gpus for q in r.baseline.quotas}
    values = {team: gpus for team, gpus in values.items() if team not in others}
    text = r.clocks.lacks(r.stay.aiming)
    undo = Undo(
        why=UndoCause.BREACH,
        actor="guard",
        reason=f"breach: {text}",
        at=now,
        target=values,
        changed=changed_by_others(r),
        broken_floors=target.broken_floors,
        taken={} if r.policy.rollback_to is RollbackTo.BASELINE else target.taken,
        owed=tuple(reversed(r.standing)),
    )
    begun = without_own_holds(met(r, others, r.written)).but(undo=undo, failures=r.failures + 1)
    return begun.reaching(Stage.ROLLING_BACK, now, undo.reason, "guard")


def _aimed_again(r: Rollout, target: BreachTarget, now: datetime) -> Rollout:
    others = theirs(r)
    values = {team: gpus for team, gpus in target.values.items() if team not in others}
    r = met(r, others, r.written).staying(aiming=())
    r = r.rolling_back(target=values, broken_floors=target.broken_floors, taken=target.taken)
    return r.noting(AuditKind.GUARD, f"aimed again: others changed {', '.join(sorted(others))} meanwhile", now)


def aim_failed(r: Rollout, error: str, reason: str, now: datetime) -> Rollout:
    """The breach cannot be answered automatically: too many at once, or no target."""
    if not r.stay.aiming or r.stage is Stage.ROLLING_BACK:
        return r.staying(aiming=())
    kind = HoldKind.BLAST_RADIUS if error == "BlastRadius" else HoldKind.BREACH
    return breach_holding(r.staying(aiming=()), ROLLBACK, reason, now, kind)
