"""Computes the cost of buffers for the whole fleet; plans a cluster again only if its plan's basis has changed.

Each look reads every source about all clusters (activities/rollout/many_looks.py). A plan is kept in numbers alone,
beside its basis and by its buffer: another look, or another buffer, costs only the new plans.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from typing import NamedTuple

from activities.bad_rows import making_sense
from activities.ports.clusters import ClusterPorts
from activities.rollout.many_looks import ManyLooks
from activities.rollout.observation import to_plan
from models.base import fraction_text
from models.cluster.jobs import Job, RunsOn
from models.cluster.latest_readings import Evidence
from models.cluster.policy import Policy
from models.cluster.readings import HealthSample, QuotaReading, TeamUsage, UsageReading
from models.cluster.snapshot import Snapshot
from models.cluster.team_work import TeamWork
from models.errors import Refusal
from models.planning.fleet_haircut import WITHOUT, Cost, FleetHaircut, cost_of, fleet_haircut, plan_at
from models.planning.plan import make_plan
from models.questions import ClusterFacts

_MOST_BUFFERS = 16
"""The number of buffers kept for each cluster, the latest ones: a reader moves a slider."""
_WORKS_TOLD = 20


@dataclass(slots=True)
class _Kept:
    """The costs of one cluster by buffer, those that were asked for last at the end; and their basis.

    `wave`: its wave by its own policy; empty until somebody asks.
    """

    basis: object
    by: dict[str, Cost] = field(default_factory=dict)
    wave: str = ""


class _Seen(NamedTuple):
    """The basis of a plan, as it was read."""

    reading: QuotaReading
    sample: HealthSample
    usage: UsageReading
    facts: ClusterFacts
    work: tuple[TeamWork, ...]

    @property
    def basis(self) -> object:
        """The parts that a plan depends on: neither times nor what a plan at a given buffer leaves out."""
        return self.reading, self.sample.islands, self.usage, self.facts.gpus_per_node, self.policy, self.work

    @property
    def policy(self) -> Policy:
        return self.facts.policy

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot. Errors: Refusal if it makes no sense."""
        with making_sense(self.reading.cluster, "its quotas"):
            facts = self.facts
            bare = to_plan(self.reading, self.sample, self.usage, facts.gpus_per_node, facts.completed_rollouts)
            return bare.but(work=self.work)


class FleetCosts:
    """The costs kept by one worker. A caller waits while another is answered, and shares its plans."""

    def __init__(self, looks: ManyLooks, ports: ClusterPorts) -> None:
        self._looks = looks
        self._ports = ports
        self._kept: dict[str, _Kept] = {}
        self._one_at_a_time = threading.Lock()

    def haircut_at(self, clusters: Sequence[str], buffers: Sequence[Fraction], now: datetime) -> FleetHaircut:
        """Report on these clusters, without those that cannot be planned. Plans of other clusters are forgotten."""
        with self._one_at_a_time:
            seen = self._read(clusters, now)
            by_text = {fraction_text(buffer): buffer for buffer in (WITHOUT, *buffers)}
            costs = []
            kept = {}
            for cluster, one in seen.items():
                try:
                    costs.append(self._costs(cluster, one, by_text))
                except Refusal:
                    continue
                kept[cluster] = self._kept[cluster]
            self._kept = kept
        asked = [fraction_text(buffer) for buffer in (WITHOUT, *buffers)]
        report = fleet_haircut([[one[text] for text in asked] for one in costs], buffers)
        return FleetHaircut(
            report=report.but(works=tuple(cuts[:_WORKS_TOLD] for cuts in report.works)),
            untold=tuple(max(0, len(cuts) - _WORKS_TOLD) for cuts in report.works),
            left_out=len(clusters) - len(costs),
        )

    def waves(self, clusters: Sequence[str], now: datetime) -> Mapping[str, str]:
        """Return the wave of each of these clusters by today's plan, without those that cannot be planned."""
        waves = {}
        with self._one_at_a_time:
            for cluster, one in self._read(clusters, now).items():
                kept = self._renew_kept(cluster, one)
                if not kept.wave:
                    try:
                        kept.wave = make_plan(one.snapshot, one.policy).wave_name
                    except Refusal:
                        continue
                waves[cluster] = kept.wave
        return waves

    def _costs(self, cluster: str, seen: _Seen, buffers: Mapping[str, Fraction]) -> dict[str, Cost]:
        """Return the costs by the buffer's text: a fraction's hash takes long. Errors: Refusal."""
        kept = self._renew_kept(cluster, seen)
        costs = {text: cost for text in buffers if (cost := kept.by.pop(text, None)) is not None}
        if missing := buffers.keys() - costs.keys():
            snapshot = seen.snapshot
            costs |= {text: cost_of(plan_at(snapshot, seen.policy, buffers[text])) for text in missing}
        kept.by.update(costs)
        for text in [*kept.by][:-_MOST_BUFFERS]:
            del kept.by[text]
        return costs

    def _renew_kept(self, cluster: str, seen: _Seen) -> _Kept:
        kept, basis = self._kept.get(cluster), seen.basis
        if kept is None or kept.basis != basis:
            kept = self._kept[cluster] = _Kept(basis)
        return kept

    def _read(self, clusters: Sequence[str], now: datetime) -> dict[str, _Seen]:
        """Read the clusters whose health, quotas and policy make sense."""
        readings, facts = self._looks.readings(clusters), self._ports.registry.facts_of(clusters)
        samples = self._looks.believed_samples(clusters, now)
        there = [cluster for cluster in clusters if cluster in readings and cluster in facts and cluster in samples]
        usage = self._ports.usage.readings({c: facts[c].policy.usage_window for c in there}, now)
        works = self._works({c: readings[c] for c in there}, facts, now)
        return {c: _Seen(readings[c], samples[c], usage[c], facts[c], works.get(c, ())) for c in there}

    def _works(
        self, readings: Mapping[str, QuotaReading], facts: Mapping[str, ClusterFacts], now: datetime
    ) -> dict[str, tuple[TeamWork, ...]]:
        """Return the work in clusters whose teams have classes of jobs: for others a cut names no work."""
        classed = [
            c for c, one in readings.items() if facts[c].policy.classes or any(quota.classes for quota in one.quotas)
        ]
        if not classed:
            return {}
        jobs, latest = self._looks.jobs_of(classed, now), self._ports.usage.latest(classed, now)
        return {c: _work(readings[c], latest.get(c, {}), jobs.get(c, ()), facts[c].policy, now) for c in classed}


def _work(
    reading: QuotaReading, usage: Mapping[str, TeamUsage], jobs: Sequence[Job], policy: Policy, now: datetime
) -> tuple[TeamWork, ...]:
    evidence = Evidence(reading, None, usage, now, jobs, classes=policy.classes)
    return tuple(work for work in evidence.work if work.on is RunsOn.QUOTA) if jobs else ()
