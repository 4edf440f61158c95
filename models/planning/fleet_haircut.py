"""The real cost of a buffer: the plans of a fleet at several buffers, added up.

Each cluster is planned at each buffer, everything else by its own policy; the report says how many of the cut GPUs
had no healthy GPU behind them, and how many move to flex. Source: docs/design.md, "Words", "The cut ladder".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

from models.base import Count, Model, Name, Share, Words
from models.cluster.policy import AFTER_ALL, Policy, Tier
from models.cluster.snapshot import Snapshot
from models.planning.busy_work import busy_cuts
from models.planning.plan import Plan, make_plan

USUAL = (Fraction(5, 100), Fraction(10, 100), Fraction(15, 100), Fraction(20, 100))
"""The buffers that people usually ask about."""
WITHOUT = Fraction(0)
"""No buffer."""


class Part(Model):
    """The sums of some clusters at one buffer. Units: whole GPUs, except for the counts of clusters.

    cut = phantom + to flex; cut + short = haircut. `unbacked_gpus`: promised today with no healthy GPU behind;
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
        """The GPUs that quotas hold today."""
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
    """The sums of one team's quotas in all clusters, at one buffer. Units: whole GPUs."""

    clusters: int = 0
    quota_gpus: int = 0
    cut_gpus: int = 0
    phantom_gpus: int = 0
    to_flex_gpus: int = 0

    @property
    def held_gpus(self) -> int:
        """The GPUs that quotas hold today."""
        return self.quota_gpus


class WorkCut(Model):
    """The GPUs in use by its jobs that one team gives in one cluster. Units: whole GPUs."""

    cluster: Name
    team: Name
    gpus: int
    text: Words
    """A sentence that says how many of these GPUs the jobs of each class hold."""
    wave: Name = Tier.BUSY
    """The cluster's wave, a key of `Haircut.waves`."""


class Haircut(Model):
    """The report. Each tuple has one part for each buffer, in their order.

    A cluster's wave may differ from buffer to buffer; a wave that is empty at one of them has a part of zeros. Clusters
    and teams are ordered by the cut at the largest buffer, the largest first.
    """

    buffers: tuple[Share, ...]
    without: Part
    """The cut with no buffer, which missing hardware alone demands."""
    fleet: tuple[Part, ...]
    waves: dict[str, tuple[Part, ...]]
    """The parts by wave; `after all` only if some clusters come after all waves."""
    clusters: dict[str, tuple[Part, ...]]
    teams: dict[str, tuple[TeamPart, ...]]
    works: tuple[tuple[WorkCut, ...], ...] = ()
    """At each buffer, teams that give up GPUs in use and whose jobs have names and classes, the largest cut first."""


class FleetHaircut(Model):
    """The report on a fleet and its waves, without the parts of each cluster and team."""

    report: Haircut
    untold: tuple[Count, ...] = ()
    """At each buffer, the number of `works` that are left out."""
    left_out: Count = 0
    """Clusters that cannot be planned now."""


class Cost(NamedTuple):
    """One plan's figures only: small enough to be kept for each cluster and buffer."""

    wave: str
    part: tuple[int, ...]
    """The fields of `Part`, in their order."""
    works: tuple[WorkCut, ...]


PartT = TypeVar("PartT", Part, TeamPart)
Progress = Callable[[int, int], object]
"""A callback after each cluster, with the number of clusters done and of all clusters."""


def haircut(
    fleet: Sequence[tuple[Snapshot, Policy]], buffers: Sequence[Fraction] = USUAL, progress: Progress | None = None
) -> Haircut:
    """Report on these clusters, each with its policy, at these buffers instead of the policies' own."""
    parts: dict[str, tuple[Part, ...]] = {}
    teams: dict[str, list[list[TeamPart]]] = {}
    costs = []
    for snapshot, policy in fleet:
        plain, *row = (plan_at(snapshot, policy, buffer) for buffer in (WITHOUT, *buffers))
        costs.append((cost_of(plain), *map(cost_of, row)))
        parts[snapshot.cluster] = tuple(map(Part.from_plan, row))
        for n, plan in enumerate(row):
            for team, part in _team_parts(plan).items():
                teams.setdefault(team, [[] for _ in buffers])[n].append(part)
        if progress is not None:
            progress(len(costs), len(fleet))
    return fleet_haircut(costs, buffers).but(
        clusters=_largest_first(parts),
        teams=_largest_first({team: tuple(map(_add_up, row)) for team, row in teams.items()}),
    )


def plan_at(snapshot: Snapshot, policy: Policy, buffer: Fraction) -> Plan:
    """Plan the cluster at this buffer; everything else is its own policy's."""
    return make_plan(snapshot, policy.model_copy(update={"buffer": buffer}))


def cost_of(plan: Plan) -> Cost:
    return Cost(plan.wave_name, tuple(dict(Part.from_plan(plan)).values()), _works_of(plan))


def fleet_haircut(clusters: Sequence[Sequence[Cost]], buffers: Sequence[Fraction]) -> Haircut:
    """Report on the fleet and its waves from each cluster's costs: without any buffer, then at each of these."""
    without, *rows = zip(*clusters, strict=True) if clusters else ((),) * (1 + len(buffers))
    return Haircut(
        buffers=tuple(buffers),
        without=_sum_up(without),
        fleet=tuple(map(_sum_up, rows)),
        waves={
            wave: tuple(_sum_up(cost for cost in row if cost.wave == wave) for row in rows)
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


def _sum_up(costs: Iterable[Cost]) -> Part:
    sums = map(sum, zip(*(cost.part for cost in costs), strict=True))
    return Part(**dict(zip(Part.model_fields, sums, strict=False)))  # without clusters there are no sums


def _add_up(parts: Sequence[TeamPart]) -> TeamPart:
    return TeamPart(**{name: sum(getattr(part, name) for part in parts) for name in TeamPart.model_fields})


def _team_parts(plan: Plan) -> Mapping[str, TeamPart]:
    return {
        quota.team: TeamPart(
            clusters=1,
            quota_gpus=quota.before_gpus,
            cut_gpus=quota.cut_gpus,
            phantom_gpus=quota.phantom_gpus,
            to_flex_gpus=quota.to_flex_gpus,
        )
        for quota in plan.quotas
        if quota.leaf
    }


def _works_of(plan: Plan) -> tuple[WorkCut, ...]:
    whose = plan.cluster
    return tuple(
        WorkCut(
            cluster=whose,
            team=cut.team,
            gpus=cut.gpus,
            text=cut.cut_text(f"{cut.team} in {whose}"),
            wave=plan.wave_name,
        )
        for cut in busy_cuts(plan)
    )


def _largest_first(rows: Mapping[str, tuple[PartT, ...]]) -> dict[str, tuple[PartT, ...]]:
    return dict(sorted(rows.items(), key=lambda item: (*(-p.cut_gpus for p in reversed(item[1])), item[0])))
