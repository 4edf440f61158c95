"""What a fleet rollout does next: one pure decision, taken again after everything that happens.

Theory of operation. As for one cluster (models/rollout/decide.py), the workflow is a loop around `decide`: pilots
first, then the waves in order. `advance` takes in what follows from time alone and from failures: the breaker, a
failed pilot, a wave that is through. A cluster that cannot start now never stops those behind it; a failure above the
policy's share stops all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from models.audit import AuditKind
from models.base import DAY, HOUR, duration_text
from models.fleet.state import BREAKER, PILOTS, WAVES, FleetRollout, FleetStage, Member, MemberState, Wave
from models.rollout.actions import Finish, Wait
from models.rollout.holds import HoldKind

_AT_ONCE = 20
"""Rollouts that are told to abort in one call."""


@dataclass(frozen=True)
class PlanFleet:
    """Plan every cluster, for a person to approve."""


@dataclass(frozen=True)
class PickMembers:
    """From fresh snapshots: which of these clusters start now, at most so many and within this budget."""

    candidates: tuple[Member, ...]
    most: int
    hour_gpus: int
    day_gpus: int


@dataclass(frozen=True)
class StartMember:
    """Open the rollouts of these clusters."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class AbortMembers:
    """Tell the rollouts of these clusters to abort."""

    members: tuple[Member, ...]


FleetAction = Wait | PlanFleet | PickMembers | StartMember | AbortMembers | Finish


def decide(f: FleetRollout, now: datetime) -> FleetAction:
    """The next action. Never the same twice without an outcome in between."""
    if f.stage.ended:
        return Finish()
    if f.stage is FleetStage.PLANNED:
        return Wait(None) if f.plan_hash else PlanFleet()
    if f.stage is FleetStage.ABORTING:
        left = [m for m in to_abort(f) if m.cluster not in f.asked and m.stage != "stuck"]
        now_due = tuple(m for m in left if m.held_until is None or m.held_until <= now)
        if now_due:
            return AbortMembers(now_due[:_AT_ONCE])
        return Wait(min((m.held_until for m in left if m.held_until is not None), default=None))
    # What has been picked is started even while held: its budget is taken, and it takes but a moment.
    starting = tuple(f.in_state(MemberState.STARTING))
    if starting:
        return StartMember(starting)
    if not f.holds:
        candidates = startable(f, now)
        hour_gpus, day_gpus = budget_left(f, now)
        slots = f.pace.parallel - f.in_flight
        if candidates and slots > 0 and not _looked_in_vain(f, now):
            return PickMembers(candidates, slots, hour_gpus, day_gpus)
    return Wait(min((t for t in _times(f, now) if t > now), default=None))


def advance(f: FleetRollout, now: datetime) -> FleetRollout:
    """What follows from failures, and from the passing of time. Idempotent."""
    if f.stage is FleetStage.ABORTING:
        return _aborted(f, now)
    if f.stage is not FleetStage.RUNNING:
        return f
    f = _broken(_pilots_failed(f, now), now)
    while f.stage is FleetStage.RUNNING:
        if not _through(f, now):
            return f.but(settled_at=None)
        if f.settled_at is None:
            f = f.but(settled_at=now)
            if any(m.wave is f.wave and m.rollout for m in f.members.values()):
                f = f.noting(AuditKind.TRANSITION, f"{_named(f.wave)} is through", now, wave=f.wave.value)
        rests = rest_until(f)
        if f.holds or (rests is not None and now < rests):
            return f
        f = _next_wave(f, now)
        if f.settled_at is not None:
            return f  # the last wave is through, and some clusters cannot start
    return f


def startable(f: FleetRollout, now: datetime) -> tuple[Member, ...]:
    """Clusters that may start as far as waves go: those of this wave, and of earlier ones that were passed over.

    Those of later waves are looked at too, while there are any before them: fresh snapshots may move them forward.
    """
    waiting = [m for m in f.in_state(MemberState.WAITING) if m.retry_at is None or m.retry_at <= now]
    if not any(m.wave.number <= f.wave.number for m in waiting):
        return ()
    return tuple(waiting)


