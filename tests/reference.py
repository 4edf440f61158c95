"""A second planner that is slow and meant to be obviously right; only tests use it.

Whole numbers, Fractions and enumeration: no solver, no flow library, no numpy. Made for small cases
(at most 4 leaf quotas, 3 islands, 3 blocks); the counts themselves may be large, because the largest loose
assignment comes from one formula, Rado's: the least, over all sets of leaves, of what the quota tree lets
that set hold plus the healthy GPUs that the other leaves can reach. `backing_by_enumeration` uses no formula
and lists every assignment; test_reference.py holds the two against each other.

Where docs/design.md leaves room the choice is written at the function that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import chain, combinations, product
from math import floor
from operator import eq

from models.cluster.island import Island
from models.cluster.policy import Basis, Policy, Scope, ShareBy, Tier
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot

LADDER = (Tier.UNSCHEDULED, Tier.IDLE, Tier.BUSY)

Values = Mapping[str, int]
Layout = tuple[str | None, ...]
"""The island of each block, in the order of Cluster.blocks; None where it finds no place."""


def give_next(weights: Mapping[str, int], given: Values, may: Callable[[str], bool]) -> str | None:
    """Return the next of those that may have a GPU by Webster's rule; None: none may."""
    for name in sorted(weights, key=lambda name: (-Fraction(weights[name], 2 * given[name] + 1), name)):
        if may(name):
            return name
    return None


def divide(amount: int, weights: Mapping[str, int], caps: Mapping[str, int]) -> dict[str, int]:
    """Webster unit by unit; stops early when everybody is at the cap."""
    given = dict.fromkeys(weights, 0)
    for _ in range(amount):
        name = give_next(weights, given, lambda name: given[name] < caps[name])
        if name is None:
            break
        given[name] += 1
    return given


