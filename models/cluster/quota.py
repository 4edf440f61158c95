"""Quotas: promises of GPUs to teams, in a tree where only leaves hold jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Self

from pydantic import Field, model_validator

from models.base import Documented, GpuCount, Name, PositiveCount, fault_at
from models.cluster.classes import Classes


class Quota(Documented):
    """GPUs promised to one team in one cluster (nominal quota).

    Units: whole GPUs. `scheduled_gpus` None: usage unknown, taken as all of the quota and none idle. `pending_gpus`:
    what its queued jobs ask for; None: unknown. `islands` None: any. `protected_blocks`: sizes of contiguous blocks,
    each whole inside one island. `minimum_gpus` and the sum of the blocks are floors that a cut respects. `namespaces`:
    those that may target it; None: all; (): none now. Errors: ValueError for idle above scheduled, floors above the
    quota, and pending where scheduled is unknown.
    """

    team: Name
    """The team that holds the quota, unique in its cluster."""
    gpus: GpuCount
    """GPUs promised."""
    scheduled_gpus: GpuCount | None = None
    """GPUs that the team's running jobs hold; may exceed gpus. Default: unknown; plans then assume all of gpus."""
    idle_gpus: GpuCount | None = None
    """The part of scheduled_gpus that does no work. Default: 0."""
    # Left out where unknown: no plan depends on it, and the hashes of approved plans stay.
    pending_gpus: GpuCount | None = Field(default=None, exclude_if=lambda gpus: gpus is None)
    """GPUs that the team's queued jobs ask for; plans do not use this. Default: unknown."""
    islands: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """The islands that the quota may use. Default: any."""
    protected_blocks: tuple[PositiveCount, ...] = ()
    """Sizes of contiguous blocks, each whole inside one island; in sum at most gpus, and at most what each quota
    above it holds. Default: none.
    """
    minimum_gpus: GpuCount = 0
    """No plan cuts the quota below this. At most gpus, and at most what each quota above it holds."""
    parent: Name | None = None
    """The quota above this one in the same cluster; only leaves hold jobs. Default: none."""
    # Left out where it is None, as in plans that were approved before: their hashes stay.
    namespaces: tuple[Name, ...] | None = Field(default=None, exclude_if=lambda gate: gate is None)
    """The namespaces that may use the quota, besides the team's own; no commas in them. Default: all."""
    classes: Classes | None = Field(default=None, exclude_if=lambda classes: classes is None)
    """The classes of the quota's jobs, the strongest first; no commas. Default: those of the cluster's policy."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.idle > self.scheduled:
            raise ValueError(f"idle_gpus is {self.idle}, above scheduled_gpus {self.scheduled} (team {self.team})")
        if self.pending_gpus is not None and self.scheduled_gpus is None:
            raise ValueError(
                f"pending_gpus is {self.pending_gpus} without scheduled_gpus: give scheduled_gpus too, or leave "
                f"pending_gpus out (team {self.team})"
            )
        for block in self.protected_blocks:
            if block > self.gpus:
                raise ValueError(
                    f"protected_blocks has a block of {block}, larger than the quota {self.gpus} (team {self.team})"
                )
        if sum(self.protected_blocks) > self.gpus:
            raise ValueError(
                f"protected_blocks sum to {sum(self.protected_blocks)}, above the quota {self.gpus} (team {self.team})"
            )
        if self.minimum_gpus > self.gpus:
            raise ValueError(f"minimum_gpus is {self.minimum_gpus}, above the quota {self.gpus} (team {self.team})")
        for field, names in (("islands", self.islands), ("namespaces", self.namespaces)):
            if names is not None and len(set(names)) != len(names):
                raise ValueError(f"{field} has the same name twice: {list(names)} (team {self.team})")
        for name in self.namespaces or ():
            if "," in name:
                raise ValueError(f"namespaces has {name!r}: a name may not contain a comma (team {self.team})")
        return self

    @property
    def scheduled(self) -> int:
        """S: GPUs held by running jobs; may exceed the quota. All of the quota where unknown."""
        return self.gpus if self.scheduled_gpus is None else self.scheduled_gpus

    @property
    def idle(self) -> int:
        """L: the scheduled GPUs that do no work."""
        return 0 if self.idle_gpus is None else self.idle_gpus

    @property
    def in_use(self) -> tuple[int, int]:
        """GPUs that jobs hold inside the quota, and those of them that do work: what is beyond it is idle first."""
        return min(self.gpus, self.scheduled), min(self.gpus, self.scheduled - self.idle)

    @property
    def floor(self) -> int:
        """The GPUs that a cut leaves."""
        return max(self.minimum_gpus, sum(self.protected_blocks))

    def admits(self, namespace: str) -> bool:
        """Return whether jobs and requests from this namespace may target the quota."""
        return self.namespaces is None or namespace in (self.team, *self.namespaces)

    def canonical(self, islands: Collection[str]) -> Quota:
        """The same quota, written in one way. `islands`: those of its cluster."""
        every = self.islands is None or frozenset(self.islands) == frozenset(islands)
        return self.model_copy(
            update={
                "idle_gpus": self.idle_gpus or None,
                "islands": None if every else tuple(sorted(self.islands or ())),
                "protected_blocks": tuple(sorted(self.protected_blocks, reverse=True)),
                "namespaces": self.gate,
                "classes": None,  # no plan goes by them
            }
        )

    @property
    def gate(self) -> tuple[str, ...] | None:
        """The namespaces that may target it beside the team itself, sorted; None: all."""
        return gate_of(self.team, self.namespaces)

    def with_gpus(self, gpus: int) -> Quota:
        """Return the same quota with another value, unchecked: floors may be broken on purpose (a breach)."""
        return self.model_copy(update={"gpus": gpus})


def gate_of(team: str, namespaces: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the namespaces that may target a team's quota, in one spelling: the team itself always may."""
    return None if namespaces is None else tuple(sorted(set(namespaces) - {team}))


