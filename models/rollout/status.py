"""The status of a rollout as people see it, derived from its state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from models.base import duration_text
from models.cluster.readings import PresentBacking
from models.cluster.windows import Foretold
from models.lifecycle.holds import PROPOSAL, HoldKind, standing_text
from models.lifecycle.workflow_actions import Wait
from models.planning.busy_work import short_of_work
from models.planning.window_forecast import forecast_windows
from models.rollout.available_commands import lifters, lifters_by_hold, lifting_line, lifts, lifts_by_hold
from models.rollout.commands import may_lift
from models.rollout.decide import decide, flex_due, recovery_pause, retries_by_itself, retry_due
from models.rollout.drift import beyond_bound, promised_teams
from models.rollout.flex_following import flex_published
from models.rollout.gates import beyond_of, conditions, doubt_of, drift_of, gate_of, holds_now, is_health_fresh
from models.rollout.messages import LaunchAnswer, LaunchRequest
from models.rollout.proposals import may_apply, proposed_changes
from models.rollout.stages import Command, Stage, command_line
from models.rollout.state import Rollout
from models.rollout.status_models import (
    CEILING_SETTINGS,
    UNGUARDED,
    Condition,
    ProposalStatus,
    ProposedValue,
    Risk,
    RolloutNote,
    RolloutStatus,
    TeamStatus,
    WouldStand,
)
from models.rollout.stuck import LAUNCH, choices, undo_status
from models.texts import gpus_text, verb_of

_TEXT, _TEAMS = 500, 20
"""The most characters of a condition, and the most teams, that the ledger keeps for reports."""


def status_of(rollout: Rollout, now: datetime, *, history_events: int = 0, runs: int = 1) -> RolloutStatus:
    """The status of a rollout at a time."""
    seen, plan = rollout.seen, rollout.plan
    action = decide(rollout, now)
    stands = PresentBacking() if seen is None else seen.now
    return RolloutStatus(
        schema="backstop.status/1",
        cluster=rollout.cluster,
        rollout=rollout.id,
        owner=rollout.owner,
        shadow=rollout.shadow,
        stage=rollout.stage,
        entered_at=rollout.stay.since,
        at=now,
        attempt=rollout.attempt,
        failures=rollout.failures,
        attempts=rollout.policy.attempts,
        plan_hash=None if plan is None else plan.hash,
        approved_by=rollout.approved_by if rollout.is_approved else "",
        envelope_holds=rollout.is_approved,
        wave="" if plan is None else plan.wave_name,
        total_gpus=rollout.baseline.total_gpus if seen is None or seen.health is None else seen.health.total_gpus,
        healthy_gpus=None if rollout.sight.known is None else rollout.sight.known.healthy_gpus,
        doubted_gpus=_doubted_gpus(rollout),
        # Before a source came into doubt each island had its best at a time of its own.
        health_at=None if rollout.sight.known is None or rollout.sight.doubted else rollout.sight.known.at,
        health_known=is_health_fresh(rollout),
        health_fault="" if seen is None else seen.fault,
        assigned_gpus=stands.assigned_gpus,
        backed_gpus=stands.backed_gpus,
        phantom_gpus=stands.phantom_gpus,
        flex_gpus=stands.flex_gpus,
        buffer=None if plan is None else plan.derived,
        buffer_at=rollout.stay.outlook.derived_at,
        proposal=_proposal(rollout),
        flex_published_gpus=_published_gpus(rollout) if rollout.stage is Stage.MONITORED else None,
        would=_would_stand(rollout),
        flex_grows_at=None if rollout.flex.more_since is None else flex_due(rollout),
        cut_gpus=0 if plan is None else plan.cut_gpus,
        gate=gate_of(rollout.stage),
        waiting_for=(*(c for c in conditions(rollout, now) if not c.met), *_recovery(rollout, now)),
        next_at=action.ahead_of(now) if isinstance(action, Wait) else None,
        holds=holds_now(rollout, now),
        recorded_objections=tuple(h for h in rollout.holds if h.after_enforced),
        lifts=lifts_by_hold(rollout, now),
        may_lift=lifters_by_hold(rollout, now),
        at_risk=_risks(rollout),
        foretold=_forecasts(rollout, now),
        breach_of=rollout.breach_of,
        undoing=undo_status(rollout),
        teams=_teams(rollout),
        needs=(needs := needs_of(rollout, now)),
        lifters=lifters(rollout, needs, now),
        unguarded=is_unguarded(rollout),
        stale_after=rollout.policy.stale_after,
        ended_because=rollout.ended_because,
        look_failed="" if rollout.stage.has_ended else rollout.look_failed,
        fence=rollout.fence,
        history_events=history_events,
        runs=runs,
    )


def note_of(rollout: Rollout, now: datetime) -> RolloutNote:
    """Return what the ledger keeps of the status for reports. It stays the same while only time passes."""
    gate = [c for c in conditions(rollout, now) if c.name != "holds" and (not c.met or c.until is not None)]
    quotas = rollout.written if rollout.shadow else present_values(rollout)
    lacking = {team: min(gpus, quotas.get(team, 0)) for team, gpus in rollout.at_risk.items()}
    lacking_gpus, due = sum(lacking.values()), None
    if lacking:
        clocks = (rollout.clocks.by_team[team] for team in lacking if team in rollout.clocks.by_team)
        times = (clock.breaches_at(rollout.policy.breach_after) for clock in clocks)
        due = min((at for at in times if at is not None), default=None)
    elif rollout.seen is not None and (lacking_gpus := rollout.seen.now.phantom_gpus):
        lacking = {t.team: 0 for t in _teams(rollout) if t.leaf and (t.backing_gpus or 0) < t.quota_gpus}
    return RolloutNote(
        entered_at=rollout.stay.since,
        wave="" if rollout.plan is None else rollout.plan.wave_name,
        waits=tuple(c.but(met=False, text=c.text[:_TEXT]) for c in gate),
        lacking_gpus=lacking_gpus,
        lacking_teams=tuple(lacking)[:_TEAMS],
        lacking_team_count=len(lacking),
        breach_at=due,
        ceiling=rollout.policy.model_dump(mode="json", include=set(CEILING_SETTINGS)),
    )


def launch_answer(rollout: Rollout) -> LaunchAnswer:
    """Return the answer to a launch, once there is a plan or the rollout has ended."""
    return LaunchAnswer(
        launched=not rollout.stage.has_ended,
        rollout=rollout.id,
        cluster=rollout.cluster,
        stage=rollout.stage,
        reason=rollout.ended_because,
        plan=rollout.plan,
        lifters=may_lift(rollout, objection=True),
        deciders=may_lift(rollout, objection=False),
    )


def launch_refused(launch: LaunchRequest, why: str) -> LaunchAnswer:
    return LaunchAnswer(launched=False, rollout=launch.rollout, cluster=launch.cluster, stage=Stage.ABORTED, reason=why)


def _recovery(rollout: Rollout, now: datetime) -> tuple[Condition, ...]:
    """Return what the next attempt waits for after a breach rollback, while health backs its plan."""
    due = retry_due(rollout, now)
    if due is None:
        return ()
    text = f"waits for health that backs the plan for {duration_text(recovery_pause(rollout))} without a break"
    return (Condition(name="recovery", met=False, text=text, until=due),)


def _proposal(rollout: Rollout) -> ProposalStatus | None:
    if rollout.proposal is None or rollout.plan is None:
        return None
    plan = rollout.proposal.plan
    return ProposalStatus(
        plan_hash=plan.hash,
        at=rollout.proposal.at,
        healthy_gpus=plan.healthy_gpus,
        planned_gpus=rollout.plan.healthy_gpus,
        inside=rollout.envelope is not None and rollout.envelope.holds(plan),
        buffer=plan.derived,
        values=tuple(
            ProposedValue(team=team, quota_gpus=old, proposed_gpus=new)
            for team, (old, new) in proposed_changes(rollout, plan).items()
        ),
    )


def _risks(rollout: Rollout) -> tuple[Risk, ...]:
    """Return both numbers of each quota that lacks hardware, or would in shadow; the last known if that is unknown."""
    quotas = rollout.written if rollout.shadow else present_values(rollout)
    work = () if rollout.seen is None else rollout.seen.work
    due = {team: clock.breaches_at(rollout.policy.breach_after) for team, clock in rollout.clocks.by_team.items()}
    return tuple(
        Risk(
            team=team,
            quota_gpus=quotas.get(team, 0),
            backing_gpus=max(0, quotas.get(team, 0) - missing),
            breach_at=due.get(team),
            yields=short_of_work([w for w in work if w.team == team], {team: quotas.get(team, 0) - missing}, quotas),
        )
        for team, missing in rollout.at_risk.items()
    )


def _forecasts(rollout: Rollout, now: datetime) -> tuple[Foretold, ...]:
    """Return the forecast for declared windows at the quota system's last seen values."""
    if rollout.stage.has_ended or rollout.seen is None or rollout.seen.health is None or not rollout.seen.windows:
        return ()
    values = present_values(rollout)
    quotas = tuple(
        p.model_copy(update={"gpus": values.get(p.team, p.gpus)}).as_quota() for p in rollout.seen.reading.quotas
    )
    return forecast_windows(rollout.cluster, quotas, rollout.seen.health.islands, rollout.seen.windows, now)


