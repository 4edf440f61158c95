"""Looking at a cluster: opening a rollout, planning, observing, aiming a rollback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity

from activities import metrics as meters
from activities.failures import translated
from activities.health_buffers import Deriver
from activities.ports import (
    ByCluster,
    CalendarPort,
    DoubtPort,
    HealthPort,
    JobPort,
    OpenRollout,
    QuotaPort,
    RegistryPort,
    UsagePort,
)
from activities.sense import making_sense, one_of
from activities.team_work import Works
from models.buffers.hourly_health import HealthHours
from models.cluster.derived_buffer import stepped
from models.cluster.evidence import Evidence
from models.cluster.fleet_file import merged_policy
from models.cluster.flex_size import FlexSight, flex_pool
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.quota import Quota
from models.cluster.readings import Doubt, HealthSample, Observation, PresentBacking, QuotaReading, TeamUsage, truthful
from models.cluster.snapshot import Snapshot, filled, on_islands
from models.cluster.windows import Window, nearest, without_absences
from models.errors import BackstopError, Refusal, Unavailable
from models.flex.division import FlexMode
from models.flex.flex_now import FlexNow, flex_now
from models.planning.backing import Backing, back, back_on
from models.planning.lacking_since import lacking_since
from models.planning.occupancy import standing_in_quota
from models.planning.placement import PlacementSolver
from models.planning.plan import BreachTarget, Envelope, breach_target, make_plan
from models.questions import ClusterFacts, WhyNot
from models.reports.why import TeamWhy, why
from models.rollout.messages import (
    AimRequest,
    Drafted,
    DraftRequest,
    LaunchRequest,
    ObserveRequest,
    Opening,
    OpenRequest,
)

HISTORY_FRESH = timedelta(hours=1)
"""Where many clusters are planned, a year of each one's samples is not read more often."""

_LIVES = timedelta(days=7)
"""How far back it is told how long flex jobs lived."""
_SINCE = timedelta(days=30)
"""How far back it is looked for when an island was last whole, or as many GPUs were backed."""
_READINGS = 5
"""Of a sample that changes while its source is judged."""


