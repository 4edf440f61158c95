"""The one typed door to Temporal. Everything people do goes through here; nothing here decides."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import uuid
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import TypeAdapter
from temporalio.api.errordetails.v1 import WorkflowNotReadyFailure
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from client.audit import AuditRecord, audit_of_run
from client.connection import TemporalTarget, connect, current_actor, find_target
from client.doctor import Check, temporal_checks, watch_check
from client.versions import Build, builds, use
from models.audit import AuditEntry, AuditKind, ChainedEntry, ChainHead
from models.base import Model
from models.buffers.hourly_health import HealthHours
from models.cluster.fleet_file import ClusterSpec, Fleet
from models.cluster.jobs import ClusterJob
from models.cluster.policy import Policy
from models.cluster.readings import HealthSample
from models.cluster.snapshot import Snapshot
from models.cluster.sources import SlurmSource
from models.cluster.windows import Declaration, Declared, Entry
from models.errors import BY_NAME, BackstopError, Refusal, Unavailable
from models.fleet.commands import FleetCommand, FleetCommandRequest
from models.fleet.messages import (
    FLEET_ID,
    FLEET_STATUS_QUERY,
    FLEET_WORKFLOW,
    FleetCommandAnswer,
    FleetInput,
    FleetLaunch,
    FleetLaunchAnswer,
    FleetPlan,
    FleetStatus,
)
from models.fleet.state import FLEET
from models.flex.division import FlexMode
from models.flex.now import FlexNow
from models.reports.milestones import MilestoneFile, PlanNow
from models.reports.rollouts import RolloutSummary
from models.reports.tallies import Point
from models.reports.weekly import Past
from models.reports.why import TeamWhy
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.messages import RequestInput
from models.requests.state import QuotaAsk, RequestState
from models.rollout.commands import CommandRequest
from models.rollout.messages import CommandAnswer, LaunchAnswer, LaunchRequest, RolloutInput, RolloutStatus
from models.rollout.stages import Command
from models.wire import (
    DESK_WORKFLOW,
    LAUNCHED_UPDATE,
    MOVES_ON,
    NOT_LAUNCHED,
    REQUEST_WORKFLOW,
    ROLLOUT_WORKFLOW,
    STATUS_QUERY,
    TASK_QUEUE,
    DeskAnswer,
    DeskRequest,
    SearchName,
    request_workflow_id,
    rollout_workflow_id,
)

_PATIENCE = timedelta(seconds=30)
"""How long a person waits for a worker's answer."""
_QUESTIONS, _MOMENT_SECONDS = 5, 0.5
"""For a question that came at a moment when nobody may answer it."""
_PART = 700_000
"""Bytes of one part of a large document: below Temporal's payload limit, base64 included."""
_OVERVIEW_SECONDS, _DOCTOR_SECONDS = 10, 60
_FLEET_SECONDS = 1800
"""A plan of 1,000 clusters of 100 quotas takes about a minute."""
_AnswerT = TypeVar("_AnswerT", bound=Model)
_OPENING = "opening"
_TRIES = 60
_PAUSE_SECONDS = 0.5
_UNHEARD_SECONDS, _UNHEARD_EVENTS = 20, 2
"""A question that has no more events by then, it was asked and is to be taken up, is heard by nobody."""
_SLURM_REMEDY = "see docs/slurm.md, and the worker's BACKSTOP_SLURM"
_NO_WORKER = "no worker is running: start one with `backstop up` or `backstop worker`"


