"""The flex of one cluster at one moment: how much there is, who is on it, who would give it back first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pydantic import Field

from models.base import GpuCount, Model, Name, Time
from models.cluster.flex_size import flex_pool
from models.cluster.island import Island
from models.cluster.jobs import FlexLives, Job, RunsOn, first_to_go, gpus_by_team, outside_quotas, standing_gpus
from models.cluster.latest_readings import Evidence
from models.cluster.readings import HealthSample, TeamUsage
from models.cluster.snapshot import Snapshot, present_snapshot
from models.cluster.team_work import TeamWork
from models.flex.division import FlexDemand, FlexMode, FlexTeam, division
from models.planning.backing import back_on
from models.planning.occupancy import standing_in_quota, used_in_quota
from models.planning.placement import PlacementSolver


class IslandNow(Model):
    name: Name
    total_gpus: GpuCount
    healthy_gpus: GpuCount
    block_gpus: GpuCount
    """The largest contiguous block that the healthy hardware could hold if no job ran in the island."""
    free_block_gpus: GpuCount | None = None
    """The part of that block on which no job runs, as far as the jobs' islands are known; None: unknown."""


class OnFlex(Model):
    """A team whose jobs run beyond its quota. Units: whole GPUs."""

    team: Name
    gpus: GpuCount
    """The GPUs that its jobs hold beyond its quota."""
    share_gpus: GpuCount
    """The GPUs beyond its quota that the fair division of all present demand gives it."""

    @property
    def above_gpus(self) -> int:
        return self.gpus - self.share_gpus


class FlexNow(Model):
    """The GPUs of one cluster: promised and used, surplus and unused. Units: whole GPUs."""

    cluster: Name
    gpu_model: str | None = None
    at: Time
    health_at: Time | None
    """Time of the latest health sample; None: health is unknown, and all numbers below are zero."""
    total_gpus: GpuCount = 0
    healthy_gpus: GpuCount = 0
    promised_gpus: GpuCount = 0
    backed_gpus: GpuCount = 0
    in_quota_gpus: GpuCount = 0
    """GPUs held by jobs inside their quotas; where use is unknown, the whole quota."""
    surplus_gpus: GpuCount = 0
    unused_gpus: GpuCount = 0
    used_gpus: GpuCount = 0
    """GPUs held by jobs beyond their quotas, and by jobs outside any quota."""
    outside: dict[Name, GpuCount] = Field(default_factory=dict, exclude_if=lambda gpus: not gpus)
    """The part of `used_gpus` that jobs outside any quota hold, by team or, in Slurm, by account."""
    known_quotas: GpuCount = 0
    quotas: GpuCount = 0
    islands: tuple[IslandNow, ...] = ()
    on_flex: tuple[OnFlex, ...] = ()
    """Teams in the order in which they would give GPUs back: the one furthest above its share comes first."""
    jobs: tuple[Job, ...] = ()
    """Jobs on flex in the order in which they would be preempted, as far as jobs are known by name."""
    yields: tuple[TeamWork, ...] = ()
    """For teams with classes: GPUs by class, the first to yield first; flex only where a job names its class."""
    lives: FlexLives | None = None
    """Lifetimes of flex jobs; None where no job is known by name."""

    def free_block(self, island: IslandNow) -> tuple[int, bool]:
        """Return the largest block that could start in the island now, and whether that is exact or an upper bound."""
        if island.free_block_gpus is None:
            most = min(island.block_gpus, self.available_gpus)
            return most, most == 0
        return min(island.free_block_gpus, self.available_gpus), True

    @property
    def largest_free_block(self) -> tuple[int, bool]:
        """The largest free block of any island, as no block crosses islands, and whether it is exact."""
        blocks = [self.free_block(island) for island in self.islands]
        largest = max((gpus for gpus, _ in blocks), default=0)
        return largest, (largest, True) in blocks or not blocks

    @property
    def flex_gpus(self) -> int:
        return self.surplus_gpus + self.unused_gpus

    @property
    def available_gpus(self) -> int:
        return max(0, self.flex_gpus - self.used_gpus)