class ClusterActivities:
    def __init__(
        self,
        quotas: QuotaPort,
        health: HealthPort,
        usage: UsagePort,
        calendar: CalendarPort,
        registry: RegistryPort,
        jobs: JobPort,
        doubts: DoubtPort,
    ) -> None:
        self._quotas = quotas
        self._health = health
        self._doubts = doubts
        self._usage = usage
        self._calendar = calendar
        self._registry = registry
        self._jobs = jobs
        self.works = Works(jobs, usage, registry)
        self.deriver = Deriver(health, calendar)

    @activity.defn(name="open_rollout", no_thread_cancel_exception=True)
    def open_rollout(self, request: OpenRequest) -> Opening:
        """The rollout is open in the registry and its baseline kept. Repeating it changes nothing."""
        with translated():
            launch = request.launch
            facts = self._registry.facts(launch.cluster)
            policy = merged_policy(facts.policy, launch.policy)
            barred = "" if launch.shadow else self._quotas.barred(launch.cluster)
            if barred:
                raise Refusal(f"{barred}; --shadow needs no right to write")
            reading = self._quotas.read(launch.cluster)
            sample = self._sample(launch.cluster, request.at)
            baseline = self._snapshot(reading, sample, policy, facts, facts.completed_rollouts, request.at)
            opened = self._registry.open_rollout(
                OpenRollout(
                    rollout=launch.rollout,
                    cluster=launch.cluster,
                    owner=launch.owner,
                    opened_at=request.at,
                    baseline=baseline,
                    shadow=launch.shadow,
                    modes={q.team: q.mode for q in reading.quotas},
                    fleet=launch.fleet,
                ),
                launch.adopt,
            )
            if opened.adopted_from:
                # Only now are the lost rollout's writes dead: one may have landed since the first reading.
                reading = self._quotas.read(launch.cluster)
            ours = {q.team: q.gpus for q in opened.baseline.quotas} | opened.written
            return Opening(
                baseline=opened.baseline.with_islands(baseline.islands),
                policy=policy,
                reading=reading,
                health=sample,
                adopted_from=opened.adopted_from,
                written=ours if opened.adopted_from else {},
                modes=opened.modes,
                envelope=self._approved_with(launch),
            )

    @activity.defn(name="draft_plan", no_thread_cancel_exception=True)
    def draft_plan(self, request: DraftRequest) -> Drafted:
        """A plan from the baseline (today's values, where none stands yet) and today's health."""
        with translated():
            reading = self._quotas.read(request.cluster)
            sample = self._sample(request.cluster, request.at)
            frozen = request.frozen
            if request.baseline is not None:
                # Without a sample the last known islands stand; the gate opens only on fresh health anyway.
                seen = request.baseline.islands if sample is None else sample.islands
                islands = filled(request.baseline.quotas, request.islands or seen)
                baseline = request.baseline.model_copy(
                    update={"islands": islands, "generation": reading.generation, "health_at": _time(sample)}
                )
            else:
                facts = self._registry.facts(request.cluster)
                completed = 0 if frozen is None else frozen.completed_rollouts
                baseline = self._snapshot(reading, sample, request.policy, facts, completed, request.at)
                if request.islands is not None:
                    baseline = on_islands(baseline, request.islands)
                if frozen is not None and request.keep_usage:
                    baseline = _with_usage_of(baseline, frozen)
            terms = request.policy.terms
            if terms is not None:
                derived = self.deriver.derived(
                    request.cluster, baseline.islands, baseline.gpus_per_node, terms, request.at
                )
                baseline = baseline.model_copy(
                    update={"derived": stepped(derived, request.promised, of=request.promised_of)}
                )
            work = self.works.of(request.cluster, reading.quotas, request.at)
            plan = make_plan(baseline.model_copy(update={"work": work}), request.policy)
            if plan.phantom_gpus:
                history = self._health.history(request.cluster, request.at - _SINCE, request.at)
                plan = plan.model_copy(update={"phantom_since": lacking_since(baseline, history)})
            return Drafted(baseline=baseline, reading=reading, plan=plan)

    @activity.defn(name="observe", no_thread_cancel_exception=True)
    def observe(self, request: ObserveRequest) -> Observation:
        """One fresh look: values, generation, health, windows, and the backing of the tested values."""
        with translated():
            reading = self._quotas.read(request.cluster)
            sample, doubt = self._judged(request)
            windows = one_of(self._calendar.windows([request.cluster]), request.cluster) or ()
            least = {}
            if request.flex_after is not None:
                least = self._health.least(request.cluster, request.at - request.flex_after, request.at)
            usual = {}
            if request.long_run is not None:
                usual = self._health.usual(request.cluster, request.long_run, request.at)
            usage = self._usage.latest([request.cluster], request.at).get(request.cluster, {})
            known = Evidence(reading, sample, usage, request.at, windows=windows)
            seen = _doubting(observed(known, request, least, usual, by=_latest(request.at)), known, request, doubt)
            if request.derive is not None and seen.health is not None:
                derived = self.deriver.derived(
                    request.cluster, seen.health.islands, request.gpus_per_node, request.derive, request.at
                )
                seen = seen.model_copy(update={"derived": derived})
            if seen.shortage:
                seen = seen.model_copy(update={"work": self.works.of_short(seen)})
            if request.generation is not None and request.generation != reading.generation:
                changes = self._quotas.changes(request.cluster, request.generation)
                seen = seen.model_copy(update={"changes": changes})
            meters.cluster_gauges(seen)
            return seen

    @activity.defn(name="aim_rollback", no_thread_cancel_exception=True)
    def aim_rollback(self, request: AimRequest) -> BreachTarget:
        """Backed values for today's hardware. Errors: BlastRadius when too many clusters breach within an hour.

        It is booked first: of many that breach at once, each counts those that are being aimed beside it.
        """
        with translated():
            if not request.shadow:  # it writes nothing
                most = None if request.exempt else request.policy.max_breaching_clusters
                self._registry.reserve_breach(request.cluster, most, request.at)
            try:
                return breach_target(request.baseline, request.current, request.islands)
            except BackstopError:
                self._registry.release_breach(request.cluster)
                raise

    def present(
        self, cluster: str, now: datetime, over: Mapping[str, Any] | None = None, within: timedelta = timedelta(0)
    ) -> tuple[Snapshot, Policy]:
        """The cluster as a launch would plan from it now, and its policy with what lies over it.

        `within`: a buffer from health history may be so old. Errors: Refusal for an unknown cluster, and for one that
        makes no sense.
        """
        facts = self._registry.facts(cluster)
        policy = merged_policy(facts.policy, over or {})
        reading = self._quotas.read(cluster)
        sample = self._sample(cluster, now)
        with making_sense(cluster, "its quotas"):
            snapshot = self._snapshot(reading, sample, policy, facts, facts.completed_rollouts, now)
        if policy.terms is not None:
            derived = self.deriver.derived(cluster, snapshot.islands, snapshot.gpus_per_node, policy.terms, now, within)
            snapshot = snapshot.model_copy(update={"derived": derived})
        return snapshot, policy

    def flex(self, clusters: Sequence[str], mode: FlexMode, now: datetime) -> ByCluster[FlexNow]:
        """The flex of each, by its last samples; one that is unknown, or makes no sense, is left out and named."""
        samples, usage = self._health.read(clusters), self._usage.latest(clusters, now)
        since = now - _LIVES
        jobs = self._jobs.jobs(clusters, since)
        answer: ByCluster[FlexNow] = ByCluster()
        for cluster in clusters:
            try:
                with making_sense(cluster, "its quotas"):
                    sample = truthful(one_of(samples, cluster), now)
                    reading = self._quotas.read(cluster)
                    facts = self._registry.facts(cluster)
                    own, of_policy = jobs.get(cluster, ()), facts.policy.classes
                    seen = Evidence(reading, sample, usage.get(cluster, {}), now, own, classes=of_policy)
                    answer[cluster] = flex_now(seen, mode, since).model_copy(update={"gpu_model": facts.gpu_model})
            except Refusal as error:
                answer.senseless[cluster] = error.message
        return answer

    def why(self, cluster: str, question: WhyNot, now: datetime) -> TeamWhy | None:
        """Why the team cannot have so many GPUs there; None where it has no quota.

        Errors: Refusal for a quota that is a sum of others, an unknown cluster, and where nobody knows the health.
        """
        reading = self._quotas.read(cluster)
        if question.team not in reading.values:
            return None
        sample = self._sample(cluster, now)
        usage = self._usage.latest([cluster], now).get(cluster, {})
        windows = one_of(self._calendar.windows([cluster]), cluster) or ()
        history = self._health.history(cluster, now - _SINCE, now)
        jobs = self._jobs.jobs([cluster], now).get(cluster, ())
        policy = self._registry.facts(cluster).policy
        seen = Evidence(reading, sample, usage, now, jobs, windows, policy.classes)
        with making_sense(cluster, "its quotas"):
            return why(
                seen,
                history,
                question.team,
                question.gpus,
                block=question.block,
                namespace=question.namespace,
                stale_after=policy.stale_after,
            )

    def health_hours(self, cluster: str, now: datetime) -> HealthHours:
        """What a buffer from health history goes by. Errors: Refusal for an unknown cluster."""
        facts = self._registry.facts(cluster)
        sample = self._sample(cluster, now)
        hours = self.deriver.hours(cluster, () if sample is None else sample.islands, now)
        bare = HealthHours(
            cluster=cluster,
            total_gpus=0 if sample is None else sample.total_gpus,
            gpus_per_node=facts.gpus_per_node,
            terms=facts.policy.terms,
        )
        return bare if hours is None else bare.holding(hours)

    def _approved_with(self, launch: LaunchRequest) -> Envelope | None:
        if not launch.fleet:
            return None
        return self._registry.fleet_envelope(launch.fleet, launch.cluster)

    # --- reading ----------------------------------------------------------------------------

    def _sample(self, cluster: str, now: datetime) -> HealthSample | None:
        """What is believed: of a source in doubt, what was so before."""
        sample = truthful(one_of(self._health.read([cluster]), cluster), _latest(now))
        doubt = None if sample is None else self._doubts.doubt(cluster, None, None)
        return sample if doubt is None else doubt.before

    def _judged(self, request: ObserveRequest) -> tuple[HealthSample | None, Doubt | None]:
        """The latest sample, and the doubt of its source.

        A source is judged by what it says as it is judged. Between the reading and the judging it may have come back
        from a lie: so what was read counts only where it is what was judged. Errors: Unavailable where it never is.
        """
        for _ in range(_READINGS):
            sample = one_of(self._health.read([request.cluster]), request.cluster)
            if sample is None:
                return None, None
            doubt = self._doubts.doubt(request.cluster, request.plausible_drop, request.max_breaching_clusters)
            again = one_of(self._health.read([request.cluster]), request.cluster)
            if doubt is not None or (again is not None and (again.at, again.islands) == (sample.at, sample.islands)):
                return sample, doubt
        raise Unavailable(f"the health of {request.cluster} changes faster than it can be judged")

    def _snapshot(
        self,
        reading: QuotaReading,
        sample: HealthSample | None,
        policy: Policy,
        facts: ClusterFacts,
        completed: int,
        now: datetime,
    ) -> Snapshot:
        """Today's values with the usage that planning goes by."""
        usage = self._usage.read(reading.cluster, policy.usage_window, now)
        by_team = {u.team: u for u in usage.teams}
        parents = {q.parent for q in reading.quotas}
        quotas = tuple(
            q.as_quota(
                None if q.team in parents or q.team not in by_team else by_team[q.team].scheduled_gpus,
                None if q.team in parents or q.team not in by_team else by_team[q.team].idle_gpus,
            )
            for q in reading.quotas
        )
        if sample is None:
            raise Refusal(f"cluster {reading.cluster} has no health sample up to now: import its health first")
        return Snapshot(
            cluster=reading.cluster,
            gpus_per_node=facts.gpus_per_node,
            islands=islands_for(quotas, sample),
            quotas=quotas,
            generation=reading.generation,
            completed_rollouts=completed,
            usage_from=usage.source,
            health_at=sample.at,
        )


