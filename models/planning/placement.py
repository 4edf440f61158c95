"""The ground that quotas stand on: which islands can serve which leaf, and how much fits in all.

Theory of operation. Without protected blocks, "how many GPUs can these quotas get" is a maximum flow:
source -> roots of the quota tree -> ... -> leaves -> sets of islands -> islands -> sink. A placed block
takes its GPUs out of one island and out of its quota first; the rest is again a flow. Where to put the
blocks is an integer program (HiGHS through scipy); it is only asked where first-fit placement does not
already reach the bound that no placement can beat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from models.cluster.snapshot import Snapshot

Placement = dict[tuple[str, int, str], int]
"""How many blocks of (team, size) stand in an island, by (team, size, island)."""

IntArray = np.ndarray[Any, np.dtype[np.integer[Any]]]

BlockCounts = dict[tuple[str, int], int]
"""How many blocks of a size a team has, by (team, size)."""


class SolverFailed(RuntimeError):
    """The integer program ended without an answer: our bug or the solver's, never a decision."""


@dataclass
class PlacementSolver:
    """One snapshot's islands, leaves and tree, ready to be asked.

    Values are given as bounds by team, for all nodes of the tree.
    """

    snapshot: Snapshot
    _placements: list[Placement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree = self.snapshot.tree
        self.leaves = self.tree.leaves
        self.healthy = {i.name: i.healthy_gpus for i in self.snapshot.islands}
        self.room = {i.name: i.room_for_blocks for i in self.snapshot.islands}
        self.healthy_gpus = sum(self.healthy.values())
        every = frozenset(self.healthy)
        self.reach: dict[str, frozenset[str]] = {}
        for leaf in self.leaves:
            named = self.tree.by_team[leaf].islands
            self.reach[leaf] = every if named is None else frozenset(named)
        self.limited = any(reach != every for reach in self.reach.values())
        self._sets = sorted({tuple(sorted(reach)) for reach in self.reach.values()})

    # --- what each leaf can reach ---------------------------------------------------------

    @cached_property
    def reachable(self) -> dict[str, int]:
        """Healthy GPUs in the islands of each leaf: the most it could have, were it the only one to ask."""
        held = {reach: sum(self.healthy[i] for i in reach) for reach in set(self.reach.values())}
        return {leaf: held[self.reach[leaf]] for leaf in self.leaves}

    def out_of_reach(self, bounds: Mapping[str, int]) -> dict[str, int]:
        """Leaves that could not have all of themselves, up to their ancestors, even alone: what each would lack."""
        room: dict[str, int] = {}
        for team in reversed(self.tree.bottom_up):
            parent = self.tree.by_team[team].parent
            room[team] = bounds[team] if parent is None else min(bounds[team], room[parent])
        return {leaf: lacks for leaf in self.leaves if (lacks := room[leaf] - self.reachable[leaf]) > 0}

    def reach_demand(self, bounds: Mapping[str, int]) -> int:
        """The fewest GPUs to cut from leaves, ancestors alike, until none is out of reach.

        A leaf is within reach as soon as it, or any quota above it, is down to what its islands hold. So each quota
        answers, from the leaves up, what it costs to leave to those above only leaves that reach `levels[k]` or more:
        by cuts below it alone, or by lowering itself to a level, whatever lies below that level being mended below.
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

    # --- without blocks -------------------------------------------------------------------

    def loose(
        self,
        bounds: Mapping[str, int],
        taken: Mapping[str, int] | None = None,
        used: Mapping[str, int] | None = None,
    ) -> int:
        """The most GPUs the leaves can get, each within its bound and those of its ancestors.

        `taken`: GPUs by leaf already placed (their bounds still count them); `used`: GPUs by island gone.
        """
        free = {i: h - (used or {}).get(i, 0) for i, h in self.healthy.items()}
        rest = self._rest(bounds, taken)
        if not self.limited:
            return min(self.tree.assigned(rest), sum(free.values()))
        return self._flow(rest, free)[0]

    def _rest(self, bounds: Mapping[str, int], taken: Mapping[str, int] | None) -> dict[str, int]:
        rest = dict(bounds)
        for leaf, gpus in (taken or {}).items():
            for team in (leaf, *self.tree.ancestors(leaf)):
                rest[team] -= gpus
        return rest

    def _flow(self, bounds: Mapping[str, int], free: Mapping[str, int]) -> tuple[int, csr_array, csr_array]:
        """Value, flow and capacities of a maximum flow. Node 0 is the source, 1 the sink."""
        capacity = self._network.with_capacities(
            [
                *(bounds[team] for team in self.tree.by_team),
                *(bounds[leaf] for leaf in self.leaves),
                *(free[island] for islands in self._sets for island in islands),
                *free.values(),
            ]
        )
        answer = maximum_flow(capacity, 0, 1, method="dinic")
        return int(answer.flow_value), answer.flow, capacity

    @cached_property
    def _network(self) -> _Network:
        """The edges, in the order in which `_flow` gives their capacities."""
        network = _Network()
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
        """Leaves that some largest assignment leaves short; only for a flat tree without blocks.

        In a maximum flow these are the leaves that the source still reaches through the residual graph:
        one GPU less for them is made good nowhere, because it was never needed.
        """
        if not self.limited:
            short = sum(bounds[leaf] for leaf in self.leaves) > self.healthy_gpus
            return frozenset(leaf for leaf in self.leaves if short and bounds[leaf] > 0)
        _, flow, capacity = self._flow(bounds, self.healthy)
        residual = (capacity - flow).tocsr()
        residual.data = np.maximum(residual.data, 0)
        residual.eliminate_zeros()
        reached = set(breadth_first_order(residual, 0, directed=True, return_predecessors=False).tolist())
        return frozenset(leaf for leaf in self.leaves if self._network.number(("q", leaf)) in reached and bounds[leaf])

    # --- with blocks ----------------------------------------------------------------------

    def blocks(self, values: Mapping[str, int]) -> BlockCounts:
        """The protected blocks of the leaves. One larger than its quota's value can stand nowhere."""
        counts: BlockCounts = {}
        for leaf in self.leaves:
            for size in self.tree.by_team[leaf].protected_blocks:
                counts[leaf, size] = counts.get((leaf, size), 0) + 1
        return counts

    def with_placement(self, bounds: Mapping[str, int], placement: Placement) -> int | None:
        """The largest total with these blocks in place; None where they do not fit the bounds."""
        taken: dict[str, int] = {}
        used: dict[str, int] = {}
        for (team, size, island), count in placement.items():
            taken[team] = taken.get(team, 0) + size * count
            used[island] = used.get(island, 0) + size * count
        if any(gpus < 0 for gpus in self._rest(bounds, taken).values()):
            return None
        return sum(taken.values()) + self.loose(bounds, taken, used)

    def reaches(self, bounds: Mapping[str, int], placed: BlockCounts, total: int) -> bool:
        """True when some assignment within the bounds places these blocks and holds `total` GPUs."""
        if any(gpus < 0 for gpus in bounds.values()):
            return False
        if not placed:
            return self.loose(bounds) >= total
        for placement in self._placements:
            if _counts(placement) != placed:
                continue
            held = self.with_placement(bounds, placement)
            if held is not None and held >= total:
                return True
        solved = _Program(self, bounds, placed, every=True).solve_total()
        if solved is None:
            return False
        self._remember(solved)
        return (self.with_placement(bounds, solved) or 0) >= total

    def still_holds(self, bounds: Mapping[str, int], placed: BlockCounts, total: int) -> bool:
        """True when quotas lowered to these values are still backed by `total` GPUs.

        Floors keep room for the blocks in each quota, but a parent that promises less than its children's
        blocks may be lowered past them: then fewer blocks count.
        """
        if self.reaches(bounds, placed, total):
            return True
        return bool(placed) and not self.tree.flat and min(bounds.values()) >= 0 and self.best(bounds)[0] >= total

    def best(self, bounds: Mapping[str, int]) -> tuple[int, BlockCounts]:
        """The largest assignment: its GPUs and the blocks it places.

        First the placed blocks hold the most GPUs, then the total is largest, then the first teams' blocks
        are placed, larger ones first. Source: DESIGN.md, "Backing".
        """
        wanted = self.blocks(bounds)
        if not wanted:
            return self.loose(bounds), {}
        most = self.loose(bounds)
        for placement in (*self._placements, self._first_fit(wanted)):
            if placement is None or _counts(placement) != wanted:
                continue
            if self.with_placement(bounds, placement) == most:  # no placement can beat this
                self._remember(placement)
                return most, wanted
        placed = _Program(self, bounds, wanted, every=False).most_blocks()
        if not placed:
            return self.loose(bounds), {}
        placement = _Program(self, bounds, placed, every=True).solve_total()
        if placement is None:
            raise SolverFailed(f"blocks of cluster {self.snapshot.cluster} were placed and then were not")
        self._remember(placement)
        total = self.with_placement(bounds, placement)
        if total is None:
            raise SolverFailed(f"the placement for cluster {self.snapshot.cluster} does not fit its quotas")
        return total, placed

    def _remember(self, placement: Placement) -> None:
        if placement not in self._placements:
            self._placements.append(placement)

    def _first_fit(self, wanted: BlockCounts) -> Placement | None:
        """Every block in the fullest island that still takes it, the most constrained first; None if one fails."""
        room, free = dict(self.room), dict(self.healthy)
        placement: Placement = {}
        order = sorted(wanted, key=lambda b: (len(self.reach[b[0]]), -b[1], b[0]))
        for team, size in order:
            for _ in range(wanted[team, size]):
                fitting = [i for i in sorted(self.reach[team]) if min(room[i], free[i]) >= size]
                if not fitting:
                    return None
                island = min(fitting, key=lambda i: (free[i], i))
                room[island] -= size
                free[island] -= size
                key = (team, size, island)
                placement[key] = placement.get(key, 0) + 1
        return placement


def _counts(placement: Placement) -> BlockCounts:
    counts: BlockCounts = {}
    for (team, size, _), count in placement.items():
        counts[team, size] = counts.get((team, size), 0) + count
    return counts


class _Network:
    """Edges between named nodes, numbered for scipy: 0 the source, 1 the sink. Laid once, asked often."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {"source": 0, "sink": 1}
        self._edges: list[tuple[int, int]] = []

    def number(self, node: object) -> int:
        return self._numbers.setdefault(node, len(self._numbers))

    def edge(self, tail: object, head: object) -> None:
        self._edges.append((self.number(tail), self.number(head)))

    @cached_property
    def _layout(self) -> tuple[IntArray, IntArray, IntArray]:
        """The order of the edges by tail and head, and scipy's indices and row pointers."""
        edges = np.array(self._edges, dtype=np.int32).reshape(-1, 2)
        order = np.lexsort((edges[:, 1], edges[:, 0]))
        counts = np.bincount(edges[:, 0], minlength=len(self._numbers))
        pointers = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return order, edges[order, 1], pointers

    def with_capacities(self, capacities: list[int]) -> csr_array:
        """The capacity matrix, for capacities in the order in which the edges were laid."""
        order, indices, pointers = self._layout
        size = len(self._numbers)
        data = np.array(capacities, dtype=np.int64)[order]
        return csr_array((np.minimum(data, 2**31 - 1).astype(np.int32), indices, pointers), shape=(size, size))


class _Program:
    """The integer program: counts of blocks per island (whole) and loose GPUs per leaf and island.

    With the counts fixed the loose part is a flow, whose best vertex is whole, so loose GPUs may be
    continuous. `every`: all given blocks must be placed, else as many as fit.
    """

    def __init__(self, ground: PlacementSolver, bounds: Mapping[str, int], blocks: BlockCounts, *, every: bool) -> None:
        self.ground, self.bounds, self.blocks, self.every = ground, bounds, blocks, every
        self.block_at: list[tuple[str, int, str]] = [
            (team, size, island)
            for team, size in sorted(blocks, key=lambda b: (b[0], -b[1]))
            for island in sorted(ground.reach[team])
            if size <= min(ground.room[island], ground.healthy[island])
        ]
        self.loose_at: list[tuple[str, str]] = [
            (leaf, island) for leaf in ground.leaves for island in sorted(ground.reach[leaf])
        ]
        self._rows: list[dict[int, int]] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._constrain()

    def _row(self, terms: Mapping[int, int], low: float, high: float) -> None:
        self._rows.append(dict(terms))
        self._low.append(low)
        self._high.append(high)

    def _constrain(self) -> None:
        shift = len(self.block_at)
        in_island: dict[str, dict[int, int]] = {i: {} for i in self.ground.healthy}
        block_room: dict[str, dict[int, int]] = {i: {} for i in self.ground.healthy}
        of_leaf: dict[str, dict[int, int]] = {leaf: {} for leaf in self.ground.leaves}
        of_block: dict[tuple[str, int], dict[int, int]] = {b: {} for b in self.blocks}
        for n, (team, size, island) in enumerate(self.block_at):
            in_island[island][n] = block_room[island][n] = of_leaf[team][n] = size
            of_block[team, size][n] = 1
        for n, (leaf, island) in enumerate(self.loose_at, start=shift):
            in_island[island][n] = of_leaf[leaf][n] = 1
        for island, terms in in_island.items():
            self._row(terms, 0, self.ground.healthy[island])
            self._row(block_room[island], 0, self.ground.room[island])
        for block, terms in of_block.items():
            self._row(terms, self.blocks[block] if self.every else 0, self.blocks[block])
        under: dict[str, dict[int, int]] = {team: {} for team in self.ground.tree.by_team}
        for leaf, terms in of_leaf.items():
            for team in (leaf, *self.ground.tree.ancestors(leaf)):
                under[team].update(terms)
        for team, terms in under.items():
            self._row(terms, 0, self.bounds[team])

    def _solve(self, gains: np.ndarray) -> np.ndarray | None:
        # It takes half a second to import, which most commands would wait for in vain; workers import it at once.
        from scipy.optimize import Bounds, LinearConstraint, milp

        size = len(self.block_at) + len(self.loose_at)
        rows = [r for r, terms in enumerate(self._rows) for _ in terms]
        cols = [c for terms in self._rows for c in terms]
        data = [v for terms in self._rows for v in terms.values()]
        matrix = csr_array(
            (np.array(data, dtype=float), (np.array(rows, dtype=np.int32), np.array(cols, dtype=np.int32))),
            shape=(len(self._rows), size),
        )
        whole = np.concatenate([np.ones(len(self.block_at)), np.zeros(len(self.loose_at))])
        answer = milp(
            -gains,
            constraints=LinearConstraint(matrix, np.array(self._low), np.array(self._high)),
            integrality=whole,
            bounds=Bounds(0, np.inf),
            options={"mip_rel_gap": 0.0},
        )
        if answer.status == 2:  # infeasible
            return None
        if answer.x is None or answer.status != 0:
            raise SolverFailed(f"placing blocks of cluster {self.ground.snapshot.cluster}: {answer.message}")
        return np.asarray(answer.x)

    def _gain(self, chosen: Iterable[int], weights: Iterable[int]) -> np.ndarray:
        gains = np.zeros(len(self.block_at) + len(self.loose_at))
        for n, weight in zip(chosen, weights, strict=True):
            gains[n] = weight
        return gains

    def most_blocks(self) -> BlockCounts:
        """The blocks to place: most GPUs, then the largest total, then the first teams', larger blocks first."""
        sizes = {n: size for n, (_, size, _) in enumerate(self.block_at)}
        answer = self._solve(self._gain(sizes, sizes.values()))
        if answer is None or not sizes:
            return {}
        most = round(sum(size * answer[n] for n, size in sizes.items()))
        self._row(sizes, most, most)
        if most < sum(size * count for (_, size), count in self.blocks.items()):
            self._keep_total(sizes)
        placed: BlockCounts = {}
        for team, size in sorted(self.blocks, key=lambda b: (b[0], -b[1])):
            terms = {n: 1 for n, at in enumerate(self.block_at) if at[:2] == (team, size)}
            if not terms:
                continue
            answer = self._solve(self._gain(terms, terms.values()))
            if answer is None:
                raise SolverFailed(f"placing blocks of cluster {self.ground.snapshot.cluster}: lost the optimum")
            count = round(sum(answer[n] for n in terms))
            self._row(terms, count, count)
            if count:
                placed[team, size] = count
        return placed

    def _keep_total(self, sizes: Mapping[int, int]) -> None:
        """From here on only what holds the largest total that such blocks leave room for."""
        whole = {n: sizes.get(n, 1) for n in range(len(self.block_at) + len(self.loose_at))}
        answer = self._solve(self._gain(whole, whole.values()))
        if answer is None:
            raise SolverFailed(f"placing blocks of cluster {self.ground.snapshot.cluster}: lost the optimum")
        # Half a GPU of room for rounding: with the counts whole, what loose ones can reach is whole.
        self._row(whole, round(sum(size * answer[n] for n, size in whole.items())) - 0.5, np.inf)

    def solve_total(self) -> Placement | None:
        """Where the blocks go so that the total is largest; None where they cannot all be placed."""
        if self.every and {b for b, count in self.blocks.items() if count} - {at[:2] for at in self.block_at}:
            return None
        gains = np.ones(len(self.block_at) + len(self.loose_at))
        for n, (_, size, _) in enumerate(self.block_at):
            gains[n] = size
        answer = self._solve(gains)
        if answer is None:
            return None
        return {at: round(answer[n]) for n, at in enumerate(self.block_at) if round(answer[n])}
