"""Requests for more quota: whether one fits, the alternatives, and the ways in which it can be written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities import metrics as meters
from activities.failures import translate_errors
from activities.ports.clusters import ClusterPorts
from activities.ports.registry import OpenRollout
from activities.rollout.cluster_calls import HISTORY_FRESH, ClusterActivities
from activities.tickets.warrants import Warrants
from models.base import duration_text
from models.cluster.jobs import outside_quotas, standing_gpus
from models.cluster.policy import Policy, Requests
from models.cluster.quota import gate_text, why_no_jobs
from models.cluster.snapshot import Snapshot
from models.errors import BackstopError, Refusal, Unavailable
from models.flex.flex_now import share_expected
from models.planning.backing import back
from models.planning.ceiling import ceiling_of
from models.planning.grants import Granted, GrantOutcome, moved_values, raises, room
from models.requests.messages import (
    AssessRequest,
    KeepRequest,
    Owners,
    OwnersRequest,
    Prepared,
    PrepareRequest,
    ThroughRequest,
)
from models.requests.state import Assessment, Elsewhere, QuotaAsk
from models.rollout.effects import Change, EffectKind, Fence, writes
from models.rollout.stages import Stage
from models.temporal_names import GRANT_UPDATE, rollout_workflow_id
from models.texts import gpus_text, verb_of

_PATIENCE = timedelta(seconds=45)
OwedIn = Callable[[str, datetime], Mapping[str, int]]
"""Returns the GPUs that are owed to a cluster's first quotas, by leaf; they come before later requests."""
_NAMED = 5
"""The most other clusters that a sentence names."""


