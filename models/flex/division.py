"""The fair division of a cluster's GPUs: quotas' promises first, then flex.

Theory of operation. Teams hang in namespaces, and those in others. At each level an amount is divided in three steps,
by the house rule (models.planning.divide). First what quota promises its own: each team gets up to the smaller of its
demand and its quota, in proportion to quota where there is too little. Then what namespaces promise their guests, the
teams that could use quota which their siblings leave unused: a guest is junior to every quota. Then the rest, which is
flex at the top and, further down, also what the guests have: by weights that the mode names, up to demand and limit.
Inside a namespace a higher priority is served before a lower one; between namespaces it says nothing. Each step is
monotone in the amount, so the whole is: more capacity never lowers a share.

Jobs tell more than a document does (`Claims`): how much of a demand may be in quota, and who holds what. Of equal
claims to a unit it stays with who holds it; only among those who hold alike the name decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from models.base import FRACTION_ANSWERED, GpuCount, Model, Name, exact_fraction, find_repeated, fraction_text
from models.cluster.classes import Classes
from models.cluster.quota import cycle_in
from models.planning.divide import divide

_GRAIN = 2**20
"""The scale by which weights lowered by past use become whole numbers."""


class FlexMode(StrEnum):
    """The weights by which flex is divided among siblings."""

    EQUAL = "equal"
    QUOTA = "quota"
    WEIGHT = "weight"


Weight = Annotated[
    Fraction,
    BeforeValidator(exact_fraction),
    PlainSerializer(fraction_text, return_type=str),
    Field(ge=0, le=10**6),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 10**6}, mode="validation"),
    FRACTION_ANSWERED,
]


class FlexTeam(Model):
    """One team, or a namespace of several. Units: whole GPUs."""

    team: Name
    parent: Name | None = None
    quota_gpus: GpuCount | None = None
    """None: a team has no quota; a namespace has the sum of its children's."""
    demand_gpus: GpuCount = 0
    """The GPUs that it could use, including those in its quota. A namespace's demand is the sum of its children's."""
    weight: Weight | None = None
    """Its weight in the fair division; None: 1."""
    limit_gpus: GpuCount | None = None
    """The most GPUs that it may get in all; None: no limit."""
    priority: Annotated[int, Field(ge=-(10**6), le=10**6)] = 0
    """Inside a namespace, the team with the larger priority is served first."""
    classes: Classes = ()
    """The classes of its jobs, the strongest first. They affect neither the division nor other teams."""
    namespaces: tuple[Name, ...] | None = None
    """The namespaces that may target its quota; None: all. They restrict jobs and do not affect the division."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        """Treat a null as a field that was left out."""
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class FlexUse(Model):
    """A team's past use of flex."""

    team: Name
    gpu_hours: Annotated[float, Field(ge=0, le=1e12)]
    hours_ago: Annotated[float, Field(ge=0, le=1e6)] = 0.0


class FlexDemand(Model):
    """The GPUs to divide, and the teams that ask for them."""

    capacity_gpus: GpuCount
    mode: FlexMode = FlexMode.EQUAL
    teams: tuple[FlexTeam, ...] = Field(min_length=1)
    usage: tuple[FlexUse, ...] = ()
    """Past use: a team that used much flex lately gets less of it now."""
    half_life_hours: Annotated[float, Field(gt=0, le=1e6)] = 168.0
    """Hours after which past use counts half."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        by_name = {t.team: t for t in self.teams}
        for _, twice in find_repeated(team.team for team in self.teams):
            raise ValueError(f"team {twice!r} is given twice")
        parents = {t.parent for t in self.teams if t.parent is not None}
        circle = cycle_in({t.team: t.parent for t in self.teams})
        if circle:
            raise ValueError(f"the parents of {circle[0]!r} go round in a circle: {' -> '.join(circle)}")
        below = dict.fromkeys(parents, 0)
        for team in self.teams:
            if team.parent is not None:
                below[team.parent] += team.demand_gpus
        for team in self.teams:
            demand = below.get(team.team, team.demand_gpus)
            if team.demand_gpus not in (0, demand):
                what = f"but its children demand {demand}: leave demand_gpus out of the namespace"
                raise ValueError(f"demand_gpus of the namespace {team.team!r} is {team.demand_gpus}, {what}")
        unknown = sorted({u.team for u in self.usage} - by_name.keys() - parents)
        if unknown:
            raise ValueError(f"usage names the team {unknown[0]!r}, which is not among teams")
        return self


class Portion(Model):
    """The GPUs that one team gets. Units: whole GPUs."""

    team: str
    gpus: int
    in_quota_gpus: int
    """The part of `gpus` inside the team's own quota."""

    @property
    def flex_gpus(self) -> int:
        """The part beyond its own quota: siblings' unused quota, or flex."""
        return self.gpus - self.in_quota_gpus


