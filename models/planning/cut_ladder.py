"""The cut ladder: how many GPUs each quota gives, and from which tier.

A cut is taken tier by tier, the cheapest first; inside a tier it is divided by the house rule. Backing's demand is cut
first: from leaves, the GPUs that they could never have even alone; then the rest, only from quotas whose cut really
shrinks the phantom. The ceiling's remaining demand is cut from all, and the division continues where the first ones
stopped. Source: docs/design.md, "The cut ladder".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from models.cluster.policy import TIERS, ShareBy, Tier
from models.cluster.quota import Quota
from models.planning.cut_reasons import Mends
from models.planning.divide import divide, divide_within
from models.planning.island_reach import BlockCounts
from models.planning.placement import PlacementSolver

OracleAnswer = TypeVar("OracleAnswer")
Oracle = Callable[[Mapping[str, int]], bool]
Closed = Callable[[Mapping[str, int]], Iterable[str]]

TierAmounts = dict[Tier, int]
"""Whole GPUs by tier; `unallocated` GPUs belong to no quota."""


def tiers_of(quota: Quota, floor: int) -> TierAmounts:
    """Return the GPUs that a cut may take from a quota in each tier, its floor taken out of the deepest first.

    Units: whole GPUs; the three amounts sum to max(0, gpus - floor).
    """
    held, working = quota.in_use
    amounts = {Tier.UNSCHEDULED: quota.gpus - held, Tier.IDLE: held - working, Tier.BUSY: working}
    for tier in reversed(TIERS[1:]):
        kept = min(floor, amounts[tier])
        amounts[tier] -= kept
        floor -= kept
    return amounts


@dataclass
class Ladder:
    """A cut in progress over the leaves of one snapshot.

    `taken` by leaf and tier only grows. `may_cut` None: all leaves; else the others give nothing. `mends`: leaves that
    gave so that some leaf could have all of itself, with that leaf (None: the giver itself).
    """

    ground: PlacementSolver
    share: ShareBy
    max_tier: Tier
    floors: Mapping[str, int]
    may_cut: frozenset[str] | None = None
    taken: dict[str, TierAmounts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.amounts = {leaf: self._amounts(leaf) for leaf in self.ground.leaves}
        self.taken = {leaf: dict.fromkeys(TIERS[1:], 0) for leaf in self.ground.leaves}
        self.mends: dict[str, Mends | None] = {}
        self._scoped = {leaf: dict.fromkeys(TIERS[1:], 0) for leaf in self.ground.leaves}

    def _amounts(self, leaf: str) -> TierAmounts:
        if self.may_cut is not None and leaf not in self.may_cut:
            return dict.fromkeys(TIERS[1:], 0)
        return tiers_of(self.ground.tree.by_team[leaf], self.floors.get(leaf, 0))

    @property
    def open_tiers(self) -> tuple[Tier, ...]:
        return TIERS[1 : self.max_tier.depth + 1]

    def tiers_taken(self, leaf: str) -> tuple[int, int, int]:
        """Return the unscheduled, idle and busy GPUs that the leaf has given."""
        unscheduled, idle, busy = (self.taken[leaf][tier] for tier in TIERS[1:])
        return unscheduled, idle, busy

    def cuts(self) -> dict[str, int]:
        return {leaf: sum(by_tier.values()) for leaf, by_tier in self.taken.items()}

    def values(self) -> dict[str, int]:
        """Return every team's present value, ancestors lowered alike."""
        return self.ground.tree.lower_values(self.cuts())

    def loosen(self, floors: Mapping[str, int]) -> None:
        """Lower the floors: what was cut stays cut, and the rest is divided again by what can be given now."""
        self.floors = floors
        self.amounts = {leaf: self._amounts(leaf) for leaf in self.ground.leaves}
        self._scoped = {leaf: dict(by_tier) for leaf, by_tier in self.taken.items()}

    def cut_each(self, wished: Mapping[str, int]) -> None:
        """Cut from each leaf its own wish, its cheapest tiers first (scope `quota`)."""
        room = self.values()
        for leaf in self.ground.leaves:
            path = (leaf, *self.ground.tree.ancestors(leaf))
            left = min(wished.get(leaf, 0), *(room[team] for team in path))
            for tier in self.open_tiers:
                part = min(left, self.amounts[leaf][tier])
                self.taken[leaf][tier] += part
                self._scoped[leaf][tier] += part
                left -= part
                for team in path:
                    room[team] -= part

    def cut_reach(self) -> int:
        """Cut until every leaf could have all of itself if it were the only one to ask; return what is left.

        Each GPU is cut only where it lessens what is yet to be cut, from the leaf itself or from one whose cut lowers
        an ancestor of it. Where there are no parents, the cut for backing includes this one.
        """
        if self.ground.tree.flat:
            return 0
        start, before = self.values(), self.cuts()
        demand = self.ground.reach_demand(start)

        def may(more: Mapping[str, int]) -> bool:
            below = self._values_after(start, more)
            return min(below.values()) >= 0 and self.ground.reach_demand(below) + sum(more.values()) == demand

        left = self._descend(demand, may, None)
        short = self.ground.out_of_reach(start)
        self.mends = {leaf: self._first_mended(leaf, short) for leaf, cut in self.cuts().items() if cut > before[leaf]}
        return left

    def _first_mended(self, leaf: str, short: Mapping[str, int]) -> Mends | None:
        """Return the first leaf of `short` that a cut of this one mends, by an ancestor of both; None: itself."""
        tree = self.ground.tree
        above = tree.ancestors(leaf)
        shared = ((team, parent) for team in sorted(short) for parent in tree.ancestors(team) if parent in above)
        mended = (Mends(team, parent, self.ground.reachable[team]) for team, parent in shared)
        return None if leaf in short else next(mended, None)

    def cut_backing(self, demand: int, total: int, placed: BlockCounts) -> int:
        """Cut what backing demands, each GPU only where it shrinks the phantom; return what is left."""
        start = self.values()
        simple = self.ground.tree.flat and not placed

        def may(more: Mapping[str, int]) -> bool:
            return self.ground.reaches(self._values_after(start, more), placed, total)

        def find_closed(more: Mapping[str, int]) -> frozenset[str]:
            return frozenset(self.ground.leaves) - self.ground.could_go_short(self._values_after(start, more))

        return self._descend(demand, may, find_closed if simple else None)

    def cut_all(self, demand: int) -> int:
        """Cut what the ceiling still demands, from all; return what is left."""
        if self.ground.tree.flat:
            return self._descend(demand, None, None)
        start = self.values()
        return self._descend(demand, lambda more: min(self._values_after(start, more).values()) >= 0, None)

    def _values_after(self, start: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
        value = dict(start)
        for leaf, cut in more.items():
            if cut:
                for team in (leaf, *self.ground.tree.ancestors(leaf)):
                    value[team] -= cut
        return value

    def _descend(self, demand: int, may: Oracle | None, closed: Closed | None) -> int:
        """Cut tier by tier and return what is left; the oracle sees the sum over the tiers of this descent."""
        descent = dict.fromkeys(self.ground.leaves, 0)
        for tier in self.open_tiers:
            if demand == 0:
                break
            caps = {leaf: self.amounts[leaf][tier] - self._scoped[leaf][tier] for leaf in self.ground.leaves}
            cuts_before = {leaf: self.taken[leaf][tier] - self._scoped[leaf][tier] for leaf in self.ground.leaves}
            weights = self._weights(caps)
            if may is None:
                part = divide(demand, weights, caps, cuts_before)
            else:
                part = divide_within(
                    demand,
                    weights,
                    caps,
                    _with_earlier(may, descent),
                    cuts_before,
                    _with_earlier(closed, descent) if closed is not None else None,
                )
            for leaf, gpus in part.items():
                self.taken[leaf][tier] += gpus
                descent[leaf] += gpus
                demand -= gpus
        return demand

    def _weights(self, caps: Mapping[str, int]) -> dict[str, int]:
        match self.share:
            case ShareBy.TIER:
                return dict(caps)
            case ShareBy.QUOTA:
                return {leaf: self.ground.tree.by_team[leaf].gpus for leaf in caps}
            case ShareBy.EQUAL:
                return dict.fromkeys(caps, 1)


def _with_earlier(
    ask: Callable[[Mapping[str, int]], OracleAnswer], descent: Mapping[str, int]
) -> Callable[[Mapping[str, int]], OracleAnswer]:
    """Return the oracle with what the tiers above have already taken added to its argument."""
    earlier = dict(descent)
    return lambda more: ask({leaf: earlier[leaf] + more[leaf] for leaf in more})
