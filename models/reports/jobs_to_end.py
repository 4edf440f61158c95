"""Jobs of weaker classes, in a block's own quota, whose end would free a block that does not fit.

A block belongs to the strongest class, and inside a quota the weaker class yields. For each island, jobs are tried in
order of class, jobs in that island before those elsewhere, which free quota only; and again with all jobs of that
island first. Of the sets that suffice, the one with the least of stronger classes is chosen, then the one with the
fewest GPUs. A team whose named jobs do not account for all that it holds gets no answer; where the island of a job is
unknown, the answer says that it is uncertain. Source: docs/design.md, "Jobs and flex".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from models.base import GpuCount, Model, Name, Words
from models.cluster.classes import rank_of
from models.cluster.jobs import Job, RunsOn, jobs_text
from models.cluster.latest_readings import Evidence
from models.cluster.snapshot import Snapshot
from models.planning.occupancy import startable_block
from models.texts import count_text, some_of

_FEW = 24
"""If at most this many jobs are chosen, each one is dropped whose end the block does not need."""


class WeakerJob(Model):
    job: Name
    job_class: Name
    gpus: GpuCount
    island: Name | None


class WeakerJobs(Model):
    """Jobs whose end lets the block start, the first to yield first. `strongest`: the class of the block."""

    strongest: Words
    jobs: tuple[WeakerJob, ...]
    certain: bool = True
    """False: the islands of some jobs are unknown, so the block may still not fit."""

    @property
    def text(self) -> str:
        classes = [*dict.fromkeys(job.job_class for job in self.jobs)]
        named = "; ".join(
            f"{one}: {jobs_text((job.job, job.gpus) for job in self.jobs if job.job_class == one)}" for one in classes
        )
        islands = sorted({job.island for job in self.jobs if job.island is not None})
        all_placed = all(job.island is not None for job in self.jobs)
        where = f" in {some_of(islands, 3)}" if all_placed else ""
        would = "would start" if self.certain else "could start, as far as Backstop knows where jobs run,"
        return (
            f"the block {would} if {count_text(len(self.jobs), 'job')} of its own quota{where} yielded ({named}): "
            f"a block has the strongest class, {self.strongest}, and inside a quota weaker classes yield"
        )


def weaker_jobs(
    seen: Evidence, snapshot: Snapshot, held: Mapping[str, int], team: str, wanted: int
) -> WeakerJobs | None:
    """Return the weaker jobs of its own quota that would free the block; None if they would not.

    None too where the team's named jobs do not account for all that it holds: others may be in the way.
    """
    classes = seen.classes_by_team.get(team, ())
    running = [job for job in seen.jobs if job.ended is None]
    weaker = [
        job for job in running if job.team == team and job.on is RunsOn.QUOTA and rank_of(job.job_class, classes) > 0
    ]
    weaker.sort(key=lambda j: (-rank_of(j.job_class, classes), -j.started.timestamp(), j.job))

    used = seen.usage[team].scheduled_gpus if team in seen.usage else held[team]
    named = sum(job.gpus for job in running if job.team == team and job.on is RunsOn.QUOTA)

    def fits(gone: Sequence[Job]) -> bool:
        without = {**held, team: min(held[team], max(0, used - sum(j.gpus for j in gone)))}
        names = {j.job for j in gone}
        left = [job for job in running if job.team != team or job.job not in names]
        return startable_block(snapshot, without, team, left) >= wanted

    if not weaker or named < used or not fits(weaker):
        return None
    sets = []
    for island in sorted({job.island or "" for job in weaker}):
        there_first = sorted(weaker, key=lambda j: (j.island or "") != island)  # else in the same order
        by_class = sorted(there_first, key=lambda j: -rank_of(j.job_class, classes))
        sets += [_fewest(by_class, fits), _fewest(there_first, fits)]
    best = min(sets, key=lambda chosen: _harm(chosen, classes))
    return WeakerJobs(
        strongest=classes[0],
        jobs=tuple(
            WeakerJob(job=job.job, job_class=job.job_class or "", gpus=job.gpus, island=job.island)
            for job in weaker
            if job in best
        ),
        certain=_are_all_placed(snapshot, held, running),
    )


def _are_all_placed(snapshot: Snapshot, held: Mapping[str, int], running: Sequence[Job]) -> bool:
    """Return whether the island of everything in quota is known; in a quota with one island it always is."""
    tree, placed_gpus = snapshot.tree, dict.fromkeys(held, 0)
    roam = {leaf for leaf in held if len(tree.by_team[leaf].islands or snapshot.islands) > 1}
    in_quota = [j for j in running if j.on is RunsOn.QUOTA and j.team in roam]
    for job in in_quota:
        placed_gpus[job.team] += 0 if job.island is None else job.gpus
    return all(j.island is not None for j in in_quota) and all(placed_gpus[leaf] >= held[leaf] for leaf in roam)


def _fewest(ordered: Sequence[Job], fits: Callable[[Sequence[Job]], bool]) -> list[Job]:
    """Return the shortest beginning that suffices, less the jobs that it can spare: the more yield, the more fits."""
    low, high = 1, len(ordered)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(ordered[:middle]) else (middle + 1, high)
    chosen = [*ordered[:low]]
    if len(chosen) <= _FEW:
        for job in reversed(ordered[:low]):
            without = [j for j in chosen if j is not job]
            chosen = without if without and fits(without) else chosen
    return chosen


def _harm(jobs: Sequence[Job], classes: Sequence[str]) -> tuple[list[int], int, int, list[str]]:
    by_rank = [
        sum(job.gpus for job in jobs if rank_of(job.job_class, classes) == rank) for rank in range(1, len(classes))
    ]
    return by_rank, sum(by_rank), len(jobs), sorted(job.job for job in jobs)
