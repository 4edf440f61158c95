"""Long-run health: when it asks for another plan, what is proposed on it, and when that may be written by itself."""

from __future__ import annotations

from datetime import datetime

from models.audit import AuditKind
from models.base import duration_text, gpus_text
from models.cluster.derived_buffer import Derived, followed
from models.cluster.policy import OnLongRun
from models.notices import NoticeKind
from models.planning.plan import Plan
from models.rollout.decide import at_rest
from models.rollout.stages import Stage
from models.rollout.state import Proposal, Realigning, Rollout, proposed_changes


def may_propose(r: Rollout, now: datetime) -> bool:
    """A plan on the long-run health may be proposed, as far as time and what is under way go."""
    if r.stage is not Stage.MONITORED or r.policy.on_long_run is OnLongRun.IGNORE or r.realigning or r.stay.replan:
        return False
    return r.proposed_at is None or now - r.proposed_at >= r.policy.replan_window


def derives(r: Rollout, now: datetime) -> bool:
    """A buffer from health history is derived anew once in a window, if a plan may come of it."""
    return may_propose(r, now) and now - (r.stay.outlook.derived_at or r.stay.since) >= r.policy.replan_window


def may_apply(r: Rollout, now: datetime) -> bool:
    """The proposal may be written: approved itself, or inside what was and the policy lets it; and nothing holds."""
    if r.proposal is None or r.envelope is None or r.realigning or not at_rest(r, now):
        return False
    plan = r.proposal.plan
    if plan.hash == r.envelope.plan_hash:
        return True
    return r.policy.on_long_run is OnLongRun.APPLY and r.envelope.holds(plan) and not promises_less(r, plan)


def promises_less(r: Rollout, plan: Plan) -> bool:
    """Health history lets the plan promise less than the one that stands: a person decides, whatever was approved."""
    if plan.derived is None or r.plan is None or r.plan.derived is None:
        return False
    return (plan.derived.promise or 0) < (r.plan.derived.promise or 0)


def considered(r: Rollout, now: datetime) -> Rollout:
    """A proposal that has become stale goes, one that may be written is, and another is made where health moved."""
    seen = r.seen
    assert seen is not None
    if r.proposal is not None and r.proposal.plan.generation != seen.reading.generation:
        r = (
            r.but(proposed_at=None)
            .looking_out(proposal=None, considered_gpus=None)
            .noting(
                AuditKind.PLAN,
                f"the proposed plan {r.proposal.plan.hash} is given up: others changed the cluster",
                now,
            )
        )
    if may_apply(r, now):
        return _begun(r, now)
    if r.plan is None or not may_propose(r, now) or not at_rest(r, now):
        return r
    if seen.derived is not None:
        r = _rederived(r, seen.derived, now)
    usual = sum(i.healthy_gpus for i in seen.long_run)
    if not seen.long_run or r.stay.outlook.reconsider or r.plan is None:
        return r
    gpus_before = r.plan.healthy_gpus if r.stay.outlook.considered_gpus is None else r.stay.outlook.considered_gpus
    least = r.baseline.gpus_per_node if r.policy.replan_gpus is None else r.policy.replan_gpus
    return r.looking_out(reconsider=seen.long_run) if abs(usual - gpus_before) > least else r


def _rederived(r: Rollout, found: Derived, now: datetime) -> Rollout:
    """The buffer asked of health history once more: where it moves the promise, a plan is wanted."""
    seen = r.seen
    assert seen is not None
    assert r.plan is not None
    standing, of = (None, None) if r.plan.derived is None else (r.plan.derived.promise, r.plan.derived.total)
    promise = followed(standing, found, of=of)
    text = f"the buffer is derived anew: {found.needed:,} of {gpus_text(found.total)}, {found.text}"
    r = r.looking_out(derived_at=now).noting(AuditKind.PLAN, text, now, promised=standing, may_promise=promise)
    islands = seen.long_run or (() if seen.health is None else seen.health.islands)
    return r if promise == standing else r.looking_out(reconsider=islands)


def _begun(r: Rollout, now: datetime) -> Rollout:
    assert r.proposal is not None
    plan = r.proposal.plan
    begun = r.but(plan=plan).staying(realigning=Realigning(before=r.plan, proposed=True), done=())
    begun = begun.looking_out(proposal=None)
    why = "approved" if r.envelope is not None and r.envelope.plan_hash == plan.hash else "inside what was approved"
    return begun.noting(AuditKind.PLAN, f"the proposed plan {plan.hash} is written: {why}", now, plan=plan.hash)


def reconsidered(r: Rollout, plan: Plan, now: datetime) -> Rollout:
    """After a plan on the long-run health: a proposal, if it would change anything and nothing came first."""
    if (
        not r.stay.outlook.reconsider
        or not at_rest(r, now)
        or r.realigning
        or plan.generation != r.generation
        or r.plan is None
    ):
        return r.looking_out(reconsider=())
    before, gpus_before = r.plan.healthy_gpus, r.stay.outlook.considered_gpus
    r = r.looking_out(reconsider=(), considered_gpus=plan.healthy_gpus)
    moved = proposed_changes(r, plan)
    if not moved:
        return r
    r = r.but(proposed_at=now).looking_out(proposal=None if plan.fault else Proposal(plan=plan, at=now))
    inside = r.envelope is not None and r.envelope.holds(plan)
    window = duration_text(r.policy.replan_window)
    text = f"on the usual health of {window} ({gpus_text(plan.healthy_gpus)} healthy, {before:,} when planned): "
    text += ", ".join(f"{t} {old:,} -> {new:,}" for t, (old, new) in moved.items())
    text += (
        "" if plan.derived is None else f"; buffer {plan.derived.needed:,} of {plan.total_gpus:,}: {plan.derived.text}"
    )
    text += f"; {'inside' if inside else 'outside'} what was approved"
    if not plan.honest:
        text += f"; it cannot be approved: {plan.fault}"
    elif not plan.backed:
        text += f"; not backed within max_tier {plan.max_tier}, so it cannot be approved"
    r = r.noting(
        AuditKind.PLAN,
        f"proposed plan {plan.hash} {text}",
        now,
        plan=plan.hash,
        changes={team: list(values) for team, values in moved.items()},
        healthy_gpus=plan.healthy_gpus,
        considered_gpus=gpus_before,
        inside=inside,
    )
    if not plan.fault and may_apply(r, now):
        return _begun(r, now)
    return r.telling(NoticeKind.HELD, [], detail=f"plan {plan.hash} is proposed {text}")


def not_reconsidered(r: Rollout, reason: str, now: datetime) -> Rollout:
    """No proposal could be made; the next one is tried when another would be due."""
    tried = r.but(proposed_at=now).looking_out(reconsider=())
    return tried.noting(AuditKind.PLAN, f"no plan is proposed: {reason}", now)


def given_up(r: Rollout, why: str, now: datetime) -> Rollout:
    """The proposal under way comes to nothing; the plan that stood stands."""
    assert r.plan is not None
    back = r.but(plan=r.plan_standing, look_asked=True).staying(realigning=None, done=())
    return back.noting(AuditKind.PLAN, f"the proposed plan {r.plan.hash} is given up: {why}", now)
