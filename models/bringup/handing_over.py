"""The quotas with which a cluster enters the fleet: those of the entry on the islands that arrived, and their plan.

First quotas are cut as in any plan, with two differences. Nothing runs yet, so every tier is open, and capacity
promised to nobody is shared as the cluster's (a scope of each quota's own would subtract the buffer twice). And a floor
that the islands cannot carry gives way: minimums first, then protected blocks, the smallest first; otherwise the sum
could exceed C. The answer names floors that gave way, and they come back with what is owed. Units: whole GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from models.bringup.entry import BringupEntry
from models.bringup.first_quotas import first_plan, next_values
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.policy import Policy, Scope, Tier
from models.cluster.quota import Quota
from models.cluster.snapshot import with_named_islands
from models.planning.plan import Plan


class FirstStand(NamedTuple):
    """The quotas that the islands can carry."""

    plan: Plan
    entry: BringupEntry
    """The entry, with the floors that the islands can carry."""

    @property
    def granted_gpus(self) -> dict[str, int]:
        """The granted GPUs by leaf."""
        return of_leaves(self.entry, self.plan.values)


def opening_policy(policy: Policy) -> Policy:
    """Return the policy for first quotas."""
    return policy.but(max_tier=Tier.BUSY, scope=Scope.CLUSTER)


def of_leaves(entry: BringupEntry, values: Mapping[str, int]) -> dict[str, int]:
    """Return the values of leaf quotas, in which jobs run."""
    parents = {quota.parent for quota in entry.quotas}
    return {quota.team: values.get(quota.team, 0) for quota in entry.quotas if quota.team not in parents}


def first_stand(entry: BringupEntry, islands: Sequence[Island], policy: Policy) -> FirstStand:
    """Return the first quotas on these islands, backed and under C."""
    own = opening_policy(policy)
    for loose in (entry, _without_minimums(entry)):  # the strictest floors first
        plan = first_plan(loose, islands, own)
        if _is_backed(plan):
            return FirstStand(plan, loose)
    loose = _without_blocks(entry)
    plan = first_plan(loose, islands, own)  # without floors every cut can be taken
    for team, size in sorted(_blocks(entry), key=lambda block: (-block[1], block[0])):
        with_one = _with_block(loose, team, size)
        tried = first_plan(with_one, islands, own)
        if _is_backed(tried):
            loose, plan = with_one, tried
    return FirstStand(plan, loose)


def due_grants(
    entry: BringupEntry, islands: Sequence[Island], granted: Mapping[str, int], policy: Policy
) -> tuple[Plan, dict[str, int]]:
    """Return the owed GPUs that may be granted now, by leaf without zeros, and the plan that allows them."""
    stand = first_stand(entry, islands, policy)
    values = next_values(stand.entry, islands, granted, opening_policy(policy))
    more = {team: gpus - granted.get(team, 0) for team, gpus in of_leaves(entry, values).items()}
    return stand.plan, {team: gpus for team, gpus in more.items() if gpus > 0}


def spec_of(entry: BringupEntry, islands: Sequence[Island], stand: FirstStand) -> ClusterSpec:
    """Return the cluster as a fleet file would import it."""
    quotas = tuple(_quota_at(quota, stand.plan.values[quota.team]) for quota in stand.entry.quotas)
    return ClusterSpec(
        name=entry.cluster,
        gpu_model=entry.gpu_model,
        gpus_per_node=entry.gpus_per_node,
        islands=with_named_islands(quotas, islands),
        policy=entry.policy,
        quotas=quotas,
        slurm=entry.slurm,
        prometheus=entry.prometheus,
    )


def _quota_at(quota: Quota, gpus: int) -> Quota:
    return quota.but(gpus=gpus, minimum_gpus=min(quota.minimum_gpus, gpus))


def _is_backed(plan: Plan) -> bool:
    return plan.backed and plan.short_by_gpus == 0


def _without_minimums(entry: BringupEntry) -> BringupEntry:
    return entry.but(quotas=tuple(quota.but(minimum_gpus=0) for quota in entry.quotas))


def _without_blocks(entry: BringupEntry) -> BringupEntry:
    return entry.but(quotas=tuple(quota.but(minimum_gpus=0, protected_blocks=()) for quota in entry.quotas))


def _blocks(entry: BringupEntry) -> list[tuple[str, int]]:
    return [(quota.team, size) for quota in entry.quotas for size in quota.protected_blocks]


def _with_block(entry: BringupEntry, team: str, size: int) -> BringupEntry:
    return entry.but(
        quotas=tuple(
            quota.but(protected_blocks=(*quota.protected_blocks, size)) if quota.team == team else quota
            for quota in entry.quotas
        )
    )
