"""The made-up fleet's rollout over all clusters, by the product's own state machine (models/fleet).

What is made up is when each cluster's rollout began and what its plan cut (benchmarks/console_scene.py). Waves, the
soak, what is waited for and the archive follow from that, event by event, as they would in Temporal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple

from models.fleet.commands import FleetCommandRequest, obey
from models.fleet.messages import FleetLaunch, FleetPlan, Noted, PickAnswer, Picked, Prospect, StartAnswer
from models.fleet.order import plan_hash, take_prospects
from models.fleet.reducers import advance, apply_news, apply_picks, apply_plan, apply_starts, open_fleet
from models.fleet.state import FleetRollout, Pace
from models.rollout.stages import Stage

FLEET_ROLLOUT = "fleet-1"
APPROVED_BY = "user:hw-lead"
PACE = Pace(parallel=300, budget_per_hour=1024, budget_per_day=20480)
_BEFORE = timedelta(hours=2)
"""How long before the first cluster it was launched; half of that later its plan was approved."""


class Lived(NamedTuple):
    """A cluster of the fleet rollout. `cut_gpus`: by its own rollout's plan; `began`: None: it has no rollout yet."""

    prospect: Prospect
    pilot: bool
    rollout: str
    began: datetime | None
    monitored: datetime | None
    cut_gpus: int
    needs: str
    stage: Stage


class _Event(NamedTuple):
    at: datetime
    begins: bool
    lived: Lived


def fleet_rollout(clusters: Sequence[Lived], owner: str, reason: str) -> FleetRollout:
    """Return the fleet rollout as it is now. Its outbox is its whole archive."""
    events = sorted(_events(clusters), key=lambda e: (e.at, e.begins, e.lived.prospect.cluster))
    pilots = tuple(one.prospect.cluster for one in clusters if one.pilot)
    launch = FleetLaunch(fleet=FLEET_ROLLOUT, owner=owner, reason=reason, pilots=pilots, pace=PACE)
    at = events[0].at - _BEFORE
    fleet = open_fleet(launch, at)
    taken = take_prospects(launch, [one.prospect for one in clusters])
    plan = FleetPlan(fleet=launch.fleet, hash=plan_hash(taken), clusters=taken)
    fleet = apply_plan(fleet, launch, plan, at + timedelta(minutes=1))
    approval = FleetCommandRequest(actor=APPROVED_BY, reason="as in the review", plan_hash=plan.hash)
    fleet = obey(fleet, "approve", approval, at + _BEFORE / 2)[0]
    for (at, begins), those in groupby(events, key=lambda e: (e.at, e.begins)):
        fleet = advance(fleet, at)  # what time alone has brought about until then: a soak or a bake that is over
        take: Callable[[FleetRollout, Sequence[Lived], datetime], FleetRollout] = _begun if begins else _through
        fleet = advance(take(fleet, [e.lived for e in those], at), at)
    return fleet


def _events(clusters: Sequence[Lived]) -> Iterator[_Event]:
    for one in clusters:
        if one.began is not None:
            yield _Event(one.began, True, one)
        if one.monitored is not None:
            yield _Event(one.monitored, False, one)


def _begun(fleet: FleetRollout, those: Sequence[Lived], at: datetime) -> FleetRollout:
    names = [one.prospect.cluster for one in those]
    waves = {one.prospect.cluster: fleet.members[one.prospect.cluster].wave for one in those}
    early = [name for name, wave in waves.items() if wave.number > fleet.wave.number]
    assert not early, f"their wave has not come: {early}"
    picks = tuple(
        Picked(cluster=one.prospect.cluster, wave=waves[one.prospect.cluster], cut_gpus=one.cut_gpus) for one in those
    )
    fleet = apply_picks(fleet, PickAnswer(picked=picks), {one.prospect.cluster: one.rollout for one in those}, at)
    fleet = apply_starts(fleet, names, StartAnswer(), at)
    waiting = {o.rollout: Noted(rollout=o.rollout, stage=o.stage, needs=o.needs) for o in those if o.needs}
    return apply_news(fleet, waiting, at)


def _through(fleet: FleetRollout, those: Sequence[Lived], at: datetime) -> FleetRollout:
    return apply_news(fleet, {one.rollout: Noted(rollout=one.rollout, stage=Stage.MONITORED) for one in those}, at)
