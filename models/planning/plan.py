"""The plan of a cluster, a pure function of snapshot and policy: the same input gives the same plan, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from fractions import Fraction
from functools import cached_property
from typing import Literal

from pydantic import Field

from models.base import Duration, Model, Share, Since, Time
from models.cluster.derived_buffer import Derived
from models.cluster.policy import AFTER_ALL, TIERS, Basis, Policy, Scope, ShareBy, Tier
from models.cluster.quota import gate_of
from models.cluster.snapshot import Snapshot
from models.cluster.team_work import TeamWork
from models.hashes import content_hash
from models.planning.busy_work import advice, work_under
from models.planning.ceiling import after_buffer, buffer_of, ceiling_of, with_buffer
from models.planning.cut_ladder import Ladder
from models.planning.cut_reasons import MOST_SHORT, ShortIslands, no_room_text, reason_for, short_islands
from models.planning.divide import divide, divide_within
from models.planning.placement import PlacementSolver


class Cut(Model):
    """The GPUs that one quota gives from one tier, and the reason in one sentence that a researcher understands."""

    tier: Tier
    gpus: int
    reason: str


class QuotaPlan(Model):
    """A quota before and after. A parent (`leaf` false) repeats the sums of its leaves."""

    team: str
    parent: str | None = None
    leaf: bool = True
    before_gpus: int
    after_gpus: int
    phantom_gpus: int
    to_flex_gpus: int
    cuts: tuple[Cut, ...] = ()
    namespaces: tuple[str, ...] | None = Field(default=None, exclude_if=lambda gate: gate is None)
    """The namespaces that may target the quota; None, and left out: all."""

    @property
    def cut_gpus(self) -> int:
        return self.before_gpus - self.after_gpus


class Plan(Model):
    """The changes that a rollout would make in one cluster. cut + short = haircut; cut = phantom + to_flex.

    `phantom_gpus` and `to_flex_gpus` count the GPUs that this plan cuts. `wave` is the deepest tier that the plan
    without a tier limit would cut. `suffices` is the first tier limit under which the plan is neither short nor
    unbacked; None if there is none. Units: whole GPUs.
    """

    cluster: str
    snapshot_hash: str
    generation: int
    buffer: Share
    basis: Basis
    scope: Scope
    share: ShareBy
    max_tier: Tier
    total_gpus: int
    healthy_gpus: int
    assigned_gpus: int
    ceiling_gpus: int
    haircut_gpus: int
    phantom_gpus: int
    to_flex_gpus: int
    short_by_gpus: int
    unbacked_gpus: int
    """GPUs that would still be phantom under the plan's values (A - B)."""
    unplaced_blocks: tuple[tuple[str, int], ...] = ()
    """Protected blocks (team, GPUs) for which no island has room."""
    wave: Tier
    backed: bool
    suffices: Tier | None
    usage_from: str
    quotas: tuple[QuotaPlan, ...]
    derived: Derived | None = None
    """How the buffer was derived from health history; None: it was not."""
    out_of_reach: tuple[tuple[str, int], ...] = ()
    """Leaves that would still promise more GPUs than their islands hold, and the most that each could have."""
    short_islands: tuple[ShortIslands, ...] = Field(default=(), exclude_if=lambda short: not short)
    """Sets of islands that still lack GPUs under the plan, so the plan is not backed; empty: none."""
    hash_rule: Literal[1, 2] = 1
    """The rule that makes the hash; histories hold plans and approvals made under rule 1."""
    phantom_since: Since | None = None
    """Time since which no healthy GPU has backed the phantom GPUs; None: not asked for, or unknown."""
    work: tuple[TeamWork, ...] = Field(default=(), exclude_if=lambda work: not work)
    """For teams that give up GPUs in use: their jobs by class, the first to yield first, where known."""
    advice: str = Field(default="", exclude_if=lambda advice: not advice)
    """Advice on classes of jobs; empty: none."""
    health_at: Time | None = Field(default=None, exclude_if=lambda at: at is None)
    """Time of the health sample; None: the snapshot is from a fleet file, which has no time."""
    stale_after: Duration | None = Field(default=None, exclude_if=lambda age: age is None)
    """The age from which the policy calls that sample stale; a stale sample opens no gate."""

    @cached_property
    def hash(self) -> str:
        """The hash that an approval names: the order of rows and written-out defaults do not change it.

        Nor do the time when the phantom began, the jobs that run now, or the time of the health sample.
        """
        if self.hash_rule == 1:
            unknown_then = {"out_of_reach", "hash_rule", "phantom_since", "work", "advice", "health_at", "stale_after"}
            unknown_then |= {"short_islands"} | ({"derived"} if self.derived is None else set())
            return content_hash(self, exclude=unknown_then)
        rows = (
            quota.but(namespaces=gate_of(quota.team, quota.namespaces)) if quota.namespaces else quota
            for quota in self.quotas
        )
        aside = {"phantom_since": None, "work": (), "advice": "", "health_at": None, "stale_after": None}
        content = self.but(quotas=tuple(sorted(rows, key=lambda quota: quota.team)), short_islands=(), **aside)
        return content_hash(content, exclude_defaults=True)

    def is_stale(self, now: datetime) -> bool:
        """Return whether its health is by now so old that it opens no gate."""
        return is_stale(self.health_at, self.stale_after, now)

    @property
    def composition(self) -> str:
        """The composition of the cut GPUs, in brackets."""
        since = f" {self.phantom_since.text}" if self.phantom_gpus and self.phantom_since else ""
        return f"({self.phantom_gpus:,} with no healthy GPU behind{since}, {self.to_flex_gpus:,} to flex)"

    @property
    def honest(self) -> bool:
        """False where health history shows that nothing can be promised."""
        return self.derived is None or self.derived.promise is not None

    @property
    def fault(self) -> str:
        """The reason why it cannot be launched, approved or written; empty if it can."""
        if not self.honest:
            assert self.derived is not None
            return f"no quota can be promised in this cluster: {self.derived.text}"
        return "" if self.backed else "not backed by healthy GPUs"

    @property
    def why_last(self) -> str:
        """The reason why its cluster comes after all waves: no tier limit suffices. Empty if one does."""
        if not self.honest:
            return self.fault
        if self.suffices is not None:
            return ""
        homeless = [no_room_text(team, size) for team, size in self.unplaced_blocks]
        held = ["minimums and protected blocks prevent the cuts that the plan needs"]
        return "; ".join(homeless + held * (bool(self.short_by_gpus) or not homeless))

    @property
    def why_unbacked(self) -> str:
        """The end of a sentence that says that an honest plan is not backed: the reason, or the tier that suffices."""
        return f": {self.why_last}" if self.why_last else f"; max_tier {self.suffices} would suffice"

    @property
    def wave_name(self) -> str:
        return AFTER_ALL if self.why_last else self.wave.value

    @property
    def place(self) -> tuple[bool, int, Fraction, str]:
        """The key that sorts a fleet: by wave, then the largest headroom; clusters that no plan mends come last."""
        return bool(self.why_last), 0 if self.why_last else self.wave.depth, -self.headroom, self.cluster

    @property
    def cut_gpus(self) -> int:
        return self.phantom_gpus + self.to_flex_gpus

    @cached_property
    def values(self) -> dict[str, int]:
        """Every team's value after the plan."""
        return {quota.team: quota.after_gpus for quota in self.quotas}

    @property
    def deepest_tier(self) -> Tier:
        cut = [c.tier for quota in self.quotas for c in quota.cuts]
        return max(cut, key=lambda tier: tier.depth, default=Tier.UNALLOCATED)

    @property
    def headroom(self) -> Fraction:
        """(H - A) / T: the order of clusters inside a wave, the largest first."""
        return Fraction(self.healthy_gpus - self.assigned_gpus, max(1, self.total_gpus))


