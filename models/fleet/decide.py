"""The next action of a fleet rollout: one pure decision, taken again after every event.

Theory of operation. As for one cluster (models/rollout/decide.py), the workflow is a loop around `decide`: pilots
first, then the waves in order. `advance` (models/fleet/reducers.py) applies what follows from time alone and from
failures: the breaker, a failed pilot, a wave that is through. A cluster that cannot start now never stops those behind
it; a share of failures above the policy's stops all.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from models.fleet.gates import budget_left, has_looked_in_vain, rest_until, startable
from models.fleet.state import FleetRollout, FleetStage, MemberState
from models.fleet.workflow_actions import AbortMembers, FleetAction, PickMembers, PlanFleet, StartMembers
from models.lifecycle.workflow_actions import Finish, Wait

_AT_ONCE = 20
"""The most rollouts that one call aborts."""


def decide(fleet: FleetRollout, now: datetime) -> FleetAction:
    """Return the next action. It never returns the same action twice without an outcome in between."""
    match fleet.stage:
        case FleetStage.PLANNED:
            return Wait(None) if fleet.plan_hash else PlanFleet()
        case FleetStage.RUNNING:
            return _decide_run(fleet, now)
        case FleetStage.ABORTING:
            return _decide_abort(fleet, now)
        case FleetStage.DONE | FleetStage.ABORTED:
            return Finish()


def _decide_abort(fleet: FleetRollout, now: datetime) -> FleetAction:
    left = [m for m in fleet.to_abort if m.cluster not in fleet.asked and m.stage != "stuck"]
    now_due = tuple(m for m in left if m.held_until is None or m.held_until <= now)
    if now_due:
        return AbortMembers(now_due[:_AT_ONCE])
    return Wait(min((m.held_until for m in left if m.held_until is not None), default=None))


def _decide_run(fleet: FleetRollout, now: datetime) -> FleetAction:
    # Picked members start even during a hold: their budget is taken, and the start takes only a moment.
    starting = tuple(fleet.in_state(MemberState.STARTING))
    if starting:
        return StartMembers(starting)
    if fleet.holds:
        return Wait(None)
    candidates = startable(fleet, now)
    hour_gpus, day_gpus = budget_left(fleet, now)
    slots = fleet.pace.parallel - fleet.in_flight
    if candidates and slots > 0 and not has_looked_in_vain(fleet, now):
        return PickMembers(candidates, slots, hour_gpus, day_gpus)
    return Wait(min((t for t in _times(fleet) if t > now), default=None))


def _times(fleet: FleetRollout) -> Iterable[datetime]:
    """Yield the times at which something happens by time alone."""
    rests = rest_until(fleet)
    if rests is not None:
        yield rests
    for member in fleet.waiting_members:
        yield from (at for at in (member.held_until, member.retry_at) if at is not None)
    if fleet.waiting_members and fleet.found_none and fleet.picked_at is not None:
        yield fleet.picked_at + fleet.pace.recheck