def gate_text(team: str, namespaces: Iterable[str]) -> str:
    """Name the namespaces that may target a team's quota, its own first."""
    more = gate_of(team, namespaces) or ()
    return f"the namespace{'s' * bool(more)} {' and '.join((team, *more))}"


def cycle_in(parents: Mapping[str, str | None]) -> list[str]:
    """Return names each followed by its parent, the first one again at the end; [] where there is no cycle."""
    settled: set[str] = set()
    for name in parents:
        path: list[str] = []
        at: str | None = name
        while at is not None and at not in settled:
            if at in path:
                return [*path[path.index(at) :], at]
            path.append(at)
            at = parents.get(at)
        settled.update(path)
    return []


def why_no_jobs(team: str, *, has_children: bool) -> str:
    """Explain why the team holds no jobs in a cluster."""
    return f"{team} has sub-quotas there, and only these hold jobs" if has_children else f"{team} has no quota there"


class QuotaTree:
    """The quotas of one cluster by name, with their tree.

    Errors: ValueError naming the team for a duplicate, an unknown parent, a cycle, or a parent that
    is said to hold jobs or blocks.
    """

    def __init__(self, quotas: Iterable[Quota]) -> None:
        self.by_team: dict[str, Quota] = {}
        places: dict[str, int] = {}
        for number, quota in enumerate(quotas):
            if quota.team in self.by_team:
                raise fault_at(("quotas", number, "team"), f"team {quota.team!r} is given twice")
            self.by_team[quota.team] = quota
            places[quota.team] = number
        self.children: dict[str, list[str]] = {}
        for team in sorted(self.by_team):
            parent = self.by_team[team].parent
            if parent is None:
                continue
            if parent not in self.by_team:
                what = f"parent {parent!r} of team {team!r} is not a quota of this cluster"
                raise fault_at(("quotas", places[team]), what)
            self.children.setdefault(parent, []).append(team)
        self._refuse_cycles(places)
        for team in self.children:
            _refuse_jobs(self.by_team[team], places[team])
        self.leaves: tuple[str, ...] = tuple(t for t in sorted(self.by_team) if t not in self.children)
        self.roots: tuple[str, ...] = tuple(t for t in sorted(self.by_team) if self.by_team[t].parent is None)

    def _refuse_cycles(self, places: Mapping[str, int]) -> None:
        circle = cycle_in({team: quota.parent for team, quota in self.by_team.items()})
        if circle:
            raise fault_at(("quotas", places[circle[0]]), f"the quota tree has a cycle: {' -> '.join(circle)}")

    @property
    def flat(self) -> bool:
        """True if no quota has a parent."""
        return not self.children

    @property
    def leaf_gpus(self) -> dict[str, int]:
        """The quotas of the leaves, which hold jobs."""
        return {leaf: self.by_team[leaf].gpus for leaf in self.leaves}

    def ancestors(self, team: str) -> list[str]:
        """Return the quotas above it, from the parent up to the root."""
        above = []
        parent = self.by_team[team].parent
        while parent is not None:
            above.append(parent)
            parent = self.by_team[parent].parent
        return above

    @cached_property
    def bottom_up(self) -> tuple[str, ...]:
        """Every team, children before their parents."""
        order: list[str] = []
        stack = list(reversed(self.roots))
        while stack:
            team = stack.pop()
            order.append(team)
            stack.extend(self.children.get(team, []))
        return tuple(order[::-1])

    def count_assigned(self, values: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return for every team min(own value, assigned of the children); own value for leaves."""
        value = {t: quota.gpus for t, quota in self.by_team.items()} if values is None else values
        result: dict[str, int] = {}
        for team in self.bottom_up:
            children = self.children.get(team)
            result[team] = value[team] if not children else min(value[team], sum(result[child] for child in children))
        return result

    def assigned_gpus(self, values: Mapping[str, int] | None = None) -> int:
        """Return A: what the cluster's quotas really promise, in GPUs."""
        of = self.count_assigned(values)
        return sum(of[root] for root in self.roots)

    def lower_values(self, cuts: Mapping[str, int]) -> dict[str, int]:
        """Return every team's value after cutting leaves: ancestors fall alike, so that no sibling can take it up."""
        value = {t: quota.gpus for t, quota in self.by_team.items()}
        for leaf, cut in cuts.items():
            for team in (leaf, *self.ancestors(leaf)):
                value[team] -= cut
        return value


_OF_LEAVES = (
    *("scheduled_gpus", "idle_gpus", "pending_gpus", "protected_blocks", "minimum_gpus", "islands"),
    *("namespaces", "classes"),
)


def _refuse_jobs(parent: Quota, place: int) -> None:
    for field in _OF_LEAVES:
        value = getattr(parent, field)
        if value:
            shown = list(value) if isinstance(value, tuple) else value
            what = f"{field} is {shown} for team {parent.team!r}, which has sub-quotas: set it on those instead"
            raise fault_at(("quotas", place), what)


def check_islands(quotas: Iterable[Quota], islands: Iterable[str]) -> None:
    """Refuse a quota that names an island the cluster does not have.

    Errors: ValueError naming the team and the island.
    """
    there = set(islands)
    for number, quota in enumerate(quotas):
        for island in quota.islands or ():
            if island not in there:
                what = f"islands names {island!r}, which this cluster does not have (team {quota.team})"
                raise fault_at(("quotas", number), what)


def check_floors(quotas: Sequence[Quota], under: tuple[str | int, ...] = ()) -> None:
    """Refuse a floor above the value of a quota that the leaf is part of: nothing could keep it.

    This checks what people import: a rollout may lower a parent below a floor of its children. `under`: the path of the
    quotas, for the fault. Errors: ValueError naming the field, its value and both teams.
    """
    for number, quota, above in floors_above(quotas):
        what = f"minimum_gpus is {quota.minimum_gpus}"
        if quota.minimum_gpus < quota.floor:
            what = f"protected_blocks sum to {quota.floor}"
        what += f", above the quota {above.gpus} of {above.team}, which team {quota.team} is part of"
        raise fault_at((*under, "quotas", number), what)


def floors_above(quotas: Sequence[Quota]) -> Iterator[tuple[int, Quota, Quota]]:
    """Yield each quota whose floor is above the value of one that it is part of: its place, itself and that one."""
    floored = [(number, quota) for number, quota in enumerate(quotas) if quota.floor and quota.parent is not None]
    by_team = {quota.team: quota for quota in quotas} if floored else {}
    for number, quota in floored:
        above = quota.parent
        while above is not None and quota.floor <= by_team[above].gpus:
            above = by_team[above].parent
        if above is not None:
            yield number, quota, by_team[above]