class Cluster:
    """Quotas and islands, and every question about them answered by trying everything."""

    def __init__(self, quotas: Iterable[Quota], islands: Iterable[Island]) -> None:
        self.quota = {q.team: q for q in quotas}
        self.islands = {i.name: i for i in islands}
        parents = {q.parent for q in self.quota.values()}
        self.leaves = sorted(team for team in self.quota if team not in parents)
        self.values = {team: q.gpus for team, q in self.quota.items()}
        self.line = {team: list(self._line(team)) for team in self.quota}
        self.blocks = sorted(
            ((team, size) for team in self.leaves for size in self.quota[team].protected_blocks),
            key=lambda block: (block[0], -block[1]),
        )
        self._largest: dict[tuple[int, ...], tuple[list[Layout], int]] = {}
        self._yet: dict[tuple[int, ...], int] = {}

    def _line(self, team: str) -> Iterator[str]:
        """The team and its ancestors."""
        at: str | None = team
        while at is not None:
            yield at
            at = self.quota[at].parent

    def may_use(self, team: str, island: str) -> bool:
        limit = self.quota[team].islands
        return limit is None or island in limit

    def children(self, team: str | None) -> list[str]:
        return [t for t, q in self.quota.items() if q.parent == team]

    def assigned(self, values: Values) -> int:
        def of(team: str) -> int:
            below = self.children(team)
            return min(values[team], sum(map(of, below))) if below else values[team]

        return sum(map(of, self.children(None)))

    def lowered(self, values: Values, cuts: Values) -> dict[str, int]:
        """The values after cuts of leaves; ancestors fall alike."""
        result = dict(values)
        for leaf, cut in cuts.items():
            for team in self.line[leaf]:
                result[team] -= cut
        return result

    # Backing

    def after_blocks(self, values: Values, layout: Layout) -> tuple[dict[str, int], dict[str, int]] | None:
        """Return what a layout of blocks leaves of every quota and every island; None: it does not fit."""
        quotas, rooms = dict(values), {n: i.room_for_blocks for n, i in self.islands.items()}
        healthy = {n: i.healthy_gpus for n, i in self.islands.items()}
        for (leaf, size), island in zip(self.blocks, layout, strict=True):
            if island is None:
                continue
            if not self.may_use(leaf, island):
                return None
            rooms[island] -= size
            healthy[island] -= size
            for team in self.line[leaf]:
                quotas[team] -= size
        if min(chain(quotas.values(), rooms.values()), default=0) < 0:
            return None
        return quotas, healthy

    def held(self, layout: Layout) -> int:
        """GPUs in placed blocks."""
        return sum(size for (_, size), island in zip(self.blocks, layout, strict=True) if island is not None)

    def best_layouts(self, values: Values) -> list[Layout]:
        """Every layout of a largest assignment: its blocks hold the most GPUs, then its total is largest, then the
        earlier block in the order of team names (a team's larger blocks first) has its place."""
        fitting = [
            layout
            for layout in product([None, *self.islands], repeat=len(self.blocks))
            if self.after_blocks(values, layout) is not None
        ]

        def rank(layout: Layout) -> tuple[int, int, tuple[bool, ...]]:
            total = self.total_with(values, layout) or 0
            return self.held(layout), total, tuple(island is not None for island in layout)

        ranks = {layout: rank(layout) for layout in fitting}
        best = max(ranks.values())
        return [layout for layout in fitting if ranks[layout] == best]

    def loose(self, quotas: Values, healthy: Values) -> int:
        """The most GPUs that quotas can get out of islands, block by block forgotten (Rado's formula)."""
        least = sum(healthy.values())
        for size in range(len(self.leaves) + 1):
            for chosen in combinations(self.leaves, size):
                others = [leaf for leaf in self.leaves if leaf not in chosen]
                held = self.assigned({t: 0 if t in others else v for t, v in quotas.items()})
                reached = sum(h for n, h in healthy.items() if any(self.may_use(t, n) for t in others))
                least = min(least, held + reached)
        return least

    def total_with(self, values: Values, layout: Layout) -> int | None:
        """The largest total with this layout; None if it does not fit."""
        left = self.after_blocks(values, layout)
        return None if left is None else self.held(layout) + self.loose(*left)

    def largest(self, values: Values) -> tuple[list[Layout], int]:
        """The layouts of the largest assignments, and B."""
        key = tuple(values[team] for team in self.quota)
        if key not in self._largest:
            totals = {layout: self.total_with(values, layout) or 0 for layout in self.best_layouts(values)}
            best = max(totals.values())
            self._largest[key] = [layout for layout, total in totals.items() if total == best], best
        return self._largest[key]

    def backed_gpus(self, values: Values) -> int:
        return self.largest(values)[1]

    def served(self, values: Values) -> tuple[bool, ...]:
        """Return which blocks have a place."""
        return tuple(island is not None for island in self.largest(values)[0][0])

    def is_backed(self, values: Values) -> bool:
        return (
            self.backed_gpus(values) == self.assigned(values)
            and all(self.served(values))
            and not self.out_of_reach(values)
        )

    def out_of_reach(self, values: Values) -> list[str]:
        """Leaves that could not have all of themselves, up to their ancestors, were they the only one to ask."""
        return [
            leaf
            for leaf in self.leaves
            if min(values[team] for team in self.line[leaf])
            > sum(i.healthy_gpus for n, i in self.islands.items() if self.may_use(leaf, n))
        ]

    def yet_to_reach(self, values: Values) -> int:
        """The fewest GPUs to cut until no leaf is out of reach: by trying every cut, GPU by GPU."""
        if not self.out_of_reach(values):
            return 0
        key = tuple(values[team] for team in self.quota)
        if key not in self._yet:
            lowered = (self.lowered(values, {leaf: 1}) for leaf in self.leaves)
            self._yet[key] = 1 + min(self.yet_to_reach(v) for v in lowered if min(v.values()) >= 0)
        return self._yet[key]

    def useful(self, values: Values, cuts: Values) -> bool:
        """True when cuts leave the largest assignment as it is: no GPU of B and no placed block is lost,
        so that every GPU cut was phantom."""
        lowered = self.lowered(values, cuts)
        return (
            min(lowered.values(), default=0) >= 0
            and self.backed_gpus(lowered) == self.backed_gpus(values)
            and self.served(lowered) == self.served(values)
        )


def _cluster(snapshot: Snapshot) -> Cluster:
    return Cluster(snapshot.quotas, snapshot.islands)


def assigned(snapshot: Snapshot, values: Values | None = None) -> int:
    """A."""
    cluster = _cluster(snapshot)
    return cluster.assigned(cluster.values if values is None else values)


@dataclass(frozen=True)
class Reference:
    """Backing per leaf; blocks as (team, GPUs), sorted; B."""

    values: dict[str, int]
    placed: tuple[tuple[str, int], ...]
    unplaced: tuple[tuple[str, int], ...]
    total: int