def _doubting(seen: Observation, known: Evidence, request: ObserveRequest, doubt: Doubt | None) -> Observation:
    """With the doubt of the source, and what would be short if it were as before."""
    if seen.health is None or doubt is None:
        return seen
    before = observed(replace(known, sample=doubt.before), request, by=_latest(request.at))
    return seen.model_copy(update={"doubt": doubt.model_copy(update={"counted": before.counted})})


def _latest(now: datetime) -> datetime:
    """By the workflow's clock or ours: a server whose clock was set back makes no sample of today one of tomorrow."""
    return max(now, datetime.now(UTC))


def _time(sample: HealthSample | None) -> datetime | None:
    return None if sample is None else sample.at


def islands_for(quotas: tuple[Quota, ...], sample: HealthSample | None) -> tuple[Island, ...]:
    """The sample's islands; one that a quota names and the sample lacks has no healthy GPU."""
    return filled(quotas, () if sample is None else sample.islands)


def _with_usage_of(baseline: Snapshot, frozen: Snapshot) -> Snapshot:
    """The baseline with the usage that was frozen at approval, clipped to what its checks allow."""
    usage = {q.team: (q.scheduled_gpus, q.idle_gpus) for q in frozen.quotas}
    quotas = tuple(
        q.model_copy(update={"scheduled_gpus": usage[q.team][0], "idle_gpus": usage[q.team][1]})
        if q.team in usage
        else q
        for q in baseline.quotas
    )
    return baseline.model_copy(update={"quotas": quotas, "usage_from": frozen.usage_from})


