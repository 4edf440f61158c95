"""Jobs by name: the GPUs that they hold now, and the lifetimes of those on flex. Usage samples have the teams' sums."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from statistics import median
from typing import Self

from pydantic import Field, model_validator

from models.base import Count, GpuCount, Model, Name, PositiveCount, Time
from models.cluster.classes import in_places, rank_of

_NAMED = 4


class RunsOn(StrEnum):
    QUOTA = "quota"
    FLEX = "flex"


class Job(Model):
    """A job that runs, or has run. Units: whole GPUs. `island` None: unknown, or more than one."""

    job: Name
    team: Name
    gpus: PositiveCount
    idle_gpus: GpuCount = 0
    on: RunsOn = RunsOn.QUOTA
    island: Name | None = None
    started: Time
    ended: Time | None = None
    """None: the job runs."""
    preempted: bool = False
    """True: it ended because its GPUs were needed."""
    job_class: Name | None = None
    """A class of its quota; None: the strongest class, so that no job dies because somebody forgot the class."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.idle_gpus > self.gpus:
            raise ValueError(f"idle_gpus is {self.idle_gpus}, above gpus {self.gpus}")
        if self.ended is not None and self.ended < self.started:
            raise ValueError(f"ended {self.ended.isoformat()} is before started {self.started.isoformat()}")
        if self.preempted and self.ended is None:
            raise ValueError("preempted is true, but the job has no ended: give its end too")
        return self


class ClusterJob(Job):
    """A job with its cluster, for an import."""

    cluster: Name


def outside_quotas(jobs: Iterable[Job], holders: Collection[str]) -> tuple[Job, ...]:
    """Return the running jobs of teams without a quota that holds jobs. `holders`: the teams with one.

    They hold GPUs like any other job, but no quota promises these, and no sample of use counts them.
    """
    return tuple(job for job in jobs if job.ended is None and job.team not in holders)


def gpus_by_team(jobs: Iterable[Job]) -> dict[str, int]:
    held: dict[str, int] = {}
    for job in jobs:
        held[job.team] = held.get(job.team, 0) + job.gpus
    return dict(sorted(held.items()))


def standing_gpus(outside: Iterable[Job]) -> int:
    """Return the GPUs of these jobs that no job inside a quota could take: they are not on flex."""
    return sum(job.gpus for job in outside if job.on is RunsOn.QUOTA)


class FlexLives(Model):
    """The lifetimes of jobs on flex that ended since a time. Units: seconds."""

    since: Time
    ended: Count
    preempted: Count
    median_seconds: float | None = Field(default=None, ge=0)
    """The median time from start to preemption; None: no job was preempted."""
    shortest_seconds: float | None = Field(default=None, ge=0)


def flex_lives(jobs: Iterable[Job], since: Time) -> FlexLives:
    """Return the lifetimes of jobs on flex that ended since then."""
    over = [job for job in jobs if job.on is RunsOn.FLEX and job.ended is not None and job.ended >= since]
    lived = [(j.ended - j.started).total_seconds() for j in over if j.preempted and j.ended is not None]
    return FlexLives(
        since=since,
        ended=len(over),
        preempted=len(lived),
        median_seconds=median(lived) if lived else None,
        shortest_seconds=min(lived, default=None),
    )


def first_to_go(jobs: Sequence[Job], above: Mapping[str, int], classes: Mapping[str, Sequence[str]]) -> tuple[Job, ...]:
    """Return jobs on flex in the order of yielding: the team furthest above its share first, its youngest job first.

    Inside a team its weaker classes come first, and move no other team's jobs. `classes`: each team's, the strongest
    first. Source: models.flex.yielding.choose_yielding, which also picks jobs with the least overshoot for a need.
    """
    on_flex = [job for job in jobs if job.on is RunsOn.FLEX]
    by_share = sorted(on_flex, key=lambda j: (-above.get(j.team, 0), -j.started.timestamp(), j.job))
    return tuple(in_places(by_share, lambda j: j.team, lambda j: -rank_of(j.job_class, classes.get(j.team, ()))))


def jobs_text(jobs: Iterable[tuple[str, int]]) -> str:
    """Return the largest jobs by name, each with its GPUs; empty if there are none."""
    largest_first = sorted(jobs, key=lambda j: (-j[1], j[0]))
    names = ", ".join(f"{name} {gpus:,}" for name, gpus in largest_first[:_NAMED])
    rest = largest_first[_NAMED:]
    return names + (f" and {len(rest):,} more with {sum(g for _, g in rest):,} in all" if rest else "")
