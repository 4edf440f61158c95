"""Outcomes of planning, applied to the state: the opening, plans, and the target of a breach rollback.

Every function returns a new Rollout; none decides what to do next (models/rollout/decide.py does).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from models.audit_chain import BACKSTOP, AuditEntry, AuditKind
from models.cluster.policy import RollbackTo
from models.cluster.snapshot import Snapshot, on_islands
from models.lifecycle.holds import REALIGN, REPLAN, ROLLBACK, Hold, HoldKind
from models.notices import NoticeKind
from models.planning.breach_target import BreachTarget
from models.planning.plan import Envelope
from models.rollout.commands import add_breach_hold, add_hold, lift_hold, start_undo, without_own_holds
from models.rollout.drift import note_others
from models.rollout.effect_table import KEPT_IN_A_BREACH
from models.rollout.effects import EffectKind
from models.rollout.gates import find_foreign_changes, values_of_others
from models.rollout.guard import Clocks, Sight
from models.rollout.messages import Drafted, LaunchRequest, Opening
from models.rollout.stages import Command, Stage, command_line
from models.rollout.state import Approval, PublishedFlex, Rollout, Stay, Undo, UndoCause
from models.rollout.status_models import UNGUARDED
from models.texts import gpus_text

_LAPSED = "its workflow history lacks changes that the ledger has (it was reset, or Temporal restored from a backup)"


def open_rollout(launch: LaunchRequest, opening: Opening, now: datetime) -> Rollout:
    """Open a rollout that wants a plan. One that adopts effects of a lost rollout owes their undo.

    Changes of others since the lost rollout wrote are drift to the new one too.
    """
    adopted = bool(opening.adopted_from)
    follows = (EffectKind.FOLLOW,) if opening.reading.follows_health else ()
    rollout = Rollout(
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
        unapproved=_quotas_added(opening.envelope, opening.baseline),
        flex=PublishedFlex(gpus=opening.reading.flex_gpus if adopted else None),
        standing=(*KEPT_IN_A_BREACH, *follows) if adopted else (),
        sight=Sight(known=opening.health),
        approval=None if opening.envelope is None else Approval(envelope=opening.envelope, by=launch.approved_by),
    )
    if opening.rollout:
        why = f"{_LAPSED}. The rollout has adopted them, and {UNGUARDED}: see "
        why += f"`{command_line('status', rollout.cluster)}` and approve the plan, or "
        why += f"restore the baseline with `{command_line(Command.ABORT, rollout.cluster)}`"
        rollout = rollout.notify(NoticeKind.HELD, [], detail=why)
    by = launch.actor or launch.owner
    text = f"launched by {by}" + (" (shadow)" if launch.shadow else "")
    text += f" in fleet rollout {launch.fleet}" if launch.fleet else ""
    text += f", adopting {opening.adopted_from}" if adopted else ""
    text += f", because {_LAPSED}" if opening.rollout else ""
    return rollout.record(
        AuditKind.COMMAND,
        text,
        now,
        actor=by,
        reason=launch.reason,
        command="launch",
        shadow=launch.shadow,
        **({"warrant": on.warrant} if (on := opening.admitted) and on.warrant else {}),
    )


def _quotas_added(envelope: Envelope | None, baseline: Snapshot) -> dict[str, int | None]:
    """Return the quotas that did not exist when the envelope was approved."""
    return (
        {}
        if envelope is None
        else {quota.team: None for quota in baseline.quotas if quota.team not in envelope.largest_cut}
    )


def reopen_rollout(
    rollout: Rollout, launch: LaunchRequest, opening: Opening, now: datetime, unarchived: Sequence[AuditEntry]
) -> Rollout:
    """Restart the rollout from the ledger, as its history lacked effects: people are asked again.

    Holds that people set, and an undo that a person ordered, still count. `unarchived`: entries that no call archives.
    The commands among them are archived under other keys, because the lost history had used theirs.
    """
    held = tuple(h for h in rollout.holds if h.kind in (HoldKind.PAUSED, HoldKind.OBJECTION))
    again = open_rollout(launch, opening, now).but(holds=held)
    for entry in unarchived:
        if entry.kind is AuditKind.COMMAND:
            again = again.record(
                entry.kind, entry.text, entry.at, actor=entry.actor, reason=entry.reason, **dict(entry.data)
            )
    undo = rollout.undo
    if undo is not None and undo.why is UndoCause.UNDO and rollout.stage in (Stage.ROLLING_BACK, Stage.STUCK):
        return start_undo(again, now, actor=undo.actor, reason=undo.reason, then=undo.then)
    if rollout.stage is Stage.ABORTED:  # it ended as if nothing had been applied
        return start_undo(again, now, actor=BACKSTOP, reason=rollout.ended_because, then=Stage.ABORTED)
    return again


def take_draft(rollout: Rollout, draft: Drafted, now: datetime) -> Rollout:
    """Apply a new plan. Its baseline has the baseline's quotas and today's islands."""
    if not _wants_plan(rollout):
        return rollout  # a command came first
    baseline, reading, plan = draft.baseline, draft.reading, draft.plan
    first, was_approved = rollout.plan is None, rollout.is_approved
    if rollout.values_stand:
        rollout = rollout.but(
            baseline=on_islands(baseline.model_copy(update={"quotas": rollout.baseline.quotas}), baseline.islands)
        )
    else:
        rollout = rollout.but(
            baseline=baseline,
            generation=reading.generation,
            modes={quota.team: quota.mode for quota in reading.quotas},
            written=reading.values,
            foreign=(),
            unapproved=_quotas_added(rollout.envelope, baseline),
        )
    if rollout.stay.realigning is None:
        rollout = rollout.but(clocks=Clocks())
    else:
        rollout = rollout.with_stay(realigning=rollout.stay.realigning.but(before=rollout.standing_plan))
    rollout = (
        rollout.but(plan=plan, look_asked=True)
        .with_stay(replan="", done=())
        .record(
            AuditKind.PLAN,
            f"plan {plan.hash}: cut {plan.cut_gpus:,} of {gpus_text(plan.assigned_gpus)} {plan.composition}, "
            f"short by {plan.short_by_gpus:,}",
            now,
            plan=plan.hash,
            snapshot=plan.snapshot_hash,
            generation=plan.generation,
            approved=rollout.but(plan=plan).is_approved,
        )
    )
    if first and plan.fault and not rollout.effects_stand:
        unbacked = f"the plan is not backed by healthy GPUs, so it cannot be launched{plan.why_unbacked}"
        why = unbacked if plan.honest else plan.fault
        return rollout.but(ended_because=why).enter_stage(Stage.ABORTED, now, why)
    rollout = lift_hold(rollout, REPLAN, now, BACKSTOP, f"plan {plan.hash} was made")
    if rollout.is_realigning:
        return _propose_realignment(rollout, now)
    if not first and not rollout.is_approved:
        rollout = rollout.with_stay(waived=False)  # a promotion of an earlier plan does not hold for this one
        if was_approved:
            rollout = rollout.notify(NoticeKind.HELD, [], detail=f"plan {plan.hash} is outside what was approved")
    return rollout


def _wants_plan(rollout: Rollout) -> bool:
    return bool(rollout.stay.replan) and (
        rollout.stage is Stage.PLANNED or (rollout.stage.is_guarded and rollout.is_realigning)
    )


def _propose_realignment(rollout: Rollout, now: datetime) -> Rollout:
    """Let a backed realignment inside the envelope go on by itself; hold any other."""
    assert rollout.plan is not None
    if rollout.is_approved and not rollout.plan.fault:
        return lift_hold(rollout, REALIGN, now, BACKSTOP, f"plan {rollout.plan.hash} is inside what was approved")
    why = "outside what was approved: approve it or roll back"
    if not rollout.plan.backed:
        why = (
            f"not backed by today's health within max_tier {rollout.plan.max_tier}: roll back, or wait for the hardware"
        )
    if not rollout.plan.honest:
        why = f"unusable: {rollout.plan.fault}"
    return add_breach_hold(rollout, REALIGN, f"the realigned plan {rollout.plan.hash} is {why}", now)


def fail_draft(rollout: Rollout, reason: str, now: datetime) -> Rollout:
    """Apply a failed plan: the first ends the rollout, a later one holds it."""
    if not _wants_plan(rollout):
        return rollout
    if rollout.plan is None and not rollout.effects_stand:
        return rollout.but(ended_because=reason).enter_stage(Stage.ABORTED, now, reason)
    if rollout.is_realigning:
        return add_breach_hold(rollout.with_stay(replan=""), REALIGN, f"no new plan: {reason}", now)
    hold = Hold(id=REPLAN, kind=HoldKind.DRIFT, reason=f"no new plan: {reason}", actor="planner", at=now)
    rollout = rollout.with_stay(replan="")
    if any(h.id == REPLAN and h.reason == hold.reason for h in rollout.holds):
        return rollout
    return add_hold(rollout, hold, now).notify(NoticeKind.HELD, [], detail=hold.reason)


def start_breach_rollback(rollout: Rollout, target: BreachTarget, now: datetime) -> Rollout:
    """Start the breach rollback, towards backed values (or the baseline, if the policy says so)."""
    if not rollout.stay.aiming:
        return rollout  # a person's undo came first
    if rollout.stage is Stage.ROLLING_BACK:
        return _renew_aim(rollout, target, now)
    values, others = target.values, values_of_others(rollout)
    if rollout.policy.rollback_to is RollbackTo.BASELINE:
        values = rollout.baseline.values
    values = {team: gpus for team, gpus in values.items() if team not in others}
    text = rollout.clocks.lacks(rollout.stay.aiming)
    undo = Undo(
        why=UndoCause.BREACH,
        actor="guard",
        reason=f"breach: {text}",
        at=now,
        target=values,
        changed=find_foreign_changes(rollout),
        broken_floors=target.broken_floors,
        taken={} if rollout.policy.rollback_to is RollbackTo.BASELINE else target.taken,
        owed=tuple(reversed(rollout.standing)),
    )
    begun = without_own_holds(note_others(rollout, others, rollout.written)).but(
        undo=undo, failures=rollout.failures + 1
    )
    return begun.enter_stage(Stage.ROLLING_BACK, now, undo.reason, "guard")


def _renew_aim(rollout: Rollout, target: BreachTarget, now: datetime) -> Rollout:
    others = values_of_others(rollout)
    values = {team: gpus for team, gpus in target.values.items() if team not in others}
    rollout = note_others(rollout, others, rollout.written).with_stay(aiming=())
    rollout = rollout.with_undo(target=values, broken_floors=target.broken_floors, taken=target.taken)
    return rollout.record(
        AuditKind.GUARD,
        f"Backstop computed the rollback's values again, as others changed {', '.join(sorted(others))}",
        now,
    )


def fail_aim(rollout: Rollout, error: str, reason: str, now: datetime) -> Rollout:
    """Hold for a person: too many clusters breach at once for an automatic answer, or there is no target."""
    if not rollout.stay.aiming or rollout.stage is Stage.ROLLING_BACK:
        return rollout.with_stay(aiming=())
    kind = HoldKind.BLAST_RADIUS if error == "BlastRadius" else HoldKind.BREACH
    return add_breach_hold(rollout.with_stay(aiming=()), ROLLBACK, reason, now, kind)
