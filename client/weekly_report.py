"""The weekly report's facts: the ledger's record of the week, and the present state of open rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from models.cluster.windows import Entry
from models.fleet.messages import FleetStatus
from models.fleet.state import FLEET, FleetStage
from models.planning.plan import make_plan
from models.reports.milestones import ROLLED_OUT_WAVES
from models.reports.rollout_summary import RolloutSummary
from models.reports.weekly import AHEAD, AtRisk, Blocked, Live, NextStep, Past, Week, waves_done, week
from models.rollout.holds import HoldKind
from models.rollout.stages import Stage
from models.rollout.status_models import RolloutStatus

if TYPE_CHECKING:
    from client.backstop import Backstop

_PATIENCE_SECONDS = 60
"""For what rollouts say of themselves."""


async def weekly(
    door: Backstop, since: datetime, until: datetime, times: Sequence[datetime], within: timedelta, *, live: bool
) -> Week:
    """Return the report of the week. `live`: it ends now, so that open rollouts are asked too."""
    past = await door.past(since, until, times, within)
    rollouts = [r for r in await door.overview() if r.open] if live or _asks_waves(past) else []
    waves = waves_done(await _wave_of(door, rollouts), past.monitored) if _asks_waves(past) else None
    return week(past, await _live(door, rollouts, until) if live else None, waves)


async def waves_rolled_out(door: Backstop, monitored: Sequence[str]) -> int:
    """Count the waves that are monitored whole. Open rollouts know their wave; today's plan gives the others'."""
    return waves_done(await _wave_of(door, [r for r in await door.rollouts() if r.open]), monitored)


def _asks_waves(past: Past) -> bool:
    return any(p.milestone.measure == ROLLED_OUT_WAVES for p in past.milestones.planned)


async def _wave_of(door: Backstop, rollouts: Sequence[RolloutSummary]) -> Mapping[str, str]:
    """Return the wave of every cluster."""
    waves = {r.cluster: r.wave for r in rollouts if r.wave}
    for snapshot, policy in await door.snapshots():
        if snapshot.cluster not in waves:
            waves[snapshot.cluster] = make_plan(snapshot, policy).wave.value
    return waves


async def _live(door: Backstop, rollouts: Sequence[RolloutSummary], now: datetime) -> Live:
    """Return the present state. Rollouts that rest in monitored, all backed and asking nothing, are not asked."""
    real = [r for r in rollouts if not r.shadow]
    busy = [r.cluster for r in real if r.stage != Stage.MONITORED or r.needs or r.unbacked_gpus]
    fleet = await door.open_fleet()
    fleet = None if fleet is None or fleet.shadow else fleet
    answers = await door.ask_rollouts(busy, _PATIENCE_SECONDS)
    statuses = [s for s in answers.values() if s is not None and not s.stage.has_ended and not s.shadow]
    blocked = [b for status in statuses for b in _blocks_of(status, now)] + _fleet_blocks(fleet)
    return Live(
        next=(*_fleet_next(fleet), *_coming(statuses, {b.cluster for b in blocked})),
        at_risk=tuple(sorted(filter(None, map(_at_risk, statuses)), key=lambda r: (-r.lacking_gpus, r.cluster))),
        blocked=tuple(sorted(blocked, key=lambda b: (b.since or now, b.cluster))),
        windows=tuple(_ahead(await door.calendar(), now)),
        silent=tuple(cluster for cluster, status in answers.items() if status is None),
        shadows=tuple(r.cluster for r in rollouts if r.shadow),
    )


def _coming(statuses: Sequence[RolloutStatus], halted: set[str]) -> list[NextStep]:
    """Return the next steps of rollouts that nobody halts, the soonest first."""
    going = (s for s in statuses if s.stage is not Stage.MONITORED and s.cluster not in halted)
    return sorted(map(_next, going), key=_soonest)


def _fleet_next(fleet: FleetStatus | None) -> list[NextStep]:
    """Return the fleet rollout's next step, while it runs."""
    if fleet is None or fleet.stage is not FleetStage.RUNNING or fleet.holds:
        return []
    waiting = ", ".join(f"{w.waiting} {w.wave.place_text}" for w in fleet.waves if w.waiting)
    text = fleet.waits_for + (f"; still to start: {waiting}" if waiting else "")
    at = fleet.rests_until if fleet.rests_until is not None and fleet.rests_until > fleet.at else None
    return [NextStep(cluster=FLEET, stage=fleet.stage.value, at=at, waits_for=text, owner=fleet.owner)]


