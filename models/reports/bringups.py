"""Bring-ups in the weekly report: what they reached, who they wait for, and how long each state takes.

Times cover all bring-ups in the book that have left a state; a state that still lasts has no time yet. The median of an
even number is the mean of the two in the middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from models.base import Count, Duration, GpuCount, Model, Name, Time
from models.bringup.messages import BringupRow
from models.bringup.stages import BRINGUP_WAY, BringupStage

_TIMED = (*BRINGUP_WAY[:-1], BringupStage.BLOCKED)
"""The states whose times the report gives: those before production, and blocked."""


class StateTime(Model):
    """The time that bring-ups spent in one state."""

    stage: BringupStage
    bringups: Count
    """Bring-ups that have been in the state and have left it."""
    median: Duration
    slowest: Duration
    slowest_of: Name


class WaitTime(Model):
    """The time that bring-ups have waited for somebody: the median and the longest."""

    whom: str
    bringups: Count
    median: Duration
    slowest: Duration
    slowest_of: Name


class BringupLine(Model):
    """A bring-up that is still under way."""

    cluster: Name
    stage: BringupStage
    since: Time
    waits_for: str
    needs: str = ""
    """The action that a person has to take; empty: none."""
    owner: str
    gpus: GpuCount
    touches: Count
    red: tuple[str, ...] = ()
    """Checks that are red during probation, for a cluster in production."""
    owed_gpus: GpuCount = 0


class BringupReached(Model):
    """A bring-up that reached production, or its end, this week."""

    cluster: Name
    stage: BringupStage
    at: Time
    took: Duration
    """The time from the bring-up's entry to `at`."""
    touches: Count


class BringupsWeek(Model):
    """The report's part on bring-ups. `touches`: people's actions beside entry and check-in."""

    entered: Count
    """Bring-ups entered this week."""
    reached: tuple[BringupReached, ...]
    going: tuple[BringupLine, ...]
    """Bring-ups that need a person first, then those longest in their state."""
    times: tuple[StateTime, ...]
    waits: tuple[WaitTime, ...]
    finished: Count
    """Bring-ups that ever reached production."""
    touches_median: float | None = None
    touches_most: Count = 0
    owed_gpus: GpuCount = 0


def bringups_week(rows: Sequence[BringupRow], since: datetime, until: datetime) -> BringupsWeek | None:
    """Summarise the week's bring-ups. None: there are none yet."""
    rows_so_far = [row for row in rows if row.entered_at <= until]
    if not rows_so_far:
        return None
    in_production = [row for row in rows_so_far if _has_reached_production(row)]
    touches = [row.touches for row in in_production]
    going = [_line(row) for row in rows_so_far if _goes_on(row)]
    return BringupsWeek(
        entered=sum(row.entered_at > since for row in rows_so_far),
        reached=tuple(sorted(_arrivals(rows_so_far, since, until), key=lambda each: (each.at, each.cluster))),
        going=tuple(sorted(going, key=lambda each: (not each.needs, each.since, each.cluster))),
        times=tuple(_times(rows_so_far)),
        waits=tuple(_waits(rows_so_far)),
        finished=len(in_production),
        touches_median=float(median(touches)) if touches else None,
        touches_most=max(touches, default=0),
        owed_gpus=sum(each.owed_gpus for each in going),
    )


def _has_reached_production(row: BringupRow) -> bool:
    """Return whether it has ever been in production: only from there a cluster is retired."""
    at = row.blocked_from or row.stage
    return at in (BringupStage.IN_PRODUCTION, BringupStage.RETIRING, BringupStage.RETIRED)


def _goes_on(row: BringupRow) -> bool:
    """Return whether it is under way: in production only while it is in probation, red, or owes something."""
    if row.stage.has_ended:
        return False
    return row.stage is not BringupStage.IN_PRODUCTION or bool(row.red or row.owed)


def _line(row: BringupRow) -> BringupLine:
    return BringupLine(
        cluster=row.cluster,
        stage=row.stage,
        since=row.stage_at,
        waits_for=row.waits_for,
        needs=row.needs,
        owner=row.owner,
        gpus=row.gpus,
        touches=row.touches,
        red=row.red,
        owed_gpus=sum(row.owed.values()),
    )


def _arrivals(rows: Iterable[BringupRow], since: datetime, until: datetime) -> Iterable[BringupReached]:
    for row in rows:
        arrived = row.stage is BringupStage.IN_PRODUCTION or row.stage.has_ended
        if arrived and since < row.stage_at <= until:
            yield BringupReached(
                cluster=row.cluster,
                stage=row.stage,
                at=row.stage_at,
                took=row.stage_at - row.entered_at,
                touches=row.touches,
            )


def _times(rows: Sequence[BringupRow]) -> Iterable[StateTime]:
    for stage in _TIMED:
        lasted = [(row.lasted.get(stage, timedelta(0)), row.cluster) for row in rows if row.stage is not stage]
        if some := [each for each in lasted if each[0] > timedelta(0)]:
            yield StateTime(stage=stage, **_spread(some))


def _waits(rows: Sequence[BringupRow]) -> Iterable[WaitTime]:
    for whom in sorted({whom for row in rows for whom in row.waited}):
        waited = [(row.waited.get(whom, timedelta(0)), row.cluster) for row in rows]
        if some := [each for each in waited if each[0] > timedelta(0)]:
            yield WaitTime(whom=whom, **_spread(some))


def _spread(times: Sequence[tuple[timedelta, str]]) -> dict[str, Any]:
    """Return how many there are, their median to the second, and the slowest with its cluster."""
    slowest, slowest_of = max(times)
    middle = timedelta(seconds=round(median(time.total_seconds() for time, _ in times)))
    return {"bringups": len(times), "median": middle, "slowest": slowest, "slowest_of": slowest_of}
