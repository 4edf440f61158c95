"""The conditions before the next start of a fleet rollout: waves, the rest between them, the budget, the breaker."""

from __future__ import annotations

from datetime import datetime

from models.base import DAY, HOUR
from models.fleet.state import FleetRollout, Member, MemberState, Wave


def startable(fleet: FleetRollout, now: datetime) -> tuple[Member, ...]:
    """Return the clusters that may start as far as waves go: this wave, and clusters that earlier waves passed over.

    While any of these wait, the result includes later waves: fresh snapshots may move their clusters forward.
    """
    waiting = [m for m in fleet.in_state(MemberState.WAITING) if m.retry_at is None or m.retry_at <= now]
    if not any(m.wave.number <= fleet.wave.number for m in waiting):
        return ()
    return tuple(waiting)


def has_looked_in_vain(fleet: FleetRollout, now: datetime) -> bool:
    """Return whether the last pick could start nothing, and nothing that was in the way has ended since."""
    if not fleet.found_none or fleet.picked_at is None:
        return False
    # An earlier version, whose answers do not say what is left, waited in any case.
    ended = fleet.left is not None and any(
        m.held_until and fleet.picked_at < m.held_until <= now for m in fleet.waiting_members
    )
    return now < fleet.picked_at + fleet.pace.recheck and not ended


def budget_left(fleet: FleetRollout, now: datetime) -> tuple[int, int]:
    """Return the GPUs that may still be moved within the hour and the day, by what this rollout has started."""
    return (
        max(0, fleet.pace.budget_per_hour - _started_count(fleet, now - HOUR)),
        max(0, fleet.pace.budget_per_day - _started_count(fleet, now - DAY)),
    )


def _started_count(fleet: FleetRollout, since: datetime) -> int:
    return sum(
        m.cut_gpus
        for m in fleet.members.values()
        if m.started_at is not None and m.started_at > since and not m.joined and m.state is not MemberState.WAITING
    )


def is_wave_over(fleet: FleetRollout, now: datetime) -> bool:
    """Return whether no cluster of this wave, or of those before it, is on its way or could start.

    A pilot must have run or been skipped: a fleet whose pilots are held has none.
    """
    for member in fleet.members.values():
        if member.wave.number > fleet.wave.number or member.state.is_settled:
            continue
        if member.state is not MemberState.WAITING or fleet.wave is Wave.PILOT or not _is_held(member, now):
            return False
    return fleet.wave is not Wave.PILOT or not any(
        member.needs for member in fleet.in_state(MemberState.DONE) if member.wave is Wave.PILOT
    )


def _is_held(member: Member, now: datetime) -> bool:
    return bool(member.held) and (member.held_until is None or now < member.held_until)


def rest_until(fleet: FleetRollout) -> datetime | None:
    """Return when the next wave may begin; None if nothing has to rest."""
    if (
        fleet.settled_at is None
        or fleet.waived
        or not any(m.wave is fleet.wave and m.rollout for m in fleet.members.values())
    ):
        return None
    if fleet.wave is Wave.PILOT:
        return fleet.settled_at + fleet.pace.pilot_soak
    if not any(m.wave.number > fleet.wave.number and not m.state.is_settled for m in fleet.members.values()):
        return None  # no wave comes after it
    return fleet.settled_at + fleet.pace.bake


def breaker_share(fleet: FleetRollout) -> tuple[int, int]:
    """Return how many clusters failed, and of how many that it started, without failures that a person let go."""
    return len(failed_members(fleet)), max(len(counted_members(fleet)), fleet.pace.breaker_clusters)


def failed_members(fleet: FleetRollout) -> list[Member]:
    """Return the members that count as failed for the breaker: it started them itself."""
    return [m for m in fleet.failed_members if not m.joined]


def counted_members(fleet: FleetRollout) -> list[Member]:
    """Return the members whose failures the breaker counts."""
    return [m for m in fleet.begun_members if not (m.forgiven or m.joined)]
