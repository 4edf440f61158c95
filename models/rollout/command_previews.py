"""A preview of a command before a person gives it: the plan that an approval names, the quotas that an undo restores.

Nothing here changes a rollout. The same functions that obey the command compute the figures, so a person gets exactly
what they agree to.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pydantic import Field

from models.base import GpuCount, Model, Name
from models.lifecycle.state_machine import Refused
from models.planning.plan import Plan
from models.rollout.commands import backing_for, reason_refusal, start_undo
from models.rollout.mailing import newly_cut
from models.rollout.promotion_text import unwaived_conditions
from models.rollout.proposals import proposal_is_approved
from models.rollout.stages import Command, Stage, answer
from models.rollout.state import Rollout
from models.rollout.status import present_values


class TeamBack(Model):
    """A leaf quota whose present value an undo would change. Units: whole GPUs."""

    team: Name
    gpus: GpuCount
    """The present quota."""
    back_gpus: GpuCount
    """The quota after the undo."""
    backing_gpus: GpuCount | None
    """GPUs of `back_gpus` that today's hardware would back, shared with all other quotas; null: health is unknown."""
    by_others: bool = False
    """Somebody else changed the quota: Backstop leaves it alone, and `back_gpus` is the present quota."""


class Ahead(Model):
    """The consequences that commands to one rollout would have now."""

    cluster: Name
    rollout: str
    stage: Stage
    shadow: bool = False
    plan: Plan | None = None
    """The plan that waits for an approval; null: none."""
    undoes: tuple[str, ...] = ()
    """The effects that an abort or a rollback would undo, in order; empty: no effect is in force."""
    undone: bool = False
    """An earlier rollback has undone every applied effect."""
    back: tuple[TeamBack, ...] = ()
    """The quotas that an undo would change, or that others have changed."""
    unbacked_gpus: GpuCount = 0
    """GPUs that the undo would promise without a healthy GPU behind them today."""
    told: tuple[Name, ...] = ()
    """Teams that an abort or a rollback notifies; empty for a shadow, which writes only to its owner's log."""
    approve_told: tuple[Name, ...] | None = None
    """Teams notified when `plan` is approved or, for quotas in force, written; null: an earlier build did not say."""
    close_told: tuple[Name, ...] = ()
    """Teams that a close notifies, because their promise ends."""
    promote_leaves: tuple[str, ...] = ()
    """Conditions that a promote would not waive, one sentence each: missing notices, objections, other holds."""
    at_risk: dict[str, GpuCount] = Field(default_factory=dict)
    """GPUs that quotas lack now, by team."""

    def refusal(self, command: Command, reason: str) -> str:
        """Explain why the rollout would refuse the command, as far as this preview can tell; empty: it would not."""
        cell = answer(self.stage, command, effects_stand=bool(self.undoes))
        if isinstance(cell, Refused):
            return cell.reason
        if command is Command.CLOSE:
            return reason_refusal(self.stage, at_risk=bool(self.at_risk), reason=reason) or ""
        return ""


def ahead_of(rollout: Rollout, now: datetime) -> Ahead:
    """Preview the commands now. During or after a rollback, the undo covers what is still owed."""
    plan = _plan_to_approve(rollout)
    ahead = Ahead(
        cluster=rollout.cluster,
        rollout=rollout.id,
        stage=rollout.stage,
        shadow=rollout.shadow,
        plan=plan,
        undone=rollout.rollbacks > 0 and not rollout.effects_stand,
        close_told=_teams_notified(
            rollout, rollout.baseline.tree.leaves if rollout.values_stand else rollout.affected_teams
        ),
        approve_told=() if plan is None else _teams_notified(rollout, _teams_to_notify(rollout, plan)),
        promote_leaves=() if rollout.stay.waived else unwaived_conditions(rollout, now),
        at_risk=rollout.at_risk,
    )
    if not rollout.effects_stand or rollout.stage.has_ended:
        return ahead.but(told=_teams_notified(rollout, sorted(rollout.announced.cuts)))
    undone = rollout
    if rollout.stage not in (Stage.ROLLING_BACK, Stage.STUCK):
        undone = start_undo(rollout, now, actor=rollout.owner, reason="asked ahead")
    if undone.undo is None:  # stuck without an undo: somebody newer owns the cluster
        return ahead
    return ahead.but(
        undoes=tuple(kind.value for kind in undone.owed),
        back=() if rollout.shadow else _teams_back(rollout, undone),
        unbacked_gpus=undone.undo.unbacked_gpus,
        told=_teams_notified(rollout, rollout.affected_teams),
    )


def _teams_notified(rollout: Rollout, teams: Iterable[str]) -> tuple[str, ...]:
    """Return the teams, or none for a shadow, whose notices go to the log alone."""
    return () if rollout.shadow else tuple(teams)


def _plan_to_approve(rollout: Rollout) -> Plan | None:
    """Return the plan that `approve` would take: a proposal comes before the plan in force."""
    if rollout.proposal is not None:
        return None if proposal_is_approved(rollout) else rollout.proposal.plan
    return None if rollout.plan is None or rollout.stay.replan or rollout.is_approved else rollout.plan


def _teams_to_notify(rollout: Rollout, plan: Plan) -> Iterable[str]:
    """Return the teams to notify: of an approval, those with a larger cut; of a write in place, those it touches."""
    if not rollout.stage.is_guarded:
        return newly_cut(rollout, plan)
    before = rollout.standing_plan
    if rollout.proposal is None or before is None:
        return [quota.team for quota in plan.quotas if quota.leaf and quota.cut_gpus]
    return [quota.team for quota in plan.quotas if quota.leaf and before.values.get(quota.team) != quota.after_gpus]


def _teams_back(rollout: Rollout, undone: Rollout) -> tuple[TeamBack, ...]:
    assert undone.undo is not None
    present, target, changed = present_values(rollout), undone.undo.target, undone.undo.changed
    after = {team: changed.get(team, target.get(team, gpus)) for team, gpus in present.items()}
    backing = backing_for(rollout, after)
    return tuple(
        TeamBack(
            team=team,
            gpus=present[team],
            back_gpus=after[team],
            backing_gpus=None if backing is None else backing.of.get(team, 0),
            by_others=team in changed or team in rollout.foreign,
        )
        for team in sorted(rollout.baseline.tree.leaves)
        if team in present and (present[team] != after[team] or team in changed)
    )
