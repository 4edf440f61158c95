"""The use of a cluster's hardware, and how much more of a quota could start beside it.

Theory of operation. A job that runs inside its team's quota keeps its GPUs; one that runs beyond it, or on flex, yields
to any job that claims a quota. So what could start of a quota is what the largest assignment of hardware gains when
that quota is asked for whole, and every other quota only for what its jobs hold inside it. That one assignment covers
islands, the bounds of the quotas above, and siblings' jobs under them. Source: docs/design.md, "Jobs and flex".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from models.cluster.island import Island
from models.cluster.jobs import Job, RunsOn
from models.cluster.quota import QuotaTree
from models.cluster.readings import TeamUsage
from models.cluster.snapshot import Snapshot
from models.planning.divide import divide
from models.planning.placement import PlacementSolver


def held_in_quota(tree: QuotaTree, usage: Mapping[str, TeamUsage]) -> dict[str, int]:
    """Return the GPUs that jobs hold inside each leaf quota; the whole quota where its use is unknown."""
    return {
        leaf: gpus if (own := usage.get(leaf)) is None else min(own.scheduled_gpus, gpus)
        for leaf, gpus in tree.leaf_gpus.items()
    }


def used_in_quota(tree: QuotaTree, usage: Mapping[str, TeamUsage]) -> dict[str, int]:
    """Return `held_in_quota` as far as the quotas above promise it, divided among the holders; the rest is on flex."""
    values = {team: quota.gpus for team, quota in tree.by_team.items()}
    part = tree.count_assigned(values | held_in_quota(tree, usage))
    for team in reversed(tree.bottom_up):
        if team in tree.children:
            below = tree.children[team]
            part |= divide(part[team], {c: values[c] for c in below}, {c: part[c] for c in below})
    return {leaf: part[leaf] for leaf in tree.leaves}


def standing_in_quota(ground: PlacementSolver, usage: Mapping[str, TeamUsage]) -> int:
    """Return the healthy GPUs under jobs inside quotas: fewer than they hold where hardware has failed."""
    values = {team: quota.gpus for team, quota in ground.tree.by_team.items()}
    return ground.loose(values | held_in_quota(ground.tree, usage))


def startable(snapshot: Snapshot, held: Mapping[str, int], team: str) -> int:
    """Return how many more GPUs jobs of this leaf quota could hold inside it now, if all on flex yielded.

    `held`: GPUs by leaf quota, from `held_in_quota`.
    """
    ground = PlacementSolver(snapshot)
    asked = snapshot.values | dict(held)
    return ground.loose(asked | {team: snapshot.tree.by_team[team].gpus}) - ground.loose(asked)


def startable_block(snapshot: Snapshot, held: Mapping[str, int], team: str, jobs: Sequence[Job]) -> int:
    """Return the largest block of one island that could start so. Jobs of unknown island may be anywhere.

    `jobs`: the running jobs.
    """
    ground, reach = PlacementSolver(snapshot), snapshot.tree.by_team[team].islands
    asked = snapshot.values | dict(held)
    running, most = ground.loose(asked), startable(snapshot, held, team)
    largest = 0
    for island in snapshot.islands:
        if reach is None or island.name in reach:
            low, high = largest, max(largest, min(most, _free_in(island, held, jobs)))
            while low < high:  # the larger it is, the less room there is for all that is held
                size = (low + high + 1) // 2
                fits = ground.loose(asked, used={island.name: size}) >= running
                low, high = (size, high) if fits else (low, size - 1)
            largest = low
    return largest


def _free_in(island: Island, held: Mapping[str, int], jobs: Sequence[Job]) -> int:
    """Return the healthy contiguous GPUs of an island less those of jobs known to run there in quota."""
    here: dict[str, int] = {}
    for job in jobs:
        if job.island == island.name and job.on is RunsOn.QUOTA and job.ended is None:
            here[job.team] = here.get(job.team, 0) + job.gpus
    return island.block_beside(sum(min(gpus, held.get(team, 0)) for team, gpus in here.items()))
