"""Outcomes of a fleet rollout's calls, applied to its state: plans, picks, starts, and news of its members.

Every function returns a new FleetRollout; none decides what to do next (models/fleet/decide.py does). `advance` applies
what follows from time alone and from failures: the breaker, a failed pilot, a wave that is through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from models.access.tickets import warrant_in
from models.audit_chain import AuditKind
from models.fleet.archived_state import KeptFleet
from models.fleet.gates import breaker_share, counted_members, failed_members, is_wave_over, rest_until
from models.fleet.messages import AbortAnswer, FleetLaunch, FleetPlan, Noted, PickAnswer, Prospect, StartAnswer
from models.fleet.state import (
    BREAKER,
    PILOTS,
    TROUBLE,
    WAVES,
    BudgetLeft,
    FleetRollout,
    FleetStage,
    Member,
    MemberState,
    Wave,
)
from models.lifecycle.holds import HoldKind
from models.rollout.stages import Stage
from models.rollout.stuck import LAUNCH
from models.temporal_names import TellAnswer
from models.texts import count_text, gpus_text, some_of

_STATE = {
    Stage.MONITORED: MemberState.DONE,
    Stage.ROLLING_BACK: MemberState.FAILED,
    Stage.ROLLED_BACK: MemberState.FAILED,
    Stage.STUCK: MemberState.FAILED,
    Stage.ABORTED: MemberState.ENDED,
    Stage.CLOSED: MemberState.ENDED,
}
"""A member's state by its rollout's stage; in any other stage the member is under way."""


def open_fleet(launch: FleetLaunch, now: datetime) -> FleetRollout:
    """Open a fleet rollout that wants a plan."""
    by = launch.actor or launch.owner
    fleet = FleetRollout(
        id=launch.fleet,
        owner=launch.owner,
        shadow=launch.shadow,
        launched_at=now,
        pace=launch.pace,
        policy=launch.policy,
        entered_at=now,
    )
    lost = "" if launch.kept is None else f", taking over {launch.kept.fleet}"
    text = f"fleet rollout launched by {by}{lost}" + (" (shadow)" if launch.shadow else "")
    launch_fields = launch.model_dump(mode="json", exclude={"kept", "fleet", "actor", "reason", "ticket"})
    data = {"command": LAUNCH, "launch": launch_fields, **warrant_in(launch)}
    return fleet.record(AuditKind.COMMAND, text, now, actor=by, reason=launch.reason, **data)


def apply_plan(fleet: FleetRollout, launch: FleetLaunch, plan: FleetPlan, now: datetime) -> FleetRollout:
    """Put every cluster into its wave; rollouts that are already open are followed."""
    if fleet.stage is not FleetStage.PLANNED:
        return fleet
    members = {p.cluster: _member(p, launch) for p in plan.clusters}
    why = ""
    if plan.missing:
        why = f"the ledger has no cluster {', '.join(plan.missing)}"
    elif not members:
        why = "no cluster is in these waves"
    if why:
        return fleet.but(ended_because=why).enter_stage(FleetStage.ABORTED, now, why)
    cut = sum(p.cut_gpus for p in plan.clusters if not p.rollout)
    if launch.kept is not None:
        fleet = fleet.but(wave=launch.kept.wave, settled_at=launch.kept.through_at)
    return fleet.but(members=members, plan_hash=plan.hash).record(
        AuditKind.PLAN,
        f"fleet plan {plan.hash}: {plan.size_text}, cut {gpus_text(cut)}",
        now,
        plan=plan.hash,
        clusters=len(members),
        cut_gpus=cut,
        waves={w.value: own for w in WAVES if (own := [m.cluster for m in members.values() if m.wave is w])},
        moved=[m.cluster for m in members.values() if m.moved],
        skipped=[m.cluster for m in members.values() if m.state is MemberState.SKIPPED],
    )


def fail_plan(fleet: FleetRollout, reason: str, now: datetime) -> FleetRollout:
    """End the fleet rollout: nothing has begun."""
    if fleet.stage is not FleetStage.PLANNED:
        return fleet
    why = f"the fleet could not be planned: {reason}"
    return fleet.but(ended_because=why).enter_stage(FleetStage.ABORTED, now, why)


def add_trouble(fleet: FleetRollout, reason: str, now: datetime) -> FleetRollout:
    """Hold for a person, since another try will not mend it; `resume` tries again."""
    return fleet if fleet.stage is not FleetStage.RUNNING else fleet.add_hold(TROUBLE, HoldKind.BREAKER, reason, now)


def _member(prospect: Prospect, launch: FleetLaunch) -> Member:
    if launch.kept is not None:
        return _kept_member(prospect, launch.kept)
    member = Member(
        cluster=prospect.cluster,
        wave=Wave.PILOT if prospect.cluster in launch.pilots else prospect.wave,
        moved=prospect.cluster in launch.pilots,
        cut_gpus=prospect.cut_gpus,
    )
    return join_member(member, prospect) if prospect.rollout else member


def _kept_member(prospect: Prospect, kept: KeptFleet) -> Member:
    """Return a member of the lost fleet rollout. The rollouts it had started are now this one's, and undone with it."""
    moved = prospect.cluster in kept.moved
    stays = moved or (prospect.own and prospect.cluster in kept.members)
    wave = kept.members[prospect.cluster] if stays else prospect.wave
    member = Member(cluster=prospect.cluster, wave=wave, moved=moved, cut_gpus=prospect.cut_gpus)
    if prospect.rollout:
        member = join_member(member, prospect).but(joined=not prospect.own, started_at=prospect.started_at)
    return member.but(state=MemberState.SKIPPED) if prospect.cluster in kept.skipped else member