class Division(Model):
    portions: tuple[Portion, ...]
    """The portions of teams without children, in the order given."""
    unused_gpus: int


@dataclass(frozen=True, slots=True)
class Claims:
    """The demand and use of teams whose jobs are known. Units: whole GPUs, by team without children."""

    for_quota: Mapping[str, int]
    """By team, the part of its demand that may run in quota; the rest may run on flex only."""
    held: Mapping[str, int]
    """By team, the GPUs that its jobs hold now."""


class Entitlement(NamedTuple):
    """The GPUs that one team may count on. Units: whole GPUs."""

    share_gpus: int
    """Its share of the present capacity."""
    in_quota_gpus: int
    """The part of its demand that its quota, within its namespaces' quotas, promises if hardware backs all quotas."""


def entitlements(asked: FlexDemand, claims: Claims) -> dict[str, Entitlement]:
    """Return the entitlement of each team without children. Source: docs/design.md, "Jobs and flex"."""
    tree = _Tree(asked, claims)
    got, promised = tree.divide_capacity(asked.capacity_gpus), tree.entitled_gpus()
    return {name: Entitlement(got[name], promised[name]) for name in tree.by_name if name not in tree.children}


def division(asked: FlexDemand) -> Division:
    """Divide the capacity among the teams. The order of the teams affects only the order of the answer.

    Source: the module's docstring; docs/design.md, "Dividing whole GPUs".
    """
    tree = _Tree(asked)
    got = tree.divide_capacity(asked.capacity_gpus)
    portions = tuple(
        Portion(team=team.team, gpus=got[team.team], in_quota_gpus=min(got[team.team], tree.own[team.team]))
        for team in asked.teams
        if team.team not in tree.children
    )
    return Division(portions=portions, unused_gpus=asked.capacity_gpus - sum(p.gpus for p in portions))


def promises_of(teams: Sequence[FlexTeam]) -> dict[str, int]:
    """Return each team's and namespace's quota; without one, 0 for a team and the children's sum for a namespace."""
    return _Tree(FlexDemand(capacity_gpus=0, teams=tuple(teams))).quota


