"""Facts for reports: a week as the ledger knows it, and the state of the plan's milestones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from activities.clock import Clock, utc_now
from activities.ports.ports import MilestonePort, ReportPort, TallyPort
from models.access.second_persons import Emergency
from models.bringup.messages import BringupRow
from models.bringup.stages import BringupStage
from models.questions import Arrival, Curve, PastWeek, Tallies
from models.reports.bringups import bringups_week
from models.reports.milestones import MONITORED_CLUSTERS, PHANTOM_GPUS, PlanNow
from models.reports.weekly import (
    BeforeAndAfter,
    MonitoredStep,
    Passage,
    Past,
    in_order,
    monitored_at,
    shortened,
    spans,
    steps_of,
)


class ReportFacts:
    def __init__(
        self,
        tallies: TallyPort,
        report: ReportPort,
        milestones: MilestonePort,
        bringups: Callable[[bool], tuple[BringupRow, ...]] = lambda _: (),
        emergencies: Callable[[], tuple[Emergency, ...]] = tuple,
        now: Clock = utc_now,
    ) -> None:
        self._now = now
        self._tallies = tallies
        self._report = report
        self._milestones = milestones
        self._bringups = bringups
        self._emergencies = emergencies
        self._steps: tuple[tuple[Passage, ...], tuple[MonitoredStep, ...]] = ((), ())
        """The steps, and the passages that they were counted from: they are the same while no rollout moves."""

    def curve(self, asked: Tallies) -> Curve:
        within = timedelta(seconds=asked.within_seconds)
        return Curve(
            points=self._tallies.points(asked.cluster, asked.times, within),
            began=self._tallies.begin_at(asked.cluster),
            arrived=self._arrivals(asked),
        )

    def _arrivals(self, asked: Tallies) -> tuple[Arrival, ...]:
        """Return the new clusters, which raise the curve without a change of quota."""
        if not asked.times:
            return ()
        first, last = min(asked.times), max(asked.times)
        rows = (row for row in self._bringups(False) if row.stage is BringupStage.IN_PRODUCTION)
        arrivals = [
            Arrival(cluster=r.cluster, at=r.stage_at, gpus=r.gpus)
            for r in rows
            if first <= r.stage_at <= last and asked.cluster in ("", r.cluster)
        ]
        return tuple(sorted(arrivals, key=lambda each: (each.at, each.cluster)))

    def week(self, asked: PastWeek) -> Past:
        within = timedelta(seconds=asked.within_seconds)
        passages = self._report.passages(asked.until)
        week_ago = self._tallies.points("", [asked.since], timedelta(days=1))
        past = Past(
            since=asked.since,
            until=asked.until,
            clusters=len(names := self._report.clusters()),
            names=names,
            cuts=self._report.cuts(asked.since, asked.until),
            moves=tuple(move for move in in_order(passages) if asked.since < move.at <= asked.until),
            monitored=monitored_at(passages, asked.until),
            monitored_before=len(monitored_at(passages, asked.since)),
            steps=self._steps_of(passages, asked.until),
            outcomes=self._outcomes(passages, asked.until),
            points=self._tallies.points("", asked.times, within),
            week_ago=week_ago[0] if week_ago else None,
            began=self._tallies.begin_at(""),
            milestones=self._milestones.milestones(),
            bringups=bringups_week(self._bringups(True), asked.since, asked.until),
            emergencies=tuple(one for one in self._emergencies() if one.at <= asked.until),
        )
        return past if asked.most is None else shortened(past, asked.most)

    def _steps_of(self, passages: tuple[Passage, ...], until: datetime) -> tuple[MonitoredStep, ...]:
        """Return the steps. `passages`: those up to that time."""
        before, steps = self._steps
        if passages != before:
            self._steps = passages, (steps := steps_of(passages, until))
        return steps

    def _outcomes(self, passages: Sequence[Passage], until: datetime) -> tuple[BeforeAndAfter, ...]:
        measured = spans(passages, until)
        asked = [before for _, _, before, _ in measured] + [after for *_, after in measured if after is not None]
        means = iter(self._report.means(asked))
        before = [next(means) for _ in measured]
        return tuple(
            BeforeAndAfter(
                cluster=first.cluster,
                wrote_at=span.until,
                monitored_at=None if reached is None else reached.at,
                before=mean,
                after=None if later is None else next(means),
            )
            for (first, reached, span, later), mean in zip(measured, before, strict=True)
        )

    def plan_now(self) -> PlanNow:
        """Return the plan and its figures. Waves need a plan of every cluster: a caller who wants them counts them."""
        now = self._now()
        points = self._tallies.points("", [now], timedelta(days=1))
        monitored = monitored_at(self._report.passages(now), now)
        point = points[0] if points and points[0].known else None
        return PlanNow(
            plan=self._milestones.milestones(),
            measured={MONITORED_CLUSTERS: len(monitored), PHANTOM_GPUS: None if point is None else point.phantom_gpus},
            monitored=monitored,
            read_at={} if point is None else {PHANTOM_GPUS: point.at},
        )