@dataclass(eq=False)
class RequestActivities:
    client: Client
    ports: ClusterPorts
    clusters: ClusterActivities
    owed: OwedIn = lambda _, __: MappingProxyType({})
    warrants: Warrants | None = None

    @activity.defn(name="assess_request", no_thread_cancel_exception=True)
    def assess(self, request: AssessRequest) -> Assessment:
        """Assess whether it fits now. Errors: Refusal for a cluster or a quota that does not exist."""
        with translate_errors():
            if self.warrants is not None:
                self.warrants.admit_request(request.ask)
            ask, now = request.ask, request.at
            opened = self.ports.registry.open_rollout_of(ask.cluster)
            snapshot, policy = self._present(ask.cluster, now, opened)
            quota = snapshot.tree.by_team.get(ask.team)
            if quota is None or ask.team not in snapshot.tree.leaves:
                what = (
                    "is the sum of its sub-quotas: name one of those"
                    if quota
                    else "does not exist: ask an owner of the cluster to create it"
                )
                raise Refusal(f"the quota of {ask.team!r} in cluster {ask.cluster} {what}")
            owners = _owners(policy, opened)
            ticketed = None if self.warrants is None else self.warrants.is_required
            assessment = Assessment(
                fits=False, owners=owners, quota_gpus=quota.gpus, ticketed=ticketed, by_roles=self._by_roles
            )
            if ask.namespace and not quota.admits(ask.namespace):
                whose = f"namespace {ask.namespace} may not target the quota of {ask.team}"
                return assessment.but(why=f"{whose}: only {gate_text(ask.team, quota.namespaces or ())} may")
            if not owners and not self._by_roles:
                why = f"nobody owns {ask.cluster}: name its owners in its policy (owners: [...])"
                return assessment.but(why=why)
            barred = self._policy_bar(opened, policy)
            if barred:
                return assessment.but(why=barred, **self._alternatives(ask, snapshot, now))
            owed = self.owed(ask.cluster, now)
            claimed = _claimed_snapshot(snapshot, opened)
            space = room(_beside_owed(claimed, owed), policy, ask.team, ask.gpus)
            taken = claimed.tree.assigned_gpus() - snapshot.tree.assigned_gpus()
            why = space.why
            if why and taken > 0:
                kept = f"{gpus_text(taken)} {verb_of(taken)} kept"
                why += f"; {kept} for teams whose quotas the open rollout has cut"
            why += _owed_words(owed) if why else ""
            assessment = assessment.but(room=space, fits=space.fits_gpus == ask.gpus, why=why)
            return assessment if assessment.fits else assessment.but(**self._alternatives(ask, snapshot, now))

    @activity.defn(name="request_owners", no_thread_cancel_exception=True)
    def owners(self, request: OwnersRequest) -> Owners:
        """Return who decides on requests for the cluster today."""
        with translate_errors():
            facts = self.ports.registry.facts(request.cluster)
            return Owners(names=_owners(facts.policy, self.ports.registry.open_rollout_of(request.cluster)))

    @property
    def _by_roles(self) -> bool:
        return self.warrants is not None and self.warrants.by_roles

    def _present(
        self, cluster: str, now: datetime, opened: OpenRollout | None, within: timedelta = timedelta(0)
    ) -> tuple[Snapshot, Policy]:
        """Return the cluster now and its policy, with the buffer of its open rollout, which writes grants by that."""
        if opened is None or opened.shadow:
            return self.clusters.present(cluster, now, within=within)
        snapshot, policy = self.clusters.present(cluster, now, opened.ceiling, within)
        return snapshot.but(completed_rollouts=opened.baseline.completed_rollouts), policy

    def _policy_bar(self, opened: OpenRollout | None, policy: Policy) -> str:
        if opened is None or policy.requests is Requests.WAIT or _takes_grants(opened):
            return ""
        return f"{_opened_text(opened)}, and the policy refuses requests until {_passes(opened)}"

    def _alternatives(self, ask: QuotaAsk, snapshot: Snapshot, now: datetime) -> dict[str, Any]:
        usage = self.ports.usage.latest([ask.cluster], now).get(ask.cluster, {})
        jobs = self.ports.jobs.jobs([ask.cluster], now).get(ask.cluster, ())
        outside = outside_quotas(jobs, snapshot.tree.leaves)
        return {
            "assessed": True,
            "flex_gpus": share_expected(snapshot, usage, ask.team, ask.gpus, standing_gpus(outside)),
            "elsewhere": self._other_clusters(ask, now),
        }

    def _other_clusters(self, ask: QuotaAsk, now: datetime) -> tuple[Elsewhere, ...]:
        """Return other clusters under their ceiling: first where the team has a quota, then where all of it fits."""
        wanted = self.ports.registry.facts(ask.cluster).gpu_model
        clusters = []
        for name in self.ports.registry.names():
            if name == ask.cluster:
                continue
            try:
                opened = self.ports.registry.open_rollout_of(name)
                snapshot, policy = self._present(name, now, opened, HISTORY_FRESH)
            except Unavailable:
                raise
            except BackstopError:
                continue  # its health is unknown, or it makes no sense: nothing to offer
            claimed = _beside_owed(_claimed_snapshot(snapshot, opened), self.owed(name, now))
            headroom = max(0, ceiling_of(claimed, policy) - claimed.tree.assigned_gpus())
            has = ask.team in snapshot.tree.leaves
            if headroom and has:
                may_ask = (_owners(policy, opened) or self._by_roles) and not self._policy_bar(opened, policy)
                headroom = room(claimed, policy, ask.team, headroom).fits_gpus if may_ask else 0
            elif headroom:
                headroom = min(headroom, back(claimed).surplus_gpus)
            if headroom:
                model = self.ports.registry.facts(name).gpu_model
                clusters.append(Elsewhere(cluster=name, gpu_model=model, headroom_gpus=headroom, has_quota=has))
        clusters.sort(
            key=lambda other: (
                not other.has_quota,
                other.headroom_gpus < ask.gpus,
                other.gpu_model != wanted,
                -other.headroom_gpus,
                other.cluster,
            )
        )
        return tuple(clusters[:_NAMED])

    @activity.defn(name="prepare_grant", no_thread_cancel_exception=True)
    def prepare(self, request: PrepareRequest) -> Prepared:
        """Return how the order can be written now, if it can, by the ledger at this moment."""
        with translate_errors():
            opened = self.ports.registry.open_rollout_of(request.cluster)
            reading = {quota.team: quota for quota in self.ports.quotas.read(request.cluster).quotas}
            order, asks = request.order, reading.get(request.order.team)
            theirs = sorted(t for t, hand in request.hands.items() if t not in reading or reading[t].hand != hand)
            if order.ends and theirs:
                return Prepared(
                    outcome=GrantOutcome.NO,
                    said=f"others have changed the quota of {', '.join(theirs)} since the grant",
                )
            if not order.ends and request.namespace and asks and not asks.as_quota().admits(request.namespace):
                why = f"the quota of {order.team} no longer admits jobs of namespace {request.namespace}"
                return Prepared(outcome=GrantOutcome.NO, said=why)
            prepared = self._prepare_alone(request) if opened is None else self._prepare_beside(request, opened)
            above = {*prepared.raised, order.team} if prepared.change is not None else {order.team}
            return prepared.but(hands={team: reading[team].hand for team in sorted(above) if team in reading})

    def _prepare_beside(self, request: PrepareRequest, opened: OpenRollout) -> Prepared:
        """Prepare while a rollout is open: it makes every write once it is monitored; until then, a request waits."""
        if _takes_grants(opened):
            barred = self._owed_bar(request, opened)
            return Prepared(outcome=GrantOutcome.NO, said=barred) if barred else Prepared(through=True)
        if not request.order.ends:
            policy = self.ports.registry.facts(request.cluster).policy
            if barred := self._policy_bar(opened, policy):
                return Prepared(outcome=GrantOutcome.NO, said=barred)
        return Prepared(said=f"{_opened_text(opened)}, and requests wait until {_passes(opened)}")

    def _owed_bar(self, request: PrepareRequest, opened: OpenRollout) -> str:
        """Return why owed first quotas bar the order: the rollout knows the quotas it writes, and not what is owed."""
        order, cluster = request.order, request.cluster
        owed = {} if order.ends else self.owed(cluster, request.at)
        if not owed:
            return ""
        snapshot, policy = self._present(cluster, request.at, opened)
        why = room(_beside_owed(_claimed_snapshot(snapshot, opened), owed), policy, order.team, order.gpus).why
        return why + _owed_words(owed) if why else ""

    def _prepare_alone(self, request: PrepareRequest) -> Prepared:
        order, cluster = request.order, request.cluster
        try:
            snapshot, policy = self.clusters.present(cluster, request.at)
        except Refusal as error:
            return Prepared(said=error.message)
        values = snapshot.values
        if order.team not in snapshot.tree.leaves:
            why = why_no_jobs(order.team, has_children=order.team in snapshot.tree.children)
            return Prepared(outcome=GrantOutcome.NO, said=f"{cluster}: {why}")
        if not order.ends:
            age = request.at - (snapshot.health_at or request.at)
            if age >= policy.stale_after:
                minutes = timedelta(minutes=max(1, round(age.total_seconds() / 60)))
                return Prepared(said=f"the last health sample of {cluster} is {duration_text(minutes)} old")
            owed = self.owed(cluster, request.at)
            why = room(_beside_owed(snapshot, owed), policy, order.team, order.gpus).why
            if why:
                return Prepared(outcome=GrantOutcome.NO, said=why + _owed_words(owed))
        raised = order.raised or raises(snapshot.tree, values, order.team, order.gpus)
        change = Change(
            cluster=cluster,
            kind=EffectKind.GRANT,
            fence=Fence(rollout=f"request/{order.request}", counter=request.fence),
            expected_generation=snapshot.generation,
            writes=writes(snapshot.tree, values, raised, ends=order.ends),
            only_ours=order.ends,
        )
        return Prepared(change=change, raised=raised)

    @activity.defn(name="grant_through_rollout")
    async def through(self, request: ThroughRequest) -> Granted:
        """Return the answer of the open rollout. Errors: ApplicationError of type Unavailable, to be tried again."""
        order = request.order
        handle = self.client.get_workflow_handle(rollout_workflow_id(request.cluster))
        try:
            answer: Granted = await asyncio.wait_for(
                handle.execute_update(
                    GRANT_UPDATE,
                    order,
                    id=f"{order.request}/{order.ends}/{activity.info().activity_id}",
                    result_type=Granted,
                    rpc_timeout=_PATIENCE,
                ),
                _PATIENCE.total_seconds(),
            )
        except WorkflowUpdateFailedError as error:
            why = str(error.cause) or "the rollout refused it"
            return Granted(request=order.request, ends=order.ends, outcome=GrantOutcome.LATER, said=why)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                why = f"the rollout of {request.cluster} has just ended"
                return Granted(request=order.request, ends=order.ends, outcome=GrantOutcome.LATER, said=why)
            raise ApplicationError(str(error), type=Unavailable.__name__) from error
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            raise ApplicationError("the rollout did not answer in time", type=Unavailable.__name__) from error
        return answer

    @activity.defn(name="keep_request", no_thread_cancel_exception=True)
    def keep(self, request: KeepRequest) -> None:
        """Store the request in the book, and archive its entries, once per key."""
        with translate_errors():
            state = request.request
            self.ports.registry.keep_request(state.but(outbox=(), mail=()), state.outbox)
            meters.requests.add(1, {"cluster": state.ask.cluster, "stage": state.stage.value})