def backing(snapshot: Snapshot) -> Reference:
    """The largest assignment: blocks, then the total, then what is missing in proportion to quota.

    Missing counts from a leaf's own value, so it holds what an overcommitted parent does not let through.
    """
    cluster = _cluster(snapshot)
    layouts, best = cluster.largest(cluster.values)

    def some_optimal_misses(missing: Values) -> bool:
        # Only the leaves give way: a missing GPU of one leaf may go to its sibling.
        room = {t: v - missing.get(t, 0) for t, v in cluster.values.items()}
        return any(cluster.total_with(room, layout) == best for layout in layouts)

    missing = dict.fromkeys(cluster.leaves, 0)
    weights = {leaf: cluster.values[leaf] for leaf in cluster.leaves}
    for _ in range(sum(weights.values()) - best):
        name = give_next(weights, missing, lambda n: some_optimal_misses({**missing, n: missing[n] + 1}))
        assert name is not None, "an optimal assignment misses exactly the rest"
        missing[name] += 1
    return _reference(cluster, layouts[0], {leaf: weights[leaf] - missing[leaf] for leaf in cluster.leaves})


def _reference(cluster: Cluster, layout: Layout, values: dict[str, int]) -> Reference:
    pairs = list(zip(cluster.blocks, layout, strict=True))
    return Reference(
        values=values,
        placed=tuple(sorted(block for block, island in pairs if island is not None)),
        unplaced=tuple(sorted(block for block, island in pairs if island is None)),
        total=sum(values.values()),
    )


def backing_by_enumeration(snapshot: Snapshot) -> Reference:
    """The same by listing every assignment there is. Tiny cases only."""
    cluster = _cluster(snapshot)

    def every_assignment(layout: Layout) -> set[tuple[int, ...]]:
        """Return all that leaves may get with these blocks: each island's GPUs are handed out one by one, or left."""
        left = cluster.after_blocks(cluster.values, layout)
        assert left is not None
        found = {tuple(cluster.values[leaf] - left[0][leaf] for leaf in cluster.leaves)}
        for island, healthy in left[1].items():
            for _ in range(healthy):
                found |= {
                    (*got[:i], got[i] + 1, *got[i + 1 :])
                    for got in found
                    for i, leaf in enumerate(cluster.leaves)
                    if cluster.may_use(leaf, island) and allowed((*got[:i], got[i] + 1, *got[i + 1 :]))
                }
        return found

    def allowed(got: tuple[int, ...]) -> bool:
        of = dict(zip(cluster.leaves, got, strict=True))
        return all(
            sum(gpus for leaf, gpus in of.items() if team in cluster.line[leaf]) <= value
            for team, value in cluster.values.items()
        )

    layouts = cluster.best_layouts(cluster.values)
    everything = set().union(*map(every_assignment, layouts))
    best = max(map(sum, everything))
    optimal = [dict(zip(cluster.leaves, got, strict=True)) for got in everything if sum(got) == best]
    missing = dict.fromkeys(cluster.leaves, 0)
    weights = {leaf: cluster.values[leaf] for leaf in cluster.leaves}
    for _ in range(sum(weights.values()) - best):
        name = give_next(
            weights,
            missing,
            lambda n: any(
                all(weights[leaf] - got[leaf] >= missing[leaf] + (leaf == n) for leaf in cluster.leaves)
                for got in optimal
            ),
        )
        assert name is not None
        missing[name] += 1
    return _reference(cluster, layouts[0], {leaf: weights[leaf] - missing[leaf] for leaf in cluster.leaves})


# The ladder


def tiers_of(quota: Quota, value: int, floor_gpus: int) -> dict[Tier, int]:
    """Return what a quota of this value has in each tier, with its floor taken out of the deepest tier first."""
    busy = min(value, quota.scheduled - quota.idle)
    idle = min(value, quota.scheduled) - busy
    result = {Tier.UNSCHEDULED: value - busy - idle, Tier.IDLE: idle, Tier.BUSY: busy}
    for tier in reversed(LADDER):
        kept = min(floor_gpus, result[tier])
        result[tier] -= kept
        floor_gpus -= kept
    return result