def observed(
    known: Evidence,
    request: ObserveRequest,
    least: Mapping[str, int] | None = None,
    usual: Mapping[str, int] | None = None,
    by: datetime | None = None,
) -> Observation:
    """The observation that these readings make. Healthy GPUs by island: `least` of late, `usual` in the long run.

    Windows that are over are left out: a calendar forgets nothing, and a rollout carries what it last saw.
    `by`: no true sample is dated later; without it, the request's own time.
    """
    reading, sample = known.reading, known.sample
    values: Mapping[str, int] = reading.values if request.values is None else request.values
    timely = truthful(sample, by or request.at)
    ahead_to, fault = None, ""
    if sample is not None:
        fault = sample.fault
        ahead_to = sample.at if timely is None else sample.ahead_to
    windows = tuple(w for w in known.windows if w.ends > request.at)
    bare = Observation(
        cluster=request.cluster,
        at=request.at,
        reading=reading,
        health=None,
        ahead_to=ahead_to,
        fault=fault,
        windows=nearest(windows, request.at),
        tested=dict(values),
    )
    if timely is None or not timely.islands:
        return bare
    quotas = tuple(p.model_copy(update={"gpus": values.get(p.team, p.gpus)}).as_quota() for p in reading.quotas)
    tested = Snapshot(
        cluster=request.cluster,
        gpus_per_node=request.gpus_per_node,
        islands=islands_for(quotas, timely),
        quotas=quotas,
        generation=reading.generation,
    )
    present = tested.with_values({p.team: p.as_quota().gpus for p in reading.quotas})
    return bare.model_copy(
        update={
            "health": timely.model_copy(update={"fault": ""}),
            **_tested(tested, windows, known),
            "flex": None if request.flex_after is None else _flex(tested if request.shadow else present, least or {}),
            "long_run": _long_run(tested.islands, usual or {}),
            "present": None if present.quotas == tested.quotas else _standing(PlacementSolver(present), known.usage),
        }
    )


