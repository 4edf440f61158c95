"""Looks at many clusters: asks each source about all of them at once, and recomputes only what has changed.

One question for each cluster, and its arithmetic at each look, took seconds for 1,000. So a result is kept beside the
readings that it was computed from; if the next readings are equal, times aside, so is the result, because models/ is
pure. The results are this process's own and no larger than the fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from activities.bad_rows import answer_for, making_sense, one_of
from activities.ports.by_cluster import ByCluster
from activities.ports.clusters import ClusterPorts
from models.cluster.jobs import Job, flex_lives
from models.cluster.latest_readings import Evidence
from models.cluster.readings import HealthSample, QuotaReading, TeamUsage, truthful
from models.cluster.windows import active
from models.errors import NoSuchCluster, Refusal
from models.flex.division import FlexMode
from models.flex.flex_now import FlexNow, flex_now
from models.flex.flex_sum import FlexSum, sum_of
from models.questions import ClusterFacts, WhyNot
from models.reports.why import TeamWhy, WhyAnswers, explain_team

_LIVES = timedelta(days=7)
"""How far back the lives of flex jobs are reported."""
_SINCE = timedelta(days=30)
"""How far back to look for the time at which an island last lacked no GPU."""
_JOBS_OF = 200
"""The most clusters whose jobs are read at once, which limits the number of rows."""
_MOST_KEPT = 20_000

_T = TypeVar("_T")


class _Kept(Generic[_T]):
    """Results by key, each beside what it was computed from."""

    def __init__(self) -> None:
        self._by: dict[Hashable, tuple[object, _T]] = {}

    def has(self, key: Hashable, basis: object) -> bool:
        return key in self._by and self._by[key][0] == basis

    def value_for(self, key: Hashable, basis: object, work_out: Callable[[], _T]) -> _T:
        """Return the result kept for the same basis, or compute it now. Errors: those of the computation."""
        kept = self._by.get(key)
        if kept is not None and kept[0] == basis:
            return kept[1]
        result = work_out()
        if len(self._by) >= _MOST_KEPT:
            self._by.clear()
        self._by[key] = basis, result
        return result


class ManyLooks:
    """The looks of one worker. `doubts`: applied to explanations; flex is shown by the samples as they are."""

    def __init__(self, ports: ClusterPorts) -> None:
        self._ports = ports
        self._readings = _Kept[QuotaReading]()
        self._flex = _Kept[FlexNow]()
        self._sums = _Kept[FlexSum]()
        self._whys = _Kept[TeamWhy]()

    def readings(self, clusters: Sequence[str]) -> ByCluster[QuotaReading]:
        """Return the reading of each as `QuotaPort.read`; unknown and senseless clusters are left out and named."""
        versions = self._ports.quotas.versions(clusters)
        moved = [c for c in clusters if c in versions and not self._readings.has(c, versions[c])]
        new = self._ports.quotas.readings(moved) if moved else ByCluster[QuotaReading]()
        answer: ByCluster[QuotaReading] = ByCluster()
        for cluster in clusters:
            try:
                if cluster not in versions:
                    raise NoSuchCluster(cluster)
                answer[cluster] = self._readings.value_for(
                    cluster, versions[cluster], partial(self._read, new, cluster)
                )
            except Refusal as error:
                answer.senseless[cluster] = error.message
        return answer

    def _read(self, new: ByCluster[QuotaReading], cluster: str) -> QuotaReading:
        """Return the cluster's reading among those read at once, or read it alone. Errors: Refusal."""
        there = cluster in new or cluster in new.senseless
        return answer_for(new, cluster) if there else self._ports.quotas.read(cluster)

    def believed_samples(self, clusters: Sequence[str], now: datetime) -> ByCluster[HealthSample]:
        """Return the believed health of each: the earlier sample if its source is in doubt."""
        samples, doubted = self._ports.health.read(clusters), self._ports.doubts.doubted_clusters()
        answer: ByCluster[HealthSample] = ByCluster()
        answer.senseless |= samples.senseless
        for cluster in samples:
            sample = truthful(samples[cluster], now)
            doubt = self._ports.doubts.doubt(cluster, None, None) if sample is not None and cluster in doubted else None
            sample = sample if doubt is None else doubt.before
            if sample is not None:
                answer[cluster] = sample
        return answer

    # --- flex -----------------------------------------------------------------------------------

    def flex(self, clusters: Sequence[str], mode: FlexMode, now: datetime) -> ByCluster[FlexNow]:
        """Return the flex of each, by its last samples; unknown and senseless clusters are left out and named."""

        def of_now(seen: Evidence, facts: ClusterFacts) -> FlexNow:
            update: dict[str, Any] = {"at": seen.at}
            if seen.sample is not None and seen.sample.islands:
                lives = flex_lives(seen.jobs, seen.at - _LIVES) if seen.jobs else None
                update |= {"health_at": seen.sample.at, "lives": lives}
            return self._flex_of(seen, facts, mode).but(**update)

        return self._each(clusters, now, of_now)

    def flex_sums(self, clusters: Sequence[str], mode: FlexMode, now: datetime) -> tuple[FlexSum, ...]:
        """Return the flex of each in numbers alone."""

        def of_now(seen: Evidence, facts: ClusterFacts) -> FlexSum:
            flex = self._flex_of(seen, facts, mode)
            one = self._sums.value_for((flex.cluster, mode), flex, partial(sum_of, flex))
            dated = seen.sample is None or one.health_at in (None, seen.sample.at)
            return one if dated or seen.sample is None else one.but(health_at=seen.sample.at)

        return tuple(self._each(clusters, now, of_now).values())

    def _each(
        self, clusters: Sequence[str], now: datetime, tell: Callable[[Evidence, ClusterFacts], _T]
    ) -> ByCluster[_T]:
        samples, usage = self._ports.health.read(clusters), self._ports.usage.latest(clusters, now)
        readings, facts = self.readings(clusters), self._ports.registry.facts_of(clusters)
        jobs = self.jobs_of(clusters, now - _LIVES)
        answer: ByCluster[_T] = ByCluster()
        for cluster in clusters:
            try:
                with making_sense(cluster, "its quotas"):
                    sample = truthful(one_of(samples, cluster), now)
                    reading, own = answer_for(readings, cluster), answer_for(facts, cluster)
                    used, run = usage.get(cluster, {}), jobs.get(cluster, ())
                    answer[cluster] = tell(Evidence(reading, sample, used, now, run), own)
            except Refusal as error:
                answer.senseless[cluster] = error.message
        return answer

    def _flex_of(self, seen: Evidence, facts: ClusterFacts, mode: FlexMode) -> FlexNow:
        """Return the flex, dated as of its computation. Errors: ValueError for what makes no sense."""
        cluster, classes = seen.reading.cluster, facts.policy.classes
        by = (seen.reading, _islands(seen.sample), _amounts(seen.usage), seen.jobs, classes, facts.gpu_model)

        def work_out() -> FlexNow:
            whole = Evidence(seen.reading, seen.sample, seen.usage, seen.at, seen.jobs, classes=classes)
            return flex_now(whole, mode).but(gpu_model=facts.gpu_model)

        return self._flex.value_for((cluster, mode), by, work_out)

    def jobs_of(self, clusters: Sequence[str], since: datetime) -> dict[str, tuple[Job, ...]]:
        jobs: dict[str, tuple[Job, ...]] = {}
        for start in range(0, len(clusters), _JOBS_OF):
            jobs |= self._ports.jobs.jobs(clusters[start : start + _JOBS_OF], since)
        return jobs

    # --- why ------------------------------------------------------------------------------------

    def explain(self, clusters: Sequence[str], question: WhyNot, now: datetime) -> WhyAnswers:
        """Explain why the team cannot have so many GPUs, in each of these clusters where it has a quota."""
        readings = self.readings(clusters)
        here = [c for c, one in readings.items() if any(quota.team == question.team for quota in one.quotas)]
        seen, unanswered = self._read_evidence(here, readings, now)
        unanswered |= readings.senseless
        facts = self._ports.registry.facts_of(here)
        histories = _LazyHistories(lambda: self._ports.health.histories(here, now - _SINCE, now))
        answers = []
        for cluster in here:
            try:
                if cluster in seen:
                    answers.append(self._why_of(seen[cluster], answer_for(facts, cluster), question, histories))
            except Refusal as error:
                unanswered[cluster] = error.message
        return WhyAnswers(teams=tuple(answers), unanswered=dict(sorted(unanswered.items())))

    def _read_evidence(
        self, clusters: Sequence[str], readings: Mapping[str, QuotaReading], now: datetime
    ) -> tuple[dict[str, Evidence], dict[str, str]]:
        """Return the evidence on each cluster, and why there is none."""
        samples, windows = self.believed_samples(clusters, now), self._ports.calendar.windows(clusters)
        usage, jobs = self._ports.usage.latest(clusters, now), self.jobs_of(clusters, now)
        seen, unknown = dict[str, Evidence](), dict[str, str]()
        for cluster in clusters:
            try:
                sample = one_of(samples, cluster)
                declared = one_of(windows, cluster)
                used = usage.get(cluster, {})
                seen[cluster] = Evidence(
                    readings[cluster], sample, used, now, jobs.get(cluster, ()), active(declared or (), now)
                )
            except Refusal as error:
                unknown[cluster] = error.message
        return seen, unknown

    def _why_of(self, seen: Evidence, facts: ClusterFacts, question: WhyNot, histories: _LazyHistories) -> TeamWhy:
        """Explain one cluster. Errors: Refusal if nothing can be said."""
        cluster, sample, policy = seen.reading.cluster, seen.sample, facts.policy
        by = (seen.reading, _islands(sample), _amounts(seen.usage), seen.jobs, seen.windows, policy.classes)

        def work_out() -> TeamWhy:
            whole = Evidence(seen.reading, sample, seen.usage, seen.at, seen.jobs, seen.windows, policy.classes)
            history = histories.now.get(cluster, {})
            asked: dict[str, Any] = {"block": question.block, "namespace": question.namespace}
            return explain_team(whole, history, question.team, question.gpus, **asked)

        with making_sense(cluster, "its quotas"):
            answer = self._whys.value_for((cluster, question.but(cluster="")), by, work_out)
        if sample is None:
            return answer
        stale = seen.at - sample.at >= policy.stale_after
        return answer.but(at=seen.at, health_at=sample.at, health_stale=stale)


class _LazyHistories:
    """Reads the histories of health, which are large, once and only if needed."""

    def __init__(self, ask: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._ask = ask
        self._told: Mapping[str, Mapping[str, Any]] | None = None

    @property
    def now(self) -> Mapping[str, Mapping[str, Any]]:
        if self._told is None:
            self._told = self._ask()
        return self._told


def _islands(sample: HealthSample | None) -> object:
    return None if sample is None else sample.islands


def _amounts(usage: Mapping[str, TeamUsage]) -> Iterable[object]:
    """List the GPUs that each team holds and waits for; their time does not count."""
    return [(team, one.scheduled_gpus, one.idle_gpus, one.pending_gpus) for team, one in usage.items()]
