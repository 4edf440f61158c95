"""Status: what a rollout looks like to people, derived from its state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from models.base import duration_text, gpus_text, verb_of
from models.cluster.readings import PresentBacking
from models.cluster.windows import Foretold
from models.lifecycle.actions import Wait
from models.planning.busy_work import short_of_work
from models.planning.window_forecast import foretold
from models.rollout.choices import lifted_by, lifters, lifting_line, lifts
from models.rollout.commands import may_lift
from models.rollout.decide import decide, flex_due, recovery_pause, retries_by_itself
from models.rollout.drift import beyond_bound, promised
from models.rollout.flex_following import flex_published
from models.rollout.gates import beyond_of, conditions, doubt_of, drift_of, gate_of, health_fresh, holds_now
from models.rollout.holds import PROPOSAL, HoldKind
from models.rollout.long_run import may_apply
from models.rollout.messages import LaunchAnswer, LaunchRequest
from models.rollout.shown import UNGUARDED, ProposalStatus, ProposedValue, Risk, RolloutStatus, TeamStatus, WouldStand
from models.rollout.stages import Command, Stage, command_line
from models.rollout.state import Rollout, UndoCause, proposed_changes
from models.rollout.stuck import LAUNCH, choices, undoing_of


def status_of(r: Rollout, now: datetime, *, history_events: int = 0, runs: int = 1) -> RolloutStatus:
    """The status of a rollout at a time."""
    seen, plan = r.seen, r.plan
    action = decide(r, now)
    stands = PresentBacking() if seen is None else seen.now
    return RolloutStatus(
        schema="backstop.status/1",
        cluster=r.cluster,
        rollout=r.id,
        owner=r.owner,
        shadow=r.shadow,
        stage=r.stage,
        entered_at=r.stay.since,
        at=now,
        attempt=r.attempt,
        failures=r.failures,
        attempts=r.policy.attempts,
        plan_hash=None if plan is None else plan.hash,
        approved_by=r.approved_by if r.approved else "",
        envelope_holds=r.approved,
        wave="" if plan is None else plan.wave.value,
        total_gpus=r.baseline.total_gpus if seen is None or seen.health is None else seen.health.total_gpus,
        healthy_gpus=None if r.sight.known is None else r.sight.known.healthy_gpus,
        doubted_gpus=_doubted_gpus(r),
        health_at=None if r.sight.known is None else r.sight.known.at,
        health_known=health_fresh(r),
        health_fault="" if seen is None else seen.fault,
        assigned_gpus=stands.assigned_gpus,
        backed_gpus=stands.backed_gpus,
        phantom_gpus=max(0, stands.assigned_gpus - stands.backed_gpus),
        flex_gpus=stands.flex_gpus,
        buffer=None if plan is None else plan.derived,
        buffer_at=r.stay.outlook.derived_at,
        proposal=_proposal(r),
        flex_published_gpus=_published(r) if r.stage is Stage.MONITORED else None,
        would=_would(r),
        flex_grows_at=None if r.flex.more_since is None else flex_due(r),
        cut_gpus=0 if plan is None else plan.cut_gpus,
        gate=gate_of(r.stage),
        waiting_for=tuple(c for c in conditions(r, now) if not c.met),
        next_at=action.ahead_of(now) if isinstance(action, Wait) else None,
        holds=holds_now(r, now),
        recorded_objections=tuple(h for h in r.holds if h.after_enforced),
        lifts=lifted_by(r, now),
        at_risk=_risks(r),
        foretold=_foretold(r, now),
        breach_of=r.breach_of,
        undoing=undoing_of(r),
        teams=_teams(r),
        needs=(needs := needs_of(r, now)),
        lifters=lifters(r, needs, now),
        unguarded=is_unguarded(r),
        stale_after=r.policy.stale_after,
        ended_because=r.ended_because,
        look_failed="" if r.stage.ended else r.look_failed,
        fence=r.fence,
        history_events=history_events,
        runs=runs,
    )


def launch_answer(r: Rollout) -> LaunchAnswer:
    """What whoever launched it is told once there is a plan, or an end."""
    return LaunchAnswer(
        launched=not r.stage.ended,
        rollout=r.id,
        cluster=r.cluster,
        stage=r.stage,
        reason=r.ended_because,
        plan=r.plan,
        lifters=may_lift(r, objection=True),
        deciders=may_lift(r, objection=False),
    )


def not_launched(launch: LaunchRequest, why: str) -> LaunchAnswer:
    return LaunchAnswer(launched=False, rollout=launch.rollout, cluster=launch.cluster, stage=Stage.ABORTED, reason=why)


def _proposal(r: Rollout) -> ProposalStatus | None:
    if r.proposal is None or r.plan is None:
        return None
    plan = r.proposal.plan
    return ProposalStatus(
        plan_hash=plan.hash,
        at=r.proposal.at,
        healthy_gpus=plan.healthy_gpus,
        planned_gpus=r.plan.healthy_gpus,
        inside=r.envelope is not None and r.envelope.holds(plan),
        buffer=plan.derived,
        values=tuple(
            ProposedValue(team=team, quota_gpus=old, proposed_gpus=new)
            for team, (old, new) in proposed_changes(r, plan).items()
        ),
    )


def _risks(r: Rollout) -> tuple[Risk, ...]:
    """Both numbers of each quota that lacks hardware, or in shadow would; while health is unknown, as last known."""
    quotas = r.written if r.shadow else present_values(r)
    work = () if r.seen is None else r.seen.work
    due = {t: r.clocks.model_copy(update={"by_team": {t: c}}) for t, c in r.clocks.by_team.items()}
    return tuple(
        Risk(
            team=team,
            quota_gpus=quotas.get(team, 0),
            backing_gpus=max(0, quotas.get(team, 0) - missing),
            breach_at=due[team].next_breach(r.policy.breach_after) if team in due else None,
            yields=short_of_work([w for w in work if w.team == team], {team: quotas.get(team, 0) - missing}, quotas),
        )
        for team, missing in r.at_risk.items()
    )


def _foretold(r: Rollout, now: datetime) -> tuple[Foretold, ...]:
    """Of the values that the quota system holds, as last seen."""
    if r.stage.ended or r.seen is None or r.seen.health is None:
        return ()
    values = present_values(r)
    quotas = tuple(p.model_copy(update={"gpus": values.get(p.team, p.gpus)}).as_quota() for p in r.seen.reading.quotas)
    return foretold(r.cluster, quotas, r.seen.health.islands, r.seen.windows, now)


def present_values(r: Rollout) -> dict[str, int]:
    """What the quota system holds, as last seen or as written since."""
    if r.shadow:
        return {q.team: q.gpus for q in r.baseline.quotas} if r.seen is None else r.seen.reading.values
    overtaken = r.looked_after != r.fence
    return r.written if r.seen is None or overtaken else r.seen.reading.values


def _published(r: Rollout) -> int | None:
    """What a scheduler reads: in shadow that is nobody's doing here."""
    if not r.shadow:
        return flex_published(r)
    return None if r.seen is None else r.seen.reading.flex_gpus


