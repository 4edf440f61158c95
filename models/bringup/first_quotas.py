"""First quotas, backed from the start: a plan like any other, made with S = 0 and the capacity that arrived.

The entry's values are the baseline. GPUs cut because nodes are missing are owed until the entry's date, and granted as
nodes arrive, never above the entry's values, and never with a sum above C. Units: whole GPUs. Source: docs/bringup.md,
"Into the fleet, and out of it".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from models.base import gpus_text
from models.bringup.entry import BringupEntry
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.snapshot import Snapshot, with_named_islands
from models.planning.ceiling import ceiling_of
from models.planning.divide import divide
from models.planning.plan import Plan, make_plan


def first_snapshot(entry: BringupEntry, islands: Sequence[Island]) -> Snapshot:
    """Return the new cluster on these islands, with the entry's quotas and nothing running."""
    quotas = tuple(q.but(scheduled_gpus=0, idle_gpus=None) for q in entry.quotas)
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