def join_member(member: Member, rollout: Noted | Prospect) -> Member:
    """Follow a rollout that somebody else opened. Its earlier rollbacks do not count."""
    return member.but(
        joined=True,
        rollout=rollout.rollout,
        stage=rollout.stage,
        rollbacks=rollout.rollbacks,
        needs=rollout.needs,
        state=_state_of(rollout.stage),
        held="",
        held_until=None,
        waits="",
    )


def _state_of(stage: str) -> MemberState:
    return _STATE.get(Stage(stage), MemberState.RUNNING)


def apply_picks(fleet: FleetRollout, answer: PickAnswer, rollouts: Mapping[str, str], now: datetime) -> FleetRollout:
    """Mark picked clusters as starting, with their budget, in the order of the pick. `rollouts`: ids by cluster.

    Commands given meanwhile come first: nothing is picked for a fleet rollout that was paused or aborted.
    """
    members = dict(fleet.members)
    for cluster, wave in answer.waves.items():
        member = members[cluster]
        if member.state is MemberState.WAITING and not member.moved:
            members[cluster] = member.but(wave=wave)
    for cluster, why in answer.passed.items():
        if members[cluster].state is MemberState.WAITING:
            members[cluster] = members[cluster].but(held=why.reason, held_until=why.until)
    for member in fleet.waiting_members:
        members[member.cluster] = members[member.cluster].but(waits=answer.waiting.get(member.cluster, ""))
    members |= _joining_members(members, answer.joined)
    taken, left = 0, answer.left
    if fleet.stage is FleetStage.RUNNING and not fleet.holds:
        for pick in answer.picked:
            member = members[pick.cluster]
            if member.state is MemberState.WAITING:
                taken += 1
                members[pick.cluster] = member.but(
                    state=MemberState.STARTING,
                    rollout=rollouts[pick.cluster],
                    cut_gpus=pick.cut_gpus,
                    started_at=now,
                    held="",
                    held_until=None,
                    waits="",
                )
    elif left is not None:
        spared = sum(pick.cut_gpus for pick in answer.picked)
        left = BudgetLeft(hour_gpus=left.hour_gpus + spared, day_gpus=left.day_gpus + spared)
    found_none = not taken and not answer.waves and not answer.joined
    return fleet.but(members=members, picked_at=now, found_none=found_none, left=left)


def _joining_members(members: Mapping[str, Member], rollouts: Mapping[str, Noted]) -> dict[str, Member]:
    """Return the waiting members for which somebody else has opened a rollout."""
    return {
        cluster: join_member(members[cluster], rollout)
        for cluster, rollout in rollouts.items()
        if cluster in members and members[cluster].state is MemberState.WAITING
    }