def flex_now(seen: Evidence, mode: FlexMode = FlexMode.EQUAL) -> FlexNow:
    """Return how much flex the readings show, and who uses it. `lives` is left for the caller to add.

    Source: docs/design.md, "Words": surplus = H - B, unused = max(0, H - in-quota use - surplus).
    Errors: ValueError for quotas that make no sense.
    """
    sample = seen.sample
    if sample is None or not sample.islands:
        return FlexNow(cluster=seen.reading.cluster, at=seen.at, health_at=None)
    snapshot = present_snapshot(seen.reading, sample.islands)
    ground, quotas = PlacementSolver(snapshot), snapshot.tree.leaf_gpus
    backing = back_on(ground)
    scheduled = {team: usage.scheduled_gpus for team, usage in seen.usage.items() if team in quotas}
    held = used_in_quota(snapshot.tree, seen.usage)
    pool = flex_pool(backing.healthy_gpus, backing.backed_gpus, standing_in_quota(ground, seen.usage))
    running = [job for job in seen.jobs if job.ended is None]
    beyond, outside = _beyond(held, scheduled, running), outside_quotas(running, quotas)
    has = {team: held[team] + gpus for team, gpus in beyond.items()}
    shares = _shares(snapshot, seen.usage, mode, has, standing_gpus(outside))
    on_flex = [
        OnFlex(team=team, gpus=gpus, share_gpus=max(0, shares[team] - held[team])) for team, gpus in beyond.items()
    ]
    return FlexNow(
        cluster=seen.reading.cluster,
        at=seen.at,
        health_at=sample.at,
        total_gpus=snapshot.total_gpus,
        healthy_gpus=snapshot.healthy_gpus,
        promised_gpus=backing.assigned_gpus,
        backed_gpus=backing.backed_gpus,
        in_quota_gpus=sum(held.values()),
        surplus_gpus=pool.surplus_gpus,
        unused_gpus=pool.unused_gpus,
        used_gpus=sum(o.gpus for o in on_flex) + sum(job.gpus for job in outside),
        outside=gpus_by_team(outside),
        known_quotas=len(scheduled),
        quotas=len(quotas),
        islands=_islands(sample, running, quotas, sum(scheduled.values())),
        on_flex=tuple(sorted(on_flex, key=lambda o: (-o.above_gpus, o.team))),
        jobs=first_to_go(running, {o.team: o.above_gpus for o in on_flex}, seen.classes_by_team),
        yields=tuple(
            work for work in seen.work if work.has_classes and (work.on is RunsOn.QUOTA or work.has_named_jobs)
        ),
    )


def _beyond(held: Mapping[str, int], scheduled: Mapping[str, int], running: Sequence[Job]) -> dict[str, int]:
    """Return the GPUs that each team holds beyond its quota, by the sums or, if more, by its jobs on flex."""
    beyond = {team: gpus - held[team] for team, gpus in scheduled.items() if gpus > held[team]}
    by_name: dict[str, int] = {}
    for job in running:
        if job.on is RunsOn.FLEX and job.team in held:
            by_name[job.team] = by_name.get(job.team, 0) + job.gpus
    return beyond | {team: max(gpus, beyond.get(team, 0)) for team, gpus in by_name.items()}


def _islands(
    sample: HealthSample, running: Sequence[Job], holders: Collection[str], held_gpus: int
) -> tuple[IslandNow, ...]:
    """Return the islands. Samples of use may omit what runs on flex: then the jobs in quota must add up to them."""
    inside = [job for job in running if job.team in holders]
    sums = {sum(job.gpus for job in inside), sum(job.gpus for job in inside if job.on is RunsOn.QUOTA)}
    all_named = bool(running) and held_gpus in sums
    return tuple(
        IslandNow(
            name=island.name,
            total_gpus=island.total_gpus,
            healthy_gpus=island.healthy_gpus,
            block_gpus=island.room_for_blocks,
            free_block_gpus=_free_block(island, sample.islands, running) if all_named else None,
        )
        for island in sample.islands
    )


def _free_block(island: Island, islands: Sequence[Island], running: Sequence[Job]) -> int | None:
    """Return the island's block less what runs in it; None if the island of a job is unknown."""
    places = {i.name for i in islands}
    if len(places) > 1 and any(job.island not in places for job in running):
        return None
    here = sum(job.gpus for job in running if len(places) == 1 or job.island == island.name)
    return island.block_beside(here)


def share_expected(
    snapshot: Snapshot, usage: Mapping[str, TeamUsage], team: str, gpus: int, outside_gpus: int = 0
) -> int:
    """Return how many of `gpus` more GPUs flex would give the team beyond what it has. Units: whole GPUs.

    `outside_gpus`: held by jobs outside any quota.
    """
    quota, own = snapshot.tree.by_team[team].gpus, usage.get(team)
    held = quota if own is None else max(quota, own.scheduled_gpus)
    wanting = {**usage, team: TeamUsage(team=team, scheduled_gpus=held, pending_gpus=gpus)}
    return min(gpus, max(0, _shares(snapshot, wanting, FlexMode.EQUAL, {}, outside_gpus)[team] - held))


def _shares(
    snapshot: Snapshot, usage: Mapping[str, TeamUsage], mode: FlexMode, has: Mapping[str, int], outside_gpus: int
) -> dict[str, int]:
    """Divide the healthy GPUs, but those held outside any quota, fairly among all jobs that run or wait.

    A team of unknown use asks for its quota.

    `has`: GPUs that teams have by all that is known, also by jobs on flex that no sample of use counts.
    """
    leaves = set(snapshot.tree.leaves)
    teams = []
    for quota in snapshot.quotas:
        own = usage.get(quota.team)
        runs, waits = (quota.gpus, 0) if own is None else (own.scheduled_gpus, own.pending_gpus or 0)
        asks = max(runs, has.get(quota.team, 0)) + waits
        demand = asks if quota.team in leaves else 0
        teams.append(FlexTeam(team=quota.team, parent=quota.parent, quota_gpus=quota.gpus, demand_gpus=demand))
    if not teams:
        return {}
    asked = FlexDemand(capacity_gpus=max(0, snapshot.healthy_gpus - outside_gpus), mode=mode, teams=tuple(teams))
    return {p.team: p.gpus for p in division(asked).portions}
