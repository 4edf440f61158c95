"""Hypothesis strategies for clusters and policies; every snapshot they build has passed validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from hypothesis import strategies as st

from models.cluster.island import Island
from models.cluster.policy import Basis, Policy, Scope, ShareBy, Tier
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot

# Ties go by code point, where Z comes before a, 10 before 9 and é after z.
LEAF_NAMES = ("a", "Z", "b", "é", "t9", "t10", "c", "d", "e", "f", "g", "h")
PARENT_NAMES = ("P", "a0", "org", "ä", "root", "Q")


@dataclass(frozen=True)
class Size:
    """Bounds of a generated cluster."""

    leaves: int
    quota_gpus: int
    islands: int
    island_gpus: int
    blocks: int
    parents: int = 4
    depth: int = 3


SMALL = Size(leaves=4, quota_gpus=8, islands=3, island_gpus=8, blocks=3)
TINY = Size(leaves=3, quota_gpus=4, islands=2, island_gpus=4, blocks=2)
LARGE = Size(leaves=12, quota_gpus=500, islands=5, island_gpus=500, blocks=8, parents=6)


def islands(size: Size) -> st.SearchStrategy[tuple[Island, ...]]:
    def island(name: str) -> st.SearchStrategy[Island]:
        return st.integers(0, size.island_gpus).flatmap(
            lambda total: st.integers(0, total).flatmap(
                lambda healthy: st.builds(
                    Island,
                    name=st.just(name),
                    total_gpus=st.just(total),
                    healthy_gpus=st.just(healthy),
                    block_gpus=st.none() | st.integers(0, healthy),
                )
            )
        )

    return st.integers(1, size.islands).flatmap(lambda n: st.tuples(*(island(f"i{k}") for k in range(n))))


@st.composite
def _leaf(draw: st.DrawFn, size: Size, team: str, parent: str | None, names: Sequence[str], blocks: int) -> Quota:
    gpus = draw(st.integers(0, size.quota_gpus))
    sizes: list[int] = []
    for _ in range(draw(st.just(0) | st.integers(0, blocks))):
        left = gpus - sum(sizes)
        if left:
            sizes.append(draw(st.integers(1, left)))
    scheduled = draw(st.none() | st.integers(0, gpus + gpus // 2 + 1))
    held = gpus if scheduled is None else scheduled
    return Quota(
        team=team,
        gpus=gpus,
        scheduled_gpus=scheduled,
        idle_gpus=draw(st.none() | st.integers(0, held)),
        islands=draw(st.none() | st.lists(st.sampled_from(names), min_size=1, unique=True).map(tuple)),
        protected_blocks=tuple(sizes),
        minimum_gpus=draw(st.just(0) | st.integers(0, gpus)),
        parent=parent,
    )


@st.composite
def snapshots(draw: st.DrawFn, size: Size, *, tree: bool = True, limits: bool = True, blocks: bool = True) -> Snapshot:
    """A cluster within the bounds, flat or with a tree whose parents may be overcommitted."""
    where = draw(islands(size))
    count = draw(st.integers(2, size.leaves) | st.integers(0, size.leaves))
    leaf_names = draw(st.permutations(LEAF_NAMES[: max(size.leaves, 4)]))[:count]

    # parents[k] may stand below an earlier one, as long as its leaves stay within the depth.
    parents: list[str] = []
    above: dict[str, str | None] = {}
    level: dict[str, int] = {}
    if tree and count and draw(st.booleans()):
        for name in draw(st.permutations(PARENT_NAMES))[: draw(st.integers(1, size.parents))]:
            choices = [None, *(p for p in parents if level[p] < size.depth - 1)]
            above[name] = draw(st.sampled_from(choices))
            over = above[name]
            level[name] = 1 if over is None else level[over] + 1
            parents.append(name)

    left = size.blocks if blocks else 0
    quotas: list[Quota] = []
    for team in leaf_names:
        parent = draw(st.sampled_from([None, *parents])) if parents else None
        quota = draw(_leaf(size, team, parent, [i.name for i in where], left))
        if not limits:
            quota = quota.model_copy(update={"islands": None})
        left -= len(quota.protected_blocks)
        quotas.append(quota)

    # A parent that nobody chose would be a leaf: leave it out, from the deepest up.
    below = dict.fromkeys(parents, 0)
    for quota in quotas:
        at = quota.parent
        while at is not None:
            below[at] += quota.gpus
            at = above[at]
    for name in reversed(parents):
        if any(q.parent == name for q in quotas):
            gpus = draw(st.just(below[name]) | st.integers(0, below[name] + 2))
            quotas.append(Quota(team=name, gpus=gpus, parent=above[name]))
    return Snapshot(
        cluster="c",
        gpus_per_node=draw(st.integers(1, 4)),
        islands=where,
        quotas=tuple(draw(st.permutations(quotas))),
        completed_rollouts=draw(st.integers(0, 2)),
    )


def small_snapshots() -> st.SearchStrategy[Snapshot]:
    """Return snapshots that enumeration can solve: at most 4 leaves of 8 GPUs, 3 islands of 8, 3 blocks and depth 3."""
    return snapshots(SMALL)


def tiny_snapshots() -> st.SearchStrategy[Snapshot]:
    """Small enough to list every assignment."""
    return snapshots(TINY)


def large_snapshots() -> st.SearchStrategy[Snapshot]:
    """Return snapshots too large for the reference: at most 12 leaves and 5 islands, counts to 500."""
    return snapshots(LARGE)


@st.composite
def one_island_snapshots(draw: st.DrawFn) -> Snapshot:
    """Quotas that may stand anywhere, without blocks and without a tree: where B = min(A, H)."""
    found = draw(snapshots(SMALL, tree=False, limits=False, blocks=False))
    return found.with_islands(found.islands[:1])


def shares() -> st.SearchStrategy[Decimal]:
    """Exact hundredths in [0, 1), the ones people use more often."""
    usual = st.sampled_from([Decimal(text) for text in ("0", "0.05", "0.1", "0.15", "0.25", "0.5")])
    return usual | st.integers(0, 99).map(lambda hundredths: Decimal(hundredths) / 100)


def policies() -> st.SearchStrategy[Policy]:
    """Return policies over all values that the planner reads."""
    ramps = st.lists(shares(), min_size=1, max_size=3, unique=True).map(lambda steps: {"ramp": sorted(steps)})
    return st.fixed_dictionaries(
        {
            "buffer": shares() | ramps,
            "basis": st.sampled_from(Basis),
            "scope": st.sampled_from(Scope),
            "share": st.sampled_from(ShareBy),
            "max_tier": st.just(Tier.BUSY) | st.sampled_from(Tier),
            "spare_gpus": st.none() | st.integers(0, 4),
        }
    ).map(Policy.model_validate)


@dataclass(frozen=True)
class Breach:
    """A baseline, the leaves' values today (not above it, floors standing) and today's islands."""

    baseline: Snapshot
    current: dict[str, int]
    islands: tuple[Island, ...]


@st.composite
def breaches(draw: st.DrawFn, size: Size = SMALL) -> Breach:
    """A cluster some time after a rollout: quotas cut, ancestors alike, and other islands healthy."""
    baseline = draw(snapshots(size))
    current = {q.team: q.gpus for q in baseline.quotas}
    for leaf in baseline.tree.leaves:
        quota = baseline.tree.by_team[leaf]
        line = [leaf, *baseline.tree.ancestors(leaf)]
        most = min(quota.gpus - quota.floor, *(current[team] for team in line))
        cut = draw(st.integers(0, most))
        for team in line:
            current[team] -= cut
    now = []
    for island in baseline.islands:
        healthy = draw(st.integers(0, island.total_gpus))
        block = draw(st.none() | st.integers(0, healthy))
        now.append(island.model_copy(update={"healthy_gpus": healthy, "block_gpus": block}))
    return Breach(baseline, current, tuple(now))
