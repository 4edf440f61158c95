"""The placement of protected blocks, and the largest assignment of GPUs to quotas.

Theory of operation. A placed block takes its GPUs out of one island and out of its quota first; the rest is a flow
(models/planning/island_reach.py). The places of the blocks are an integer program; it is only asked where first-fit
placement does not already reach the bound that no placement can beat, and where there are too many ways to place them
for trying each (models/planning/block_program.py, HiGHS through scipy).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import comb, prod

from models.planning.island_reach import BlockCounts, Ground, Placement, SolverFailed

FEW = 32
"""Up to this many ways to place blocks are tried one by one, no slower than an integer program and its import."""


@dataclass
class PlacementSolver(Ground):
    """The ground of one snapshot with its protected blocks. It remembers placements for later questions."""

    _placements: list[Placement] = field(default_factory=list)

    def blocks(self, values: Mapping[str, int]) -> BlockCounts:
        """Return the protected blocks of the leaves. One larger than its quota's value has no place."""
        counts: BlockCounts = {}
        for leaf in self.leaves:
            for size in self.tree.by_team[leaf].protected_blocks:
                counts[leaf, size] = counts.get((leaf, size), 0) + 1
        return counts

    def find_unplaced(self, values: Mapping[str, int], placed: BlockCounts) -> tuple[tuple[str, int], ...]:
        """Return the protected blocks (team, GPUs) that are not among the placed ones."""
        wanted = self.blocks(values)
        return tuple(
            (team, size)
            for team, size in sorted(wanted, key=lambda block: (block[0], -block[1]))
            for _ in range(wanted[team, size] - placed.get((team, size), 0))
        )

    def with_placement(self, bounds: Mapping[str, int], placement: Placement) -> int | None:
        """Return the largest total with these blocks in place; None if they do not fit the bounds."""
        taken: dict[str, int] = {}
        used: dict[str, int] = {}
        for (team, size, island), count in placement.items():
            taken[team] = taken.get(team, 0) + size * count
            used[island] = used.get(island, 0) + size * count
        if any(gpus < 0 for gpus in self._rest(bounds, taken).values()):
            return None
        return sum(taken.values()) + self.loose(bounds, taken, used)

    def reaches(self, bounds: Mapping[str, int], placed: BlockCounts, total: int) -> bool:
        """Return whether some assignment within the bounds places these blocks and holds `total` GPUs."""
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
        solved = self._best_placement(bounds, placed)
        if solved is None:
            return False
        self._remember(solved)
        return (self.with_placement(bounds, solved) or 0) >= total

    def still_holds(self, bounds: Mapping[str, int], placed: BlockCounts, total: int) -> bool:
        """Return whether quotas lowered to these values are still backed by `total` GPUs.

        Floors keep room for the blocks in each quota, but a parent that promises less than its children's blocks may be
        lowered past them: then fewer blocks count.
        """
        if self.reaches(bounds, placed, total):
            return True
        return bool(placed) and not self.tree.flat and min(bounds.values()) >= 0 and self.best(bounds)[0] >= total

    def best(self, bounds: Mapping[str, int]) -> tuple[int, BlockCounts]:
        """Return the largest assignment: its GPUs and the blocks it places.

        Its placed blocks hold the most GPUs, then the total is largest, then the first teams' blocks are placed, larger
        ones first. Source: docs/design.md, "Backing".
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
        placed = self._most_blocks(bounds, wanted)
        if not placed:
            return self.loose(bounds), {}
        placement = self._best_placement(bounds, placed)
        if placement is None:
            raise SolverFailed(
                f"cluster {self.snapshot.cluster}: the solver placed these blocks once and not again: a bug in Backstop"
            )
        self._remember(placement)
        total = self.with_placement(bounds, placement)
        if total is None:
            raise SolverFailed(f"the placement for cluster {self.snapshot.cluster} does not fit its quotas")
        return total, placed

    def _most_blocks(self, bounds: Mapping[str, int], wanted: BlockCounts) -> BlockCounts:
        """Return the blocks to place: most GPUs, then the largest total, then the first teams', larger blocks first."""
        if self._ways_count(wanted, every=False) > FEW:
            from models.planning.block_program import BlockProgram

            return BlockProgram(self, bounds, wanted, every=False).most_blocks()
        order = sorted(wanted, key=lambda block: (block[0], -block[1]))

        def worth(counts: BlockCounts, total: int) -> tuple[int, int, tuple[int, ...]]:
            placed = sum(size * count for (_, size), count in counts.items())
            return placed, total, tuple(counts.get(block, 0) for block in order)

        tried = [(self.with_placement(bounds, way), _counts(way)) for way in self._ways_to_place(wanted, every=False)]
        best = max(((worth(counts, total), counts) for total, counts in tried if total is not None), default=None)
        return {} if best is None else best[1]

    def _best_placement(self, bounds: Mapping[str, int], placed: BlockCounts) -> Placement | None:
        """Place these blocks so that the total is largest; None if they cannot all be placed."""
        if self._ways_count(placed, every=True) > FEW:
            from models.planning.block_program import BlockProgram

            return BlockProgram(self, bounds, placed, every=True).solve_total()
        tried = [(self.with_placement(bounds, way), way) for way in self._ways_to_place(placed, every=True)]
        held = [(total, way) for total, way in tried if total is not None]
        return max(held, key=lambda each: each[0])[1] if held else None

    def _fitting_islands(self, team: str, size: int) -> list[str]:
        return [i for i in sorted(self.reach[team]) if size <= min(self.room[i], self.healthy[i])]

    def _ways_count(self, blocks: BlockCounts, *, every: bool) -> int:
        """Count the ways to divide the blocks of each size among islands, each size alone."""
        places = [(count, len(self._fitting_islands(*block)) + (not every)) for block, count in blocks.items()]
        return prod(comb(count + many - 1, count) if many else not count for count, many in places)

    def _ways_to_place(self, blocks: BlockCounts, *, every: bool) -> Iterator[Placement]:
        """Yield each way to place all the blocks, or some of them, that leaves every island within its room."""
        divided = [
            [
                dict(zip(((*block, i) for i in islands), row, strict=True))
                for row in _divisions(count, len(islands), every)
            ]
            for block, count in blocks.items()
            for islands in [self._fitting_islands(*block)]
        ]
        for parts in product(*divided):
            way = {at: count for part in parts for at, count in part.items() if count}
            used: dict[str, int] = {}
            for (_, size, island), count in way.items():
                used[island] = used.get(island, 0) + size * count
            if all(gpus <= min(self.room[i], self.healthy[i]) for i, gpus in used.items()):
                yield way

    def _remember(self, placement: Placement) -> None:
        if placement not in self._placements:
            self._placements.append(placement)

    def _first_fit(self, wanted: BlockCounts) -> Placement | None:
        """Place each block in the fullest island that still takes it, the most constrained first; None if one fails."""
        room, free = dict(self.room), dict(self.healthy)
        placement: Placement = {}
        order = sorted(wanted, key=lambda block: (len(self.reach[block[0]]), -block[1], block[0]))
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


def _divisions(count: int, places: int, every: bool) -> Iterator[tuple[int, ...]]:
    """Yield each way to divide exactly `count` (`every`), or up to it, among places."""
    if not places:
        if not (every and count):
            yield ()
        return
    for first in range(count + 1):
        for rest in _divisions(count - first, places - 1, every):
            yield (first, *rest)
