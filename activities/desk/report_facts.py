"""Facts for reports: a week as the ledger knows it, and the state of the plan's milestones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from activities.clock import Clock, utc_now
from activities.ports.desk import MilestonePort, ReportPort
from activities.ports.watch import TallyPort
from models.access.second_persons import Emergency
from models.bringup.messages import BringupRow
from models.bringup.stages import BringupStage
from models.questions import Arrival, Curve, PastWeek, Tallies
from models.reports.bringups import bringups_week
from models.reports.milestones import MONITORED_CLUSTERS, PHANTOM_GPUS, ROLLED_OUT_WAVES, PlanNow, measures_waves
from models.reports.weekly import (
    BeforeAndAfter,
    Mean,
    MonitoredStep,
    Move,
    Passage,
    Past,
    Span,
    in_order,
    list_monitored,
    shorten,
    spans,
    steps_of,
    waves_done,
)


class _Ways(NamedTuple):
    """Passages, and what was made of them, which stays the same while no rollout moves."""

    passages: tuple[Passage, ...]
    steps: tuple[MonitoredStep, ...]
    spans: tuple[tuple[Passage, Move | None, Span, Span | None], ...]


class _Measured(NamedTuple):
    """Outcomes, and the spans and means that they were made of."""

    spans: tuple[tuple[Passage, Move | None, Span, Span | None], ...]
    means: tuple[Mean | None, ...]
    outcomes: tuple[BeforeAndAfter, ...]


@dataclass(eq=False)
class ReportFacts:
    """The facts of reports, by the ledger. `wave_of`: the waves of clusters by today's plan."""

    tallies: TallyPort
    report: ReportPort
    milestones: MilestonePort
    bringups: Callable[[bool], tuple[BringupRow, ...]] = lambda _: ()
    emergencies: Callable[[], tuple[Emergency, ...]] = tuple
    now: Clock = utc_now
    wave_of: Callable[[Sequence[str]], Mapping[str, str]] = lambda _: {}

    def __post_init__(self) -> None:
        self._ways = _Ways((), (), ())
        self._measured = _Measured((), (), ())

    def curve(self, asked: Tallies) -> Curve:
        within = timedelta(seconds=asked.within_seconds)
        return Curve(
            points=self.tallies.points(asked.cluster, asked.times, within),
            began=self.tallies.begin_at(asked.cluster),
            arrived=self._arrivals(asked),
        )

    def _arrivals(self, asked: Tallies) -> tuple[Arrival, ...]:
        """Return the new clusters, which raise the curve without a change of quota."""
        if not asked.times:
            return ()
        first, last = min(asked.times), max(asked.times)
        rows = (row for row in self.bringups(False) if row.stage is BringupStage.IN_PRODUCTION)
        arrivals = [
            Arrival(cluster=row.cluster, at=row.stage_at, gpus=row.gpus)
            for row in rows
            if first <= row.stage_at <= last and asked.cluster in ("", row.cluster)
        ]
        return tuple(sorted(arrivals, key=lambda each: (each.at, each.cluster)))

    def week(self, asked: PastWeek) -> Past:
        within = timedelta(seconds=asked.within_seconds)
        ways = self._ways_to(asked.until)
        passages = ways.passages
        monitored, milestones = list_monitored(passages, asked.until), self.milestones.milestones()
        week_ago = self.tallies.points("", [asked.since], timedelta(days=1))
        past = Past(
            since=asked.since,
            until=asked.until,
            clusters=len(names := self.report.clusters()),
            names=names,
            cuts=self.report.cuts(asked.since, asked.until),
            moves=tuple(move for move in in_order(passages) if asked.since < move.at <= asked.until),
            monitored=monitored,
            monitored_before=len(list_monitored(passages, asked.since)),
            steps=ways.steps,
            outcomes=self._outcomes(ways, asked.until),
            points=self.tallies.points("", asked.times, within),
            week_ago=week_ago[0] if week_ago else None,
            began=self.tallies.begin_at(""),
            milestones=milestones,
            waves=self._waves_done(names, monitored) if measures_waves(milestones) else None,
            bringups=bringups_week(self.bringups(True), asked.since, asked.until),
            emergencies=tuple(one for one in self.emergencies() if one.at <= asked.until),
        )
        return past if asked.most is None else shorten(past, asked.most)

    def _ways_to(self, until: datetime) -> _Ways:
        passages, ways = self.report.passages(until), self._ways
        if passages is not ways.passages:
            ways = self._ways = _Ways(passages, steps_of(passages, until), tuple(spans(passages, until)))
        return ways

    def _outcomes(self, ways: _Ways, until: datetime) -> tuple[BeforeAndAfter, ...]:
        befores = [before for _, _, before, _ in ways.spans]
        means = self.report.means([*befores, *(after for *_, after in ways.spans if after is not None)], until)
        kept = self._measured
        if ways.spans is not kept.spans or means != kept.means:
            kept = self._measured = _Measured(ways.spans, means, tuple(_outcomes_of(ways.spans, means)))
        return kept.outcomes

    def _waves_done(self, clusters: Sequence[str], monitored: Sequence[str]) -> int:
        """Count the waves that are monitored whole. A cluster's wave is its open rollout's, or that of today's plan."""
        noted = self.report.waves()
        planned = self.wave_of([cluster for cluster in clusters if cluster not in noted])
        return waves_done({**planned, **noted}, monitored)

    def plan_now(self, *, waves: bool = False) -> PlanNow:
        """Return the plan and its figures. `waves`: count them even if no milestone measures them."""
        now, plan = self.now(), self.milestones.milestones()
        points = self.tallies.points("", [now], timedelta(days=1))
        monitored = list_monitored(self.report.passages(now), now)
        point = points[0] if points and points[0].known else None
        measured = {MONITORED_CLUSTERS: len(monitored), PHANTOM_GPUS: None if point is None else point.phantom_gpus}
        if waves or measures_waves(plan):
            measured[ROLLED_OUT_WAVES] = self._waves_done(self.report.clusters(), monitored)
        return PlanNow(plan=plan, measured=measured, read_at={} if point is None else {PHANTOM_GPUS: point.at})


def _outcomes_of(
    measured: Sequence[tuple[Passage, Move | None, Span, Span | None]], means: Sequence[Mean | None]
) -> Iterator[BeforeAndAfter]:
    """Yield the outcomes. `means`: of all spans before, then of those after that there are."""
    later = iter(means[len(measured) :])
    for (first, reached, before, after), mean in zip(measured, means, strict=False):
        yield BeforeAndAfter(
            cluster=first.cluster,
            wrote_at=before.until or before.since,
            monitored_at=None if reached is None else reached.at,
            before=mean,
            after=None if after is None else next(later),
        )