def _looked_in_vain(f: FleetRollout, now: datetime) -> bool:
    return f.found_none and f.picked_at is not None and now < f.picked_at + f.pace.recheck


def budget_left(f: FleetRollout, now: datetime) -> tuple[int, int]:
    """GPUs that may yet be moved within the hour and within the day, by what this rollout has started."""
    return (
        max(0, f.pace.budget_per_hour - _started(f, now - HOUR)),
        max(0, f.pace.budget_per_day - _started(f, now - DAY)),
    )


def _started(f: FleetRollout, since: datetime) -> int:
    return sum(
        m.cut_gpus
        for m in f.members.values()
        if m.started_at is not None and m.started_at > since and not m.joined and m.state is not MemberState.WAITING
    )


def _through(f: FleetRollout, now: datetime) -> bool:
    """Nothing of this wave, or of those before it, is on its way or could start.

    A pilot must have run, or have been skipped: a fleet whose pilots are held has none.
    """
    for m in f.members.values():
        if m.wave.number > f.wave.number or m.state.settled:
            continue
        if m.state is not MemberState.WAITING or f.wave is Wave.PILOT or not _held(m, now):
            return False
    return f.wave is not Wave.PILOT or not any(m.needs for m in _pilots(f) if m.state is MemberState.DONE)


def _held(m: Member, now: datetime) -> bool:
    return bool(m.held) and (m.held_until is None or now < m.held_until)


def rest_until(f: FleetRollout) -> datetime | None:
    """When the next wave may begin; None where nothing has to rest."""
    if f.settled_at is None or f.waived or not any(m.wave is f.wave and m.rollout for m in f.members.values()):
        return None
    if f.wave is Wave.PILOT:
        return f.settled_at + f.pace.pilot_soak
    if not any(m.wave.number > f.wave.number and not m.state.settled for m in f.members.values()):
        return None  # nothing comes after it
    return f.settled_at + f.pace.bake


def _next_wave(f: FleetRollout, now: datetime) -> FleetRollout:
    later = [m.wave.number for m in f.members.values() if m.wave.number > f.wave.number and not m.state.settled]
    if later:
        wave = WAVES[min(later)]
        moved = f.but(wave=wave, settled_at=None, waived=False, found_none=False)
        return moved.noting(AuditKind.TRANSITION, f"{_named(wave)} begins", now, wave=wave.value)
    if any(not m.state.settled for m in f.members.values()):
        return f
    done = sum(m.state is MemberState.DONE for m in f.members.values())
    why = f"{done} of {len(f.members)} clusters are monitored"
    return f.but(ended_because=why).reaching(FleetStage.DONE, now, why)


def _named(wave: Wave) -> str:
    return "the pilot wave" if wave is Wave.PILOT else f"wave {wave.number} ({wave})"


def _pilots(f: FleetRollout) -> list[Member]:
    return [m for m in f.members.values() if m.wave is Wave.PILOT]


def _pilots_failed(f: FleetRollout, now: datetime) -> FleetRollout:
    """Pilots are there to fail before anybody else does: any of theirs stops the fleet."""
    failed = [m.cluster for m in f.failed if m.wave is Wave.PILOT]
    if f.wave is not Wave.PILOT or not failed or f.hold(PILOTS) is not None:
        return f
    why = f"{'pilots' if len(failed) > 1 else 'pilot'} {', '.join(failed)} rolled back: no wave begins"
    return f.holding(PILOTS, HoldKind.PILOTS, why, now)


def breaker_share(f: FleetRollout) -> tuple[int, int]:
    """Clusters that failed, and of how many: those started that a person has not let go by."""
    counted = [m for m in f.begun if not m.forgiven]
    return len(f.failed), max(len(counted), f.pace.breaker_clusters)


