"""Makes an observation of a cluster from readings that are there already. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from models.cluster.flex_size import FlexSight, flex_pool
from models.cluster.island import Island
from models.cluster.latest_readings import Evidence
from models.cluster.quota import Quota
from models.cluster.readings import (
    HealthSample,
    Observation,
    PresentBacking,
    QuotaReading,
    TeamUsage,
    UsageReading,
    truthful,
)
from models.cluster.snapshot import Snapshot, with_named_islands
from models.cluster.windows import Window, nearest, without_absences
from models.errors import Refusal
from models.planning.backing import Backing, back, back_on
from models.planning.occupancy import standing_in_quota
from models.planning.placement import PlacementSolver
from models.rollout.messages import ObserveRequest


def islands_for(quotas: tuple[Quota, ...], sample: HealthSample | None) -> tuple[Island, ...]:
    """Return the sample's islands; one that a quota names and the sample lacks has no healthy GPU."""
    return with_named_islands(quotas, () if sample is None else sample.islands)


def as_it_stands(reading: QuotaReading, gpus_per_node: int, sample: HealthSample | None) -> Snapshot:
    """Return the cluster's quotas on its healthy GPUs."""
    quotas = tuple(quota.as_quota() for quota in reading.quotas)
    return Snapshot(
        cluster=reading.cluster,
        gpus_per_node=gpus_per_node,
        islands=islands_for(quotas, sample),
        quotas=quotas,
        generation=reading.generation,
    )


def to_plan(
    reading: QuotaReading, sample: HealthSample | None, usage: UsageReading, gpus_per_node: int, completed: int
) -> Snapshot:
    """Return the basis of a plan: the cluster's quotas with this usage, on its healthy GPUs.

    Errors: Refusal if its health is unknown; ValueError for readings that make no sense.
    """
    by_team = {u.team: u for u in usage.teams}
    parents = {quota.parent for quota in reading.quotas}
    quotas = tuple(
        quota.as_quota(
            None if quota.team in parents or quota.team not in by_team else by_team[quota.team].scheduled_gpus,
            None if quota.team in parents or quota.team not in by_team else by_team[quota.team].idle_gpus,
        )
        for quota in reading.quotas
    )
    if sample is None:
        raise Refusal(f"cluster {reading.cluster} has no health sample yet: import its health first")
    return Snapshot(
        cluster=reading.cluster,
        gpus_per_node=gpus_per_node,
        islands=islands_for(quotas, sample),
        quotas=quotas,
        generation=reading.generation,
        completed_rollouts=completed,
        usage_from=usage.source,
        health_at=sample.at,
    )


def observe_from(
    evidence: Evidence,
    request: ObserveRequest,
    least: Mapping[str, int] | None = None,
    usual: Mapping[str, int] | None = None,
    by: datetime | None = None,
) -> Observation:
    """Make the observation. Healthy GPUs by island: `least` of late, `usual` in the long run.

    Windows that are over are left out: a calendar forgets nothing, and a rollout carries what it last saw. `by`: no
    true sample is dated later; without it, the request's own time.
    """
    reading, sample = evidence.reading, evidence.sample
    values: Mapping[str, int] = reading.values if request.values is None else request.values
    timely = truthful(sample, by or request.at)
    ahead_to, fault = None, ""
    if sample is not None:
        fault = sample.fault
        ahead_to = sample.at if timely is None else sample.ahead_to
    windows = tuple(window for window in evidence.windows if window.ends > request.at)
    bare = Observation(
        cluster=request.cluster,
        at=request.at,
        reading=reading,
        health=None,
        ahead_to=ahead_to,
        fault=fault,
        windows=nearest(windows, request.at),
        tested=dict(values),
    )
    if timely is None or not timely.islands:
        return bare
    as_tested = reading.but(quotas=tuple(p.but(gpus=values.get(p.team, p.gpus)) for p in reading.quotas))
    tested, present = (as_it_stands(each, request.gpus_per_node, timely) for each in (as_tested, reading))
    ground = PlacementSolver(tested)
    backing = back_on(ground)
    there, there_backing = ground, backing  # solved again only if other values are tested
    if present.quotas != tested.quotas:
        there = PlacementSolver(present)
        there_backing = back_on(there)
    flex = None
    if request.flex_after is not None:
        flex = _flex(*((tested, backing) if request.shadow else (present, there_backing)), least or {})
    return bare.but(
        health=timely.but(fault=""),
        **_backing_fields(tested, ground, backing, windows, evidence),
        flex=flex,
        long_run=_long_run(tested.islands, usual or {}),
        present=None if there is ground else _present_backing(there, evidence.usage, there_backing),
    )


def _backing_fields(
    snapshot: Snapshot, ground: PlacementSolver, backing: Backing, windows: tuple[Window, ...], evidence: Evidence
) -> dict[str, Any]:
    """Return the part of an observation about the values that it tests."""
    whole = without_absences(snapshot.islands, windows, evidence.at)
    standing = _present_backing(ground, evidence.usage, backing)
    return {
        "tested": snapshot.values,
        "backing": backing.of,
        "shortage": backing.shortage,
        "counted": (backing if whole == snapshot.islands else back(snapshot.with_islands(whole))).shortage,
        "assigned_gpus": standing.assigned_gpus,
        "backed_gpus": standing.backed_gpus,
        "flex_gpus": standing.flex_gpus,
    }


def _flex(snapshot: Snapshot, backing: Backing, least: Mapping[str, int]) -> FlexSight:
    surplus = backing.healthy_gpus - backing.backed_gpus
    of_late = tuple(i.at_health(min(i.healthy_gpus, least.get(i.name, i.healthy_gpus))) for i in snapshot.islands)
    if of_late == snapshot.islands:
        return FlexSight(surplus_gpus=surplus, standing_gpus=surplus)
    return FlexSight(surplus_gpus=surplus, standing_gpus=min(surplus, surplus_of(snapshot.with_islands(of_late))))


def _long_run(islands: tuple[Island, ...], usual: Mapping[str, int]) -> tuple[Island, ...]:
    """Return the islands at their usual health; none if one with GPUs has no history."""
    if not usual or any(i.total_gpus and i.name not in usual for i in islands):
        return ()
    return tuple(island.at_health(min(usual.get(island.name, 0), island.total_gpus)) for island in islands)


def surplus_of(snapshot: Snapshot) -> int:
    backing = back(snapshot)
    return backing.healthy_gpus - backing.backed_gpus


def _present_backing(ground: PlacementSolver, usage: Mapping[str, TeamUsage], backing: Backing) -> PresentBacking:
    return PresentBacking(
        assigned_gpus=backing.assigned_gpus,
        backed_gpus=backing.backed_gpus,
        flex_gpus=flex_pool(backing.healthy_gpus, backing.backed_gpus, standing_in_quota(ground, usage)).gpus,
        backing=backing.of,
        shortage=backing.shortage,
    )
