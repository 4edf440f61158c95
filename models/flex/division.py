"""The fair division of a cluster's GPUs: what quotas promise first, then flex.

Theory of operation. Teams hang in namespaces, and those in others. At each level an amount is divided in two steps,
by the house rule (models.planning.divide). First what quota promises: each gets up to the smaller of its demand and
its quota, in proportion to quota where there is too little. Then the rest, which is flex at the top and, further
down, also what siblings leave unused of their namespace's quota: by weights that the mode names, up to demand and
limit. Inside a namespace a higher priority is served before a lower one; between namespaces it says nothing. Each
step is monotone in the amount, so the whole is: more capacity never lowers a share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from itertools import groupby
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from models.base import GpuCount, Model, Name, exact_fraction, fraction_text
from models.cluster.quota import cycle_in
from models.planning.divide import divide

_GRAIN = 2**20
"""Weights that use has lowered are whole numbers of this fineness."""


class FlexMode(StrEnum):
    """By what flex is divided among siblings."""

    EQUAL = "equal"
    QUOTA = "quota"
    WEIGHT = "weight"


Weight = Annotated[
    Fraction,
    BeforeValidator(exact_fraction),
    PlainSerializer(fraction_text, return_type=str),
    Field(ge=0, le=10**6),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 10**6}),
]


class FlexTeam(Model):
    """One team, or a namespace of several. Units: whole GPUs."""

    team: Name
    parent: Name | None = None
    quota_gpus: GpuCount | None = None
    """None: of a team none, of a namespace the sum of its children's."""
    demand_gpus: GpuCount = 0
    """What it could use, its quota's part included. A namespace's is that of its children."""
    weight: Weight | None = None
    """None: 1."""
    limit_gpus: GpuCount | None = None
    """The most it may get in all; None: no limit."""
    priority: Annotated[int, Field(ge=-(10**6), le=10**6)] = 0
    """The larger is served first, inside a namespace."""
    namespaces: tuple[Name, ...] | None = None
    """Who may target its quota; None: anybody. It says something of jobs, and nothing to a division."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        """What is null is not given."""
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class FlexUse(Model):
    """What a team has used of flex, some time ago."""

    team: Name
    gpu_hours: Annotated[float, Field(ge=0, le=1e12)]
    hours_ago: Annotated[float, Field(ge=0, le=1e6)] = 0.0


class FlexDemand(Model):
    """What is to be divided, and among whom."""

    capacity_gpus: GpuCount
    mode: FlexMode = FlexMode.EQUAL
    teams: tuple[FlexTeam, ...] = Field(min_length=1)
    usage: tuple[FlexUse, ...] = ()
    """Who has used much flex lately gets less of it now."""
    half_life_hours: Annotated[float, Field(gt=0, le=1e6)] = 168.0
    """After so long a use counts half."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        by_name = {t.team: t for t in self.teams}
        if len(by_name) < len(self.teams):
            twice = next(t.team for n, t in enumerate(self.teams) if t.team in {o.team for o in self.teams[:n]})
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
                what = f"its children demand {demand}: leave it out"
                raise ValueError(f"demand_gpus of the namespace {team.team!r} is {team.demand_gpus}, and {what}")
        unknown = sorted({u.team for u in self.usage} - by_name.keys() - parents)
        if unknown:
            raise ValueError(f"usage names the team {unknown[0]!r}, which is not among teams")
        return self


class Portion(Model):
    """What one team gets. Units: whole GPUs."""

    team: str
    gpus: int
    in_quota_gpus: int
    """The part that its own quota holds."""

    @property
    def flex_gpus(self) -> int:
        """Beyond its own quota: siblings' unused quota, or flex."""
        return self.gpus - self.in_quota_gpus


class Division(Model):
    portions: tuple[Portion, ...]
    """Of the teams that have no children, in the order given."""
    unused_gpus: int


def division(asked: FlexDemand) -> Division:
    """Who gets how many GPUs. The same whatever the order of the teams, but for the order of the answer.

    Source: the module's docstring; DESIGN.md, "Dividing whole GPUs".
    """
    tree = _Tree(asked)
    got = tree.divided(asked.capacity_gpus)
    portions = tuple(
        Portion(team=t.team, gpus=got[t.team], in_quota_gpus=min(got[t.team], tree.promised[t.team]))
        for t in asked.teams
        if t.team not in tree.children
    )
    return Division(portions=portions, unused_gpus=asked.capacity_gpus - sum(p.gpus for p in portions))


