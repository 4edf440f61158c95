"""First quotas, with which a cluster enters the fleet: the entry's, on the islands that arrived, and their plan.

A plan like any other, made with S = 0 and the capacity that arrived, with two differences. Nothing runs yet, so every
tier is open, and capacity promised to nobody is shared as the cluster's (a scope of each quota's own would subtract the
buffer twice). And a floor that the islands cannot carry gives way: minimums first, then protected blocks, the smallest
first; otherwise the sum could exceed C. The answer names floors that gave way.

The entry's values are the baseline. GPUs cut because nodes are missing are owed until the entry's date, and granted as
nodes arrive, never above the entry's values, and never with a sum above C; floors come back with them. Units: whole
GPUs. Source: docs/bringup.md, "Into the fleet, and out of it".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from models.bringup.entry import BringupEntry
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.policy import Policy, Scope, Tier
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot, with_named_islands
from models.planning.ceiling import ceiling_of
from models.planning.divide import divide
from models.planning.plan import Plan, make_plan
from models.texts import gpus_text


def first_snapshot(entry: BringupEntry, islands: Sequence[Island]) -> Snapshot:
    """Return the new cluster on these islands, with the entry's quotas and nothing running."""
    quotas = tuple(quota.but(scheduled_gpus=0, idle_gpus=None) for quota in entry.quotas)
    return Snapshot(
        cluster=entry.cluster,
        gpus_per_node=entry.gpus_per_node,
        islands=with_named_islands(quotas, islands),
        quotas=quotas,
        usage_from="nothing runs yet",
    )


def first_plan(entry: BringupEntry, islands: Sequence[Island], policy: Policy) -> Plan:
    """Return the plan of the first quotas on these islands: backed, under C, with all tiers open as nothing runs."""
    return make_plan(first_snapshot(entry, islands), policy)


def too_much(entry: BringupEntry, policy: Policy) -> str:
    """Explain why the first quotas would not fit even if all ordered nodes arrived; empty if they fit."""
    if not entry.quotas:
        return ""
    plan = first_plan(entry, entry.planned_islands, policy)
    if plan.assigned_gpus > plan.ceiling_gpus:
        above = plan.assigned_gpus - plan.ceiling_gpus
        return (
            f"quotas sum to {plan.assigned_gpus}, {gpus_text(above)} above the {plan.ceiling_gpus} that "
            f"{entry.cluster} may promise of the {entry.gpus} ordered: lower them"
        )
    if plan.cut_gpus or not plan.backed:
        why = plan.why_last or "lower them"
        return f"quotas do not all fit the islands ordered for {entry.cluster}: {why}"
    return ""


def next_values(
    entry: BringupEntry, islands: Sequence[Island], granted: Mapping[str, int], policy: Policy
) -> dict[str, int]:
    """Return the entry's quotas on the present islands: none below its grant, and the sum never above C.

    `granted`: present grants by team; a team that is not named has none.
    """
    snapshot = first_snapshot(entry, islands)
    plan = make_plan(snapshot, policy)
    tree = snapshot.tree
    more = {leaf: max(0, plan.values[leaf] - granted.get(leaf, 0)) for leaf in tree.leaves}
    stands = {leaf: granted.get(leaf, 0) for leaf in tree.leaves}

    def values() -> dict[str, int]:
        return tree.lower_values({leaf: tree.by_team[leaf].gpus - stands[leaf] - more[leaf] for leaf in tree.leaves})

    ceiling = ceiling_of(snapshot, policy)
    if tree.assigned_gpus(values()) > ceiling:  # health fell while GPUs arrived: grants stay, the rest is shared
        more = divide(max(0, ceiling - sum(stands.values())), more, more)
    return values()


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
    no_minimums = entry.but(quotas=tuple(quota.but(minimum_gpus=0) for quota in entry.quotas))
    for loose in (entry, no_minimums):  # the strictest floors first
        plan = first_plan(loose, islands, own)
        if _is_backed(plan):
            return FirstStand(plan, loose)
    loose = entry.but(quotas=tuple(quota.but(minimum_gpus=0, protected_blocks=()) for quota in entry.quotas))
    plan = first_plan(loose, islands, own)  # without floors every cut can be taken
    blocks = [(quota.team, size) for quota in entry.quotas for size in quota.protected_blocks]
    for team, size in sorted(blocks, key=lambda block: (-block[1], block[0])):
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
        git=entry.git,
        kueue=entry.kueue,
        kubernetes=entry.kubernetes,
    )


def _quota_at(quota: Quota, gpus: int) -> Quota:
    return quota.but(gpus=gpus, minimum_gpus=min(quota.minimum_gpus, gpus))


def _is_backed(plan: Plan) -> bool:
    return plan.backed and plan.short_by_gpus == 0


def _with_block(entry: BringupEntry, team: str, size: int) -> BringupEntry:
    return entry.but(
        quotas=tuple(
            quota.but(protected_blocks=(*quota.protected_blocks, size)) if quota.team == team else quota
            for quota in entry.quotas
        )
    )
