"""Looks at a cluster: opens a rollout, plans, observes, aims a rollback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from temporalio import activity

from activities import metrics as meters
from activities.bad_rows import making_sense, one_of
from activities.clock import Clock, utc_now
from activities.failures import translate_errors
from activities.fleet.haircut import FleetCosts
from activities.ports.clusters import ClusterPorts
from activities.ports.registry import OpenRollout
from activities.rollout.breach_target import aim_at
from activities.rollout.health_buffers import Deriver
from activities.rollout.many_looks import ManyLooks
from activities.rollout.observation import as_it_stands, observe_from, surplus_of, to_plan
from activities.rollout.team_work import Works
from activities.tickets.warrants import Warrants, plan_drawn
from models.buffers.health_hours import HealthHours
from models.cluster.derived_buffer import step_promise
from models.cluster.fleet_file import merged_policy
from models.cluster.latest_readings import Evidence
from models.cluster.policy import Policy
from models.cluster.readings import Doubt, HealthSample, Observation, QuotaReading, truthful
from models.cluster.snapshot import Snapshot, on_islands, with_named_islands
from models.errors import BackstopError, Refusal, Unavailable
from models.planning.breach_target import BreachTarget, breach_target
from models.planning.ceiling import spare_of
from models.planning.lacking_since import find_lacking_since
from models.planning.plan import Envelope, make_plan
from models.questions import ClusterFacts
from models.rollout.messages import (
    AimRequest,
    Drafted,
    DraftRequest,
    LaunchRequest,
    LedgerMark,
    ObserveRequest,
    Opening,
    OpenRequest,
)
from models.rollout.stages import command_line

HISTORY_FRESH = timedelta(hours=1)
"""How long a cluster's history of a year is reused, so that planning many clusters does not read it each time."""

_SINCE = timedelta(days=30)
"""How far back to look for the time when this many GPUs were last backed."""
_READINGS = 5
"""The most readings of a sample that changes while its source is judged."""


