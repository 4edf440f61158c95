"""The outcome of rollouts: GPUs that are requested inside quota and wait because healthy hardware is missing.

Source: docs/adr/0015. Requests beyond a quota were never promised, and jobs that wait beside healthy free GPUs wait for
something else (a scheduler, a contiguous block, a person): neither is counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.base import Count, GpuCount, Model
from models.cluster.readings import TeamUsage
from models.planning.placement import PlacementSolver


class InQuota(Model):
    """The GPUs that wait inside the quotas of one cluster. Units: whole GPUs; None: unknown for every quota.

    `known_quotas` of `quotas` leaves report what their queued jobs request; the sums cover only these.
    """

    pending_gpus: GpuCount | None
    lacking_gpus: GpuCount | None
    """The part of `pending_gpus` that could not run even if every job outside its quota were preempted."""
    known_quotas: Count
    quotas: Count


def in_quota(ground: PlacementSolver, usage: Mapping[str, TeamUsage]) -> InQuota:
    """Return how many GPUs wait in quota, and how many of them lack healthy hardware.

    A leaf runs R = min(G, S) and asks for D = min(G, S + P); where S is unknown it runs all of G, where P is unknown it
    asks for no more than it runs. Pending is A(D) - A(R), with what the tree withholds taken off; lacking is what of it
    the largest assignment does not gain: pending - (B(D) - B(R)). Blocks count as loose GPUs here: nobody says whether
    a queued job needs one, so this is never too much.
    """
    leaves = ground.tree.leaf_gpus
    values = {team: quota.gpus for team, quota in ground.tree.by_team.items()}
    running, asked, told_of = dict(values), dict(values), 0
    for leaf, gpus in leaves.items():
        use = usage.get(leaf)
        if use is None:
            continue
        running[leaf] = asked[leaf] = min(gpus, use.scheduled_gpus)
        if use.pending_gpus is not None:
            asked[leaf] = min(gpus, use.scheduled_gpus + use.pending_gpus)
            told_of += gpus > 0
    promised = sum(gpus > 0 for gpus in leaves.values())
    if promised and not told_of:
        return InQuota(pending_gpus=None, lacking_gpus=None, known_quotas=0, quotas=promised)
    pending = ground.tree.assigned_gpus(asked) - ground.tree.assigned_gpus(running)
    gained = ground.loose(asked) - ground.loose(running) if pending else 0
    # Under a parent that promises less than its children ask, one child's gain may be another's: hence the bounds.
    lacking = min(pending, max(0, pending - gained))
    return InQuota(pending_gpus=pending, lacking_gpus=lacking, known_quotas=told_of, quotas=promised)
