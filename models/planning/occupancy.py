"""Who holds what of a cluster's hardware, and how much more of a quota could start beside it.

Pure. Theory of operation. A job that runs inside its team's quota keeps its GPUs; one that runs beyond it, or on flex,
yields to whoever claims a quota. So what could start of a quota is what the largest assignment of hardware gains when
that quota is asked for whole, and every other is asked for only what its jobs hold inside it. Islands, the bounds of
the quotas above, and siblings' jobs under them are all in that one assignment. Source: docs/design.md, "Jobs and flex".
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
    """GPUs by leaf quota that jobs hold inside it; of a quota whose use nobody tells, all of it."""
    return {
        leaf: gpus if (own := usage.get(leaf)) is None else min(own.scheduled_gpus, gpus)
        for leaf, gpus in tree.leaf_gpus.items()
    }


def used_in_quota(tree: QuotaTree, usage: Mapping[str, TeamUsage]) -> dict[str, int]:
    """The same as far as the quotas above promise it, divided among who holds it; what they do not is on flex."""
    values = {team: quota.gpus for team, quota in tree.by_team.items()}
    part = tree.assigned_of(values | held_in_quota(tree, usage))
    for team in reversed(tree.bottom_up):
        if team in tree.children:
            below = tree.children[team]
            part |= divide(part[team], {c: values[c] for c in below}, {c: part[c] for c in below})
    return {leaf: part[leaf] for leaf in tree.leaves}


def standing_in_quota(ground: PlacementSolver, usage: Mapping[str, TeamUsage]) -> int:
    """Healthy GPUs that jobs stand on inside quotas: less than they hold where hardware is gone from under them."""
    values = {team: quota.gpus for team, quota in ground.tree.by_team.items()}
    return ground.loose(values | held_in_quota(ground.tree, usage))


def startable(snapshot: Snapshot, held: Mapping[str, int], team: str) -> int:
    """GPUs more that jobs of this leaf quota could hold inside it now, were all on flex to yield.

    `held`: GPUs by leaf quota, as of `held_in_quota`.
    """
    ground = PlacementSolver(snapshot)
    asked = {q.team: q.gpus for q in snapshot.quotas} | dict(held)
    return ground.loose(asked | {team: snapshot.tree.by_team[team].gpus}) - ground.loose(asked)


def startable_block(snapshot: Snapshot, held: Mapping[str, int], team: str, jobs: Sequence[Job]) -> int:
    """The largest block of one island that could start so. Jobs of which nobody tells the island may stand anywhere.

    `jobs`: those that run.
    """
    ground, reach = PlacementSolver(snapshot), snapshot.tree.by_team[team].islands
    asked = {q.team: q.gpus for q in snapshot.quotas} | dict(held)
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
    """What healthy contiguous hardware has free of jobs that are known to run there in quota."""
    here: dict[str, int] = {}
    for job in jobs:
        if job.island == island.name and job.on is RunsOn.QUOTA and job.ended is None:
            here[job.team] = here.get(job.team, 0) + job.gpus
    placed_gpus = sum(min(gpus, held.get(team, 0)) for team, gpus in here.items())
    unfit = island.healthy_gpus - island.room_for_blocks  # jobs may run on these, and leave the block whole
    return max(0, island.room_for_blocks - max(0, placed_gpus - unfit))