class Backstop:
    """A connection for one actor."""

    def __init__(self, client: Client, actor: str, target: TemporalTarget) -> None:
        self._client = client
        self._actor = actor
        self._target = target

    @classmethod
    async def connect(cls, actor: str, **options: Any) -> Backstop:
        """Errors: Unavailable with one sentence."""
        current_actor.set(actor)
        target = find_target()
        client = await connect(target, identity=f"{actor} (backstop)", **options)
        return cls(client, actor, target)

    @property
    def client(self) -> Client:
        return self._client

    async def close(self) -> None:
        """Nothing is left open: the connection ends with the process."""

    # --- rollouts -------------------------------------------------------------------------------

    async def launch(self, request: LaunchRequest) -> LaunchAnswer:
        """The rollout is open and has its plan. Errors: Refusal with the reason, Unavailable."""
        try:
            answer = await self._start(
                ROLLOUT_WORKFLOW,
                RolloutInput(launch=request),
                rollout_workflow_id(request.cluster),
                f"{request.cluster}, owner {request.owner}{' (shadow)' if request.shadow else ''}",
                LaunchAnswer,
            )
        except WorkflowAlreadyStartedError:
            raise await self._already_open(request) from None
        if not answer.launched:
            await self._archive_refusal(request.cluster, "launch", request.reason, answer.reason)
            raise Refusal(f"{request.cluster} was not launched: {answer.reason}")
        return answer

    async def _start(
        self, workflow: str, given: Model, workflow_id: str, summary: str, answer: type[_AnswerT], seconds: float = 120
    ) -> _AnswerT:
        """What the new workflow answers to `launched`. Errors: WorkflowAlreadyStartedError, those of models.errors."""
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            workflow,
            given,
            id=workflow_id,
            task_queue=TASK_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary=summary,
        )
        try:
            made: _AnswerT = await asyncio.wait_for(
                self._client.execute_update_with_start_workflow(
                    LAUNCHED_UPDATE, start_workflow_operation=start, result_type=answer
                ),
                seconds,
            )
        except WorkflowAlreadyStartedError:
            await _read(start)
            raise
        except (WorkflowUpdateFailedError, RPCError, TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            await _read(start)
            raise await self._told(error) from error
        return made

    async def _already_open(self, request: LaunchRequest) -> BackstopError:
        try:
            found = await self.status(request.cluster)
            who = f"{found.stage}, {found.rollout} of {found.owner}"
        except BackstopError:
            who = "it is just being opened"
        why = f"a rollout of {request.cluster} is open already ({who}): see `backstop status {request.cluster}`"
        await self._archive_refusal(request.cluster, "launch", request.reason, why)
        return Refusal(why)

    async def command(self, cluster: str, command: Command, request: CommandRequest) -> CommandAnswer:
        """The command has been taken. Errors: Refusal with the stage table's reason, Unavailable."""
        try:
            return await self._update(rollout_workflow_id(cluster), command, request, CommandAnswer)
        except (WorkflowUpdateFailedError, RPCError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            told = await self._told(error, cluster)
            if isinstance(told, Refusal):
                await self._archive_refusal(cluster, command.value, request.reason, told.message, request)
            raise told from error

    async def _update(self, workflow_id: str, name: str, request: Model, kind: type[_AnswerT]) -> _AnswerT:
        """The answer, asked for again (under one id) where the server let go of the command before it was taken.

        It does when a rollout continues as new while something else arrives: that step of the workflow is made
        anew, and its updates are answered with WorkflowNotReady.
        """
        handle = self._client.get_workflow_handle(workflow_id)
        update_id, tries = uuid.uuid4().hex, _TRIES
        while True:
            try:
                answer: _AnswerT = await handle.execute_update(
                    name, request, id=update_id, result_type=kind, rpc_timeout=_PATIENCE
                )
                return answer
            except RPCError as error:
                tries -= 1
                if not (tries and _not_ready(error)):
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    async def status(self, cluster: str) -> RolloutStatus:
        """Errors: Refusal where there never was a rollout, Unavailable."""
        try:
            return await self._query(rollout_workflow_id(cluster), STATUS_QUERY, RolloutStatus)
        except (WorkflowQueryFailedError, RPCError) as error:
            if str(error).startswith(NOT_LAUNCHED):
                raise Refusal(f"{cluster}: {error}") from None
            raise await self._told(error, cluster) from error

    async def _query(self, workflow_id: str, name: str, kind: type[_AnswerT]) -> _AnswerT:
        handle = self._client.get_workflow_handle(workflow_id)
        for tries_left in reversed(range(_QUESTIONS)):
            try:
                found: _AnswerT = await handle.query(name, result_type=kind, rpc_timeout=_PATIENCE)
                return found
            except (WorkflowQueryFailedError, RPCError) as error:
                if not (tries_left and MOVES_ON in str(error)):
                    raise
            await asyncio.sleep(_MOMENT_SECONDS)
        raise AssertionError("the last try neither answered nor failed")

    # --- the fleet rollout ------------------------------------------------------------------------

    async def launch_fleet(self, request: FleetLaunch) -> FleetPlan:
        """The fleet rollout is open and waits for its plan to be approved. Errors: Refusal, Unavailable."""
        try:
            answer = await self._start(
                FLEET_WORKFLOW,
                FleetInput(launch=request),
                FLEET_ID,
                f"fleet rollout of {request.owner}{' (shadow)' if request.shadow else ''}",
                FleetLaunchAnswer,
                _FLEET_SECONDS,
            )
        except WorkflowAlreadyStartedError:
            why = "a fleet rollout is open already, and there is one at a time: see `backstop fleet status`"
            await self._archive_refusal(FLEET, "launch", request.reason, why)
            raise Refusal(why) from None
        if not answer.launched or answer.plan is None:
            await self._archive_refusal(FLEET, "launch", request.reason, answer.reason)
            raise Refusal(f"no fleet rollout was launched: {answer.reason}")
        return answer.plan

    async def fleet_command(self, command: FleetCommand, request: FleetCommandRequest) -> FleetCommandAnswer:
        """The command has been taken. Errors: Refusal with its reason, Unavailable."""
        try:
            return await self._update(FLEET_ID, command, request, FleetCommandAnswer)
        except (WorkflowUpdateFailedError, RPCError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            told = await self._told_of_fleet(error)
            if isinstance(told, Refusal):
                await self._archive_refusal(FLEET, command, request.reason, told.message, request)
            raise told from error

    async def fleet_status(self) -> FleetStatus:
        """Errors: Refusal where there never was a fleet rollout, Unavailable."""
        try:
            return await self._query(FLEET_ID, FLEET_STATUS_QUERY, FleetStatus)
        except (WorkflowQueryFailedError, RPCError) as error:
            raise await self._told_of_fleet(error) from error

    async def open_fleet(self) -> FleetStatus | None:
        """The fleet rollout that is under way, where there is one and it answers."""
        try:
            found = await self._client.get_workflow_handle(FLEET_ID).describe()
            return await self.fleet_status() if found.status is WorkflowExecutionStatus.RUNNING else None
        except (RPCError, BackstopError):
            return None

    async def _told_of_fleet(self, error: BaseException) -> BackstopError:
        if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
            try:
                await self._client.get_workflow_handle(FLEET_ID).describe()
            except RPCError:
                return Refusal("there is no fleet rollout: launch one with `backstop launch --fleet`")
            return Refusal("the fleet rollout has ended: launch a new one")
        return await self._told(error)

    async def rollouts(self) -> list[RolloutSummary]:
        """The newest rollout of each cluster, open ones first, then by name."""
        found: dict[str, RolloutSummary] = {}
        query = f"WorkflowType = '{ROLLOUT_WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"
        try:
            async for run in self._client.list_workflows(query):
                summary = _summary(run)
                if not summary.open and summary.stage == _OPENING:
                    continue  # its launch was refused: there never was a rollout
                known = found.get(summary.cluster)
                if known is None or known.started < summary.started:
                    found[summary.cluster] = summary
        except RPCError as error:
            raise await self._told(error) from error
        return sorted(found.values(), key=lambda s: (not s.open, s.cluster))

    async def overview(self) -> list[RolloutSummary]:
        """The same with what each open one needs from a person, where a worker and its ledger answer in time."""
        found = await self.rollouts()
        try:
            rows = await asyncio.wait_for(self._desk("overview"), _OVERVIEW_SECONDS)
        except (BackstopError, TimeoutError):
            return found
        noted = {row["cluster"]: (row["needs"], row["health_at"]) for row in rows}
        made = []
        for summary in found:
            needs, health_at = noted.get(summary.cluster, ("", None)) if summary.open else ("", None)
            changes = {"needs": needs, "health_at": None if health_at is None else datetime.fromisoformat(health_at)}
            made.append(summary.model_copy(update=changes))
        return made

    async def audit(self, cluster: str) -> list[AuditRecord]:
        """What the workflow history says of every run there is, in order of time; requests for more quota included."""
        own = rollout_workflow_id(cluster)
        rollouts = f"WorkflowType = '{ROLLOUT_WORKFLOW}' AND WorkflowId = '{own}'"
        requests = f"WorkflowType = '{REQUEST_WORKFLOW}' AND {SearchName.CLUSTER} = {_quoted(cluster)}"
        try:
            asked = [(run.id, run.run_id) async for run in self._client.list_workflows(requests)]
            runs = sorted([run async for run in self._client.list_workflows(rollouts)], key=lambda r: r.start_time)
            ids = [*asked, *((own, run.run_id) for run in runs)]
            try:
                newest = own, (await self._client.get_workflow_handle(own).describe()).run_id
                ids += [] if newest in ids else [newest]
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND or not asked:
                    raise
            records: list[AuditRecord] = []
            for workflow_id, run_id in ids:
                history = await self._client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
                records += await audit_of_run(cluster, history, self._client.data_converter)
        except RPCError as error:
            raise await self._told(error, cluster) from error
        return sorted(records, key=lambda record: record.at) if asked else records

    # --- the ledger -----------------------------------------------------------------------------

    async def archived(self, cluster: str) -> tuple[list[ChainedEntry], ChainHead | None]:
        """The cluster's whole archive, and where its chain should end."""
        rows: list[ChainedEntry] = []
        while True:
            answer = await self._desk("archived", cluster=cluster, after=rows[-1].seq if rows else 0, limit=200)
            page = TypeAdapter(list[ChainedEntry]).validate_python(answer["rows"])
            rows += page
            if not page:  # a short page may only be a heavy one
                head = answer["head"]
                return rows, None if head is None else ChainHead.model_validate(head)

    async def import_fleet(self, fleet: Fleet) -> dict[str, int]:
        """The fleet stands whole in the ledger, or nothing of it does. Errors: BadInput, Refusal."""
        document = zlib.compress(fleet.model_dump_json(exclude_unset=True, by_alias=True).encode())
        parts = [document[at : at + _PART] for at in range(0, len(document), _PART)]
        import_id = uuid.uuid4().hex
        for number, part in enumerate(parts):
            await self._desk("stage_import", base64.b64encode(part).decode(), import_id=import_id, part=number)
        return dict(await self._desk("commit_import", import_id=import_id, parts=len(parts)))

    async def add_health(self, samples: Sequence[HealthSample]) -> int:
        """Samples stand in the ledger; answers how many rows."""
        count = 0
        for at in range(0, len(samples), 2000):
            batch = [s.model_dump(mode="json") for s in samples[at : at + 2000]]
            count += int(await self._desk("add_health", samples=batch))
        return count

    async def add_jobs(self, jobs: Sequence[ClusterJob]) -> int:
        """Jobs stand in the ledger; answers how many. Errors: BadInput for an unknown cluster."""
        count = 0
        for at in range(0, len(jobs), 2000):
            batch = [j.model_dump(mode="json") for j in jobs[at : at + 2000]]
            count += int(await self._desk("add_jobs", jobs=batch))
        return count

    async def describe_slurm(self, cluster: str, source: SlurmSource) -> ClusterSpec:
        """The cluster as Slurm has it now, for an import. Errors: Unavailable, Refusal where Slurm has none."""
        found = await self._desk("describe_slurm", cluster=cluster, slurm=source.model_dump(mode="json"))
        return ClusterSpec.model_validate(found)

    async def detach(self, cluster: str, reason: str, *, restore: bool) -> dict[str, tuple[int | None, int | None]]:
        """The scheduler is left alone from now on; answers what was taken back there. Errors: Refusal."""
        found = await self._desk("detach", cluster=cluster, restore=restore, reason=reason)
        return {name: (before, after) for name, (before, after) in found.items()}

    async def clusters(self) -> list[ClusterSpec]:
        """Every cluster of the ledger with present values and latest health."""
        return [spec for spec, _ in await self.clusters_with_stage()]

    async def clusters_with_stage(self) -> list[tuple[ClusterSpec, str | None]]:
        """The same with the stage of the open rollout, if there is one."""
        found: list[tuple[ClusterSpec, str | None]] = []
        while True:
            after = found[-1][0].name if found else ""
            page = await self._desk("clusters", after=after, limit=50)
            found += [(ClusterSpec.model_validate(row["cluster"]), row["stage"]) for row in page]
            if not page:
                return found

    async def snapshot(self, cluster: str, over: Mapping[str, Any] | None = None) -> tuple[Snapshot, Policy]:
        """One cluster as a plan would see it, and its policy, with these settings laid over it.

        Errors: Refusal for an unknown cluster, BadInput for a bad setting.
        """
        return _planning(await self._desk("snapshot", cluster=cluster, policy=dict(over or {})))

    async def snapshots(self, over: Mapping[str, Any] | None = None) -> list[tuple[Snapshot, Policy]]:
        """Every cluster of the ledger as a plan would see it, with its policy; a health buffer of the last hour."""
        found: list[tuple[Snapshot, Policy]] = []
        while True:
            after = found[-1][0].cluster if found else ""
            page = await self._desk("snapshots", after=after, limit=20, policy=dict(over or {}))
            found += [_planning(row) for row in page]
            if not page:
                return found

    async def health_hours(self, cluster: str) -> HealthHours:
        """A year of its health by the hour, and what its buffer is asked for. Errors: Refusal, unknown cluster."""
        return HealthHours.model_validate(await self._desk("health_hours", cluster=cluster))

    async def flex(self, cluster: str = "", mode: FlexMode = FlexMode.EQUAL) -> list[FlexNow]:
        """The flex of one cluster, or of all by name. Errors: Refusal for an unknown cluster."""
        found: list[FlexNow] = []
        while True:
            after = found[-1].cluster if found else ""
            page = await self._desk("flex", cluster=cluster, mode=mode.value, after=after, limit=200)
            found += [FlexNow.model_validate(one) for one in page]
            if cluster or not page:
                return found

    async def why(self, team: str, cluster: str, gpus: int | None, *, block: bool) -> list[TeamWhy]:
        """Why the team cannot have so many GPUs, in one cluster or wherever it has a quota.

        Errors: BadInput for an unknown cluster, Refusal for a quota that is a sum of others.
        """
        found = await self._desk("why", team=team, cluster=cluster, gpus=gpus, block=block)
        return [TeamWhy.model_validate(one) for one in found]

    async def request(self, ask: QuotaAsk) -> RequestState:
        """The request stands: it waits for the cluster's owner, or is refused, and says what else there is.

        Errors: Refusal for a cluster or a quota that is not there.
        """
        try:
            return await self._start(
                REQUEST_WORKFLOW,
                RequestInput(ask=ask),
                request_workflow_id(ask.request),
                f"{ask.gpus} more for {ask.team} in {ask.cluster}, asked by {ask.actor}",
                RequestState,
            )
        except WorkflowAlreadyStartedError:
            raise Refusal(f"there is a request {ask.request} already") from None

    async def decide_request(self, request: str, command: RequestCommand, order: RequestOrder) -> RequestState:
        """The command has been taken. Errors: Refusal with its reason, Unavailable."""
        try:
            return await self._update(request_workflow_id(request), command, order, RequestState)
        except (WorkflowUpdateFailedError, RPCError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                found = await self.one_request(request)
                raise Refusal(f"request {request} is {found.stage}: {found.said}") from None
            told = await self._told(error)
            if isinstance(told, Refusal):
                cluster = (await self.one_request(request)).ask.cluster
                await self._archive_refusal(
                    cluster, f"{command} of request {request}", order.reason, told.message, order
                )
            raise told from error

    async def one_request(self, request: str) -> RequestState:
        """Errors: Refusal where there is none of this id."""
        return RequestState.model_validate(await self._desk("request", request=request))

    async def requests(self, cluster: str = "", *, ended: bool = False) -> list[RequestState]:
        """Requests by the time they were made; those that are over only where asked for."""
        found = await self._desk("requests", cluster=cluster, ended=ended)
        return TypeAdapter(list[RequestState]).validate_python(found)

    async def open_requests(self, cluster: str = "") -> list[RequestState]:
        """Those that wait or end some day, beside what else is shown: none where no worker answers in time."""
        try:
            return await asyncio.wait_for(self.requests(cluster), _OVERVIEW_SECONDS)
        except (BackstopError, TimeoutError):
            return []

    async def calendar(self, cluster: str = "", since: datetime | None = None) -> list[Entry]:
        """Declared windows that are not over, of one cluster or all. Errors: BadInput for an unknown cluster."""
        at = (since or datetime.now(UTC)).isoformat()
        return TypeAdapter(list[Entry]).validate_python(await self._desk("calendar", cluster=cluster, since=at))

    async def declare(self, declared: Sequence[Declared]) -> Declaration:
        """The windows stand in the ledger, all or none, in place of what their sources declared before.

        Errors: BadInput for a cluster, an island or GPUs that the ledger does not have.
        """
        given = [d.model_dump(mode="json") for d in declared]
        return Declaration.model_validate(await self._desk("declare", declared=given))

    async def end_window(self, cluster: str, number: int, reason: str) -> Entry:
        """The window is over. Errors: Refusal where there is none of this number."""
        return Entry.model_validate(await self._desk("end_window", cluster=cluster, number=number, reason=reason))

    async def tallies(
        self, cluster: str, times: Sequence[datetime], within: timedelta
    ) -> tuple[list[Point], datetime | None]:
        """The curve of a cluster or of all, and when its tallies begin. Errors: BadInput for an unknown cluster."""
        asked: dict[str, Any] = {"times": [at.isoformat() for at in times], "within_seconds": _seconds(within)}
        answer = await self._desk("tallies", cluster=cluster, **asked)
        began = answer["began"]
        points = TypeAdapter(list[Point]).validate_python(answer["points"])
        return points, None if began is None else datetime.fromisoformat(began)

    async def past(self, since: datetime, until: datetime, times: Sequence[datetime], within: timedelta) -> Past:
        """What the ledger knows of this time."""
        asked: dict[str, Any] = {"times": [at.isoformat() for at in times], "within_seconds": _seconds(within)}
        found = await self._desk("week", since=since.isoformat(), until=until.isoformat(), **asked)
        return Past.model_validate(found)

    async def milestones(self) -> PlanNow:
        """The plan, and today's numbers of what Backstop knows by itself, but for waves."""
        return PlanNow.model_validate(await self._desk("milestones"))

    async def plan_milestones(self, given: MilestoneFile) -> PlanNow:
        """These milestones are the plan, in place of the one before."""
        return PlanNow.model_validate(await self._desk("plan_milestones", **given.model_dump(mode="json")))

    async def note_milestone(self, milestone: str, number: int, reason: str) -> PlanNow:
        """The number stands. Errors: Refusal for a milestone that is not planned, or is measured."""
        return PlanNow.model_validate(
            await self._desk("note_milestone", milestone=milestone, number=number, reason=reason)
        )

    async def _desk(self, kind: str, payload: str = "", **arguments: Any) -> Any:
        request = DeskRequest.model_validate(
            {"kind": kind, "actor": self._actor, "arguments": arguments, "payload": payload}
        )
        try:
            handle = await self._client.start_workflow(
                DESK_WORKFLOW,
                request,
                id=f"desk/{kind}/{uuid.uuid4().hex[:12]}",
                task_queue=TASK_QUEUE,
                result_type=DeskAnswer,
                execution_timeout=timedelta(minutes=5),
                static_summary=f"{kind} for {self._actor}",
            )
            answer: DeskAnswer = await self._answered(handle)
        except (WorkflowFailureError, RPCError) as error:
            raise await self._told(error) from error
        return answer.result

    async def _answered(self, handle: WorkflowHandle[Any, DeskAnswer]) -> DeskAnswer:
        """The desk's answer, however long it takes. Errors: Unavailable where nobody has taken the question up."""
        asking = asyncio.ensure_future(handle.result())
        try:
            done, _ = await asyncio.wait({asking}, timeout=_UNHEARD_SECONDS)
            if not done and (await handle.describe()).history_length <= _UNHEARD_EVENTS:
                with contextlib.suppress(RPCError):
                    await handle.terminate("no worker has taken it up")
                raise Unavailable(_NO_WORKER)
            return await asking
        finally:
            asking.cancel()

    async def _archive_refusal(
        self, cluster: str, command: str, reason: str, why: str, request: Model | None = None
    ) -> None:
        """A refused command leaves no event in the rollout's history: it is archived from here."""
        entry = AuditEntry(
            key=f"attempt/{uuid.uuid4().hex}",
            cluster=cluster,
            at=datetime.now(UTC),
            kind=AuditKind.COMMAND,
            actor=self._actor,
            text=f"{command} refused: {why}",
            reason=reason,
            refused=True,
            data={} if request is None else request.model_dump(mode="json", exclude_defaults=True),
        )
        try:
            await asyncio.wait_for(self._desk("archive", entries=[entry.model_dump(mode="json")]), 10)
        except (BackstopError, TimeoutError):
            return  # the refusal itself matters more to the person than its record

    # --- health of the installation ---------------------------------------------------------------

    async def doctor(self) -> list[Check]:
        """What is well and what is not, each with what to do."""
        checks = await temporal_checks(self._client, self._target)
        try:
            found = await asyncio.wait_for(self._desk("doctor"), _DOCTOR_SECONDS)
            checks.append(Check(name="ledger", ok=True, text=f"answers; {found['open_rollouts']} rollouts open"))
            for cluster, check in sorted(found.get("schedulers", {}).items()):
                wrong, barred = check["wrong"], check["barred"]
                well = f"its limits can be read, not set: {barred}" if barred else "its limits can be read and set"
                text = f"{cluster}: {wrong or well}"
                checks.append(Check(name="slurm", ok=not wrong, text=text, remedy=_SLURM_REMEDY if wrong else ""))
        except (BackstopError, TimeoutError) as error:
            text = error.message if isinstance(error, BackstopError) else _NO_WORKER
            checks.append(Check(name="ledger", ok=False, text=text, remedy="backstop migrate, then backstop up"))
        return checks

    async def watch(self) -> Check:
        """Whether the shared watch is alive."""
        try:
            return await watch_check(self._client)
        except RPCError as error:
            return Check(name="watch", ok=False, text=error.message)

    async def builds(self) -> list[Build]:
        """Builds of versioned workers, the newest first."""
        try:
            return await builds(self._client)
        except RPCError as error:
            raise await self._told(error) from error

    async def use_build(self, build: str) -> str:
        """The build serves; answers with the one before. Errors: BadInput, Refusal, Unavailable."""
        try:
            return await use(self._client, build, self._actor)
        except RPCError as error:
            raise await self._told(error) from error

    async def _told(self, error: BaseException, cluster: str = "") -> BackstopError:
        """Temporal's errors as ours: one sentence, and what to do next in its type."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ApplicationError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        if isinstance(cause, ApplicationError):
            return BY_NAME.get(cause.type or "", Unavailable)(cause.message)
        if isinstance(error, RPCError):
            if error.status is RPCStatusCode.NOT_FOUND and cluster:
                if await self._ever_ran(cluster):
                    return Refusal(f"the rollout of {cluster} has ended; launch a new one")
                return Refusal(f"there is no rollout of {cluster}: launch one with `backstop launch {cluster}`")
            if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                return Unavailable(_NO_WORKER)
            return Unavailable(f"Temporal at {self._target.address}: {error.message}")
        if isinstance(error, TimeoutError | WorkflowUpdateRPCTimeoutOrCancelledError):
            return Unavailable(_NO_WORKER)
        return Unavailable(str(error))

    async def _ever_ran(self, cluster: str) -> bool:
        try:
            await self._client.get_workflow_handle(rollout_workflow_id(cluster)).describe()
        except RPCError:
            return False
        return True


async def _read(start: WithStartWorkflowOperation[Any, Any]) -> None:
    """The start holds the error of its update again: unread, it would be printed at exit."""
    with contextlib.suppress(WorkflowAlreadyStartedError, RPCError, TimeoutError):
        await asyncio.wait_for(start.workflow_handle(), 0.1)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _seconds(span: timedelta) -> int:
    return max(1, round(span.total_seconds()))


def _planning(row: dict[str, Any]) -> tuple[Snapshot, Policy]:
    return Snapshot.model_validate(row["snapshot"]), Policy.model_validate(row["policy"])


def _summary(run: WorkflowExecution) -> RolloutSummary:
    found = {pair.key.name: pair.value for pair in run.typed_search_attributes}
    return RolloutSummary(
        cluster=str(found.get(SearchName.CLUSTER, run.id.removeprefix("rollout/"))),
        stage=str(found.get(SearchName.STAGE, _OPENING)),
        wave=str(found.get(SearchName.WAVE, "")),
        owner=str(found.get(SearchName.OWNER, "")),
        unbacked_gpus=int(found.get(SearchName.UNBACKED, 0)),
        started=run.start_time,
        closed=run.close_time,
        open=run.status is WorkflowExecutionStatus.RUNNING,
    )


def _not_ready(error: RPCError) -> bool:
    """The server did not hand the call to the workflow, and will when asked again."""
    return any(detail.Is(WorkflowNotReadyFailure.DESCRIPTOR) for detail in error.grpc_status.details)