def _would(r: Rollout) -> WouldStand | None:
    stands = _rehearsed(r) if r.shadow else None
    if stands is None:
        return None
    return WouldStand(
        assigned_gpus=stands.assigned_gpus,
        backed_gpus=stands.backed_gpus,
        phantom_gpus=max(0, stands.assigned_gpus - stands.backed_gpus),
        flex_gpus=stands.flex_gpus,
        flex_published_gpus=flex_published(r) if r.stage is Stage.MONITORED else None,
    )


def _rehearsed(r: Rollout) -> PresentBacking | None:
    """In shadow, what its values would stand on; None where no look was at these.

    Undone, a rollout looks at what the next attempt would write: its own values are the baseline again, or, after a
    breach, what hardware backed then.
    """
    if r.seen is None or r.stage is Stage.PLANNED or r.written.items() <= r.seen.tested.items():
        return standing_now(r)
    return r.seen.now if r.written.items() <= r.seen.reading.values.items() else None


def _doubted_gpus(r: Rollout) -> int | None:
    """Healthy GPUs by the sample that the last look tested the backing on, where the guard does not believe it."""
    suspect = r.sight.suspect
    return suspect.healthy_gpus if suspect is not None and r.seen is not None and r.seen.health == suspect else None


def standing_now(r: Rollout) -> PresentBacking:
    """What present values stand on; in shadow, what the values would that the last look was at.

    Temporal's search attributes have it: they are set anew where it differs, so its value is a workflow's shape.
    """
    if r.seen is None:
        return PresentBacking()
    return r.seen.model_copy(update={"present": None}).now if r.shadow else r.seen.now


