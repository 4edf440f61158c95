"""The weekly report's facts: the ledger's record of the week, and what open rollouts have noted there of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from models.cluster.windows import Entry
from models.fleet.messages import FleetStatus
from models.fleet.state import FLEET, FleetStage
from models.lifecycle.holds import HoldKind
from models.reports.weekly import AHEAD, AtRisk, Blocked, Live, NextStep, Week, week
from models.rollout.stages import Stage
from models.rollout.status_models import RolloutNote
from models.status_questions import OpenRollouts, Overview

if TYPE_CHECKING:
    from client.backstop import Backstop

_PROMISES = frozenset(stage.value for stage in Stage if stage.promises)


async def weekly(
    door: Backstop,
    since: datetime,
    until: datetime,
    times: Sequence[datetime],
    within: timedelta,
    *,
    live: bool,
    most: int | None = None,
) -> Week:
    """Return the report of the week. `live`: it ends now, so that it has the present state of open rollouts too.

    `most`: how many rows each list shows; the ledger gives only sums of the others.
    """
    past = await door.past(since, until, times, within, most)
    return week(past, await _live(door, until) if live else None)


async def _live(door: Backstop, now: datetime) -> Live:
    """Return the present state. Rollouts' comes from the ledger: to ask each of 1,000 rollouts would take seconds."""
    rollouts = [row for row in await door.ask(OpenRollouts(noted=True, quiet=False)) if not row.ended]
    fleet = await door.open_fleet()
    fleet = None if fleet is None or fleet.shadow else fleet
    real = [_Noted(row, row.note) for row in rollouts if not row.shadow and row.note is not None]
    blocked = [block for one in real for block in _blocks_of(one)] + _fleet_blocks(fleet)
    return Live(
        next=(*_fleet_next(fleet), *_list_next_steps(real, {block.cluster for block in blocked}, now)),
        at_risk=tuple(sorted(filter(None, map(_at_risk, real)), key=lambda risk: (-risk.lacking_gpus, risk.cluster))),
        blocked=tuple(sorted(blocked, key=lambda block: (block.since or now, block.cluster))),
        windows=tuple(_ahead(await door.calendar(), now)),
        silent=tuple(row.cluster for row in rollouts if not row.shadow and row.note is None),
        shadows=tuple(row.cluster for row in rollouts if row.shadow),
    )


class _Noted(NamedTuple):
    """A rollout's row in the ledger, and what it noted there for reports."""

    row: Overview
    note: RolloutNote


def _list_next_steps(rollouts: Sequence[_Noted], halted: set[str], now: datetime) -> list[NextStep]:
    """Return the next steps of rollouts that nobody halts, the soonest first."""
    going = (one for one in rollouts if one.row.stage != Stage.MONITORED and one.row.cluster not in halted)
    return sorted((_next(one, now) for one in going), key=_soonest)


def _fleet_next(fleet: FleetStatus | None) -> list[NextStep]:
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


def _next(one: _Noted, now: datetime) -> NextStep:
    unmet = [c for c in one.note.waits if c.until is None or c.until > now]
    opens = [c.until for c in unmet if c.until is not None]
    return NextStep(
        cluster=one.row.cluster,
        stage=one.row.stage,
        at=max(opens) if opens and len(opens) == len(unmet) else None,
        waits_for="; ".join(c.text for c in unmet),
        owner=one.row.owner,
    )


def _soonest(step: NextStep) -> tuple[bool, float, str]:
    return step.at is None, 0.0 if step.at is None else step.at.timestamp(), step.cluster


def _at_risk(one: _Noted) -> AtRisk | None:
    """Return the quotas at risk; a rollout that has written nothing guards none, and its sums show the shortfall."""
    row, note = one
    if not note.lacking_team_count and not note.lacking_gpus:
        return None
    return AtRisk(
        cluster=row.cluster,
        stage=row.stage,
        lacking_gpus=note.lacking_gpus,
        teams=note.lacking_teams,
        team_count=note.lacking_team_count,
        breach_at=note.breach_at,
        advisory=row.stage not in _PROMISES,
    )


def _blocks_of(one: _Noted) -> list[Blocked]:
    """Return one entry for each hold, and one for the owner where a decision is needed that lifts none of them."""
    row, note = one

    def by(kind: str, who: str, since: datetime, reason: str) -> Blocked:
        return Blocked(
            cluster=row.cluster, stage=row.stage, kind=kind, by=who, since=since, reason=reason, needs=row.needs
        )

    if row.stage == Stage.MONITORED and not row.needs:
        return []  # no gate is left for them to shut
    lifts = any(h.kind is HoldKind.PAUSED or h.reason in row.needs for h in row.holds)
    asked = [by("decision", row.owner, note.entered_at, row.needs)] if row.needs and not lifts else []
    return [*(by(hold.kind, hold.team or hold.actor, hold.at, hold.reason) for hold in row.holds), *asked]


def _ahead(entries: Sequence[Entry], now: datetime) -> list[Entry]:
    soon = [e for e in entries if e.window.ends > now and e.window.starts <= now + AHEAD]
    return sorted(soon, key=lambda e: (e.window.starts, e.cluster))
