"""What a buffer would really cost: the plans of a fleet at several buffers, added up.

It answers the question that a buffer raises first. Each cluster is planned anew at each buffer, everything else
by its own policy; of the cut GPUs the report says how many no healthy GPU stood behind, and how many move to flex.
Source: docs/design.md, "Words", "The cut ladder".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

from models.base import Count, Model, Name, Share, Words
from models.cluster.policy import Policy, Tier
from models.cluster.snapshot import Snapshot
from models.planning.busy_work import busy_cuts
from models.planning.plan import Plan, make_plan

USUAL = (Fraction(5, 100), Fraction(10, 100), Fraction(15, 100), Fraction(20, 100))
"""The buffers that people ask about."""
WITHOUT = Fraction(0)
"""No buffer at all."""
AFTER_ALL = "after all"
"""Where clusters are counted whose plan no tier limit would make suffice: they come after all waves."""


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
    def from_plan(plan: Plan) -> Part:
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
    wave: Name = Tier.BUSY
    """Its cluster's, as in `Haircut.waves`."""


class Haircut(Model):
    """The report. Each tuple has one part for each buffer, in their order.

    A cluster's wave may differ from buffer to buffer; a wave that is empty at one of them has a part of nothing.
    Clusters stand in the order of the deepest cut at the largest buffer, teams likewise, the largest first.
    """

    buffers: tuple[Share, ...]
    without: Part
    """With no buffer at all: what is cut then, hardware asks for and not the buffer."""
    fleet: tuple[Part, ...]
    waves: dict[str, tuple[Part, ...]]
    """By tier; `after all` too where there are such clusters."""
    clusters: dict[str, tuple[Part, ...]]
    teams: dict[str, tuple[TeamPart, ...]]
    works: tuple[tuple[WorkCut, ...], ...] = ()
    """Of the teams that give GPUs in use, where their jobs are known by name and have classes: the largest first."""


class FleetHaircut(Model):
    """The report on a fleet and its waves, without the parts of each cluster and team."""

    report: Haircut
    untold: tuple[Count, ...] = ()
    """Of `works`: how many more there are at each buffer."""
    left_out: Count = 0
    """Clusters that cannot be planned now."""


class Cost(NamedTuple):
    """What one plan says, in numbers alone: small enough to be kept for each cluster and buffer."""

    wave: str
    part: tuple[int, ...]
    """The fields of `Part`, in their order."""
    works: tuple[WorkCut, ...]


PartT = TypeVar("PartT", Part, TeamPart)
Progress = Callable[[int, int], object]
"""Told after each cluster: how many are done, of how many."""


def haircut(
    fleet: Sequence[tuple[Snapshot, Policy]], buffers: Sequence[Fraction] = USUAL, progress: Progress | None = None
) -> Haircut:
    """The report on these clusters, each with its policy, at these buffers instead of the policies' own."""
    parts: dict[str, tuple[Part, ...]] = {}
    teams: dict[str, list[list[TeamPart]]] = {}
    costs = []
    for snapshot, policy in fleet:
        plain, *row = (planned_at(snapshot, policy, b) for b in (WITHOUT, *buffers))
        costs.append((cost_of(plain), *map(cost_of, row)))
        parts[snapshot.cluster] = tuple(map(Part.from_plan, row))
        for n, plan in enumerate(row):
            for team, part in _teams(plan).items():
                teams.setdefault(team, [[] for _ in buffers])[n].append(part)
        if progress is not None:
            progress(len(costs), len(fleet))
    return fleet_haircut(costs, buffers).but(
        clusters=_largest_first(parts),
        teams=_largest_first(
            {team: tuple(add_parts(TeamPart, all_of) for all_of in row) for team, row in teams.items()}
        ),
    )


def planned_at(snapshot: Snapshot, policy: Policy, buffer: Fraction) -> Plan:
    """The cluster's plan at this buffer; all else is its own policy's."""
    return make_plan(snapshot, policy.model_copy(update={"buffer": buffer}))


def cost_of(plan: Plan) -> Cost:
    return Cost(_wave_of(plan), tuple(dict(Part.from_plan(plan)).values()), _works_of(plan))


def _wave_of(plan: Plan) -> str:
    return AFTER_ALL if plan.why_last else plan.wave


def fleet_haircut(clusters: Sequence[Sequence[Cost]], buffers: Sequence[Fraction]) -> Haircut:
    """The report on the fleet and its waves, of each cluster's costs: without any buffer, then at each of these."""
    without, *rows = zip(*clusters, strict=True) if clusters else ((),) * (1 + len(buffers))
    return Haircut(
        buffers=tuple(buffers),
        without=_summed(without),
        fleet=tuple(map(_summed, rows)),
        waves={
            wave: tuple(_summed(cost for cost in row if cost.wave == wave) for row in rows)
            for wave in (*Tier, AFTER_ALL)
            if wave != AFTER_ALL or any(cost.wave == wave for row in rows for cost in row)
        },
        clusters={},
        teams={},
        works=tuple(
            tuple(sorted((cut for cost in row for cut in cost.works), key=lambda c: (-c.gpus, c.cluster, c.team)))
            for row in rows
        ),
    )


def _summed(costs: Iterable[Cost]) -> Part:
    sums = map(sum, zip(*(cost.part for cost in costs), strict=True))
    return Part(**dict(zip(Part.model_fields, sums, strict=False)))  # of no clusters there are no sums


def add_parts(kind: type[PartT], parts: Iterable[PartT]) -> PartT:
    """The parts' sum, field by field."""
    sums = dict.fromkeys(kind.model_fields, 0)
    for part in parts:
        for name in sums:
            sums[name] += getattr(part, name)
    return kind(**sums)


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


def _works_of(plan: Plan) -> tuple[WorkCut, ...]:
    whose = plan.cluster
    return tuple(
        WorkCut(
            cluster=whose,
            team=cut.team,
            gpus=cut.gpus,
            text=cut.cut_text(f"{cut.team} in {whose}"),
            wave=_wave_of(plan),
        )
        for cut in busy_cuts(plan)
    )


def _largest_first(rows: Mapping[str, tuple[PartT, ...]]) -> dict[str, tuple[PartT, ...]]:
    return dict(sorted(rows.items(), key=lambda item: (*(-p.cut_gpus for p in reversed(item[1])), item[0])))