def present_values(rollout: Rollout) -> dict[str, int]:
    """Return the values that the quota system holds, as last seen or as written since."""
    if rollout.shadow:
        return rollout.baseline.values if rollout.seen is None else rollout.seen.reading.values
    return rollout.written if rollout.seen is None or rollout.is_overtaken else rollout.seen.reading.values


def _published_gpus(rollout: Rollout) -> int | None:
    """Return the surplus that a scheduler reads; in shadow, what others publish."""
    if not rollout.shadow:
        return flex_published(rollout)
    return None if rollout.seen is None else rollout.seen.reading.flex_gpus


def _would_stand(rollout: Rollout) -> WouldStand | None:
    stands = _rehearsed_backing(rollout) if rollout.shadow else None
    if stands is None:
        return None
    return WouldStand(
        assigned_gpus=stands.assigned_gpus,
        backed_gpus=stands.backed_gpus,
        phantom_gpus=stands.phantom_gpus,
        flex_gpus=stands.flex_gpus,
        flex_published_gpus=flex_published(rollout) if rollout.stage is Stage.MONITORED else None,
    )


def _rehearsed_backing(rollout: Rollout) -> PresentBacking | None:
    """Return the backing of a shadow's values; None if no look tested them.

    After an undo a rollout looks at the next attempt's values: its own are the baseline again or, after a breach, the
    values that hardware backed then.
    """
    if rollout.seen is None or rollout.stage is Stage.PLANNED or rollout.written.items() <= rollout.seen.tested.items():
        return backing_now(rollout)
    return rollout.seen.now if rollout.written.items() <= rollout.seen.reading.values.items() else None