def _teams(r: Rollout) -> tuple[TeamStatus, ...]:
    tree = r.baseline.tree
    present = present_values(r)
    # A look that a write of ours overtook says nothing about the values that it did not see.
    seen = {} if r.seen is None else r.seen.reading.values
    stands = {} if r.seen is None else r.seen.now.backing
    backing = {t: gpus for t, gpus in stands.items() if seen.get(t) == present.get(t)}
    tested = {} if r.seen is None or not r.shadow else r.seen.tested
    # Before a plan is written, what would stand once it is: so the sums have it.
    would = {**r.written, **tested} if r.stage is Stage.PLANNED else r.written
    rehearsed = _rehearsed(r) if r.shadow else None
    behind = {} if rehearsed is None else rehearsed.backing
    promises = promised(r, present)
    return tuple(
        TeamStatus(
            team=q.team,
            parent=q.parent,
            leaf=q.team not in tree.children,
            baseline_gpus=q.gpus,
            quota_gpus=present.get(q.team, 0),
            planned_gpus=None if r.plan is None else r.plan.values.get(q.team),
            backing_gpus=backing.get(q.team),
            would_gpus=would.get(q.team, 0) if r.shadow else None,
            would_backing_gpus=behind.get(q.team) if r.shadow else None,
            promise=q.team in promises,
            acknowledged=q.team in r.announced.acks,
        )
        for q in r.baseline.quotas
    )


def needs_of(r: Rollout, now: datetime) -> str:
    """What a person has to do for the rollout to go on; empty when it goes on by itself."""
    if r.stage.ended:
        return ""
    needs = (
        _stuck(r),
        _plan_needs(r),
        _hold_needs(r, now),
        _unpromised_needs(r),
        _proposal_needs(r, now),
        _mail_needs(r),
        _breach_needs(r),
    )
    need = next((need for need in needs if need), "")
    return f"{UNGUARDED}; {need}" if need and is_unguarded(r) else need


def is_unguarded(r: Rollout) -> bool:
    """It took over quotas that an earlier run had cut, and its own first step has not begun."""
    return r.stage is Stage.PLANNED and r.attempt == 1 and r.values_stand and not r.stay.done


def _line(r: Rollout, command: Command) -> str:
    return command_line(command, r.cluster)


def _stuck(r: Rollout) -> str:
    if r.stage is not Stage.STUCK:
        return ""
    lines = [c.line for c in choices(r) if c.command != LAUNCH]
    if r.superseded:
        return f"superseded: {r.superseded}. Give: {lines[0]}"
    return f"mend the cause, then give: {lines[0]}, or leave it as it is: {lines[1]}"


def _plan_needs(r: Rollout) -> str:
    if r.plan is None or r.stay.replan or not (r.stage is Stage.PLANNED or r.realigning):
        return ""
    if not r.plan.honest:
        return f"{r.plan.fault}: wait for better health, or {_line(r, Command.ABORT)} --reason ..."
    if not r.plan.backed:
        return f"today's health does not back the plan: wait for it, or {_line(r, Command.ABORT)} --reason ..."
    if r.approved:
        return ""
    undo = f", or restore the baseline: {_line(r, Command.ABORT)} --reason ..." if is_unguarded(r) else ""
    return f"approve the plan: {_line(r, Command.APPROVE)} --plan {r.plan.hash}{undo}"


def _hold_needs(r: Rollout, now: datetime) -> str:
    for hold in holds_now(r, now):
        if hold.kind is HoldKind.PAUSED:
            return f"paused by {hold.actor}: {_line(r, Command.RESUME)}"
        if hold.kind is HoldKind.UNKNOWN_HEALTH and (doubt := doubt_of(r)) is not None:
            return f"{hold.reason}: mend the source; only if it is so: {doubt.confirming}"
        if hold.kind is HoldKind.UNKNOWN_HEALTH and (beyond := beyond_of(r)) is not None:
            return f"{beyond.text}: mend the source, or import the cluster's new total"
        if hold.kind is HoldKind.UNKNOWN_HEALTH and r.sight.suspect is None:
            return f"{hold.reason}: mend the health source"
        if hold.until is None and lifts(r, hold):
            return f"a hold stands ({hold.reason}): {lifting_line(r, hold)}"
    return ""


NOBODY_APPROVED = "nobody approved"
ABOVE_ITS_PARENT = "the quotas above do not allow"


