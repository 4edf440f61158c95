"""What became of a fleet rollout's calls, taken into its state: plans, picks, starts, and how its members fare.

Every function answers a new FleetRollout; none decides what to do next (models/fleet/decide.py does).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from models.audit import AuditKind
from models.fleet.messages import AbortAnswer, FleetLaunch, FleetPlan, Noted, PickAnswer, Prospect, StartAnswer
from models.fleet.state import TROUBLE, FleetRollout, FleetStage, Member, MemberState, Wave
from models.rollout.holds import HoldKind
from models.rollout.stages import Stage
from models.wire import TellAnswer

_STATE = {
    Stage.MONITORED: MemberState.DONE,
    Stage.ROLLING_BACK: MemberState.FAILED,
    Stage.ROLLED_BACK: MemberState.FAILED,
    Stage.STUCK: MemberState.FAILED,
    Stage.ABORTED: MemberState.ENDED,
    Stage.CLOSED: MemberState.ENDED,
}
"""Of a member by its rollout's stage; in any other it is on its way."""


def opened(launch: FleetLaunch, now: datetime) -> FleetRollout:
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
    text = f"fleet rollout launched by {by}" + (" (shadow)" if launch.shadow else "")
    return f.noting(AuditKind.COMMAND, text, now, actor=by, reason=launch.reason, command="launch")


def planned(f: FleetRollout, launch: FleetLaunch, plan: FleetPlan, now: datetime) -> FleetRollout:
    """With every cluster in its wave; what is open there already is followed."""
    if f.stage is not FleetStage.PLANNED:
        return f
    members = {p.cluster: _member(p, launch, now) for p in plan.clusters}
    why = ""
    if plan.missing:
        why = f"the ledger has no cluster {', '.join(plan.missing)}"
    elif not members:
        why = "no cluster is in these waves"
    if why:
        return f.but(ended_because=why).reaching(FleetStage.ABORTED, now, why)
    cut = sum(p.cut_gpus for p in plan.clusters if not p.rollout)
    return f.but(members=members, plan_hash=plan.hash).noting(
        AuditKind.PLAN,
        f"fleet plan {plan.hash}: {len(members)} clusters, cut {cut} GPUs",
        now,
        plan=plan.hash,
        clusters=len(members),
        cut_gpus=cut,
    )


def plan_failed(f: FleetRollout, reason: str, now: datetime) -> FleetRollout:
    """Nothing has begun, so it ends."""
    if f.stage is not FleetStage.PLANNED:
        return f
    why = f"the fleet could not be planned: {reason}"
    return f.but(ended_because=why).reaching(FleetStage.ABORTED, now, why)


def trouble(f: FleetRollout, reason: str, now: datetime) -> FleetRollout:
    """Something that trying again will not mend: a person is called, and `resume` tries again."""
    return f if f.stage is not FleetStage.RUNNING else f.holding(TROUBLE, HoldKind.BREAKER, reason, now)


def _member(p: Prospect, launch: FleetLaunch, now: datetime) -> Member:
    m = Member(
        cluster=p.cluster,
        wave=Wave.PILOT if p.cluster in launch.pilots else p.wave,
        moved=p.cluster in launch.pilots,
        cut_gpus=p.cut_gpus,
    )
    if not p.rollout:
        return m
    return joined(m, Noted(rollout=p.rollout, stage=p.stage, rollbacks=p.rollbacks, needs=p.needs), now)


def joined(m: Member, found: Noted, now: datetime) -> Member:
    """Following a rollout that somebody else opened. How often it rolled back before is not counted."""
    return m.but(
        joined=True,
        rollout=found.rollout,
        stage=found.stage,
        rollbacks=found.rollbacks,
        needs=found.needs,
        state=_state_of(found.stage),
        held="",
        held_until=None,
    )


def _state_of(stage: str) -> MemberState:
    return _STATE.get(Stage(stage), MemberState.RUNNING)


def picked(f: FleetRollout, answer: PickAnswer, rollouts: Mapping[str, str], now: datetime) -> FleetRollout:
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
    for cluster, found in answer.joined.items():
        if members[cluster].state is MemberState.WAITING:
            members[cluster] = joined(members[cluster], found, now)
    taken = 0
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
                )
    return f.but(members=members, picked_at=now, found_none=not taken and not answer.waves and not answer.joined)


def started(f: FleetRollout, asked: Iterable[str], answer: StartAnswer, now: datetime) -> FleetRollout:
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
        f = f.noting(AuditKind.COMMAND, f"started {', '.join(names)}", now, command="start", clusters=names)
    for cluster, why in answer.refused.items():
        f = f.noting(AuditKind.COMMAND, f"{cluster} was not launched: {why}", now, refused_cluster=cluster)
    return f


def noted(f: FleetRollout, changed: Mapping[str, Noted], now: datetime) -> FleetRollout:
    """How members' rollouts fare, by their rollout's id. One that has rolled back, however shortly, has failed."""
    if f.stage.ended:
        return f
    members = dict(f.members)
    by_rollout = {m.rollout: m for m in members.values() if m.rollout}
    news = []
    for rollout, found in changed.items():
        m = by_rollout.get(rollout)
        if m is None or m.state is MemberState.STARTING:
            continue
        state, fell = _state_of(found.stage), found.rollbacks > m.rollbacks
        if m.state is MemberState.SKIPPED:
            state, fell = m.state, False
        members[m.cluster] = m.but(
            stage=found.stage,
            needs=found.needs,
            rollbacks=found.rollbacks,
            state=state,
            failed_at=now if fell else m.failed_at,
            forgiven=m.forgiven and not fell,
        )
        if fell or (state is not m.state and state.settled):
            news.append((m, "rolled back" if fell else found.stage))
    f = f.but(members=members)
    for m, what in news:
        f = f.noting(AuditKind.GUARD, f"{m.cluster} ({m.wave}): {what}", now, member=m.cluster, stage=what)
    return f


def abort_told(f: FleetRollout, asked: Iterable[str], answer: AbortAnswer, now: datetime) -> FleetRollout:
    """Rollouts that took the abort; the others are told again later."""
    members, took = dict(f.members), []
    for cluster in asked:
        why = answer.refused.get(cluster)
        if why is None:
            took.append(cluster)
        else:
            members[cluster] = members[cluster].but(held=why, held_until=now + f.pace.recheck)
    f = f.but(members=members, asked=(*f.asked, *took))
    return f if not took else f.noting(AuditKind.COMMAND, f"aborted {', '.join(took)}", now, command="abort")


def recorded(f: FleetRollout, keys: Iterable[str]) -> FleetRollout:
    done = set(keys)
    return f.but(outbox=tuple(e for e in f.outbox if e.key not in done))


def mailed(f: FleetRollout, keys: Sequence[str], answer: TellAnswer, now: datetime) -> FleetRollout:
    gone = answer.delivered.keys() | answer.refused.keys()
    f = f.but(mail=tuple(n for n in f.mail if n.key not in gone))
    for key in keys:
        if key in answer.refused:
            f = f.noting(AuditKind.NOTICE, f"{f.owner} could not be told: {answer.refused[key]}", now, failed=True)
        elif key in answer.delivered:
            f = f.noting(AuditKind.NOTICE, f"{f.owner} was told: fleet_held", now, key=key)
    return f
