"""What became of a fleet rollout's calls, taken into its state: plans, picks, starts, and how its members fare.

Every function answers a new FleetRollout; none decides what to do next (models/fleet/decide.py does). `advance` takes
in what follows from time alone and from failures: the breaker, a failed pilot, a wave that is through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from models.access.tickets import warrant_in
from models.audit_chain import AuditKind
from models.base import count_text, gpus_text, some_of
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
from models.rollout.holds import HoldKind
from models.rollout.stages import Stage
from models.rollout.stuck import LAUNCH
from models.temporal_names import TellAnswer

_STATE = {
    Stage.MONITORED: MemberState.DONE,
    Stage.ROLLING_BACK: MemberState.FAILED,
    Stage.ROLLED_BACK: MemberState.FAILED,
    Stage.STUCK: MemberState.FAILED,
    Stage.ABORTED: MemberState.ENDED,
    Stage.CLOSED: MemberState.ENDED,
}
"""Of a member by its rollout's stage; in any other it is on its way."""


def open_fleet(launch: FleetLaunch, now: datetime) -> FleetRollout:
    """A fleet rollout at its start, wanting a plan."""
    by = launch.actor or launch.owner
    f = FleetRollout(
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
    return f.record(AuditKind.COMMAND, text, now, actor=by, reason=launch.reason, **data)


def apply_plan(f: FleetRollout, launch: FleetLaunch, plan: FleetPlan, now: datetime) -> FleetRollout:
    """With every cluster in its wave; what is open there already is followed."""
    if f.stage is not FleetStage.PLANNED:
        return f
    members = {p.cluster: _member(p, launch) for p in plan.clusters}
    why = ""
    if plan.missing:
        why = f"the ledger has no cluster {', '.join(plan.missing)}"
    elif not members:
        why = "no cluster is in these waves"
    if why:
        return f.but(ended_because=why).enter_stage(FleetStage.ABORTED, now, why)
    cut = sum(p.cut_gpus for p in plan.clusters if not p.rollout)
    if launch.kept is not None:
        f = f.but(wave=launch.kept.wave, settled_at=launch.kept.through_at)
    return f.but(members=members, plan_hash=plan.hash).record(
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


def fail_plan(f: FleetRollout, reason: str, now: datetime) -> FleetRollout:
    """Nothing has begun, so it ends."""
    if f.stage is not FleetStage.PLANNED:
        return f
    why = f"the fleet could not be planned: {reason}"
    return f.but(ended_because=why).enter_stage(FleetStage.ABORTED, now, why)


def add_trouble(f: FleetRollout, reason: str, now: datetime) -> FleetRollout:
    """Something that trying again will not mend: a person is called, and `resume` tries again."""
    return f if f.stage is not FleetStage.RUNNING else f.add_hold(TROUBLE, HoldKind.BREAKER, reason, now)


def _member(p: Prospect, launch: FleetLaunch) -> Member:
    if launch.kept is not None:
        return _kept_member(p, launch.kept)
    m = Member(
        cluster=p.cluster,
        wave=Wave.PILOT if p.cluster in launch.pilots else p.wave,
        moved=p.cluster in launch.pilots,
        cut_gpus=p.cut_gpus,
    )
    if not p.rollout:
        return m
    return join_member(m, Noted(rollout=p.rollout, stage=p.stage, rollbacks=p.rollbacks, needs=p.needs))


def _kept_member(p: Prospect, kept: KeptFleet) -> Member:
    """A member of the lost fleet rollout. What it had started is this one's own, and undone with it."""
    moved = p.cluster in kept.moved
    wave = kept.members[p.cluster] if moved or (p.own and p.cluster in kept.members) else p.wave
    m = Member(cluster=p.cluster, wave=wave, moved=moved, cut_gpus=p.cut_gpus)
    if p.rollout:
        m = join_member(m, Noted(rollout=p.rollout, stage=p.stage, rollbacks=p.rollbacks, needs=p.needs))
        m = m.but(joined=not p.own, started_at=p.started_at)
    return m.but(state=MemberState.SKIPPED) if p.cluster in kept.skipped else m


def join_member(m: Member, rollout: Noted) -> Member:
    """Following a rollout that somebody else opened. How often it rolled back before is not counted."""
    return m.but(
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


def apply_picks(f: FleetRollout, answer: PickAnswer, rollouts: Mapping[str, str], now: datetime) -> FleetRollout:
    """Those that start have their budget, in the order in which they were picked. `rollouts`: ids by cluster.

    What a person has said meanwhile comes first: nothing is picked for a fleet rollout that was paused or aborted.
    """
    members = dict(f.members)
    for cluster, wave in answer.waves.items():
        m = members[cluster]
        if m.state is MemberState.WAITING and not m.moved:
            members[cluster] = m.but(wave=wave)
    for cluster, why in answer.passed.items():
        if members[cluster].state is MemberState.WAITING:
            members[cluster] = members[cluster].but(held=why.reason, held_until=why.until)
    for m in f.waiting_members:
        members[m.cluster] = members[m.cluster].but(waits=answer.waiting.get(m.cluster, ""))
    members |= _joining_members(members, answer.joined)
    taken, left = 0, answer.left
    if f.stage is FleetStage.RUNNING and not f.holds:
        for pick in answer.picked:
            m = members[pick.cluster]
            if m.state is MemberState.WAITING:
                taken += 1
                members[pick.cluster] = m.but(
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
    return f.but(members=members, picked_at=now, found_none=found_none, left=left)


def _joining_members(members: Mapping[str, Member], rollouts: Mapping[str, Noted]) -> dict[str, Member]:
    """Of those that wait, the ones where somebody else has opened a rollout."""
    return {
        cluster: join_member(members[cluster], rollout)
        for cluster, rollout in rollouts.items()
        if cluster in members and members[cluster].state is MemberState.WAITING
    }


def join_open(f: FleetRollout, rollouts: Mapping[str, Noted], now: datetime) -> FleetRollout:
    """With the members whose rollouts somebody else has opened, by cluster: from now on they are followed."""
    joining = _joining_members(f.members, rollouts) if f.stage is FleetStage.RUNNING else {}
    if not joining:
        return f
    f = f.but(members={**f.members, **joining})
    names = ", ".join(sorted(joining))
    return f.record(
        AuditKind.GUARD, f"followed from now on, launched by others: {names}", now, clusters=sorted(joining)
    )


def apply_starts(f: FleetRollout, asked: Iterable[str], answer: StartAnswer, now: datetime) -> FleetRollout:
    """Their rollouts are open; one that was refused gives its budget back, and is looked at again later."""
    members = dict(f.members)
    names = []
    for cluster in asked:
        m, why = members[cluster], answer.refused.get(cluster)
        if m.state is not MemberState.STARTING:
            continue
        if why is None:
            names.append(cluster)
            members[cluster] = m.but(state=MemberState.RUNNING, stage=Stage.PLANNED.value)
        else:
            later = now + f.pace.recheck
            members[cluster] = m.but(state=MemberState.WAITING, rollout="", started_at=None, held=why, retry_at=later)
    f = f.but(members=members)
    if names:
        f = f.record(AuditKind.COMMAND, f"started {', '.join(names)}", now, command="start", clusters=names)
    for cluster, why in answer.refused.items():
        f = f.record(AuditKind.COMMAND, f"{cluster} was not launched: {why}", now, refused_cluster=cluster)
    return f


def apply_news(f: FleetRollout, changed: Mapping[str, Noted], now: datetime) -> FleetRollout:
    """How members' rollouts fare, by their rollout's id. One that has rolled back, however shortly, has failed."""
    if f.stage.has_ended:
        return f
    members = dict(f.members)
    by_rollout = {m.rollout: m for m in members.values() if m.rollout}
    news = []
    for rollout_id, rollout in changed.items():
        m = by_rollout.get(rollout_id)
        if m is None or m.state is MemberState.STARTING:
            continue
        state, fell = _state_of(rollout.stage), rollout.rollbacks > m.rollbacks
        if m.state is MemberState.SKIPPED:
            state, fell = m.state, False
        members[m.cluster] = m.but(
            stage=rollout.stage,
            needs=rollout.needs,
            rollbacks=rollout.rollbacks,
            state=state,
            done_at=m.done_at or (now if state is MemberState.DONE else None),
            failed_at=now if fell else m.failed_at,
            forgiven=m.forgiven and not fell,
        )
        if fell or (state is not m.state and state.is_settled):
            news.append((m, "rolled back" if fell else rollout.stage))
    f = f.but(members=members)
    for m, what in news:
        f = f.record(AuditKind.GUARD, f"{m.cluster} ({m.wave}): {what}", now, member=m.cluster, stage=what)
    return f


def apply_aborts(f: FleetRollout, asked: Iterable[str], answer: AbortAnswer, now: datetime) -> FleetRollout:
    """Rollouts that took the abort; the others are told again later."""
    members, took = dict(f.members), []
    for cluster in asked:
        why = answer.refused.get(cluster)
        if why is None:
            took.append(cluster)
        else:
            members[cluster] = members[cluster].but(held=why, held_until=now + f.pace.recheck)
    f = f.but(members=members, asked=(*f.asked, *took))
    return f if not took else f.record(AuditKind.COMMAND, f"aborted {', '.join(took)}", now, command="abort")


def apply_delivery(f: FleetRollout, keys: Sequence[str], answer: TellAnswer, now: datetime) -> FleetRollout:
    f = f.apply_delivery(answer, now)
    for key in (key for key in keys if key not in answer.noted):
        if (at := answer.waiting.get(key)) is not None:
            f = f.record(AuditKind.NOTICE, f"Backstop will notify {f.owner} at {at:%Y-%m-%d %H:%MZ}: fleet_held", now)
        elif key in answer.delivered:
            f = f.record(AuditKind.NOTICE, f"Backstop notified {f.owner}: fleet_held", now, key=key)
    return f


def advance(f: FleetRollout, now: datetime) -> FleetRollout:
    """What follows from failures, and from the passing of time. Idempotent."""
    if f.stage is FleetStage.ABORTING:
        return _finish_abort(f, now)
    if f.stage is not FleetStage.RUNNING:
        return f
    f = _trip_breaker(_hold_failed_pilots(f, now), now)
    while f.stage is FleetStage.RUNNING:
        if not is_wave_over(f, now):
            return f.but(settled_at=None)
        if f.settled_at is None:
            f = f.but(settled_at=now)
            if any(m.wave is f.wave and m.rollout for m in f.members.values()):
                f = f.record(AuditKind.TRANSITION, f"{f.wave.full_name} is through", now, wave=f.wave.value)
        rests = rest_until(f)
        if f.holds or (rests is not None and now < rests):
            return f
        f = _next_wave(f, now)
        if f.settled_at is not None:
            return f  # the last wave is through, and some clusters cannot start
    return f


def _hold_failed_pilots(f: FleetRollout, now: datetime) -> FleetRollout:
    """Pilots are there to fail before anybody else does: any of theirs stops the fleet."""
    failed = [m.cluster for m in f.failed_members if m.wave is Wave.PILOT]
    if f.wave is not Wave.PILOT or not failed or f.hold(PILOTS) is not None:
        return f
    why = f"{'pilots' if len(failed) > 1 else 'pilot'} {', '.join(failed)} rolled back: no wave begins"
    return f.add_hold(PILOTS, HoldKind.PILOTS, why, now)


def _trip_breaker(f: FleetRollout, now: datetime) -> FleetRollout:
    failed, counted = breaker_share(f)
    if failed <= f.pace.max_failed * counted or f.hold(BREAKER) is not None:
        return f
    some = some_of(sorted(m.cluster for m in failed_members(f)), 5)
    started = count_text(len(counted_members(f)), "cluster")
    why = (
        f"{failed} of {started} rolled back, more than {float(f.pace.max_failed):.0%} of {counted}: "
        f"no new one is started ({some})"
    )
    return f.add_hold(BREAKER, HoldKind.BREAKER, why, now)


def _next_wave(f: FleetRollout, now: datetime) -> FleetRollout:
    later = [m.wave.number for m in f.members.values() if m.wave.number > f.wave.number and not m.state.is_settled]
    if later:
        wave = WAVES[min(later)]
        moved = f.but(wave=wave, settled_at=None, waived=False, found_none=False)
        return moved.record(AuditKind.TRANSITION, f"{wave.full_name} begins", now, wave=wave.value)
    if any(not m.state.is_settled for m in f.members.values()):
        return f
    done = sum(m.state is MemberState.DONE for m in f.members.values())
    verb = "is" if 1 in (done, len(f.members)) else "are"
    why = f"{done} of {count_text(len(f.members), 'cluster')} {verb} monitored"
    return f.but(ended_because=why).enter_stage(FleetStage.DONE, now, why)


def _finish_abort(f: FleetRollout, now: datetime) -> FleetRollout:
    left = f.to_abort
    stuck = [m.cluster for m in left if m.stage == "stuck"]
    if len(left) > len(stuck) or any(f.in_state(MemberState.STARTING)):
        return f
    why = f.ended_because
    if stuck:
        why += f"; stuck: {', '.join(sorted(stuck))}"
    return f.but(holds=(), ended_because=why).enter_stage(FleetStage.ABORTED, now, why)
