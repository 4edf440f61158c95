"""A fleet rollout's calls: plan every cluster, pick the next from fresh snapshots, open and follow their rollouts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError

from activities.bad_rows import its_own_trouble, making_sense
from activities.failures import translate_errors
from activities.ports.clusters import ClusterPorts
from activities.ports.warrants import Drawn
from activities.rollout.cluster_calls import HISTORY_FRESH, ClusterActivities
from activities.tickets.warrants import Warrants
from activities.workflow_starts import launch_rollout
from models.audit_chain import AuditEntry
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
from models.fleet.order import pick, plan_hash, prospect_of, take_prospects, unplanned_prospect
from models.fleet.pace_changes import budget_of
from models.planning.plan import Envelope, Plan, envelope_of, make_plan
from models.rollout.commands import CommandRequest
from models.rollout.messages import CommandAnswer, LaunchRequest
from models.rollout.stages import Command, Stage
from models.rollout.stuck import LAUNCH
from models.temporal_names import rollout_workflow_id

_FRESH = timedelta(minutes=10)
"""The age from which a plan that uses usage is made again, because usage has no version to compare."""
_PATIENCE = timedelta(seconds=30)
_ROUND_SECONDS = 1800.0
"""Seconds for which one call follows the members before its workflow calls it again."""
_REHEARSED = "a shadow rollout of the cluster is open, and a fleet rollout does not end it: abort or close it first"
_ADMISSION_SECONDS, _LOOK_SECONDS = 10.0, 0.1


class FleetActivities:
    def __init__(
        self, client: Client, ports: ClusterPorts, clusters: ClusterActivities, warrants: Warrants | None = None
    ) -> None:
        self._warrants = warrants if warrants is not None and warrants.can_verify else None
        self._client = client
        self._ports = ports
        self._clusters = clusters
        self._kept: dict[str, tuple[Any, datetime, Prospect]] = {}
        """Prospects by cluster, each with its basis; lost with the process."""

    # --- planning -------------------------------------------------------------------------------

    @activity.defn(name="plan_fleet", no_thread_cancel_exception=True)
    def plan_fleet(self, request: FleetPlanRequest) -> FleetPlan:
        """Plan every cluster as of today; keep what an approval approves in the ledger, by the fleet rollout's id."""
        with translate_errors():
            if self._warrants is not None:
                self._warrants.fleet(request.launch)
            names = self._ports.registry.names()
            rollouts = self._open_members(names, self._rehearsals(request.launch.shadow))
            own = {} if request.launch.kept is None else self._ports.registry.of_fleet(request.launch.kept.fleet)
            prospects, plans = [], {}
            for name in names:
                prospect, plan = self._plan_one(name, request.launch.policy, request.at, rollouts.get(name))
                prospects.append(_with_own(prospect, own.get(name)))
                if plan is not None:
                    plans[name] = envelope_of(plan)
            taken = take_prospects(request.launch, prospects)
            kept = {p.cluster: plans[p.cluster] for p in taken if p.cluster in plans}
            self._ports.registry.keep_fleet_plan(request.launch.fleet, kept)
            wanted = request.launch.pilots if request.launch.kept is None else ()
            missing = tuple(sorted(set(wanted) - set(names)))
            if self._warrants is not None:
                self._warrants.record_draw(request.launch.fleet, _fleet_drawn(plan_hash(taken), taken, plans))
            return FleetPlan(fleet=request.launch.fleet, hash=plan_hash(taken), clusters=taken, missing=missing)

    def _plan_one(
        self, cluster: str, policy: Mapping[str, Any], now: datetime, rollout: Noted | None
    ) -> tuple[Prospect, Plan | None]:
        """Return what a rollout of the cluster would do now; one that cannot be planned says why, and comes last."""
        try:
            snapshot, own = self._clusters.present(cluster, now, policy, HISTORY_FRESH)
            with making_sense(cluster, "its quotas"):
                plan = make_plan(snapshot, own)
        except BackstopError as error:
            its_own_trouble(error, self._ports.registry)
            return unplanned_prospect(cluster, error.message, rollout), None
        return prospect_of(plan, rollout), plan

    # --- picking --------------------------------------------------------------------------------

    @activity.defn(name="pick_clusters", no_thread_cancel_exception=True)
    def pick(self, request: PickRequest) -> PickAnswer:
        """Make a new order from today's snapshots, and pick the first that can start now."""
        with translate_errors():
            names = [candidate.cluster for candidate in request.candidates]
            rehearsed = self._rehearsals(request.shadow)
            joined = self._open_members(names, rehearsed)
            free = [name for name in names if name not in joined]
            windows = self._ports.calendar.windows(free)
            # An unreadable entry of a calendar may be a freeze.
            why_not = {**dict.fromkeys(rehearsed, _REHEARSED), **windows.senseless}
            prospects = [p.but(why_not=p.why_not or why_not.get(p.cluster, "")) for p in self._prospects(free, request)]
            answer = pick(request, prospects, windows, self._ports.registry.booked_gpus(request.at))
            return answer.but(joined=joined)

    def _rehearsals(self, shadow: bool) -> Set[str]:
        """Return clusters with an open shadow rollout: no members of a fleet rollout that writes."""
        opened = {} if shadow else self._ports.registry.open_clusters()
        return {cluster for cluster, (_, rehearses) in opened.items() if rehearses}

    def _open_members(self, names: Sequence[str], rehearsed: Set[str]) -> dict[str, Noted]:
        """Return the open rollouts of these clusters that may be members."""
        return self._ports.registry.newest([name for name in names if name not in rehearsed])

    def _prospects(self, names: Sequence[str], request: PickRequest) -> list[Prospect]:
        """Return today's prospects; make new ones if quotas, health or policy have changed, or the last are too old."""
        samples, versions = self._ports.health.read(names), self._ports.quotas.versions(names)
        now = request.at
        answer = []
        for name in names:
            sample = samples.get(name)
            seen = (versions.get(name), None if sample is None else sample.islands, repr(request.policy))
            kept = self._kept.get(name)
            if kept is None or kept[0] != seen or now - kept[1] > _FRESH:
                kept = seen, now, self._plan_one(name, request.policy, now, None)[0]
                if not kept[2].why_not:
                    self._kept[name] = kept
            answer.append(kept[2])
        return answer

    # --- members --------------------------------------------------------------------------------

    @activity.defn(name="start_members")
    async def start(self, request: StartRequest) -> StartAnswer:
        """Open the rollouts, each with its plan. Repeating it changes nothing: an id is opened once."""
        refusals = await asyncio.gather(*(self._start_one(request, entrant) for entrant in request.entrants))
        return StartAnswer(refused={e.cluster: why for e, why in zip(request.entrants, refusals, strict=True) if why})

    async def _start_one(self, request: StartRequest, entrant: Entrant) -> str:
        """Return why it was refused; empty if it is open. Errors: ApplicationError, Unavailable."""
        launch = request.launch
        try:
            policy = await asyncio.to_thread(self._within_budget, request, entrant.cluster)
        except Refusal as error:
            return error.message  # the others of the batch start
        except BackstopError as error:
            raise ApplicationError(f"{entrant.cluster}: {error}", type=type(error).__name__) from error
        member = LaunchRequest(
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
        summary = f"{entrant.cluster}, owner {launch.owner}, of fleet rollout {launch.fleet}"
        try:
            launching = launch_rollout(self._client, member, summary, _PATIENCE)
            answer = await asyncio.wait_for(launching, _PATIENCE.total_seconds())
        except (RPCError, TimeoutError, WorkflowUpdateFailedError, WorkflowAlreadyStartedError) as error:
            raise ApplicationError(f"{entrant.cluster}: {error}", type=Unavailable.__name__) from error
        if answer.rollout != entrant.rollout:
            return f"a rollout of the cluster is already open ({answer.rollout})"
        return "" if answer.launched else answer.reason

    def _within_budget(self, request: StartRequest, cluster: str) -> dict[str, Any]:
        """Return the policy on top of the cluster's: with the fleet's budget, unless the cluster's own is tighter.

        The ledger books each write against it before it is made, even if others move GPUs at that time.
        """
        launch = request.launch
        own = merged_policy(self._ports.registry.facts(cluster).policy, launch.policy)
        return {**launch.policy, **budget_of(own, launch.pace)}

    @activity.defn(name="follow_members")
    async def follow(self, request: FollowRequest) -> FollowAnswer:
        """Return when members differ from what is known, or after half an hour."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + _ROUND_SECONDS
        # A rollout that is opened and ended between two looks is news too: only those that had ended before are not.
        own = {*request.known, *request.unseen}
        over = {
            rollout_id
            for rollout_id, rollout in (await self._read_noted(request)).items()
            if rollout_id not in own and Stage(rollout.stage).has_ended
        }
        while loop.time() < ends:
            with contextlib.suppress(TimeoutError):  # first, so that changes that come together are returned together
                await asyncio.wait_for(activity.wait_for_worker_shutdown(), request.every_seconds)
                return FollowAnswer()
            now = await self._read_noted(request)
            joined = await asyncio.to_thread(self._joined_rollouts, request) if request.waiting else {}
            activity.heartbeat()
            changed = {
                name: rollout
                for name, rollout in now.items()
                if name not in over and rollout != request.known.get(name)
            }
            if changed or joined:
                return FollowAnswer(changed=changed, joined=joined)
        return FollowAnswer()

    def _joined_rollouts(self, request: FollowRequest) -> dict[str, Noted]:
        with translate_errors():
            opened = self._ports.registry.open_clusters()
            there = [name for name in request.waiting if name in opened and (request.shadow or not opened[name][1])]
            return self._ports.registry.newest(there) if there else {}

    async def _read_noted(self, request: FollowRequest) -> dict[str, Noted]:
        with translate_errors():
            return await asyncio.to_thread(self._ports.registry.noted_rollouts, tuple(request.known), request.fleet)

    @activity.defn(name="abort_members")
    async def abort(self, request: AbortRequest) -> AbortAnswer:
        """Abort the rollouts; return why some refused."""
        refusals = await asyncio.gather(*(self._abort_one(request, entrant) for entrant in request.clusters))
        return AbortAnswer(refused={e.cluster: why for e, why in zip(request.clusters, refusals, strict=True) if why})

    async def _abort_one(self, request: AbortRequest, entrant: Entrant) -> str:
        handle = self._client.get_workflow_handle(rollout_workflow_id(entrant.cluster))
        try:
            word = await asyncio.to_thread(self._abort_warrant, entrant.cluster)
        except BackstopError as error:
            return error.message
        asked = CommandRequest(actor=request.actor, reason=request.reason, warrant=word)
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

    def _abort_warrant(self, cluster: str) -> str:
        """Return the warrant that aborts the rollout: that of its fleet rollout's abort; empty without keys."""
        opened = self._ports.registry.open_rollout_of(cluster)
        if self._warrants is None or opened is None:
            return ""
        return self._warrants.word(opened.fleet, "fleet.abort")

    @activity.defn(name="record_fleet", no_thread_cancel_exception=True)
    def record(self, request: FleetRecord) -> None:
        """Archive the entries, once per key."""
        with translate_errors():
            for entry in request.entries:
                self._launch_admitted(entry)
            self._ports.registry.archive(request.entries)

    def _launch_admitted(self, entry: AuditEntry) -> None:
        """Wait a while for the ticket that proves who launches: `plan_fleet` admits it, beside this call."""
        nonce = str(entry.data.get("warrant", "")) if entry.data.get("command") == LAUNCH else ""
        ends = time.monotonic() + _ADMISSION_SECONDS
        while self._warrants is not None and nonce and self._warrants.book.warrant(nonce) is None:
            if time.monotonic() > ends:
                return  # it was refused, or the ledger is away: then it is asserted
            time.sleep(_LOOK_SECONDS)


def _fleet_drawn(hash: str, taken: Sequence[Prospect], plans: Mapping[str, Envelope]) -> Drawn:
    """Return what an approval of the fleet's plan freezes: its clusters, and the envelope of each."""
    envelopes = {
        p.cluster: plans[p.cluster].model_dump(mode="json") for p in taken if p.cluster in plans and p.plan_hash
    }
    rows = [[prospect.cluster, prospect.wave.value, prospect.plan_hash] for prospect in taken]
    return Drawn("fleet", hash, {"clusters": [p.cluster for p in taken], "rows": rows, "envelopes": envelopes})


def _with_own(prospect: Prospect, own: tuple[Noted, datetime] | None) -> Prospect:
    """Add the rollout of the fleet rollout that is taken over, unless somebody else has opened one since."""
    if own is None or prospect.rollout not in ("", own[0].rollout):
        return prospect
    rollout, opened_at = own
    return prospect.but(**rollout.model_dump(), own=True, started_at=opened_at)