def _doubted_gpus(rollout: Rollout) -> int | None:
    """Return the healthy GPUs of the sample that the last look used, if the guard does not believe it."""
    suspect = rollout.sight.suspect
    if suspect is None or rollout.seen is None or rollout.seen.health != suspect:
        return None
    return suspect.healthy_gpus


def backing_now(rollout: Rollout) -> PresentBacking:
    """Return the backing of the present values; in shadow, of the values that the last look tested.

    Temporal's search attributes hold it and are set when it changes, so its value is part of a workflow's shape.
    """
    if rollout.seen is None:
        return PresentBacking()
    return rollout.seen.model_copy(update={"present": None}).now if rollout.shadow else rollout.seen.now


def _teams(rollout: Rollout) -> tuple[TeamStatus, ...]:
    tree = rollout.baseline.tree
    present = present_values(rollout)
    # A look that our write overtook has not seen the new values.
    seen = {} if rollout.seen is None else rollout.seen.reading.values
    stands = {} if rollout.seen is None else rollout.seen.now.backing
    backing = {t: gpus for t, gpus in stands.items() if seen.get(t) == present.get(t)}
    tested = {} if rollout.seen is None or not rollout.shadow else rollout.seen.tested
    # Before a plan is written, show the values it would write, as the sums do.
    would = {**rollout.written, **tested} if rollout.stage is Stage.PLANNED else rollout.written
    rehearsed = _rehearsed_backing(rollout) if rollout.shadow else None
    behind = {} if rehearsed is None else rehearsed.backing
    promises = promised_teams(rollout, present)
    return tuple(
        TeamStatus(
            team=quota.team,
            parent=quota.parent,
            leaf=quota.team not in tree.children,
            baseline_gpus=quota.gpus,
            quota_gpus=present.get(quota.team, 0),
            planned_gpus=None if rollout.plan is None else rollout.plan.values.get(quota.team),
            backing_gpus=backing.get(quota.team),
            would_gpus=would.get(quota.team, 0) if rollout.shadow else None,
            would_backing_gpus=behind.get(quota.team) if rollout.shadow else None,
            promise=quota.team in promises,
            acknowledged=quota.team in rollout.announced.acks,
        )
        for quota in rollout.baseline.quotas
    )


