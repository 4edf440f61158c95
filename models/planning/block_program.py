"""The placement of protected blocks as an integer program, for clusters with too many ways to try each.

It uses HiGHS through scipy, which takes half a second to import: the command line imports this module where it is
needed, and workers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from models.planning.island_reach import BlockCounts, Ground, Placement, SolverFailed


class BlockProgram:
    """The integer program: counts of blocks per island (whole) and loose GPUs per leaf and island.

    With the counts fixed the loose part is a flow, whose best vertex is whole, so loose GPUs may be continuous.
    `every`: all given blocks must be placed, else as many as fit.
    """

    def __init__(self, ground: Ground, bounds: Mapping[str, int], blocks: BlockCounts, *, every: bool) -> None:
        self.ground, self.bounds, self.blocks, self.every = ground, bounds, blocks, every
        self.block_at: list[tuple[str, int, str]] = [
            (team, size, island)
            for team, size in sorted(blocks, key=lambda block: (block[0], -block[1]))
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
        of_block: dict[tuple[str, int], dict[int, int]] = {block: {} for block in self.blocks}
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
        size = len(self.block_at) + len(self.loose_at)
        rows = [row for row, terms in enumerate(self._rows) for _ in terms]
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
        """Return the blocks to place: most GPUs, then the largest total, then the first teams', larger blocks first."""
        sizes = {n: size for n, (_, size, _) in enumerate(self.block_at)}
        answer = self._solve(self._gain(sizes, sizes.values()))
        if answer is None or not sizes:
            return {}
        most = round(sum(size * answer[n] for n, size in sizes.items()))
        self._row(sizes, most, most)
        if most < sum(size * count for (_, size), count in self.blocks.items()):
            self._keep_total(sizes)
        placed: BlockCounts = {}
        for team, size in sorted(self.blocks, key=lambda block: (block[0], -block[1])):
            terms = {n: 1 for n, at in enumerate(self.block_at) if at[:2] == (team, size)}
            if not terms:
                continue
            answer = self._solve(self._gain(terms, terms.values()))
            if answer is None:
                raise self._failure()
            count = round(sum(answer[n] for n in terms))
            self._row(terms, count, count)
            if count:
                placed[team, size] = count
        return placed

    def _failure(self) -> SolverFailed:
        cluster = self.ground.snapshot.cluster
        return SolverFailed(
            f"cluster {cluster}: the solver could not place its protected blocks; this is a bug in Backstop"
        )

    def _keep_total(self, sizes: Mapping[int, int]) -> None:
        """Restrict the program to solutions with the largest total that such blocks leave room for."""
        whole = {n: sizes.get(n, 1) for n in range(len(self.block_at) + len(self.loose_at))}
        answer = self._solve(self._gain(whole, whole.values()))
        if answer is None:
            raise self._failure()
        # Half a GPU of room for rounding: with the counts whole, what loose ones can reach is whole.
        self._row(whole, round(sum(size * answer[n] for n, size in whole.items())) - 0.5, np.inf)

    def solve_total(self) -> Placement | None:
        """Place the blocks so that the total is largest; None if they cannot all be placed."""
        if self.every and {block for block, count in self.blocks.items() if count} - {at[:2] for at in self.block_at}:
            return None
        gains = np.ones(len(self.block_at) + len(self.loose_at))
        for n, (_, size, _) in enumerate(self.block_at):
            gains[n] = size
        answer = self._solve(gains)
        if answer is None:
            return None
        return {at: round(answer[n]) for n, at in enumerate(self.block_at) if round(answer[n])}
