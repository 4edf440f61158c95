"""Long-run health: when it asks for another plan, the proposal made on it, and when that is written by itself."""

from __future__ import annotations

from datetime import datetime

from models.audit_chain import AuditKind
from models.base import duration_text
from models.cluster.derived_buffer import Derived, follow_promise
from models.cluster.policy import OnLongRun
from models.notices import NoticeKind
from models.planning.plan import Plan
from models.rollout.decide import is_at_rest
from models.rollout.stages import Stage
from models.rollout.state import Proposal, Realigning, Rollout
from models.texts import gpus_text


def may_propose(rollout: Rollout, now: datetime) -> bool:
    """Return whether time and the work under way allow a proposal on the long-run health."""
    if (
        rollout.stage is not Stage.MONITORED
        or rollout.policy.on_long_run is OnLongRun.IGNORE
        or rollout.is_realigning
        or rollout.stay.replan
    ):
        return False
    return rollout.proposed_at is None or now - rollout.proposed_at >= rollout.policy.replan_window


def derives_buffer(rollout: Rollout, now: datetime) -> bool:
    """Return whether to derive the buffer from health history: once in a window, if a plan may come of it."""
    return (
        may_propose(rollout, now)
        and now - (rollout.stay.outlook.derived_at or rollout.stay.since) >= rollout.policy.replan_window
    )


def may_apply(rollout: Rollout, now: datetime) -> bool:
    """Return whether to write the proposal: approved, or inside the envelope if the policy allows, without holds."""
    if rollout.proposal is None or rollout.envelope is None or rollout.is_realigning or not is_at_rest(rollout, now):
        return False
    plan = rollout.proposal.plan
    return proposal_is_approved(rollout) or (
        rollout.policy.on_long_run is OnLongRun.APPLY
        and rollout.envelope.holds(plan)
        and not promises_less(rollout, plan)
    )


def proposal_is_approved(rollout: Rollout) -> bool:
    """Return whether a person has approved the proposal; one that promises less, since it was proposed."""
    proposal, envelope = rollout.proposal, rollout.envelope
    if proposal is None or envelope is None or envelope.plan_hash != proposal.plan.hash:
        return False
    return proposal.approved or not promises_less(rollout, proposal.plan)


def promises_less(rollout: Rollout, plan: Plan) -> bool:
    """Return whether the plan promises less than the one in force, by health history; then a person decides."""
    if plan.derived is None or rollout.plan is None or rollout.plan.derived is None:
        return False
    return (plan.derived.promise or 0) < (rollout.plan.derived.promise or 0)


def consider_proposal(rollout: Rollout, now: datetime) -> Rollout:
    """Drop a stale proposal, write one that may be written, or ask for another if health has moved."""
    seen = rollout.seen
    assert seen is not None
    if rollout.proposal is not None and rollout.proposal.plan.generation != seen.reading.generation:
        rollout = (
            rollout.but(proposed_at=None)
            .with_outlook(proposal=None, considered_gpus=None)
            .record(
                AuditKind.PLAN,
                f"the proposed plan {rollout.proposal.plan.hash} is dropped: others changed the cluster",
                now,
            )
        )
    if may_apply(rollout, now):
        return _begin_proposal(rollout, now)
    if rollout.plan is None or not may_propose(rollout, now) or not is_at_rest(rollout, now):
        return rollout
    if seen.derived is not None:
        rollout = _rederive_buffer(rollout, seen.derived, now)
    usual = sum(i.healthy_gpus for i in seen.long_run)
    if not seen.long_run or rollout.stay.outlook.reconsider or rollout.plan is None:
        return rollout
    considered = rollout.stay.outlook.considered_gpus
    gpus_before = rollout.plan.healthy_gpus if considered is None else considered
    least = rollout.baseline.gpus_per_node if rollout.policy.replan_gpus is None else rollout.policy.replan_gpus
    return rollout.with_outlook(reconsider=seen.long_run) if abs(usual - gpus_before) > least else rollout


