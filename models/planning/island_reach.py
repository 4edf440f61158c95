"""The islands that can serve each leaf quota, and how many GPUs fit in all.

Without protected blocks, "how many GPUs can these quotas get" is a maximum flow:
source -> roots of the quota tree -> ... -> leaves -> sets of islands -> islands -> sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from models.cluster.snapshot import Snapshot
from models.planning.max_flow import FlowNetwork

Placement = dict[tuple[str, int, str], int]
"""The number of blocks placed, by (team, size, island)."""

BlockCounts = dict[tuple[str, int], int]
"""The number of blocks, by (team, size)."""


class SolverFailed(RuntimeError):
    """The integer program ended without an answer: our bug or the solver's, never a decision."""


@dataclass
class Ground:
    """One snapshot's islands, leaves and tree, prepared for many questions.

    Values are given as bounds by team, for all nodes of the tree.
    """

    snapshot: Snapshot

    def __post_init__(self) -> None:
        self.tree = self.snapshot.tree
        self.leaves = self.tree.leaves
        self.healthy = {island.name: island.healthy_gpus for island in self.snapshot.islands}
        self.room = {island.name: island.room_for_blocks for island in self.snapshot.islands}
        self.healthy_gpus = sum(self.healthy.values())
        every = frozenset(self.healthy)
        self.reach: dict[str, frozenset[str]] = {}
        for leaf in self.leaves:
            named = self.tree.by_team[leaf].islands
            self.reach[leaf] = every if named is None else frozenset(named)
        self.limited = any(reach != every for reach in self.reach.values())
        self._sets = sorted({tuple(sorted(reach)) for reach in self.reach.values()})

    @cached_property
    def reachable(self) -> dict[str, int]:
        """Healthy GPUs in the islands of each leaf: the most it could have if it were the only one to ask."""
        held = {reach: sum(self.healthy[island] for island in reach) for reach in set(self.reach.values())}
        return {leaf: held[self.reach[leaf]] for leaf in self.leaves}

    def out_of_reach(self, bounds: Mapping[str, int]) -> dict[str, int]:
        """Return the GPUs that each leaf would lack, up to its ancestors, even if it were the only one to ask."""
        room: dict[str, int] = {}
        for team in reversed(self.tree.bottom_up):
            parent = self.tree.by_team[team].parent
            room[team] = bounds[team] if parent is None else min(bounds[team], room[parent])
        return {leaf: lacks for leaf in self.leaves if (lacks := room[leaf] - self.reachable[leaf]) > 0}

    def reach_demand(self, bounds: Mapping[str, int]) -> int:
        """Return the fewest GPUs to cut from leaves, ancestors alike, until none is out of reach.

        A leaf is within reach as soon as it, or any quota above it, is down to what its islands hold. So each quota
        answers, from the leaves up, what it costs to leave to those above only leaves that reach `levels[k]` or more:
        by cuts below it alone, or by lowering itself to a level, where leaves below that level are mended below.
        """
        short = self.out_of_reach(bounds)
        levels = sorted({self.reachable[leaf] for leaf in short})
        fewest: dict[str, list[int]] = {}
        for team in self.tree.bottom_up if short else ():
            if team in short:
                own = bounds[team] - self.reachable[team]
                fewest[team] = [own if self.reachable[team] < level else 0 for level in levels] + [own]
                continue
            rows = [fewest[child] for child in self.tree.children.get(team, []) if child in fewest]
            if rows:
                below = [sum(row[k] for row in rows) for k in range(len(levels) + 1)]
                lowered = [max(bounds[team] - level, below[j]) for j, level in enumerate(levels)]
                fewest[team] = [min([below[k], *lowered[:k]]) for k in range(len(levels) + 1)]
        return sum(fewest[root][-1] for root in self.tree.roots if root in fewest)

    def loose(
        self, bounds: Mapping[str, int], taken: Mapping[str, int] | None = None, used: Mapping[str, int] | None = None
    ) -> int:
        """Return the most GPUs that the leaves can get, each within its bound and those of its ancestors.

        `taken`: GPUs by leaf already placed (their bounds still count them); `used`: GPUs by island gone.
        """
        free = {i: h - (used or {}).get(i, 0) for i, h in self.healthy.items()}
        rest = self._rest(bounds, taken)
        if not self.limited:
            return min(self.tree.assigned_gpus(rest), sum(free.values()))
        return self._network.maximum(self._capacities(rest, free))

    def _rest(self, bounds: Mapping[str, int], taken: Mapping[str, int] | None) -> dict[str, int]:
        rest = dict(bounds)
        for leaf, gpus in (taken or {}).items():
            for team in (leaf, *self.tree.ancestors(leaf)):
                rest[team] -= gpus
        return rest

    def _capacities(self, bounds: Mapping[str, int], free: Mapping[str, int]) -> list[int]:
        return [
            *(bounds[team] for team in self.tree.by_team),
            *(bounds[leaf] for leaf in self.leaves),
            *(free[island] for islands in self._sets for island in islands),
            *free.values(),
        ]

    @cached_property
    def _network(self) -> FlowNetwork:
        """The edges, in the order in which `_capacities` gives their capacities."""
        network = FlowNetwork()
        for team, quota in self.tree.by_team.items():
            network.edge("source" if quota.parent is None else ("q", quota.parent), ("q", team))
        for leaf in self.leaves:
            network.edge(("q", leaf), ("s", tuple(sorted(self.reach[leaf]))))
        for islands in self._sets:
            for island in islands:
                network.edge(("s", islands), ("i", island))
        for island in self.healthy:
            network.edge(("i", island), "sink")
        return network

    def could_go_short(self, bounds: Mapping[str, int]) -> frozenset[str]:
        """Return the leaves that some largest assignment leaves short; only for a flat tree without blocks.

        In a maximum flow these are the leaves that the source still reaches through the residual graph: one GPU less
        for them is made good nowhere, because it was never needed.
        """
        if not self.limited:
            short = sum(bounds[leaf] for leaf in self.leaves) > self.healthy_gpus
            return frozenset(leaf for leaf in self.leaves if short and bounds[leaf] > 0)
        reached = self._network.reached_nodes(self._capacities(bounds, self.healthy))
        return frozenset(leaf for leaf in self.leaves if self._network.number(("q", leaf)) in reached and bounds[leaf])