def join_open(fleet: FleetRollout, rollouts: Mapping[str, Noted], now: datetime) -> FleetRollout:
    """Follow the rollouts, by cluster, that somebody else has opened for members."""
    joining = _joining_members(fleet.members, rollouts) if fleet.stage is FleetStage.RUNNING else {}
    if not joining:
        return fleet
    fleet = fleet.but(members={**fleet.members, **joining})
    names = ", ".join(sorted(joining))
    return fleet.record(
        AuditKind.GUARD,
        f"from now on the fleet rollout follows the rollouts that others launched: {names}",
        now,
        clusters=sorted(joining),
    )


def apply_starts(fleet: FleetRollout, asked: Iterable[str], answer: StartAnswer, now: datetime) -> FleetRollout:
    """Mark launched members as running; one that was refused gives its budget back and is tried later."""
    members = dict(fleet.members)
    names = []
    for cluster in asked:
        member, why = members[cluster], answer.refused.get(cluster)
        if member.state is not MemberState.STARTING:
            continue
        if why is None:
            names.append(cluster)
            members[cluster] = member.but(state=MemberState.RUNNING, stage=Stage.PLANNED.value)
        else:
            later = now + fleet.pace.recheck
            members[cluster] = member.but(
                state=MemberState.WAITING, rollout="", started_at=None, held=why, retry_at=later
            )
    fleet = fleet.but(members=members)
    if names:
        fleet = fleet.record(AuditKind.COMMAND, f"started {', '.join(names)}", now, command="start", clusters=names)
    for cluster, why in answer.refused.items():
        fleet = fleet.record(AuditKind.COMMAND, f"{cluster} was not launched: {why}", now, refused_cluster=cluster)
    return fleet


def apply_news(fleet: FleetRollout, changed: Mapping[str, Noted], now: datetime) -> FleetRollout:
    """Apply news of members' rollouts, by rollout id. One that has rolled back, however briefly, has failed."""
    if fleet.stage.has_ended:
        return fleet
    members = dict(fleet.members)
    by_rollout = {m.rollout: m for m in members.values() if m.rollout}
    news = []
    for rollout_id, rollout in changed.items():
        member = by_rollout.get(rollout_id)
        if member is None or member.state is MemberState.STARTING:
            continue
        state, fell = _state_of(rollout.stage), rollout.rollbacks > member.rollbacks
        comes_to_done = state is MemberState.DONE and member.state is not MemberState.DONE
        if member.state is MemberState.SKIPPED:
            state, fell = member.state, False
        members[member.cluster] = member.but(
            stage=rollout.stage,
            needs=rollout.needs,
            rollbacks=rollout.rollbacks,
            state=state,
            done_at=member.done_at or (now if comes_to_done else None),
            failed_at=now if fell else member.failed_at,
            forgiven=member.forgiven and not fell,
        )
        if fell or (state is not member.state and state.is_settled):
            news.append((member, "rolled back" if fell else rollout.stage))
    fleet = fleet.but(members=members)
    for member, what in news:
        fleet = fleet.record(
            AuditKind.GUARD, f"{member.cluster} ({member.wave}): {what}", now, member=member.cluster, stage=what
        )
    return fleet


def apply_aborts(fleet: FleetRollout, asked: Iterable[str], answer: AbortAnswer, now: datetime) -> FleetRollout:
    """Note the rollouts that took the abort; the others are aborted again later."""
    members, took = dict(fleet.members), []
    for cluster in asked:
        why = answer.refused.get(cluster)
        if why is None:
            took.append(cluster)
        else:
            members[cluster] = members[cluster].but(held=why, held_until=now + fleet.pace.recheck)
    fleet = fleet.but(members=members, asked=(*fleet.asked, *took))
    return fleet if not took else fleet.record(AuditKind.COMMAND, f"aborted {', '.join(took)}", now, command="abort")