def _tested(snapshot: Snapshot, windows: tuple[Window, ...], known: Evidence) -> dict[str, Any]:
    """What an observation says of the values that it tests."""
    ground = PlacementSolver(snapshot)
    backing = back_on(ground)
    whole = without_absences(snapshot.islands, windows, known.at)
    standing = _standing(ground, known.usage, backing)
    return {
        "tested": {q.team: q.gpus for q in snapshot.quotas},
        "backing": backing.of,
        "shortage": backing.shortage,
        "counted": (backing if whole == snapshot.islands else back(snapshot.with_islands(whole))).shortage,
        "assigned_gpus": standing.assigned_gpus,
        "backed_gpus": standing.backed_gpus,
        "flex_gpus": standing.flex_gpus,
    }


def _flex(snapshot: Snapshot, least: Mapping[str, int]) -> FlexSight:
    surplus = _surplus(snapshot)
    of_late = tuple(i.at_health(min(i.healthy_gpus, least.get(i.name, i.healthy_gpus))) for i in snapshot.islands)
    if of_late == snapshot.islands:
        return FlexSight(surplus_gpus=surplus, standing_gpus=surplus)
    return FlexSight(surplus_gpus=surplus, standing_gpus=min(surplus, _surplus(snapshot.with_islands(of_late))))


def _long_run(islands: tuple[Island, ...], usual: Mapping[str, int]) -> tuple[Island, ...]:
    """The islands at their usual health; none where one of those that have GPUs has no history."""
    if not usual or any(i.total_gpus and i.name not in usual for i in islands):
        return ()
    return tuple(i.at_health(min(usual.get(i.name, 0), i.total_gpus)) for i in islands)


def _surplus(snapshot: Snapshot) -> int:
    backing = back(snapshot)
    return backing.healthy_gpus - backing.backed_gpus


def _standing(
    ground: PlacementSolver, usage: Mapping[str, TeamUsage], backing: Backing | None = None
) -> PresentBacking:
    backing = back_on(ground) if backing is None else backing
    return PresentBacking(
        assigned_gpus=backing.assigned_gpus,
        backed_gpus=backing.backed_gpus,
        flex_gpus=flex_pool(backing.healthy_gpus, backing.backed_gpus, standing_in_quota(ground, usage)).gpus,
        backing=backing.of,
    )