def _unpromised_needs(r: Rollout) -> str:
    """Of quotas that are no promise though the rollout is at a stage that promises, and no breach took them back."""
    if not r.stage.promises or r.shadow or r.seen is None:
        return ""
    present = present_values(r)
    kept = promised(r, present)
    leaves = [t for t in r.baseline.tree.leaves if t in present and t not in kept and t not in r.breach_of]
    others = [f"{team} at {present[team]:,}" for team in leaves if team in r.unapproved]
    beyond = [f"{team} at {present[team]:,}" for team in leaves if team not in r.unapproved]
    wrong = [f"{NOBODY_APPROVED} {', '.join(others)}"] if others else []
    wrong += [f"{ABOVE_ITS_PARENT} {', '.join(beyond)}"] if beyond else []
    return f"{'; '.join(wrong)}: no promise. {_promised_again(r, present)}" if wrong else ""


def _promised_again(r: Rollout, present: Mapping[str, int]) -> str:
    """What makes them promises again."""
    close = "close the rollout and approve another with it"
    beyond = beyond_bound(r, present)
    if beyond is None:
        return f"Set it right in the quota system, or {close}"
    needed, bound = beyond
    limit = f"The limit above all quotas is {gpus_text(bound)}, and they need {needed:,}"
    if not r.stay.refitting:
        return f"{limit}: lower them in the quota system, or {close}"
    if drift_of(r):
        return f"{limit}: it follows once the drift is resolved"
    if r.seen is not None and r.seen.backed and health_fresh(r):
        return f"{limit}: it follows with the next write"
    healthy = "health is unknown" if not health_fresh(r) else "healthy GPUs do not back them"
    return f"{limit}: it stays while {healthy}"


def _proposal_needs(r: Rollout, now: datetime) -> str:
    if r.proposal is None or may_apply(r, now):
        return ""
    return (
        f"a new plan is proposed: {_line(r, Command.APPROVE)} --plan {r.proposal.plan.hash}, or decline it: "
        f"{_line(r, Command.RESOLVE)} --hold {PROPOSAL} --reason ..."
    )


def _mail_needs(r: Rollout) -> str:
    undelivered = r.announced.undelivered
    if not undelivered or r.stay.waived or r.stage is not Stage.PLANNED:
        return ""
    return (
        f"a notice could not be delivered ({'; '.join(undelivered)}): tell the team, then "
        f"{_line(r, Command.PROMOTE)} --reason ..."
    )


def _breach_needs(r: Rollout) -> str:
    if r.breach_of and r.stage.guarded and not (r.stay.aiming or r.stay.replan):
        lack = verb_of(len(r.breach_of), "lacks", "lack")
        return f"{', '.join(r.breach_of)} {lack} hardware: wait for it, or {_line(r, Command.ROLLBACK)} --reason ..."
    if r.stage is Stage.ROLLED_BACK and not retries_by_itself(r):
        return f"rolled back: {_line(r, Command.RETRY)}, or {_line(r, Command.CLOSE)}"
    if r.stage is Stage.ROLLED_BACK and r.clocks.all_good_since is None:
        return f"today's health does not back the plan: wait, or plan on today's with {_line(r, Command.RETRY)}"
    late = next((h for h in r.holds if h.after_enforced), None)
    if late is None:
        return ""
    return f"answer {late.actor}: {late.reason}, then: {lifting_line(r, late)}" if lifts(r, late) else ""


def waiting_sentence(r: Rollout, now: datetime) -> str:
    """One sentence for the Temporal UI: what the rollout waits for."""
    if r.stage is Stage.ROLLED_BACK and r.undo is not None and r.undo.why is UndoCause.BREACH and retries_by_itself(r):
        return f"waits until health has been good for {duration_text(recovery_pause(r))}"
    unmet = [c.text for c in conditions(r, now) if not c.met]
    return "; ".join(unmet) if unmet else "watches"


def details_of(r: Rollout, now: datetime) -> str:
    """What Temporal's UI shows of the rollout, in Markdown."""
    lines = [f"**{r.cluster}** is **{r.stage}**{' (shadow)' if r.shadow else ''}, attempt {r.attempt}, owner {r.owner}"]
    if r.plan is not None:
        lines.append(
            f"plan `{r.plan.hash}`: {r.plan.assigned_gpus:,} assigned, ceiling {r.plan.ceiling_gpus:,}, cut "
            f"{r.plan.cut_gpus:,} {r.plan.composition}, wave {r.plan.wave}"
        )
    if not r.stage.ended:
        lines.append(f"now: {waiting_sentence(r, now)}")
    if r.clocks.at_risk:
        lines.append("at risk: " + ", ".join(f"{t} lacks {g}" for t, g in r.clocks.at_risk.items()))
    if drift_of(r):
        lines.append("drift: " + ", ".join(drift_of(r)))
    return "\n\n".join(lines)