def _owners(policy: Policy, opened: OpenRollout | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*policy.owners, *([opened.owner] if opened else []))))


def _takes_grants(opened: OpenRollout) -> bool:
    """Return whether the rollout writes grants itself: monitored ones do, any other is in their way."""
    return opened.stage == Stage.MONITORED and not opened.shadow


def _opened_text(opened: OpenRollout) -> str:
    return f"a {'shadow ' * opened.shadow}rollout of {opened.cluster} is {opened.stage}"


def _passes(opened: OpenRollout) -> str:
    """Return when the rollout is no longer in the way of grants."""
    return "that is over" if opened.shadow else "that is monitored or over"


def _claimed_snapshot(snapshot: Snapshot, opened: OpenRollout | None) -> Snapshot:
    """Return the claimed values: the quotas, and what an open rollout took from them."""
    if opened is None or opened.shadow:
        return snapshot
    before = opened.baseline.values
    return snapshot.with_values({quota.team: max(quota.gpus, before.get(quota.team, 0)) for quota in snapshot.quotas})


def _beside_owed(snapshot: Snapshot, owed: Mapping[str, int]) -> Snapshot:
    """Return the snapshot as if what is owed were granted."""
    values = snapshot.values
    for team, gpus in sorted(owed.items()):
        if team in snapshot.tree.leaves:
            values |= moved_values(values, raises(snapshot.tree, values, team, gpus))
    return snapshot.with_values(values)


def _owed_words(owed: Mapping[str, int]) -> str:
    gpus = sum(owed.values())
    return f"; {gpus_text(gpus)} {verb_of(gpus)} kept for the rest of the cluster's first quotas" if owed else ""