class _Tree:
    """The tree of teams, with what each can use (`wants`), and quota's promises: `own`, and with guests `promised`."""

    def __init__(self, asked: FlexDemand, claims: Claims | None = None) -> None:
        self.mode = asked.mode
        self.for_quota = {} if claims is None else claims.for_quota
        self.by_name = {t.team: t for t in asked.teams}
        self.children: dict[str, list[str]] = {}
        for team in asked.teams:
            if team.parent is not None:
                self.children.setdefault(team.parent, []).append(team.team)
        for name in sorted(self.children.keys() - self.by_name.keys()):
            self.by_name[name] = FlexTeam(team=name)
        self.roots = [name for name, team in self.by_name.items() if team.parent is None]
        self.down = self._top_down()
        self.quota: dict[str, int] = {}
        self.wants: dict[str, int] = {}
        self.callable: dict[str, int] = {}
        """The part of `wants` that may run in quota: the team's own or its siblings'."""
        self.own: dict[str, int] = {}
        self.promised: dict[str, int] = {}
        self.held: dict[str, int] = {}
        for name in reversed(self.down):
            self._sum_up(name, {} if claims is None else claims.held)
        self.some_hold = any(self.held[name] for name in self.roots)
        self.used = self._decayed_use(asked)

    def _top_down(self) -> list[str]:
        names = list(self.roots)
        for name in names:  # the list grows during the walk
            names += self.children.get(name, ())
        return names

    def _sum_up(self, name: str, held: Mapping[str, int]) -> None:
        team, below = self.by_name[name], self.children.get(name)
        quota, limit = team.quota_gpus, team.limit_gpus
        if below:
            wants, may = sum(self.wants[c] for c in below), sum(self.callable[c] for c in below)
            own, quota = sum(self.own[c] for c in below), sum(self.quota[c] for c in below) if quota is None else quota
        else:
            wants = team.demand_gpus
            own = may = min(wants, self.for_quota[name]) if name in self.for_quota else wants
        self.quota[name] = quota = quota or 0
        self.wants[name] = wants = wants if limit is None or wants < limit else limit
        self.callable[name] = may = may if may < wants else wants
        self.promised[name] = promised = may if may < quota else quota
        self.own[name] = own if own < promised else promised
        self.held[name] = sum(self.held[c] for c in below) if below else held.get(name, 0)

    def _decayed_use(self, asked: FlexDemand) -> dict[str, float]:
        """Return the decayed GPU-hours of flex; a namespace's include its children's."""
        if not asked.usage:
            return dict.fromkeys(self.by_name, 0.0)
        decayed: dict[str, list[float]] = {name: [] for name in self.by_name}
        for use in asked.usage:
            decayed[use.team].append(use.gpu_hours * 0.5 ** (use.hours_ago / asked.half_life_hours))
        total: dict[str, float] = {}
        for name in reversed(self.down):
            total[name] = math.fsum([*decayed[name], *(total[c] for c in self.children.get(name, ()))])
        return total

    def divide_capacity(self, capacity: int) -> dict[str, int]:
        """Return the GPUs that each team and namespace gets."""
        got = self._divide_level(self.roots, capacity, by_priority=False)
        for name in self.down:
            if name in self.children:
                got |= self._divide_level(self.children[name], got[name], by_priority=True)
        return got

    def entitled_gpus(self) -> dict[str, int]:
        """Return the part of each team's and namespace's demand that quotas promise if there is hardware for all."""
        got = {name: self.own[name] for name in self.roots}
        for name in self.down:
            if name in self.children:
                got |= self._serve(got[name], self.quota, {c: self.own[c] for c in self.children[name]}, {})
        return got

    def _divide_level(self, names: Sequence[str], amount: int, *, by_priority: bool) -> dict[str, int]:
        got: dict[str, int] = dict.fromkeys(names, 0)
        for top in (self.own, self.promised):
            left = amount - sum(got.values())
            if not left:
                return got
            more = self._serve(left, self.quota, {n: top[n] - got[n] for n in names}, got)
            got = {name: got[name] + more[name] for name in names}
        for served in self._by_priority(names) if by_priority else (names,):
            for group in self._weigh(served):
                left = amount - sum(got.values())
                if not left:
                    return got
                caps = {name: self.wants[name] - got[name] for name in group}
                for name, gpus in self._serve(left, group, caps, got).items():
                    got[name] += gpus
        return got

    def _serve(
        self, amount: int, weights: Mapping[str, int], caps: Mapping[str, int], before: Mapping[str, int]
    ) -> dict[str, int]:
        """Divide by the house rule; among equal claims a unit stays with its holder (a tie is never a claim)."""
        whole = sum(caps.values())
        if amount >= whole:  # all have what they can use, and nobody what another one holds
            return dict(caps)
        if not amount:
            return dict.fromkeys(caps, 0)
        got = divide(amount, {name: weights[name] for name in caps}, caps)
        if not self.some_hold:
            return got
        holds = {name: self.held[name] - before.get(name, 0) for name in caps}
        last = {n: Fraction(weights[n], 2 * got[n] - 1) for n in sorted(caps) if got[n] > max(0, holds[n])}
        following = {n: Fraction(weights[n], 2 * got[n] + 1) for n in sorted(caps) if got[n] < min(caps[n], holds[n])}
        tie = max(following.values(), default=None)
        losers = [n for n in reversed(last) if last[n] == tie]
        for loser, holder in zip(losers, [n for n in following if following[n] == tie], strict=False):
            got[loser] -= 1
            got[holder] += 1
        return got

    def _by_priority(self, names: Iterable[str]) -> Iterable[list[str]]:
        """Group the names by priority, the highest first."""
        by_priority: dict[int, list[str]] = {}
        for name in names:
            by_priority.setdefault(self.by_name[name].priority, []).append(name)
        return (by_priority[priority] for priority in sorted(by_priority, reverse=True))

    def _weigh(self, names: Sequence[str]) -> Iterable[dict[str, int]]:
        """Yield the names with whole weights, then those of weight zero, as equals."""
        plain = {name: self._weight(name) for name in names}
        light = [name for name in names if not plain[name]]
        yield {name: weight for name, weight in self._lower_by_use(plain).items() if plain[name]}
        if light:
            yield dict.fromkeys(light, 1)

    def _weight(self, name: str) -> Fraction | int:
        if self.mode is FlexMode.EQUAL:
            return 1
        if self.mode is FlexMode.QUOTA:
            return self.quota[name]
        weight = self.by_name[name].weight
        return 1 if weight is None else weight

    def _lower_by_use(self, weights: Mapping[str, Fraction | int]) -> dict[str, int]:
        """Lower weights by past use: half for a team that used its whole share, as Slurm's fair-share factor does."""
        used = math.fsum(self.used[name] for name in weights)
        if not used or not any(weights.values()):
            scale = math.lcm(*(weight.denominator for weight in weights.values()))
            return {name: w.numerator * (scale // w.denominator) for name, w in weights.items()}
        whole = sum(weights.values())
        return {
            name: max(1, round(_GRAIN * float(w / whole) * 0.5 ** (self.used[name] / used / float(w / whole))))
            for name, w in weights.items()
            if w
        } | {name: 0 for name, w in weights.items() if not w}