def apply_delivery(fleet: FleetRollout, keys: Sequence[str], answer: TellAnswer, now: datetime) -> FleetRollout:
    fleet = fleet.apply_delivery(answer, now)
    for key in (key for key in keys if key not in answer.noted):
        if (at := answer.waiting.get(key)) is not None:
            fleet = fleet.record(
                AuditKind.NOTICE, f"Backstop will notify {fleet.owner} at {at:%Y-%m-%d %H:%MZ}: fleet_held", now
            )
        elif key in answer.delivered:
            fleet = fleet.record(AuditKind.NOTICE, f"Backstop notified {fleet.owner}: fleet_held", now, key=key)
    return fleet


def advance(fleet: FleetRollout, now: datetime) -> FleetRollout:
    """Apply what follows from failures, and from the passing of time. Idempotent."""
    if fleet.stage is FleetStage.ABORTING:
        return _finish_abort(fleet, now)
    if fleet.stage is not FleetStage.RUNNING:
        return fleet
    fleet = _trip_breaker(_hold_failed_pilots(fleet, now), now)
    while fleet.stage is FleetStage.RUNNING:
        if not is_wave_over(fleet, now):
            return fleet.but(settled_at=None)
        if fleet.settled_at is None:
            fleet = fleet.but(settled_at=now)
            if any(m.wave is fleet.wave and m.rollout for m in fleet.members.values()):
                fleet = fleet.record(
                    AuditKind.TRANSITION, f"{fleet.wave.full_name} is through", now, wave=fleet.wave.value
                )
        rests = rest_until(fleet)
        if fleet.holds or (rests is not None and now < rests):
            return fleet
        fleet = _next_wave(fleet, now)
        if fleet.settled_at is not None:
            return fleet  # the last wave is through, and some clusters cannot start
    return fleet


def _hold_failed_pilots(fleet: FleetRollout, now: datetime) -> FleetRollout:
    """Hold the fleet rollout if a pilot failed: pilots are there to fail before anybody else does."""
    failed = [m.cluster for m in fleet.failed_members if m.wave is Wave.PILOT]
    if fleet.wave is not Wave.PILOT or not failed or fleet.hold(PILOTS) is not None:
        return fleet
    why = f"{'pilots' if len(failed) > 1 else 'pilot'} {', '.join(failed)} rolled back: no wave begins"
    return fleet.add_hold(PILOTS, HoldKind.PILOTS, why, now)


def _trip_breaker(fleet: FleetRollout, now: datetime) -> FleetRollout:
    failed, counted = breaker_share(fleet)
    if failed <= fleet.pace.max_failed * counted or fleet.hold(BREAKER) is not None:
        return fleet
    some = some_of(sorted(m.cluster for m in failed_members(fleet)), 5)
    started = count_text(len(counted_members(fleet)), "cluster")
    why = (
        f"{failed} of {started} rolled back, and at most {float(fleet.pace.max_failed):.0%} of {counted} may: "
        f"Backstop starts no more clusters ({some})"
    )
    return fleet.add_hold(BREAKER, HoldKind.BREAKER, why, now)


def _next_wave(fleet: FleetRollout, now: datetime) -> FleetRollout:
    later = [
        m.wave.number for m in fleet.members.values() if m.wave.number > fleet.wave.number and not m.state.is_settled
    ]
    if later:
        wave = WAVES[min(later)]
        moved = fleet.but(wave=wave, settled_at=None, waived=False, found_none=False)
        return moved.record(AuditKind.TRANSITION, f"{wave.full_name} begins", now, wave=wave.value)
    if any(not m.state.is_settled for m in fleet.members.values()):
        return fleet
    done = sum(m.state is MemberState.DONE for m in fleet.members.values())
    verb = "is" if 1 in (done, len(fleet.members)) else "are"
    why = f"{done} of {count_text(len(fleet.members), 'cluster')} {verb} monitored"
    return fleet.but(ended_because=why).enter_stage(FleetStage.DONE, now, why)


def _finish_abort(fleet: FleetRollout, now: datetime) -> FleetRollout:
    left = fleet.to_abort
    stuck = [m.cluster for m in left if m.stage == "stuck"]
    if len(left) > len(stuck) or any(fleet.in_state(MemberState.STARTING)):
        return fleet
    why = fleet.ended_because
    if stuck:
        why += f"; stuck: {', '.join(sorted(stuck))}"
    return fleet.but(holds=(), ended_because=why).enter_stage(FleetStage.ABORTED, now, why)
