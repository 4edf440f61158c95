"""Rollouts of clusters: launch, command, ask, list, and tell what happened."""

from __future__ import annotations

import asyncio

from temporalio.client import (
    WorkflowExecution,
    WorkflowExecutionStatus,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from client.audit import AuditRecord, audit_of
from client.calls import QUERY_FAILED, UPDATE_FAILED
from client.questions import Questions
from models.errors import BackstopError, Refusal
from models.questions import OpenRollouts
from models.reports.rollout_summary import RolloutSummary
from models.rollout.commands import CommandRequest
from models.rollout.messages import CommandAnswer, LaunchAnswer, LaunchRequest, RolloutInput, RolloutStatus
from models.rollout.stages import Command
from models.wire import (
    NOT_LAUNCHED,
    REQUEST_WORKFLOW,
    ROLLOUT_WORKFLOW,
    STATUS_QUERY,
    SearchName,
    rollout_workflow_id,
)

_OVERVIEW_SECONDS = 10
_OPENING = "opening"


class Rollouts(Questions):
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

    async def _already_open(self, request: LaunchRequest) -> BackstopError:
        try:
            status = await self.status(request.cluster)
            who = f"{status.stage}, {status.rollout} of {status.owner}"
        except BackstopError:
            who = "it is just being opened"
        why = f"a rollout of {request.cluster} is open already ({who}): see `backstop status {request.cluster}`"
        await self._archive_refusal(request.cluster, "launch", request.reason, why)
        return Refusal(why)

    async def command(self, cluster: str, command: Command, request: CommandRequest) -> CommandAnswer:
        """The command has been taken. Errors: Refusal with the stage table's reason, Unavailable."""
        try:
            return await self._update(rollout_workflow_id(cluster), command, request, CommandAnswer)
        except UPDATE_FAILED as error:
            failure = await self._told(error, cluster)
            if isinstance(failure, Refusal):
                await self._archive_refusal(cluster, command.value, request.reason, failure.message, request)
            raise failure from error

    async def status(self, cluster: str) -> RolloutStatus:
        """Errors: Refusal where there never was a rollout, Unavailable."""
        try:
            return await self._query(rollout_workflow_id(cluster), STATUS_QUERY, RolloutStatus)
        except QUERY_FAILED as error:
            if str(error).startswith(NOT_LAUNCHED):
                raise Refusal(f"{cluster}: {error}") from None
            raise await self._told(error, cluster) from error

    async def rollouts(self) -> list[RolloutSummary]:
        """The newest rollout of each cluster, open ones first, then by name."""
        newest: dict[str, RolloutSummary] = {}
        query = f"WorkflowType = '{ROLLOUT_WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"
        try:
            async for run in self._client.list_workflows(query):
                summary = _summary(run)
                if not summary.open and summary.stage == _OPENING:
                    continue  # its launch was refused: there never was a rollout
                other = newest.get(summary.cluster)
                if other is None or other.started < summary.started:
                    newest[summary.cluster] = summary
        except RPCError as error:
            raise await self._told(error) from error
        return sorted(newest.values(), key=lambda s: (not s.open, s.cluster))

    async def overview(self) -> list[RolloutSummary]:
        """The same with what each open one needs from a person, where a worker and its ledger answer in time."""
        summaries = await self.rollouts()
        try:
            rows = await asyncio.wait_for(self.ask(OpenRollouts()), _OVERVIEW_SECONDS)
        except (BackstopError, TimeoutError):
            return summaries
        noted = {row.cluster: {"needs": row.needs, "health_at": row.health_at} for row in rows}
        nothing = {"needs": "", "health_at": None}
        return [s.model_copy(update=noted.get(s.cluster, nothing) if s.open else nothing) for s in summaries]

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
            histories = (await self._client.get_workflow_handle(id_, run_id=run).fetch_history() for id_, run in ids)
            records = await audit_of(histories, self._client.data_converter)
        except RPCError as error:
            raise await self._told(error, cluster) from error
        return sorted(records, key=lambda record: record.at) if asked else records


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _summary(run: WorkflowExecution) -> RolloutSummary:
    attributes = {pair.key.name: pair.value for pair in run.typed_search_attributes}
    return RolloutSummary(
        cluster=str(attributes.get(SearchName.CLUSTER, run.id.removeprefix("rollout/"))),
        stage=str(attributes.get(SearchName.STAGE, _OPENING)),
        wave=str(attributes.get(SearchName.WAVE, "")),
        owner=str(attributes.get(SearchName.OWNER, "")),
        unbacked_gpus=int(attributes.get(SearchName.UNBACKED, 0)),
        started=run.start_time,
        closed=run.close_time,
        open=run.status is WorkflowExecutionStatus.RUNNING,
    )