def _fleet_blocks(fleet: FleetStatus | None) -> list[Blocked]:
    if fleet is None:
        return []

    def by(kind: str, actor: str, since: datetime, reason: str) -> Blocked:
        stage = fleet.stage.value
        return Blocked(cluster=FLEET, stage=stage, kind=kind, by=actor, since=since, reason=reason, needs=fleet.needs)

    if fleet.holds:
        return [by(hold.kind, hold.actor, hold.at, hold.reason) for hold in fleet.holds]
    return [by("decision", fleet.owner, fleet.entered_at, fleet.needs)] if fleet.needs else []


def _next(status: RolloutStatus) -> NextStep:
    unmet = [c for c in status.waiting_for if not c.met]
    opens = [c.until for c in unmet if c.until is not None]
    return NextStep(
        cluster=status.cluster,
        stage=status.stage,
        at=max(opens) if opens and len(opens) == len(unmet) else None,
        waits_for="; ".join(c.text for c in unmet),
        owner=status.owner,
    )


def _soonest(step: NextStep) -> tuple[bool, float, str]:
    return step.at is None, 0.0 if step.at is None else step.at.timestamp(), step.cluster


def _at_risk(status: RolloutStatus) -> AtRisk | None:
    """Return the quotas at risk; a rollout that has written nothing guards none, and its sums show the shortfall."""
    advisory = not status.stage.promises
    if not status.at_risk:
        if not status.phantom_gpus:
            return None
        return AtRisk(
            cluster=status.cluster,
            stage=status.stage,
            lacking_gpus=status.phantom_gpus,
            teams=tuple(t.team for t in status.teams if t.leaf and (t.backing_gpus or 0) < t.quota_gpus),
            advisory=advisory,
        )
    breaches = [r.breach_at for r in status.at_risk if r.breach_at is not None]
    return AtRisk(
        cluster=status.cluster,
        stage=status.stage,
        lacking_gpus=sum(max(0, r.quota_gpus - r.backing_gpus) for r in status.at_risk),
        teams=tuple(r.team for r in status.at_risk),
        breach_at=min(breaches) if breaches else None,
        advisory=advisory,
    )


def _blocks_of(status: RolloutStatus, now: datetime) -> list[Blocked]:
    """Return one entry for each hold, and one for the owner where a decision is needed that lifts none of them."""

    def by(kind: str, who: str, since: datetime, reason: str) -> Blocked:
        at, stage, needs = status.cluster, status.stage, status.needs
        return Blocked(cluster=at, stage=stage, kind=kind, by=who, since=since, reason=reason, needs=needs)

    if status.stage is Stage.MONITORED and not status.needs:
        return []  # no gate is left for them to shut
    holds = [h for h in status.holds if h.until is None or h.until > now]
    lifts = any(h.kind is HoldKind.PAUSED or h.reason in status.needs for h in holds)
    asked = [by("decision", status.owner, status.entered_at, status.needs)] if status.needs and not lifts else []
    return [*(by(hold.kind, hold.team or hold.actor, hold.at, hold.reason) for hold in holds), *asked]


def _ahead(entries: Sequence[Entry], now: datetime) -> list[Entry]:
    soon = [e for e in entries if e.window.ends > now and e.window.starts <= now + AHEAD]
    return sorted(soon, key=lambda e: (e.window.starts, e.cluster))