class ClusterActivities:
    def __init__(self, ports: ClusterPorts, warrants: Warrants | None = None, now: Clock = utc_now) -> None:
        self.ports = ports
        self._now = now
        self._warrants = warrants if warrants is not None and warrants.can_verify else None
        self.works = Works(ports)
        self.looks = ManyLooks(ports)
        self.costs = FleetCosts(self.looks, ports)
        self.deriver = Deriver(ports)

    @activity.defn(name="open_rollout", no_thread_cancel_exception=True)
    def open_rollout(self, request: OpenRequest) -> Opening:
        """Open the rollout in the registry and keep its baseline. Repeating it changes nothing."""
        with translate_errors(), self.ports.one_moment(request.launch.cluster):
            launch, name = request.launch, request.rollout or request.launch.rollout
            mark = self._mark(launch.cluster)
            if self._warrants is not None and mark.rollout == name and mark.counter > request.fence:
                raise Refusal(_lapse_text(launch.cluster, name))  # no ticket allows to take it over
            if request.rollout and not mark.rollout:
                raise Refusal(f"the ledger has no open rollout in {launch.cluster}: rollout {name} has ended")
            facts = self.ports.registry.facts(launch.cluster)
            policy = launch.policy_on(facts.policy)
            admitted = None if self._warrants is None else self._warrants.admit_launch(launch, policy)
            barred = "" if launch.shadow else self.ports.quotas.barred_reason(launch.cluster)
            if barred:
                raise Refusal(f"{barred}; a rehearsal (--shadow) needs no right to write")
            reading = self.ports.quotas.read(launch.cluster)
            sample = self._sample(launch.cluster, request.at)
            baseline = self._snapshot(reading, sample, policy, facts, facts.completed_rollouts, request.at)
            opened = self.ports.registry.open_rollout(
                OpenRollout(
                    rollout=name,
                    cluster=launch.cluster,
                    owner=launch.owner,
                    opened_at=request.at,
                    baseline=baseline,
                    shadow=launch.shadow,
                    modes={quota.team: quota.mode for quota in reading.quotas},
                    fleet=launch.fleet,
                ),
                launch.adopt,
                request.fence,
            )
            if opened.adopted_from:
                # Only now are the lost rollout's writes dead: one may have landed since the first reading.
                reading = self.ports.quotas.read(launch.cluster)
            ours = opened.baseline.values | opened.written
            return Opening(
                baseline=opened.baseline.with_islands(baseline.islands),
                policy=policy,
                reading=reading,
                health=sample,
                rollout="" if opened.rollout == launch.rollout else opened.rollout,
                adopted_from=opened.adopted_from,
                written=ours if opened.adopted_from else {},
                modes=opened.modes,
                envelope=self._approved_envelope(launch),
                ticketed=self._warrants is not None and self._warrants.is_required,
                admitted=admitted,
            )

    @activity.defn(name="ledger_mark", no_thread_cancel_exception=True)
    def ledger_mark(self, cluster: str) -> LedgerMark:
        """Return the mark to compare a history with that may have been reset. Asks nobody but the ledger."""
        with translate_errors():
            return self._mark(cluster)

    def _mark(self, cluster: str) -> LedgerMark:
        opened = self.ports.registry.open_rollout_of(cluster)
        return LedgerMark() if opened is None else LedgerMark(rollout=opened.rollout, counter=opened.last_counter)

    @activity.defn(name="draft_plan", no_thread_cancel_exception=True)
    def draft_plan(self, request: DraftRequest) -> Drafted:
        """Make a plan from the baseline (today's values, if there is none yet) and today's health."""
        with translate_errors(), self.ports.one_moment(request.cluster):
            if self._warrants is not None:
                self._warrants.same_policy(request.rollout, request.policy)
            reading = self.ports.quotas.read(request.cluster)
            sample = self._sample(request.cluster, request.at)
            frozen = request.frozen
            if request.baseline is not None:
                # Without a sample the last known islands count; the gate opens only on fresh health anyway.
                seen = request.baseline.islands if sample is None else sample.islands
                islands = with_named_islands(request.baseline.quotas, request.islands or seen)
                baseline = request.baseline.but(
                    islands=islands, generation=reading.generation, health_at=_time_of(sample)
                )
            else:
                facts = self.ports.registry.facts(request.cluster)
                completed = 0 if frozen is None else frozen.completed_rollouts
                baseline = self._snapshot(reading, sample, request.policy, facts, completed, request.at)
                if request.islands is not None:
                    baseline = on_islands(baseline, request.islands)
                if frozen is not None and request.keep_usage:
                    baseline = _with_usage_of(baseline, frozen)
            terms = request.policy.terms
            if terms is not None:
                derived = self.deriver.derive(
                    request.cluster, baseline.islands, baseline.gpus_per_node, terms, request.at
                )
                baseline = baseline.but(derived=step_promise(derived, request.promised, of=request.promised_of))
            work = self.works.work_of(request.cluster, reading.quotas, request.at)
            plan = make_plan(baseline.but(work=work), request.policy)
            if plan.phantom_gpus:
                history = self.ports.health.history(request.cluster, request.at - _SINCE, request.at)
                plan = plan.but(phantom_since=find_lacking_since(baseline, history))
            if self._warrants is not None:
                self._warrants.record_draw(request.rollout, plan_drawn(plan, baseline, fresh=request.baseline is None))
            return Drafted(baseline=baseline, reading=reading, plan=plan)

    @activity.defn(name="observe", no_thread_cancel_exception=True)
    def observe(self, request: ObserveRequest) -> Observation:
        """Look once: values, generation, health, windows, and the backing of the tested values."""
        with translate_errors(), self.ports.one_moment(request.cluster):
            reading = self.ports.quotas.look(request.cluster)
            sample, doubt = self._read_judged(request)
            windows = one_of(self.ports.calendar.windows([request.cluster]), request.cluster) or ()
            least = {}
            if request.flex_after is not None:
                least = self.ports.health.least_healthy(request.cluster, request.at - request.flex_after, request.at)
            usual = {}
            if request.long_run is not None:
                usual = self.ports.health.usual_healthy(request.cluster, request.long_run, request.at)
            usage = self.ports.usage.latest([request.cluster], request.at).get(request.cluster, {})
            evidence = Evidence(reading, sample, usage, request.at, windows=windows)
            latest = self._latest(request.at)
            seen = observe_from(evidence, request, least, usual, by=latest)
            if seen.health is not None and doubt is not None:
                seen = _with_doubt(seen, evidence, request, doubt, latest)
            if request.derive is not None and seen.health is not None:
                derived = self.deriver.derive(
                    request.cluster, seen.health.islands, request.gpus_per_node, request.derive, request.at
                )
                seen = seen.but(derived=derived)
            if seen.shortage:
                seen = seen.but(work=self.works.of_short(seen))
            if request.generation is not None and request.generation != reading.generation:
                changes = self.ports.quotas.changes(request.cluster, request.generation)
                seen = seen.but(changes=changes)
            meters.record_cluster(seen)
            return seen

    @activity.defn(name="aim_rollback", no_thread_cancel_exception=True)
    def aim_rollback(self, request: AimRequest) -> BreachTarget:
        """Return backed values for today's hardware. Errors: BlastRadius when too many clusters breach within an hour.

        It is booked first: of many that breach at once, each counts those that are being aimed beside it.
        """
        with translate_errors():
            if self._warrants is not None and self._warrants.is_required and not request.shadow:
                sample = self._sample(request.cluster, self._warrants.now())
                return aim_at(request, sample, self.ports.quotas, self.ports.registry, self._warrants)
            if not request.shadow:  # it writes nothing
                most = None if request.exempt else request.policy.max_breaching_clusters
                self.ports.registry.reserve_breach(request.cluster, most, request.at)
            try:
                return breach_target(request.baseline, request.current, request.islands, request.theirs)
            except BackstopError:
                self.ports.registry.release_breach(request.cluster)
                raise

    def surplus(self, cluster: str) -> int | None:
        """Return the healthy GPUs outside any quota, now; None if the health is unknown."""
        now = self._now()
        sample = self._sample(cluster, now)
        if sample is None:
            return None
        gpus_per_node = self.ports.registry.facts(cluster).gpus_per_node
        return surplus_of(as_it_stands(self.ports.quotas.read(cluster), gpus_per_node, sample))

    def snapshot_now(self, cluster: str, now: datetime) -> Snapshot:
        """Return as `present`, without its policy."""
        return self.present(cluster, now)[0]

    def present(
        self, cluster: str, now: datetime, over: Mapping[str, Any] | None = None, within: timedelta = timedelta(0)
    ) -> tuple[Snapshot, Policy]:
        """Return the cluster as a launch would plan from it now, and its policy with `over` on top.

        `within`: the greatest age of a buffer from health history. Errors: Refusal for an unknown cluster, and for one
        that makes no sense.
        """
        facts = self.ports.registry.facts(cluster)
        policy = merged_policy(facts.policy, over or {})
        reading = self.ports.quotas.read(cluster)
        sample = self._sample(cluster, now)
        with making_sense(cluster, "its quotas"):
            snapshot = self._snapshot(reading, sample, policy, facts, facts.completed_rollouts, now)
        if policy.terms is not None:
            derived = self.deriver.derive(cluster, snapshot.islands, snapshot.gpus_per_node, policy.terms, now, within)
            snapshot = snapshot.but(derived=derived)
        return snapshot, policy

    def health_hours(self, cluster: str, now: datetime) -> HealthHours:
        """Return the hours for a buffer from health history. Errors: Refusal for an unknown cluster."""
        facts = self.ports.registry.facts(cluster)
        sample = self._sample(cluster, now)
        hours = self.deriver.hours(cluster, () if sample is None else sample.islands, now)
        bare = HealthHours(
            cluster=cluster,
            total_gpus=0 if sample is None else sample.total_gpus,
            gpus_per_node=facts.gpus_per_node,
            terms=facts.policy.terms,
            healthy_gpus=None if sample is None else sample.healthy_gpus,
            spare_gpus=spare_of(facts.gpus_per_node, facts.policy),
            health_at=_time_of(sample),
        )
        return bare if hours is None else bare.with_series(hours)

    def _approved_envelope(self, launch: LaunchRequest) -> Envelope | None:
        if not launch.fleet:
            return None
        return self.ports.registry.fleet_envelope(launch.fleet, launch.cluster)

    # --- reading ----------------------------------------------------------------------------

    def _sample(self, cluster: str, now: datetime) -> HealthSample | None:
        """Return the believed sample: the earlier one, if its source is in doubt."""
        sample = truthful(one_of(self.ports.health.read([cluster]), cluster), self._latest(now))
        doubt = None if sample is None else self.ports.doubts.doubt(cluster, None, None)
        return sample if doubt is None else doubt.before

    def _latest(self, at: datetime) -> datetime:
        """Return the later clock, the workflow's or ours: a server's may have been set back."""
        return max(at, self._now())

    def _read_judged(self, request: ObserveRequest) -> tuple[HealthSample | None, Doubt | None]:
        """Return the latest sample, and the doubt of its source.

        The source may stop or begin to lie between the reading and the judging: so a reading counts only if it is the
        judged one. Errors: Unavailable if it never is.
        """
        for _ in range(_READINGS):
            sample = one_of(self.ports.health.read([request.cluster]), request.cluster)
            if sample is None:
                return None, None
            doubt = self.ports.doubts.doubt(request.cluster, request.plausible_drop, request.max_breaching_clusters)
            again = one_of(self.ports.health.read([request.cluster]), request.cluster)
            if doubt is not None or (again is not None and (again.at, again.islands) == (sample.at, sample.islands)):
                return sample, doubt
        raise Unavailable(f"the health of {request.cluster} changes faster than Backstop can judge it")

    def _snapshot(
        self,
        reading: QuotaReading,
        sample: HealthSample | None,
        policy: Policy,
        facts: ClusterFacts,
        completed: int,
        now: datetime,
    ) -> Snapshot:
        """Return today's values with the usage that planning uses."""
        usage = self.ports.usage.read(reading.cluster, policy.usage_window, now)
        return to_plan(reading, sample, usage, facts.gpus_per_node, completed)


def _lapse_text(cluster: str, rollout: str) -> str:
    adopt = f"{command_line('launch', cluster)} --adopt"
    return f"the ledger has changes of rollout {rollout} that its workflow history lacks: take it over with `{adopt}`"


def _with_doubt(
    seen: Observation, evidence: Evidence, request: ObserveRequest, doubt: Doubt, latest: datetime
) -> Observation:
    """Add the doubt of the source, and the shortage if health were as before."""
    before = observe_from(replace(evidence, sample=doubt.before), request, by=latest)
    return seen.but(doubt=doubt.but(counted=before.counted))


def _time_of(sample: HealthSample | None) -> datetime | None:
    return None if sample is None else sample.at


def _with_usage_of(baseline: Snapshot, frozen: Snapshot) -> Snapshot:
    """Return the baseline with the usage that was frozen at approval, clipped to what its checks allow."""
    usage = {quota.team: (quota.scheduled_gpus, quota.idle_gpus) for quota in frozen.quotas}
    quotas = tuple(
        quota.but(scheduled_gpus=usage[quota.team][0], idle_gpus=usage[quota.team][1]) if quota.team in usage else quota
        for quota in baseline.quotas
    )
    return baseline.but(quotas=quotas, usage_from=frozen.usage_from)