def promises_of(teams: Sequence[FlexTeam]) -> dict[str, int]:
    """What each team and namespace promises: its own quota, else of a team none and of a namespace its children's."""
    return _Tree(FlexDemand(capacity_gpus=0, teams=tuple(teams))).quota


class _Tree:
    """The teams, with what each can use (`wants`) and what quota promises of it (`promised`)."""

    def __init__(self, asked: FlexDemand) -> None:
        self.mode = asked.mode
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
        self.promised: dict[str, int] = {}
        for name in reversed(self.down):
            self._sum_up(name)
        self.used = self._uses(asked)

    def _top_down(self) -> list[str]:
        names = list(self.roots)
        for name in names:  # it grows while it is walked
            names += self.children.get(name, ())
        return names

    def _sum_up(self, name: str) -> None:
        team, below = self.by_name[name], self.children.get(name)
        wants = sum(self.wants[c] for c in below) if below else team.demand_gpus
        quota = team.quota_gpus
        if quota is None:
            quota = sum(self.quota[c] for c in below) if below else 0
        self.quota[name] = quota
        self.wants[name] = wants if team.limit_gpus is None else min(wants, team.limit_gpus)
        self.promised[name] = min(self.wants[name], quota)

    def _uses(self, asked: FlexDemand) -> dict[str, float]:
        """Decayed GPU-hours of flex, a namespace's with its children's."""
        decayed: dict[str, list[float]] = {name: [] for name in self.by_name}
        for use in asked.usage:
            decayed[use.team].append(use.gpu_hours * 0.5 ** (use.hours_ago / asked.half_life_hours))
        total: dict[str, float] = {}
        for name in reversed(self.down):
            total[name] = math.fsum([*decayed[name], *(total[c] for c in self.children.get(name, ()))])
        return total

    def divided(self, capacity: int) -> dict[str, int]:
        """What each team and namespace gets."""
        got = self._level(self.roots, capacity, by_priority=False)
        for name in self.down:
            if name in self.children:
                got |= self._level(self.children[name], got[name], by_priority=True)
        return got

    def _level(self, names: Sequence[str], amount: int, *, by_priority: bool) -> dict[str, int]:
        promised = {name: self.promised[name] for name in names}
        got = divide(amount, {name: self.quota[name] for name in names}, promised)
        rest = amount - sum(got.values())
        for served in self._classes(names) if by_priority else (names,):
            for group in self._weighed(served):
                caps = {name: self.wants[name] - got[name] for name in group}
                more = divide(rest, group, caps)
                rest -= sum(more.values())
                for name, gpus in more.items():
                    got[name] += gpus
        return got

    def _classes(self, names: Iterable[str]) -> Iterable[list[str]]:
        """The highest priority first."""
        ordered = sorted(names, key=lambda name: -self.by_name[name].priority)
        return (list(group) for _, group in groupby(ordered, key=lambda name: self.by_name[name].priority))

    def _weighed(self, names: Sequence[str]) -> Iterable[dict[str, int]]:
        """Whole weights; those that weigh nothing come after the others, and are equal."""
        plain = {name: self._weight(name) for name in names}
        yield {name: w for name, w in self._lowered(plain).items() if plain[name]}
        yield {name: 1 for name in names if not plain[name]}

    def _weight(self, name: str) -> Fraction:
        if self.mode is FlexMode.EQUAL:
            return Fraction(1)
        if self.mode is FlexMode.QUOTA:
            return Fraction(self.quota[name])
        weight = self.by_name[name].weight
        return Fraction(1) if weight is None else weight

    def _lowered(self, weights: Mapping[str, Fraction]) -> dict[str, int]:
        """By use: halved for who has used its whole share of all recent flex, as Slurm's fair-share factor is."""
        used = math.fsum(self.used[name] for name in weights)
        whole = sum(weights.values())
        if not used or not whole:
            scale = math.lcm(*(w.denominator for w in weights.values()))
            return {name: int(w * scale) for name, w in weights.items()}
        return {
            name: max(1, round(_GRAIN * float(w / whole) * 0.5 ** (self.used[name] / used / float(w / whole))))
            for name, w in weights.items()
            if w
        } | {name: 0 for name, w in weights.items() if not w}