def is_stale(health_at: datetime | None, stale_after: timedelta | None, now: datetime) -> bool:
    """Return whether a health sample opens no gate any more; False if its time or the limit is unknown."""
    return health_at is not None and stale_after is not None and now - health_at >= stale_after


class Envelope(Model):
    """The scope of an approval: a plan, and with it the largest cut per team and the deepest tier."""

    plan_hash: str
    largest_cut: dict[str, int]
    deepest_tier: Tier
    gates: dict[str, tuple[str, ...]] = Field(default_factory=dict, exclude_if=lambda gates: not gates)
    """By quota, the namespaces that may target it, part of the promise; quotas that all may target are left out."""

    def holds(self, plan: Plan) -> bool:
        """Return whether a re-plan needs no new approval."""
        if plan.hash == self.plan_hash:
            return True
        if _gates(plan) != {team: gate_of(team, gate) for team, gate in self.gates.items()}:
            return False
        return plan.deepest_tier.depth <= self.deepest_tier.depth and all(
            quota.cut_gpus <= self.largest_cut.get(quota.team, 0) for quota in plan.quotas
        )


def envelope_of(plan: Plan) -> Envelope:
    return Envelope(
        plan_hash=plan.hash,
        largest_cut={quota.team: quota.cut_gpus for quota in plan.quotas},
        deepest_tier=plan.deepest_tier,
        gates=_gates(plan),
    )