def needs_of(rollout: Rollout, now: datetime) -> str:
    """Return what a person has to do for the rollout to go on; empty if it goes on by itself."""
    if rollout.stage.has_ended:
        return ""
    needs = (
        _stuck_needs(rollout),
        _plan_needs(rollout),
        _hold_needs(rollout, now),
        _unpromised_needs(rollout),
        _proposal_needs(rollout, now),
        _mail_needs(rollout),
        _breach_needs(rollout),
    )
    need = next((need for need in needs if need), "")
    return f"{UNGUARDED}; {need}" if need and is_unguarded(rollout) else need


def is_unguarded(rollout: Rollout) -> bool:
    """Return whether it took over quotas that an earlier run had cut, and its own first step has not begun."""
    return rollout.stage is Stage.PLANNED and rollout.attempt == 1 and rollout.values_stand and not rollout.stay.done


def _line(rollout: Rollout, command: Command) -> str:
    return command_line(command, rollout.cluster)


def _stuck_needs(rollout: Rollout) -> str:
    if rollout.stage is not Stage.STUCK:
        return ""
    lines = [c.line for c in choices(rollout) if c.command != LAUNCH]
    if rollout.superseded:
        return f"a newer rollout owns the cluster ({rollout.superseded}). Give: {lines[0]}"
    return f"mend the cause, then give: {lines[0]}, or end the rollout as it is: {lines[1]}"


def _plan_needs(rollout: Rollout) -> str:
    if rollout.plan is None or rollout.stay.replan or not (rollout.stage is Stage.PLANNED or rollout.is_realigning):
        return ""
    if not rollout.plan.honest:
        return f"{rollout.plan.fault}: wait for better health, or {_line(rollout, Command.ABORT)} --reason ..."
    if not rollout.plan.backed:
        return f"today's health does not back the plan: wait for it, or {_line(rollout, Command.ABORT)} --reason ..."
    if rollout.is_approved:
        return ""
    undo = f", or restore the baseline: {_line(rollout, Command.ABORT)} --reason ..." if is_unguarded(rollout) else ""
    return f"approve the plan: {_line(rollout, Command.APPROVE)} --plan {rollout.plan.hash}{undo}"


def _hold_needs(rollout: Rollout, now: datetime) -> str:
    for hold in holds_now(rollout, now):
        if hold.kind is HoldKind.PAUSED:
            return f"paused by {hold.actor}: {_line(rollout, Command.RESUME)}"
        if hold.kind is HoldKind.UNKNOWN_HEALTH and (doubt := doubt_of(rollout)) is not None:
            return f"{hold.reason}: mend the source; if its figures are right, confirm them: {doubt.confirm_line}"
        if hold.kind is HoldKind.UNKNOWN_HEALTH and (beyond := beyond_of(rollout)) is not None:
            return f"{beyond.text}: mend the source, or import the cluster's new total"
        if hold.kind is HoldKind.UNKNOWN_HEALTH and rollout.sight.suspect is None:
            return f"{hold.reason}: mend the health source"
        if hold.kind is HoldKind.MERGE:
            return f"{hold.reason}. Merge the branch, or delete it to decline the effect"
        if hold.until is None and lifts(rollout, hold):
            return f"{standing_text(hold)}: {lifting_line(rollout, hold)}"
    return ""


NOBODY_APPROVED = "nobody approved"
ABOVE_ITS_PARENT = "the quotas above do not allow"


def _unpromised_needs(rollout: Rollout) -> str:
    """Name the quotas that are no promise though the stage promises, unless a breach withdrew them."""
    if not rollout.stage.promises or rollout.shadow or rollout.seen is None:
        return ""
    present = present_values(rollout)
    kept = promised_teams(rollout, present)
    leaves = [t for t in rollout.baseline.tree.leaves if t in present and t not in kept and t not in rollout.breach_of]
    others = [f"{team} at {present[team]:,}" for team in leaves if team in rollout.unapproved]
    beyond = [f"{team} at {present[team]:,}" for team in leaves if team not in rollout.unapproved]
    wrong = [f"{NOBODY_APPROVED} {', '.join(others)}"] if others else []
    wrong += [f"{ABOVE_ITS_PARENT} {', '.join(beyond)}"] if beyond else []
    return f"{'; '.join(wrong)}: no promise. {_promise_again_text(rollout, present)}" if wrong else ""