def _rederive_buffer(rollout: Rollout, derived: Derived, now: datetime) -> Rollout:
    """Apply a newly derived buffer: ask for a plan if it moves the promise."""
    seen = rollout.seen
    assert seen is not None
    assert rollout.plan is not None
    before = rollout.plan.derived
    standing, of = (None, None) if before is None else (before.promise, before.total)
    promise = follow_promise(standing, derived, of=of)
    text = f"Backstop derived the buffer again: {derived.needed:,} of {gpus_text(derived.total)}; {derived.text}"
    rollout = rollout.with_outlook(derived_at=now).record(
        AuditKind.PLAN, text, now, promised=standing, may_promise=promise
    )
    islands = seen.long_run or (() if seen.health is None else seen.health.islands)
    return rollout if promise == standing else rollout.with_outlook(reconsider=islands)


def _begin_proposal(rollout: Rollout, now: datetime) -> Rollout:
    assert rollout.proposal is not None
    plan = rollout.proposal.plan
    begun = rollout.but(plan=plan).with_stay(realigning=Realigning(before=rollout.plan, proposed=True), done=())
    begun = begun.with_outlook(proposal=None)
    why = "approved" if proposal_is_approved(rollout) else "inside what was approved"
    return begun.record(AuditKind.PLAN, f"the proposed plan {plan.hash} is written: {why}", now, plan=plan.hash)


def take_proposal(rollout: Rollout, plan: Plan, now: datetime) -> Rollout:
    """Propose a plan made on the long-run health, if it changes a quota and nothing else came first."""
    if (
        not rollout.stay.outlook.reconsider
        or not is_at_rest(rollout, now)
        or rollout.is_realigning
        or plan.generation != rollout.generation
        or rollout.plan is None
    ):
        return rollout.with_outlook(reconsider=())
    before, gpus_before = rollout.plan.healthy_gpus, rollout.stay.outlook.considered_gpus
    rollout = rollout.with_outlook(reconsider=(), considered_gpus=plan.healthy_gpus)
    moved = proposed_changes(rollout, plan)
    if not moved:
        return rollout
    rollout = rollout.but(proposed_at=now).with_outlook(proposal=None if plan.fault else Proposal(plan=plan, at=now))
    inside = rollout.envelope is not None and rollout.envelope.holds(plan)
    window = duration_text(rollout.policy.replan_window)
    healthy = f"{gpus_text(plan.healthy_gpus)} healthy, {before:,} when the plan in force was made"
    text = f"on the usual health of the last {window} ({healthy}): "
    text += ", ".join(f"{t} {old:,} -> {new:,}" for t, (old, new) in moved.items())
    if plan.derived is not None:
        text += f"; buffer {plan.derived.needed:,} of {plan.total_gpus:,}: {plan.derived.text}"
    text += f"; it is {'inside' if inside else 'outside'} what was approved"
    if not plan.honest:
        text += f"; it cannot be approved: {plan.fault}"
    elif not plan.backed:
        text += f"; healthy GPUs do not back it within max_tier {plan.max_tier}, so it cannot be approved"
    rollout = rollout.record(
        AuditKind.PLAN,
        f"proposed plan {plan.hash} {text}",
        now,
        plan=plan.hash,
        changes={team: list(values) for team, values in moved.items()},
        healthy_gpus=plan.healthy_gpus,
        considered_gpus=gpus_before,
        inside=inside,
    )
    if not plan.fault and may_apply(rollout, now):
        return _begin_proposal(rollout, now)
    return rollout.notify(NoticeKind.HELD, [], detail=f"plan {plan.hash} is proposed {text}")


def proposed_changes(rollout: Rollout, plan: Plan) -> dict[str, tuple[int, int]]:
    """Return the present and planned value of each leaf quota that the plan would change, by team."""
    values = {quota.team: quota.after_gpus for quota in plan.quotas if quota.leaf}
    return {t: (rollout.written[t], gpus) for t, gpus in values.items() if rollout.written.get(t, gpus) != gpus}


def drop_proposal(rollout: Rollout, reason: str, now: datetime) -> Rollout:
    """Note that no proposal could be made; the next is tried when another would be due."""
    tried = rollout.but(proposed_at=now).with_outlook(reconsider=())
    return tried.record(AuditKind.PLAN, f"no plan is proposed: {reason}", now)


def give_up_proposal(rollout: Rollout, why: str, now: datetime) -> Rollout:
    """Give up the proposal being written; the plan before it stays in force."""
    assert rollout.plan is not None
    back = rollout.but(plan=rollout.standing_plan, look_asked=True).with_stay(realigning=None, done=())
    return back.record(AuditKind.PLAN, f"the proposed plan {rollout.plan.hash} is dropped: {why}", now)
