"""The backing of quotas: the largest assignment of assigned quota to healthy GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from models.base import Model
from models.cluster.snapshot import Snapshot
from models.planning.divide import divide_within
from models.planning.placement import PlacementSolver


class Unplaced(Model):
    """A protected block for which no island has room. Its GPUs compete as loose ones."""

    team: str
    gpus: int


class Backing(Model):
    """The healthy GPUs that back each quota of a cluster.

    `of`: GPUs behind each leaf. `shortage`: the GPUs that each leaf lacks, beside the others or even alone; a leaf with
    an unplaced block is listed with 0 even if it lacks none. Units: whole GPUs.
    """

    of: dict[str, int]
    assigned_gpus: int
    backed_gpus: int
    healthy_gpus: int
    unplaced: tuple[Unplaced, ...] = ()
    shortage: dict[str, int]

    @property
    def phantom_gpus(self) -> int:
        """Promised GPUs with no healthy GPU behind them (A - B)."""
        return self.assigned_gpus - self.backed_gpus

    @property
    def surplus_gpus(self) -> int:
        """Healthy GPUs beyond what backs quotas (H - B)."""
        return self.healthy_gpus - self.backed_gpus

    @property
    def is_backed(self) -> bool:
        return self.phantom_gpus == 0 and not self.shortage


def less_shortage(values: Mapping[str, int], of: Mapping[str, int], shortage: Mapping[str, int]) -> dict[str, int]:
    """Return the GPUs of each leaf of `of` that lack no healthy ones: what the quotas above withhold is no shortage."""
    return {leaf: values[leaf] - shortage.get(leaf, 0) if leaf in values else gpus for leaf, gpus in of.items()}


def back(snapshot: Snapshot) -> Backing:
    """Return the backing of the snapshot's quotas by its islands.

    Missing GPUs are divided in proportion to quota, as whole GPUs by the house rule, among the quotas that can lack
    them; placed blocks lack nothing. Where a parent promises less than its children's sum, what the tree itself
    withholds is no shortage. Source: docs/design.md, "Backing"; ADR 0003.
    """
    return back_on(PlacementSolver(snapshot))


def back_on(ground: PlacementSolver) -> Backing:
    """Return `back` for a solver that exists already."""
    values = ground.snapshot.values
    total, placed = ground.best(values)
    of = _divide_backing(ground, values, total, placed)
    assigned = ground.tree.assigned_gpus(values)
    unplaced = tuple(Unplaced(team=team, gpus=size) for team, size in ground.find_unplaced(values, placed))
    lacking = _shortage(ground, of) if total < assigned else {}
    for leaf, gpus in ground.out_of_reach(values).items():
        lacking[leaf] = max(gpus, lacking.get(leaf, 0))
    return Backing(
        of=of,
        assigned_gpus=assigned,
        backed_gpus=total,
        healthy_gpus=ground.healthy_gpus,
        unplaced=unplaced,
        shortage={**dict.fromkeys(sorted({u.team for u in unplaced}), 0), **lacking},
    )


def _divide_backing(
    ground: PlacementSolver, values: Mapping[str, int], total: int, placed: Mapping[tuple[str, int], int]
) -> dict[str, int]:
    leaves = {leaf: values[leaf] for leaf in ground.leaves}
    missing = sum(leaves.values()) - total
    if missing == 0:
        return leaves
    in_blocks: dict[str, int] = {}
    for (team, size), count in placed.items():
        in_blocks[team] = in_blocks.get(team, 0) + size * count
    caps = {leaf: gpus - in_blocks.get(leaf, 0) for leaf, gpus in leaves.items()}

    def without(lost: Mapping[str, int]) -> dict[str, int]:
        return {team: value - lost.get(team, 0) for team, value in values.items()}

    def may(lost: Mapping[str, int]) -> bool:
        return ground.reaches(without(lost), dict(placed), total)

    flat = ground.tree.flat and not placed
    lost = divide_within(
        missing, leaves, caps, may, closed=(lambda lost: _served_leaves(ground, without(lost))) if flat else None
    )
    return {leaf: leaves[leaf] - lost[leaf] for leaf in leaves}


def _served_leaves(ground: PlacementSolver, bounds: Mapping[str, int]) -> Iterable[str]:
    """Return the leaves that every largest assignment within the bounds serves in full."""
    return frozenset(ground.leaves) - ground.could_go_short(bounds)


def _shortage(ground: PlacementSolver, of: Mapping[str, int]) -> dict[str, int]:
    if ground.tree.flat:
        entitled = ground.tree.leaf_gpus
    else:
        entitled = back_on(PlacementSolver(_with_unlimited_health(ground.snapshot))).of
    return {leaf: entitled[leaf] - of[leaf] for leaf in ground.leaves if entitled[leaf] > of[leaf]}


def _with_unlimited_health(snapshot: Snapshot) -> Snapshot:
    plenty = sum(quota.gpus for quota in snapshot.quotas)
    return snapshot.with_islands(
        tuple(
            island.model_copy(update={"total_gpus": plenty, "healthy_gpus": plenty, "block_gpus": None})
            for island in snapshot.islands
        )
    )


def touched_leaves(ground: PlacementSolver) -> frozenset[str]:
    """Return the leaves that the present shortage can touch: the quotas that share the short islands.

    Some largest assignment leaves such a leaf short of what the tree promises it, or it could not have it even alone.
    """
    values = ground.snapshot.values
    total, placed = ground.best(values)
    alone = frozenset(
        team for (team, size), count in ground.blocks(values).items() if placed.get((team, size), 0) < count
    ) | frozenset(ground.out_of_reach(values))
    if total >= ground.tree.assigned_gpus(values):
        return alone
    if ground.tree.flat and not placed:
        return ground.could_go_short(values) | alone
    short = set(alone)
    for leaf in ground.leaves:
        # One GPU of it, ancestors alike, was promised in vain: giving it up loses nothing.
        if ground.reaches(ground.tree.lower_values({leaf: 1}), placed, total):
            short.add(leaf)
    return frozenset(short)
