"""What a buffer would really cost: the plans of a fleet at several buffers, added up.

It answers the question that a buffer raises first. Each cluster is planned anew at each buffer, everything else
by its own policy; of the cut GPUs the report says how many no healthy GPU stood behind, and how many move to flex.
Source: DESIGN.md, "Words", "The cut ladder".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import TypeVar

from models.base import Model, Name, Share, Words
from models.cluster.policy import Policy, Tier
from models.cluster.snapshot import Snapshot
from models.planning.busy_work import busy_cuts
from models.planning.plan import Plan, make_plan

USUAL = (Fraction(5, 100), Fraction(10, 100), Fraction(15, 100), Fraction(20, 100))
"""The buffers that people ask about."""


class Part(Model):
    """One or many clusters at one buffer. Units: whole GPUs, but for the counts of clusters.

    cut = phantom + to flex; cut + short = haircut. `unbacked_gpus`: promised today with no healthy GPU behind it;
    `above_gpus`: promised today above the ceiling, in `clusters_above` clusters.
    """

    clusters: int = 0
    total_gpus: int = 0
    healthy_gpus: int = 0
    assigned_gpus: int = 0
    unbacked_gpus: int = 0
    ceiling_gpus: int = 0
    above_gpus: int = 0
    clusters_above: int = 0
    cut_gpus: int = 0
    phantom_gpus: int = 0
    to_flex_gpus: int = 0
    short_gpus: int = 0

    @property
    def held_gpus(self) -> int:
        """What quotas hold today."""
        return self.assigned_gpus

    @staticmethod
    def of(plan: Plan) -> Part:
        above = max(0, plan.assigned_gpus - plan.ceiling_gpus)
        return Part(
            clusters=1,
            total_gpus=plan.total_gpus,
            healthy_gpus=plan.healthy_gpus,
            assigned_gpus=plan.assigned_gpus,
            unbacked_gpus=plan.phantom_gpus + plan.unbacked_gpus,
            ceiling_gpus=plan.ceiling_gpus,
            above_gpus=above,
            clusters_above=int(above > 0),
            cut_gpus=plan.cut_gpus,
            phantom_gpus=plan.phantom_gpus,
            to_flex_gpus=plan.to_flex_gpus,
            short_gpus=plan.short_by_gpus,
        )


class TeamPart(Model):
    """One team's quotas in all clusters, at one buffer. Units: whole GPUs."""

    clusters: int = 0
    quota_gpus: int = 0
    cut_gpus: int = 0
    phantom_gpus: int = 0
    to_flex_gpus: int = 0

    @property
    def held_gpus(self) -> int:
        """What quotas hold today."""
        return self.quota_gpus


class WorkCut(Model):
    """What one team gives in one cluster of the GPUs that its jobs use. Units: whole GPUs."""

    cluster: Name
    team: Name
    gpus: int
    text: Words
    """Which class's jobs hold how many of those that could yield, in a sentence."""


class Haircut(Model):
    """The report. Each tuple has one part for each buffer, in their order.

    A cluster's wave may differ from buffer to buffer; a wave that is empty at one of them has a part of nothing.
    Clusters stand in the order of the deepest cut at the largest buffer, teams likewise, the largest first.
    """

    buffers: tuple[Share, ...]
    without: Part
    """With no buffer at all: what is cut then, hardware asks for and not the buffer."""
    fleet: tuple[Part, ...]
    waves: dict[Tier, tuple[Part, ...]]
    clusters: dict[str, tuple[Part, ...]]
    teams: dict[str, tuple[TeamPart, ...]]
    works: tuple[tuple[WorkCut, ...], ...] = ()
    """Of the teams that give GPUs in use, where their jobs are known by name and have classes: the largest first."""


PartT = TypeVar("PartT", Part, TeamPart)
Progress = Callable[[int, int], object]
"""Told after each cluster: how many are done, of how many."""


def haircut(
    fleet: Sequence[tuple[Snapshot, Policy]], buffers: Sequence[Fraction] = USUAL, progress: Progress | None = None
) -> Haircut:
    """The report on these clusters, each with its policy, at these buffers instead of the policies' own."""
    plans: list[list[Plan]] = []
    without = []
    for snapshot, policy in fleet:
        plain, *row = (make_plan(snapshot, policy.model_copy(update={"buffer": b})) for b in (Fraction(0), *buffers))
        without.append(Part.of(plain))
        plans.append(row)
        if progress is not None:
            progress(len(plans), len(fleet))
    parts = {row[0].cluster: tuple(map(Part.of, row)) for row in plans}
    waves = {
        tier: tuple(
            added(Part, (parts[row[n].cluster][n] for row in plans if row[n].wave is tier)) for n in range(len(buffers))
        )
        for tier in Tier
    }
    teams: dict[str, list[TeamPart]] = {}
    for row in plans:
        for n, plan in enumerate(row):
            for team, part in _teams(plan).items():
                sums = teams.setdefault(team, [TeamPart() for _ in buffers])
                sums[n] = added(TeamPart, (sums[n], part))
    return Haircut(
        buffers=tuple(buffers),
        without=added(Part, without),
        fleet=tuple(added(Part, (row[n] for row in parts.values())) for n in range(len(buffers))),
        waves=waves,
        clusters=_largest_first(parts),
        teams=_largest_first({team: tuple(row) for team, row in teams.items()}),
        works=tuple(_works(row[n] for row in plans) for n in range(len(buffers))),
    )


def added(kind: type[PartT], parts: Iterable[PartT]) -> PartT:
    """The parts' sum, field by field."""

    def plus(one: PartT, other: PartT) -> PartT:
        return kind(**{name: getattr(one, name) + getattr(other, name) for name in kind.model_fields})

    return reduce(plus, parts, kind())


def _teams(plan: Plan) -> Mapping[str, TeamPart]:
    return {
        q.team: TeamPart(
            clusters=1,
            quota_gpus=q.before_gpus,
            cut_gpus=q.cut_gpus,
            phantom_gpus=q.phantom_gpus,
            to_flex_gpus=q.to_flex_gpus,
        )
        for q in plan.quotas
        if q.leaf
    }


def _works(plans: Iterable[Plan]) -> tuple[WorkCut, ...]:
    cuts = (
        WorkCut(cluster=p.cluster, team=cut.team, gpus=cut.gpus, text=cut.told(f"{cut.team} in {p.cluster}"))
        for p in plans
        for cut in busy_cuts(p)
    )
    return tuple(sorted(cuts, key=lambda cut: (-cut.gpus, cut.cluster, cut.team)))


def _largest_first(rows: Mapping[str, tuple[PartT, ...]]) -> dict[str, tuple[PartT, ...]]:
    return dict(sorted(rows.items(), key=lambda item: (*(-p.cut_gpus for p in reversed(item[1])), item[0])))