def _promise_again_text(rollout: Rollout, present: Mapping[str, int]) -> str:
    close = "To keep the present value, close the rollout, then launch and approve a new rollout"
    beyond = beyond_bound(rollout, present)
    if beyond is None:
        return f"Set the earlier value again in the quota system. {close}"
    needed, bound = beyond
    limit = f"The limit above all quotas is {gpus_text(bound)}, and the quotas need {needed:,}"
    if not rollout.stay.refitting:
        return f"{limit}: lower these quotas in the quota system. {close}"
    if drift_of(rollout):
        return f"{limit}: the limit follows once the drift is resolved"
    if rollout.seen is not None and rollout.seen.is_backed and is_health_fresh(rollout):
        return f"{limit}: the limit follows with the next write"
    healthy = "health is unknown" if not is_health_fresh(rollout) else "healthy GPUs do not back them"
    return f"{limit}: the limit stays while {healthy}"


def _proposal_needs(rollout: Rollout, now: datetime) -> str:
    if rollout.proposal is None or may_apply(rollout, now):
        return ""
    return (
        f"a new plan is proposed: {_line(rollout, Command.APPROVE)} --plan {rollout.proposal.plan.hash}, or decline "
        f"it: {_line(rollout, Command.RESOLVE)} --hold {PROPOSAL} --reason ..."
    )


def _mail_needs(rollout: Rollout) -> str:
    undelivered = rollout.announced.undelivered
    if not undelivered or rollout.stay.waived or rollout.stage is not Stage.PLANNED:
        return ""
    return (
        f"a notice could not be delivered ({'; '.join(undelivered)}): tell the team, then "
        f"{_line(rollout, Command.PROMOTE)} --reason ..."
    )


def _breach_needs(rollout: Rollout) -> str:
    if rollout.breach_of and rollout.stage.is_guarded and not (rollout.stay.aiming or rollout.stay.replan):
        lack = verb_of(len(rollout.breach_of), "lacks", "lack")
        undo = _line(rollout, Command.ROLLBACK)
        return f"{', '.join(rollout.breach_of)} {lack} hardware: wait for it, or {undo} --reason ..."
    if rollout.stage is Stage.ROLLED_BACK and not retries_by_itself(rollout):
        return f"rolled back: {_line(rollout, Command.RETRY)}, or {_line(rollout, Command.CLOSE)}"
    if rollout.stage is Stage.ROLLED_BACK and rollout.clocks.all_good_since is None:
        again = _line(rollout, Command.RETRY)
        return f"today's health does not back the plan: wait for better health, or plan with today's: {again}"
    late = next((h for h in rollout.holds if h.after_enforced), None)
    if late is None:
        return ""
    return f"answer {late.actor}: {late.reason}, then: {lifting_line(rollout, late)}" if lifts(rollout, late) else ""


def waiting_sentence(rollout: Rollout, now: datetime) -> str:
    """Return one sentence for the Temporal UI about what the rollout waits for."""
    if retries_by_itself(rollout):
        return f"waits until health has been good for {duration_text(recovery_pause(rollout))}"
    unmet = [c.text for c in conditions(rollout, now) if not c.met]
    return "; ".join(unmet) if unmet else "watches"


def details_of(rollout: Rollout, now: datetime) -> str:
    """Return the rollout's details for Temporal's UI, in Markdown."""
    stage = f"{rollout.stage}**{' (shadow)' if rollout.shadow else ''}"
    lines = [f"**{rollout.cluster}** is **{stage}, attempt {rollout.attempt}, owner {rollout.owner}"]
    if rollout.plan is not None:
        plan = rollout.plan
        lines.append(
            f"plan `{plan.hash}`: {plan.assigned_gpus:,} assigned, ceiling {plan.ceiling_gpus:,}, cut "
            f"{plan.cut_gpus:,} {plan.composition}, wave {plan.wave_name}"
        )
    if not rollout.stage.has_ended:
        lines.append(f"now: {waiting_sentence(rollout, now)}")
    if rollout.clocks.at_risk:
        lines.append("at risk: " + ", ".join(f"{t} lacks {g}" for t, g in rollout.clocks.at_risk.items()))
    if drift_of(rollout):
        lines.append("drift: " + ", ".join(drift_of(rollout)))
    return "\n\n".join(lines)
