"""The target of a breach rollback: values that today's hardware backs, beside what others hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from pydantic import Field

from models.base import Model
from models.cluster.island import Island
from models.cluster.policy import ShareBy, Tier
from models.cluster.snapshot import Snapshot
from models.planning.backing import touched_leaves
from models.planning.cut_ladder import Ladder
from models.planning.cut_reasons import TiersTaken
from models.planning.island_reach import BlockCounts
from models.planning.placement import PlacementSolver
from models.texts import gpus_text


class BreachTarget(Model):
    """The target of a breach rollback: values by team, and the floors it had to break."""

    values: dict[str, int]
    touched: tuple[str, ...]
    broken_floors: tuple[str, ...]
    """One sentence for each floor that the target breaks."""
    taken: dict[str, TiersTaken] = Field(default_factory=dict, exclude_if=lambda taken: not taken)
    """The GPUs taken, by tier, from each leaf that the shortage touches."""


def breach_target(
    baseline: Snapshot, current: Mapping[str, int], islands: tuple[Island, ...], theirs: Collection[str] = ()
) -> BreachTarget:
    """Return values that today's hardware backs after a breach.

    `theirs`: teams whose quotas others have set. They keep their current value, so it is taken off the rest; a quota
    of theirs that has children bounds nothing, as others may move it again. The values are those of all other teams.

    Quotas that the shortage does not touch keep their current value; the touched ones get the ladder
    from their baseline with ceiling H, all tiers. H wins over floors: minimums give way first, then blocks
    without a place; placed blocks stay. Source: docs/design.md, "Where a rollback goes", ADR 0003.
    """
    now = PlacementSolver(baseline.with_values(dict(current)).with_islands(islands))
    tree = now.tree
    hit, before = touched_leaves(now) - {*theirs}, baseline.tree.by_team
    start = {leaf: tree.by_team[leaf].gpus if leaf not in hit else before[leaf].gpus for leaf in tree.leaves}
    mixed = _unbind(_with_leaves(baseline, start), theirs).with_islands(islands)
    ground = PlacementSolver(mixed)
    placed = ground.best(mixed.values)[1]
    ladder = Ladder(ground, ShareBy.TIER, Tier.BUSY, {}, may_cut=hit)
    for floors in _floors_giving_way(ground, placed):
        ladder.loosen(floors)
        left = ladder.cut_reach() + _cut_phantom(ladder)
        if left == 0:
            break
    values = ladder.values()
    broken = [
        f"{leaf}: {gpus_text(left)} left, but its minimum or blocks need {before[leaf].floor}"
        for leaf in sorted(hit)
        if (left := values[leaf]) < before[leaf].floor
    ]
    broken += [
        f"{leaf}: no island has room for a protected block of {size}"
        for (leaf, size), count in sorted(ground.blocks(values).items())
        for _ in range(count - placed.get((leaf, size), 0))
        if values[leaf] >= before[leaf].floor
    ]
    ours = {team: gpus for team, gpus in values.items() if team not in theirs}
    taken = {leaf: ladder.tiers_taken(leaf) for leaf in sorted(hit)}
    return BreachTarget(values=ours, touched=tuple(sorted(hit)), broken_floors=tuple(broken), taken=taken)


def _cut_phantom(ladder: Ladder) -> int:
    """Cut what has no healthy GPU behind it, as far as floors allow; return what is left."""
    values = ladder.values()
    total, placed = ladder.ground.best(values)
    return ladder.cut_backing(ladder.ground.tree.assigned_gpus(values) - total, total, placed)


def _floors_giving_way(ground: PlacementSolver, placed: BlockCounts) -> Iterator[dict[str, int]]:
    """Yield the floors, the strictest first: whole ones, then blocks alone, then only blocks that have a place."""
    quotas = {leaf: ground.tree.by_team[leaf] for leaf in ground.leaves}
    yield {leaf: quota.floor for leaf, quota in quotas.items()}
    yield {leaf: sum(quota.protected_blocks) for leaf, quota in quotas.items()}
    yield {leaf: sum(size * n for (team, size), n in placed.items() if team == leaf) for leaf in quotas}


def _with_leaves(baseline: Snapshot, leaves: Mapping[str, int]) -> Snapshot:
    """Return the baseline with leaves at other values, ancestors moved alike."""
    tree = baseline.tree
    return baseline.with_values(
        tree.lower_values({leaf: tree.by_team[leaf].gpus - gpus for leaf, gpus in leaves.items()})
    )


def _unbind(snapshot: Snapshot, teams: Collection[str]) -> Snapshot:
    """Raise these quotas to at least their children's sum."""
    tree, values = snapshot.tree, snapshot.values
    for team in tree.bottom_up:
        if team in teams and team in tree.children:
            values[team] = max(values[team], sum(values[child] for child in tree.children[team]))
    return snapshot.with_values(values)