def _gates(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {quota.team: gate for quota in plan.quotas if (gate := gate_of(quota.team, quota.namespaces)) is not None}


def make_plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """Plan a cluster. There is always a plan: one that is short or not backed says so.

    Source: docs/design.md, "The cut ladder".
    """
    snapshot = with_buffer(snapshot, policy)
    sketches: dict[Tier, _Sketch] = {}

    def at(tier: Tier) -> _Sketch:
        if tier not in sketches:
            sketches[tier] = _Sketch(snapshot, policy, tier)
            if sketches[tier].may_be_too_deep:
                shallower = (at(t) for t in TIERS if t.depth < sketches[tier].deepest.depth)
                enough = (
                    sketch
                    for sketch in shallower
                    if sketch.sufficient
                    and sketch.cut_gpus <= sketches[tier].cut_gpus
                    and sketch.scoped == sketches[tier].scoped
                )
                sketches[tier] = next(enough, sketches[tier])
        return sketches[tier]

    chosen = at(policy.max_tier)
    if chosen.sufficient and policy.scope is Scope.CLUSTER and not chosen.may_be_too_deep:
        suffices: Tier | None = chosen.deepest  # the ladder cuts no deeper than needed
    else:
        suffices = next((t for t in TIERS if at(t).sufficient), None)
    return chosen.plan(max_tier=policy.max_tier, wave=at(Tier.BUSY).deepest, suffices=suffices)


class _Sketch:
    """A run of the ladder under one tier limit."""

    def __init__(self, snapshot: Snapshot, policy: Policy, max_tier: Tier) -> None:
        self.snapshot, self.policy = snapshot, policy
        self.buffer = buffer_of(snapshot, policy)
        self.ceiling = ceiling_of(snapshot, policy)
        self.ground = PlacementSolver(snapshot)
        self.tree = self.ground.tree
        self.before = snapshot.values
        self.total, self.placed = self.ground.best(self.before)
        self.assigned = self.tree.assigned_gpus(self.before)
        floors = {leaf: self.tree.by_team[leaf].floor for leaf in self.tree.leaves}
        self.ladder = Ladder(self.ground, policy.share, max_tier, floors)
        self.backing_cuts = dict.fromkeys(self.tree.leaves, 0)
        self._cut()
        self.cuts = self.ladder.cuts()
        self.after = self.ladder.values()
        self.cut_gpus = self.assigned - self.tree.assigned_gpus(self.after)
        self.total_after, self.placed_after = (
            self.ground.best(self.after) if self.cut_gpus else (self.total, self.placed)
        )
        self.haircut = max(self._haircut(), self.cut_gpus)

    def _wishes(self) -> dict[str, int]:
        """Return the GPUs that each leaf gives before anything else, in scope `quota`."""
        if self.policy.scope is Scope.CLUSTER:
            return dict.fromkeys(self.tree.leaves, 0)
        return {leaf: self.before[leaf] - after_buffer(self.before[leaf], self.buffer) for leaf in self.tree.leaves}

    def _cut(self) -> None:
        self.ladder.cut_each(self._wishes())
        self.scoped = self.ladder.cuts()
        self.ladder.cut_reach()
        values = self.ladder.values()
        moved = values != self.before
        total, placed = self.ground.best(values) if moved else (self.total, self.placed)
        demand = self.tree.assigned_gpus(values) - total
        if demand > 0:
            self.ladder.cut_backing(demand, total, placed)
        now = self.ladder.cuts()
        self.backing_cuts = {leaf: now[leaf] - self.scoped[leaf] for leaf in now}
        above = self.tree.assigned_gpus(self.ladder.values()) - self.ceiling
        if above > 0:
            self.ladder.cut_all(above)

    def _haircut(self) -> int:
        """Return the smallest total cut that meets the scope, backs the quotas and keeps them under C."""
        total = self.total
        if self.policy.scope is Scope.QUOTA or not self.tree.flat:
            free = Ladder(self.ground, self.policy.share, Tier.BUSY, {})
            free.cut_each(self._wishes())
            free.cut_reach()
            if any(free.cuts().values()):
                total = self.ground.best(free.values())[0]
        return self.assigned - min(total, self.ceiling)

    @property
    def short_gpus(self) -> int:
        return self.haircut - self.cut_gpus

    @property
    def unplaced(self) -> tuple[tuple[str, int], ...]:
        return self.ground.find_unplaced(self.after, self.placed_after)

    @property
    def unbacked(self) -> int:
        return self.tree.assigned_gpus(self.after) - self.total_after

    @property
    def is_backed(self) -> bool:
        return self.unbacked == 0 and not self.unplaced and not self.out_of_reach

    @cached_property
    def out_of_reach(self) -> tuple[tuple[str, int], ...]:
        return tuple((leaf, self.ground.reachable[leaf]) for leaf in self.ground.out_of_reach(self.after))

    @property
    def sufficient(self) -> bool:
        return self.is_backed and self.short_gpus == 0

    @property
    def may_be_too_deep(self) -> bool:
        """Whether a shallower limit may do with as small a cut: GPU by GPU, neither mending nor blocks can tell."""
        return bool(self.ladder.mends or (self.placed and any(self.backing_cuts.values())))

    @property
    def deepest(self) -> Tier:
        cut = {tier for by_tier in self.ladder.taken.values() for tier, gpus in by_tier.items() if gpus}
        return max(cut, key=lambda tier: tier.depth, default=Tier.UNALLOCATED)

    def _phantom_parts(self) -> dict[str, int]:
        """Divide the cut GPUs without a healthy GPU behind them among the leaves."""
        removed = (self.assigned - self.total) - self.unbacked
        caps = self.cuts
        if removed == self.cut_gpus and self.cut_gpus == sum(caps.values()):
            return dict(caps)
        if self.tree.flat and not self.ground.limited and not self.placed:
            return divide(removed, caps, caps)

        def is_in_vain(part: Mapping[str, int]) -> bool:
            return self.ground.reaches(self.tree.lower_values(part), self.placed, self.total)

        def as_large(more: Mapping[str, int]) -> bool:
            part = {leaf: parts[leaf] + more[leaf] for leaf in more}
            return self.ground.still_holds(self.tree.lower_values(part), self.placed, self.total)

        parts = divide_within(removed, caps, caps, is_in_vain)
        rest = removed - sum(parts.values())
        if rest:  # the ceiling's cut lowered a parent past its children's blocks: phantom shrank by that too
            more = divide_within(rest, caps, caps, as_large, given=parts)
            parts = {leaf: parts[leaf] + more[leaf] for leaf in parts}
            rest -= sum(more.values())
        if rest:  # a block, a limit and a parent smaller than its children bind at once: only the sum is exact
            left = {leaf: caps[leaf] - parts[leaf] for leaf in parts}
            more = divide(rest, left, left)
            parts = {leaf: parts[leaf] + more[leaf] for leaf in parts}
        return parts

    def plan(self, *, max_tier: Tier, wave: Tier, suffices: Tier | None) -> Plan:
        removed = (self.assigned - self.total) - self.unbacked
        rows = self._rows()
        return Plan(
            cluster=self.snapshot.cluster,
            snapshot_hash=self.snapshot.hash,
            generation=self.snapshot.generation,
            buffer=self.buffer,
            basis=self.policy.basis,
            scope=self.policy.scope,
            share=self.policy.share,
            max_tier=max_tier,
            total_gpus=self.snapshot.total_gpus,
            healthy_gpus=self.snapshot.healthy_gpus,
            assigned_gpus=self.assigned,
            ceiling_gpus=self.ceiling,
            haircut_gpus=self.haircut,
            phantom_gpus=removed,
            to_flex_gpus=self.cut_gpus - removed,
            short_by_gpus=self.short_gpus,
            unbacked_gpus=self.unbacked,
            unplaced_blocks=self.unplaced,
            wave=wave,
            backed=self.is_backed,
            suffices=suffices,
            usage_from=self.snapshot.usage_from,
            quotas=tuple(rows[quota.team] for quota in self.snapshot.quotas),
            derived=self.snapshot.derived if self.policy.terms is not None else None,
            out_of_reach=self.out_of_reach,
            short_islands=short_islands(self.snapshot, self.after)[:MOST_SHORT],
            hash_rule=2,
            work=work_under(self.snapshot, {leaf: taken[Tier.BUSY] for leaf, taken in self.ladder.taken.items()}),
            advice=advice(self.snapshot, self.policy),
            health_at=self.snapshot.health_at,
            stale_after=None if self.snapshot.health_at is None else self.policy.stale_after,
        )

    def _rows(self) -> dict[str, QuotaPlan]:
        phantom = self._phantom_parts()
        rows: dict[str, QuotaPlan] = {}
        for team in self.tree.bottom_up:
            children = [rows[c] for c in self.tree.children.get(team, [])]
            if children:
                by_tier = {t: sum(c.gpus for row in children for c in row.cuts if c.tier is t) for t in TIERS}
                lost = sum(row.phantom_gpus for row in children)
            else:
                by_tier, lost = dict(self.ladder.taken[team]), phantom[team]
            cut = sum(by_tier.values())
            rows[team] = QuotaPlan(
                team=team,
                parent=self.tree.by_team[team].parent,
                leaf=not children,
                before_gpus=self.before[team],
                after_gpus=self.after[team],
                phantom_gpus=lost,
                to_flex_gpus=cut - lost,
                cuts=tuple(
                    Cut(tier=tier, gpus=gpus, reason=self._reason(team, tier, gpus, bool(children)))
                    for tier, gpus in by_tier.items()
                    if gpus
                ),
                namespaces=self.tree.by_team[team].namespaces,
            )
        return rows

    @cached_property
    def _short_before(self) -> dict[frozenset[str], ShortIslands]:
        return {frozenset(short.islands): short for short in short_islands(self.snapshot, self.before)}

    def _reason(self, team: str, tier: Tier, gpus: int, parent: bool) -> str:
        limits = self.tree.by_team[team].islands or ()
        return reason_for(
            snapshot=self.snapshot,
            team=team,
            tier=tier,
            gpus=gpus,
            parent=parent,
            ceiling=self.ceiling,
            short=None if parent or not self.backing_cuts[team] else self._short_before.get(frozenset(limits)),
            scope=self.policy.scope,
            mends=None if parent else self.ladder.mends.get(team),
        )
