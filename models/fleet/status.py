"""What people see of a fleet rollout, made from its state."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from models.fleet.decide import breaker_share, budget_left, decide, rest_until, waiting_text
from models.fleet.messages import FleetStatus, WaveStatus
from models.fleet.state import WAVES, FleetRollout, FleetStage, MemberState, Wave
from models.rollout.actions import Wait
from models.rollout.holds import HoldKind


def fleet_status_of(f: FleetRollout, now: datetime, *, history_events: int, runs: int) -> FleetStatus:
    action = decide(f, now)
    hour, day = budget_left(f, now)
    failed, counted = breaker_share(f)
    return FleetStatus(
        fleet=f.id,
        owner=f.owner,
        shadow=f.shadow,
        stage=f.stage,
        entered_at=f.entered_at,
        at=now,
        plan_hash=f.plan_hash,
        approved_by=f.approved_by,
        wave=f.wave,
        waits_for=waiting_text(f, now),
        next_at=action.until if isinstance(action, Wait) else None,
        rests_until=rest_until(f) if f.stage is FleetStage.RUNNING else None,
        pace=f.pace,
        hour_gpus=hour,
        day_gpus=day,
        failed=failed,
        failed_of=counted,
        trips_above=f.pace.max_failed,
        holds=f.holds,
        waves=tuple(_wave(f, wave) for wave in WAVES if any(m.wave is wave for m in f.members.values())),
        members=tuple(sorted(f.members.values(), key=lambda m: (m.wave.number, m.cluster))),
        needs=fleet_needs(f),
        ended_because=f.ended_because,
        history_events=history_events,
        runs=runs,
    )


def _wave(f: FleetRollout, wave: Wave) -> WaveStatus:
    members = [m for m in f.members.values() if m.wave is wave]
    count = Counter(m.state for m in members)
    return WaveStatus(
        wave=wave,
        clusters=len(members),
        waiting=count[MemberState.WAITING],
        running=count[MemberState.RUNNING] + count[MemberState.STARTING],
        done=count[MemberState.DONE],
        failed=count[MemberState.FAILED],
        ended=count[MemberState.ENDED],
        skipped=count[MemberState.SKIPPED],
        cut_gpus=sum(m.cut_gpus for m in members if m.state is not MemberState.SKIPPED),
    )


def fleet_needs(f: FleetRollout) -> str:
    """What a person has to do for the fleet rollout to go on; empty when it goes on by itself."""
    if f.stage is FleetStage.PLANNED and f.plan_hash:
        return f"approve the plan: backstop fleet approve --plan {f.plan_hash}"
    if f.stage is not FleetStage.RUNNING:
        return ""
    if f.holds:
        why = "; ".join(f"paused by {h.actor}" if h.kind is HoldKind.PAUSED else h.reason for h in f.holds)
        return f"{why}. Look, then: backstop fleet resume --reason ... (or backstop fleet abort --reason ...)"
    asking = sorted(m.cluster for m in f.in_state(MemberState.RUNNING) if m.needs)
    if asking:
        return (
            f"{_some(asking)} wait for a person: backstop status --needs (or backstop fleet skip CLUSTER --reason ...)"
        )
    held = sorted(
        m.cluster
        for m in f.in_state(MemberState.WAITING)
        if m.held and m.held_until is None and m.wave.number <= f.wave.number
    )
    if held:
        return (
            f"{_some(held)} cannot start: backstop fleet status --waiting (or backstop fleet skip CLUSTER --reason ...)"
        )
    return ""


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} clusters"