def _broken(f: FleetRollout, now: datetime) -> FleetRollout:
    failed, counted = breaker_share(f)
    if failed <= f.pace.max_failed * counted or f.hold(BREAKER) is not None:
        return f
    names = sorted(m.cluster for m in f.failed)
    some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    started = len([m for m in f.begun if not m.forgiven])
    why = (
        f"{failed} of {started} clusters rolled back, more than {float(f.pace.max_failed):.0%} of {counted}: "
        f"no new one is started ({some})"
    )
    return f.holding(BREAKER, HoldKind.BREAKER, why, now)


def to_abort(f: FleetRollout) -> list[Member]:
    """Members whose rollouts end with this one, the newest first.

    Without undo those that have changed nothing yet; with it every one that it started. What others opened stays.
    """
    planned = ("planned", "")
    found = [
        m for m in f.begun if not m.joined and m.stage not in ("aborted", "closed") and (f.undo or m.stage in planned)
    ]
    return sorted(found, key=lambda m: (m.started_at is not None, m.started_at, m.cluster), reverse=True)


def _aborted(f: FleetRollout, now: datetime) -> FleetRollout:
    left = to_abort(f)
    stuck = [m.cluster for m in left if m.stage == "stuck"]
    if len(left) > len(stuck) or any(f.in_state(MemberState.STARTING)):
        return f
    why = f.ended_because
    if stuck:
        why += f"; stuck: {', '.join(sorted(stuck))}"
    return f.but(holds=(), ended_because=why).reaching(FleetStage.ABORTED, now, why)


def _times(f: FleetRollout, now: datetime) -> Iterable[datetime]:
    """When time alone brings something about."""
    if f.stage is not FleetStage.RUNNING or f.holds:
        return
    rests = rest_until(f)
    if rests is not None:
        yield rests
    waiting = [m for m in f.in_state(MemberState.WAITING) if m.wave.number <= f.wave.number]
    if not waiting:
        return
    for m in waiting:
        yield from (at for at in (m.held_until, m.retry_at) if at is not None)
    if f.found_none and f.picked_at is not None:
        yield f.picked_at + f.pace.recheck


def waiting_text(f: FleetRollout, now: datetime) -> str:
    """One sentence: what the fleet rollout waits for."""
    match f.stage:
        case FleetStage.PLANNED:
            return "waits for its plan to be approved" if f.plan_hash else "plans every cluster"
        case FleetStage.ABORTING:
            return "waits for the rollouts that it aborts"
        case FleetStage.DONE | FleetStage.ABORTED:
            return f.ended_because
    if f.holds:
        return "; ".join(h.reason for h in f.holds)
    rests = rest_until(f)
    if rests is not None and now < rests:
        what = "soaks" if f.wave is Wave.PILOT else "bakes"
        return f"{_named(f.wave)} {what} until {rests:%Y-%m-%d %H:%M:%SZ}"
    if f.in_flight >= f.pace.parallel:
        return f"{f.in_flight} clusters are on their way, and `parallel` is {f.pace.parallel}"
    hour, day = budget_left(f, now)
    waiting = [m for m in f.in_state(MemberState.WAITING) if m.wave.number <= f.wave.number]
    if waiting and f.found_none:
        if min(hour, day) < min(m.cut_gpus for m in waiting):
            return f"the budget is spent: {hour} GPUs left for this hour, {day} for this day"
        many = f"{len(waiting)} clusters" if len(waiting) > 1 else waiting[0].cluster
        return f"{many} cannot start now; looked at again every {_every(f)}"
    if not f.in_flight:
        return f"{_named(f.wave)} waits for a person"
    return f"{f.in_flight} of {_named(f.wave)} {'is' if f.in_flight == 1 else 'are'} on the way"


def _every(f: FleetRollout) -> str:
    return duration_text(f.pace.recheck)
