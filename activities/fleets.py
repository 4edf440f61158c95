"""A fleet rollout's calls: plan every cluster, pick the next from fresh snapshots, open and follow their rollouts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError

from activities.clusters import HISTORY_FRESH, ClusterActivities
from activities.failures import translated
from activities.ports import CalendarPort, HealthPort, QuotaPort, RegistryPort
from activities.sense import its_own_trouble, making_sense
from models.cluster.fleet_file import merged_policy
from models.errors import BackstopError, Refusal, Unavailable
from models.fleet.messages import (
    AbortAnswer,
    AbortRequest,
    Entrant,
    FleetPlan,
    FleetPlanRequest,
    FleetRecord,
    FollowAnswer,
    FollowRequest,
    Noted,
    PickAnswer,
    PickRequest,
    Prospect,
    StartAnswer,
    StartRequest,
)
from models.fleet.order import pick, plan_hash, prospect_of, taken_by
from models.fleet.state import Wave
from models.planning.plan import Plan, envelope_of, make_plan
from models.rollout.commands import CommandRequest
from models.rollout.messages import CommandAnswer, LaunchAnswer, LaunchRequest, RolloutInput
from models.rollout.stages import Command, Stage
from models.wire import LAUNCHED_UPDATE, ROLLOUT_WORKFLOW, TASK_QUEUE, rollout_workflow_id

_FRESH = timedelta(minutes=10)
"""Use has no version to compare: a plan made from it is made anew after this long."""
_PATIENCE = timedelta(seconds=30)
_ROUND_SECONDS = 1800.0
"""How long one call follows the members before its workflow calls it again."""
_KEPT_AT_ONCE = 200


class FleetActivities:
    def __init__(
        self,
        client: Client,
        quotas: QuotaPort,
        health: HealthPort,
        calendar: CalendarPort,
        registry: RegistryPort,
        clusters: ClusterActivities,
    ) -> None:
        self._client = client
        self._quotas = quotas
        self._health = health
        self._calendar = calendar
        self._registry = registry
        self._clusters = clusters
        self._kept: dict[str, tuple[Any, datetime, Prospect]] = {}
        """Prospects by cluster, each with what it was made from; lost with the process."""

    # --- planning -------------------------------------------------------------------------------

    @activity.defn(name="plan_fleet", no_thread_cancel_exception=True)
    def plan_fleet(self, request: FleetPlanRequest) -> FleetPlan:
        """Every cluster's plan of today; what is approved with it is kept in the ledger, by the fleet rollout's id."""
        with translated():
            names = self._registry.names()
            rollouts = self._registry.newest(names)
            own = {} if request.launch.kept is None else self._registry.of_fleet(request.launch.kept.fleet)
            prospects, plans = [], {}
            for name in names:
                prospect, plan = self._planned(name, request.launch.policy, request.at, rollouts.get(name))
                prospects.append(_with_own(prospect, own.get(name)))
                if plan is not None:
                    plans[name] = envelope_of(plan)
            taken = taken_by(request.launch, prospects)
            kept = [p.cluster for p in taken if p.cluster in plans]
            for start in range(0, len(kept), _KEPT_AT_ONCE):
                part = {name: plans[name] for name in kept[start : start + _KEPT_AT_ONCE]}
                self._registry.keep_fleet_plan(request.launch.fleet, part)
            wanted = request.launch.pilots if request.launch.kept is None else ()
            missing = tuple(sorted(set(wanted) - set(names)))
            return FleetPlan(fleet=request.launch.fleet, hash=plan_hash(taken), clusters=taken, missing=missing)

    def _planned(
        self, cluster: str, policy: Mapping[str, Any], now: datetime, rollout: Noted | None
    ) -> tuple[Prospect, Plan | None]:
        """What a rollout of the cluster would do now; one that cannot be planned says why, and comes last."""
        try:
            snapshot, own = self._clusters.present(cluster, now, policy, HISTORY_FRESH)
            with making_sense(cluster, "its quotas"):
                plan = make_plan(snapshot, own)
        except BackstopError as error:
            its_own_trouble(error, self._registry)
            more = {} if rollout is None else rollout.model_dump()
            return Prospect(cluster=cluster, wave=Wave.AFTER, headroom=-1.0, why_not=error.message, **more), None
        return prospect_of(plan, rollout), plan

    # --- picking --------------------------------------------------------------------------------

    @activity.defn(name="pick_clusters", no_thread_cancel_exception=True)
    def pick(self, request: PickRequest) -> PickAnswer:
        """The order made anew from today's snapshots, and the first of it that can start now."""
        with translated():
            names = [c.cluster for c in request.candidates]
            joined = self._registry.newest(names)
            free = [name for name in names if name not in joined]
            windows = self._calendar.windows(free)
            # What nobody can read of a calendar may be a freeze.
            prospects = [
                p.model_copy(update={"why_not": p.why_not or windows.senseless.get(p.cluster, "")})
                for p in self._prospects(free, request)
            ]
            answer = pick(request, prospects, windows, self._registry.booked(request.at))
            return answer.model_copy(update={"joined": joined})

    def _prospects(self, names: Sequence[str], request: PickRequest) -> list[Prospect]:
        """Today's, made anew where the quotas, the health or the policy have changed, or it was made long ago."""
        samples, versions = self._health.read(names), self._quotas.versions(names)
        now = request.at
        answer = []
        for name in names:
            sample = samples.get(name)
            seen = (versions.get(name), None if sample is None else sample.islands, repr(request.policy))
            kept = self._kept.get(name)
            if kept is None or kept[0] != seen or now - kept[1] > _FRESH:
                kept = seen, now, self._planned(name, request.policy, now, None)[0]
                if not kept[2].why_not:
                    self._kept[name] = kept
            answer.append(kept[2])
        return answer

    # --- members --------------------------------------------------------------------------------

    @activity.defn(name="start_members")
    async def start(self, request: StartRequest) -> StartAnswer:
        """The rollouts are open, each with its plan. Repeating it changes nothing: an id is opened once."""
        refusals = await asyncio.gather(*(self._started(request, e) for e in request.entrants))
        return StartAnswer(refused={e.cluster: why for e, why in zip(request.entrants, refusals, strict=True) if why})

    async def _started(self, request: StartRequest, entrant: Entrant) -> str:
        """Why it was refused; empty: it is open. Errors: ApplicationError of type Unavailable, to be tried again."""
        launch = request.launch
        try:
            policy = await asyncio.to_thread(self._within_budget, request, entrant.cluster)
        except Refusal as error:
            return error.message  # the others of the batch start
        except BackstopError as error:
            raise ApplicationError(f"{entrant.cluster}: {error}", type=type(error).__name__) from error
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            ROLLOUT_WORKFLOW,
            RolloutInput(
                launch=LaunchRequest(
                    cluster=entrant.cluster,
                    rollout=entrant.rollout,
                    owner=launch.owner,
                    actor=launch.actor or launch.owner,
                    reason=launch.reason,
                    shadow=launch.shadow,
                    policy=policy,
                    fleet=launch.fleet,
                    approved_by=request.approved_by,
                )
            ),
            id=rollout_workflow_id(entrant.cluster),
            task_queue=TASK_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary=f"{entrant.cluster}, owner {launch.owner}, of fleet rollout {launch.fleet}",
        )
        try:
            answer: LaunchAnswer = await asyncio.wait_for(
                self._client.execute_update_with_start_workflow(
                    LAUNCHED_UPDATE, start_workflow_operation=start, result_type=LaunchAnswer, rpc_timeout=_PATIENCE
                ),
                _PATIENCE.total_seconds(),
            )
        except (RPCError, TimeoutError, WorkflowUpdateFailedError, WorkflowAlreadyStartedError) as error:
            raise ApplicationError(f"{entrant.cluster}: {error}", type=Unavailable.__name__) from error
        if answer.rollout != entrant.rollout:
            return f"a rollout of it is open already ({answer.rollout})"
        return "" if answer.launched else answer.reason

    def _within_budget(self, request: StartRequest, cluster: str) -> dict[str, Any]:
        """What lies over the cluster's policy: the fleet's budget too, where the cluster's own is not tighter.

        The ledger books each write against it before it is made, whoever else moves GPUs at that time.
        """
        launch = request.launch
        own = merged_policy(self._registry.facts(cluster).policy, launch.policy)
        hour, day = launch.pace.budget_per_hour, launch.pace.budget_per_day
        return {
            **launch.policy,
            "max_moved_gpus": min(own.max_moved_gpus, hour),
            "max_moved_gpus_day": day if own.max_moved_gpus_day is None else min(own.max_moved_gpus_day, day),
        }

    @activity.defn(name="follow_members")
    async def follow(self, request: FollowRequest) -> FollowAnswer:
        """Returns when members are not as they were known, or after half an hour."""
        ends = time.monotonic() + _ROUND_SECONDS
        # One that is opened and ended between two looks is news too: only what had ended before is none.
        own = {*request.known, *request.unseen}
        over = {r for r, rollout in (await self._noted(request)).items() if r not in own and Stage(rollout.stage).ended}
        while time.monotonic() < ends:
            with contextlib.suppress(TimeoutError):  # first, so that changes that come together are told together
                await asyncio.wait_for(activity.wait_for_worker_shutdown(), request.every_seconds)
                return FollowAnswer()
            now = await self._noted(request)
            joined = await asyncio.to_thread(self._joined, request.waiting) if request.waiting else {}
            activity.heartbeat()
            changed = {r: rollout for r, rollout in now.items() if r not in over and rollout != request.known.get(r)}
            if changed or joined:
                return FollowAnswer(changed=changed, joined=joined)
        return FollowAnswer()

    def _joined(self, waiting: Sequence[str]) -> dict[str, Noted]:
        """Rollouts that are open in these clusters."""
        with translated():
            opened = self._registry.open_clusters()
            there = [name for name in waiting if name in opened]
            return self._registry.newest(there) if there else {}

    async def _noted(self, request: FollowRequest) -> dict[str, Noted]:
        with translated():
            return await asyncio.to_thread(self._registry.noted, tuple(request.known), request.fleet)

    @activity.defn(name="abort_members")
    async def abort(self, request: AbortRequest) -> AbortAnswer:
        """The rollouts have taken an abort, or say why not."""
        refusals = await asyncio.gather(*(self._aborted(request, e) for e in request.clusters))
        return AbortAnswer(refused={e.cluster: why for e, why in zip(request.clusters, refusals, strict=True) if why})

    async def _aborted(self, request: AbortRequest, entrant: Entrant) -> str:
        handle = self._client.get_workflow_handle(rollout_workflow_id(entrant.cluster))
        asked = CommandRequest(actor=request.actor, reason=request.reason)
        try:
            await handle.execute_update(
                Command.ABORT,
                asked,
                id=f"{entrant.rollout}/abort/{activity.info().activity_id}",
                result_type=CommandAnswer,
                rpc_timeout=_PATIENCE,
            )
        except WorkflowUpdateFailedError as error:
            return str(error.cause) or "refused"
        except (RPCError, TimeoutError) as error:
            return str(error)
        return ""

    @activity.defn(name="record_fleet", no_thread_cancel_exception=True)
    def record(self, request: FleetRecord) -> None:
        """The entries are archived, once per key."""
        with translated():
            self._registry.archive(request.entries)


def _with_own(p: Prospect, own: tuple[Noted, datetime] | None) -> Prospect:
    """With the rollout of the fleet rollout that is taken over, unless somebody else has opened one since."""
    if own is None or p.rollout not in ("", own[0].rollout):
        return p
    rollout, opened_at = own
    return p.model_copy(update={**rollout.model_dump(), "own": True, "started_at": opened_at})