class Ladder:
    """Cuts of leaves, tier by tier, that grow and never shrink."""

    def __init__(
        self,
        cluster: Cluster,
        values: Values,
        floors: Values,
        *,
        share: ShareBy,
        max_tier: Tier,
        may_cut: Iterable[str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.values = dict(values)
        self.share = share
        self.tiers = [tier for tier in LADDER if tier.depth <= max_tier.depth]
        self.leaves = sorted(cluster.leaves if may_cut is None else may_cut)
        has = {leaf: tiers_of(cluster.quota[leaf], values[leaf], floors[leaf]) for leaf in self.leaves}
        self.left = {tier: {leaf: has[leaf][tier] for leaf in self.leaves} for tier in LADDER}
        self.cut = {tier: dict.fromkeys(self.leaves, 0) for tier in LADDER}
        self.start()

    def start(self) -> None:
        """Weights from what is left now; nothing counts as given yet."""
        self.weights = {}
        for tier in LADDER:
            if self.share is ShareBy.TIER:
                self.weights[tier] = dict(self.left[tier])
            elif self.share is ShareBy.QUOTA:
                self.weights[tier] = {leaf: self.cluster.quota[leaf].gpus for leaf in self.leaves}
            else:
                self.weights[tier] = dict.fromkeys(self.leaves, 1)
        self.given = {tier: dict.fromkeys(self.leaves, 0) for tier in LADDER}

    def of(self, leaf: str) -> int:
        return sum(self.cut[tier][leaf] for tier in LADDER)

    @property
    def cuts(self) -> dict[str, int]:
        return {leaf: self.of(leaf) for leaf in self.leaves}

    @property
    def total(self) -> int:
        return sum(self.cuts.values())

    @property
    def now(self) -> dict[str, int]:
        return self.cluster.lowered(self.values, self.cuts)

    def one(self, tier: Tier, leaf: str) -> None:
        self.left[tier][leaf] -= 1
        self.cut[tier][leaf] += 1
        self.given[tier][leaf] += 1

    def allows(self, tier: Tier, may: Callable[[str], bool], leaf: str) -> bool:
        """True while the tier has a GPU, and neither the leaf nor an ancestor would fall below zero."""
        now = self.now
        return self.left[tier][leaf] > 0 and all(now[team] > 0 for team in self.cluster.line[leaf]) and may(leaf)

    def take(self, amount: int, may: Callable[[str], bool]) -> int:
        """Cut up to amount, the cheapest tier first; returns what could not be cut."""
        for tier in self.tiers:
            while amount > 0:
                leaf = give_next(self.weights[tier], self.given[tier], partial(self.allows, tier, may))
                if leaf is None:
                    break
                self.one(tier, leaf)
                amount -= 1
        return amount

    def until_backed(self) -> None:
        """Cut what backing demands: first what leaves could never have, from whoever's cut lessens that (the cheapest
        tier of all); then A - B, each GPU from a quota where it was phantom."""
        never = self.cluster.yet_to_reach(self.now)

        def mends(leaf: str) -> bool:
            now = self.now
            after = self.cluster.lowered(now, {leaf: 1})
            return min(after.values()) >= 0 and fewer(after, now)

        def fewer(after: Values, now: Values) -> bool:
            return self.cluster.yet_to_reach(after) < self.cluster.yet_to_reach(now)

        if len(self.cluster.quota) > len(self.cluster.leaves):  # without parents A - B holds it
            self.take(never, mends)
        before = self.now
        earlier = self.cuts

        def useful(leaf: str) -> bool:
            cuts = {name: self.of(name) - earlier[name] + (name == leaf) for name in self.leaves}
            return self.cluster.useful(before, cuts)

        self.take(self.cluster.assigned(before) - self.cluster.backed_gpus(before), useful)


def floors_of(cluster: Cluster) -> dict[str, int]:
    return {
        leaf: max(cluster.quota[leaf].minimum_gpus, sum(cluster.quota[leaf].protected_blocks))
        for leaf in cluster.leaves
    }


def ceiling(snapshot: Snapshot, policy: Policy) -> int:
    """C."""
    healthy = sum(i.healthy_gpus for i in snapshot.islands)
    basis = healthy if policy.basis is Basis.HEALTHY else sum(i.total_gpus for i in snapshot.islands)
    spare = snapshot.gpus_per_node if policy.spare_gpus is None else policy.spare_gpus
    return min(floor((1 - policy.buffer_at(snapshot.completed_rollouts)) * basis), max(0, healthy - spare))


@dataclass(frozen=True)
class ReferencePlan:
    """`cuts`, `phantom` and `to_flex` name every leaf; `after` every team."""

    ceiling: int
    assigned: int
    cuts: dict[str, dict[Tier, int]]
    after: dict[str, int]
    haircut: int
    short: int
    phantom_gpus: int
    to_flex_gpus: int
    phantom: dict[str, int]
    to_flex: dict[str, int]
    backed: bool
    wave: Tier
    scoped: dict[str, int] = field(default_factory=dict, compare=False)
    """What each leaf gave for scope quota, before anything else."""

    @property
    def cut_gpus(self) -> int:
        return sum(gpus for by_tier in self.cuts.values() for gpus in by_tier.values())


def plan(snapshot: Snapshot, policy: Policy, max_tier: Tier | None = None) -> ReferencePlan:
    """The ladder, and never deeper than a tier limit under which each leaf's share and as small a cut suffice."""
    by_limit = {limit: _plan_at(snapshot, policy, limit) for limit in (Tier.UNALLOCATED, *LADDER)}

    def chosen(deepest: Tier) -> ReferencePlan:
        asked = by_limit[deepest]
        limits = [limit for limit in by_limit if limit.depth < deepest.depth]
        enough = [by_limit[n] for n in limits if by_limit[n].backed and not by_limit[n].short]
        enough = [p for p in enough if p.scoped == asked.scoped]
        return next((p for p in enough if p.cut_gpus <= asked.cut_gpus), asked)

    cut = {tier for by_tier in chosen(Tier.BUSY).cuts.values() for tier in by_tier}
    wave = max(cut, key=lambda tier: tier.depth, default=Tier.UNALLOCATED)
    return replace(chosen(policy.max_tier if max_tier is None else max_tier), wave=wave)


def _plan_at(snapshot: Snapshot, policy: Policy, deepest: Tier) -> ReferencePlan:
    """Scope quota first, then what backing demands, then what the ceiling demands."""
    cluster = _cluster(snapshot)
    most = ceiling(snapshot, policy)
    ladder = Ladder(cluster, cluster.values, floors_of(cluster), share=policy.share, max_tier=deepest)

    keeps = 1 - policy.buffer_at(snapshot.completed_rollouts)
    wished = {leaf: cluster.values[leaf] - floor(keeps * cluster.values[leaf]) for leaf in cluster.leaves}
    if policy.scope is Scope.CLUSTER:
        wished = dict.fromkeys(cluster.leaves, 0)

    # An ancestor that is overcommitted many times may reach zero before its leaves have given what the
    # buffer asks of each; docs/design.md does not say who then gives. Here: in the order of names.
    wish = dict.fromkeys(cluster.leaves, 0)
    for leaf in cluster.leaves:
        now = cluster.lowered(cluster.values, wish)
        wish[leaf] = min(wished[leaf], *(now[team] for team in cluster.line[leaf]))
        ladder.take(wished[leaf], partial(eq, leaf))
    target = cluster.lowered(cluster.values, wish)
    scoped = dict(ladder.cuts)

    ladder.start()
    ladder.until_backed()
    ladder.take(cluster.assigned(ladder.now) - most, lambda leaf: True)

    before, after = cluster.values, ladder.now
    total = cluster.assigned(before)
    mended = _smallest(cluster, target)
    haircut = total - min(cluster.assigned(target) - mended, most)
    to_flex = cluster.backed_gpus(before) - cluster.backed_gpus(after)
    phantom = _phantom_parts(cluster, ladder.cuts, ladder.total - to_flex)
    return ReferencePlan(
        ceiling=most,
        assigned=total,
        cuts={leaf: {t: ladder.cut[t][leaf] for t in LADDER if ladder.cut[t][leaf]} for leaf in cluster.leaves},
        after=after,
        haircut=haircut,
        short=max(0, haircut - ladder.total),
        phantom_gpus=ladder.total - to_flex,
        to_flex_gpus=to_flex,
        phantom=phantom,
        to_flex={leaf: cut - phantom[leaf] for leaf, cut in ladder.cuts.items()},
        backed=cluster.is_backed(after),
        wave=Tier.UNALLOCATED,
        scoped=scoped,
    )


def _smallest(cluster: Cluster, values: Values) -> int:
    """The smallest total cut after which A = B and no leaf is out of reach, floors and blocks aside."""
    free = dict.fromkeys(cluster.leaves, 0)
    ladder = Ladder(cluster, values, free, share=ShareBy.EQUAL, max_tier=Tier.BUSY)
    ladder.until_backed()
    return ladder.total


def _phantom_parts(cluster: Cluster, cuts: Values, amount: int) -> dict[str, int]:
    """The phantom part of each cut: a GPU only where, with those before it, it was phantom.

    Under an overcommitted parent a cut that the ceiling demands may cost a sibling's block its place and
    yet leave B as large as it was: phantom shrank by it too, so when all else is given B alone decides.
    """
    parts = dict.fromkeys(cuts, 0)

    def with_one_more(name: str) -> dict[str, int]:
        return {**parts, name: parts[name] + 1}

    def costs_nothing(name: str) -> bool:
        return parts[name] < cuts[name] and cluster.useful(cluster.values, with_one_more(name))

    def leaves_b(name: str) -> bool:
        lowered = cluster.lowered(cluster.values, with_one_more(name))
        return parts[name] < cuts[name] and cluster.backed_gpus(lowered) == cluster.backed_gpus(cluster.values)

    for done in range(amount):
        name = give_next(cuts, parts, costs_nothing)
        if name is None:
            name = give_next(cuts, parts, leaves_b)
        if name is None:  # two cut GPUs lessen phantom by one together, and neither alone
            more = _shared({each: cuts[each] - parts[each] for each in cuts}, amount - done)
            return {each: parts[each] + more[each] for each in parts}
        parts[name] += 1
    return parts


def _shared(left: Values, amount: int) -> dict[str, int]:
    """The amount divided by what is left of each, GPU by GPU."""
    more = dict.fromkeys(left, 0)
    for _ in range(amount):
        name = give_next(left, more, lambda each: more[each] < left[each])
        assert name is not None, "the cuts hold as many phantom GPUs as phantom shrank by"
        more[name] += 1
    return more


# Breach


@dataclass(frozen=True)
class ReferenceTarget:
    """Every team's value after a breach, and the teams whose floor had to give way."""

    values: dict[str, int]
    touched: frozenset[str]
    broken_floors: frozenset[str]


def breach_target(snapshot: Snapshot, current: Values, islands_now: tuple[Island, ...]) -> ReferenceTarget:
    """Return the target of a breach rollback: the touched quotas get the ladder from the baseline, the others stay.

    `snapshot` holds the baseline. A quota is touched when one GPU of it was phantom, that is, some largest
    assignment of the current values leaves it short of what the tree promises it, when it could not have that even
    alone, or when a block of it has no place (that makes a quota unbacked, even where it lacks no GPU). Floors give
    way last:
    minimums, then blocks without a place; each time the ladder starts from what is left.
    """
    cluster = Cluster(snapshot.quotas, islands_now)
    baseline = cluster.values
    present = cluster.lowered(baseline, {leaf: baseline[leaf] - current[leaf] for leaf in cluster.leaves})
    homeless = {
        leaf for (leaf, _), has_place in zip(cluster.blocks, cluster.served(present), strict=True) if not has_place
    }
    homeless |= set(cluster.out_of_reach(present))
    touched = frozenset(leaf for leaf in cluster.leaves if leaf in homeless or cluster.useful(present, {leaf: 1}))
    values = cluster.lowered(
        baseline, {leaf: baseline[leaf] - current[leaf] for leaf in cluster.leaves if leaf not in touched}
    )
    blocks = {leaf: sum(cluster.quota[leaf].protected_blocks) for leaf in cluster.leaves}
    placed = dict.fromkeys(cluster.leaves, 0)
    for (leaf, size), has_place in zip(cluster.blocks, cluster.served(values), strict=True):
        placed[leaf] += size if has_place else 0
    for floors in (floors_of(cluster), blocks, placed):
        ladder = Ladder(cluster, values, floors, share=ShareBy.TIER, max_tier=Tier.BUSY, may_cut=touched)
        ladder.until_backed()
        values = ladder.now
    broken = frozenset(leaf for leaf in touched if values[leaf] < floors_of(cluster)[leaf])
    return ReferenceTarget(values, touched, broken)
