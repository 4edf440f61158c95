"""A Temporal server in memory, on a turned clock: the product's own client and workers talk to it, and cannot tell.

It stands at two ports of the SDK: the service that a client calls (`InMemoryTemporal`) and the core from which a
worker polls its tasks (`Core`). All above them is the real thing: workflows, activities, converters, interceptors.
It keeps no history, so that no other worker can go on with a run, and none is reset. It keeps the tasks of each run
instead, from which `replay` plays it again: the same commands must come of them.
tests/loop/test_temporal.py has the same contract for this server and for the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import temporalio.runtime
from google.protobuf.message import Message
from temporalio.api.common.v1 import Memo, SearchAttributes
from temporalio.api.enums.v1 import (
    EventType,
    PendingActivityState,
    UpdateWorkflowExecutionLifecycleStage,
    WorkflowExecutionStatus,
)
from temporalio.api.query.v1 import QueryRejected
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice import v1 as service
from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob
from temporalio.client import Client
from temporalio.common import QueryRejectCondition
from temporalio.service import ConnectConfig, RPCError, RPCStatusCode, _BridgeServiceClient

from activities.clock import utc_now
from client.connection import NAMESPACE
from client.converter import data_converter
from tests.loop.core import Core
from tests.loop.runs import OVER, Run, Update, of_many
from tests.loop.turned_loop import TurnedLoop
from tests.loop.workflows import Workflows

_ACCEPTED = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ACCEPTED
_COMPLETED = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED


class InMemoryTemporal(_BridgeServiceClient):
    """The server, as its clients call it."""

    def __init__(self, loop: TurnedLoop, namespace: str) -> None:
        super().__init__(ConnectConfig(target_host="in-memory:7233"))
        self._runtime = temporalio.runtime.Runtime.default()
        self._bridge_client = self.workflows = Workflows(loop, namespace)  # type: ignore[assignment]
        """A worker hands its client's bridge to `Core`, and asks it nothing itself."""
        self._loop = loop

    def now(self) -> datetime:
        return self._loop.now()

    async def _rpc_call(
        self,
        rpc: str,
        req: Message,
        resp_type: type[Any],
        *,
        service: str,
        retry: bool,
        metadata: Mapping[str, str | bytes],
        timeout: timedelta | None,  # noqa: ASYNC109 - the SDK's
    ) -> Any:
        answer: Callable[[Any], Any] | None = getattr(self, f"_{rpc}", None)
        if answer is None:
            raise RPCError(f"the server in memory knows no {rpc}", RPCStatusCode.UNIMPLEMENTED, b"")
        sent = type(req)()
        sent.CopyFrom(req)
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                await asyncio.sleep(0)
                return await answer(sent)
        except TimeoutError:
            raise RPCError("context deadline exceeded", RPCStatusCode.DEADLINE_EXCEEDED, b"") from None

    async def _start_workflow_execution(
        self, request: service.StartWorkflowExecutionRequest
    ) -> service.StartWorkflowExecutionResponse:
        run, began = self.workflows.started(request)
        return service.StartWorkflowExecutionResponse(run_id=run.run_id, started=began)

    async def _execute_multi_operation(
        self, request: service.ExecuteMultiOperationRequest
    ) -> service.ExecuteMultiOperationResponse:
        first, second = request.operations
        update_id = second.update_workflow.request.meta.update_id
        running = self.workflows.newest(first.start_workflow.workflow_id)
        answered = running is not None and running.runs and update_id in running.updates
        try:
            if answered and running is not None:
                run, began = running, False
            else:
                run, began = self.workflows.started(first.start_workflow)
        except RPCError as error:
            raise of_many(error) from None
        asked = second.update_workflow
        asked.workflow_execution.CopyFrom(run.execution)
        update = await self._update_workflow_execution(asked)
        both = service.ExecuteMultiOperationResponse()
        both.responses.add().start_workflow.CopyFrom(
            service.StartWorkflowExecutionResponse(run_id=run.run_id, started=began)
        )
        both.responses.add().update_workflow.CopyFrom(update)
        return both

    async def _signal_workflow_execution(
        self, request: service.SignalWorkflowExecutionRequest
    ) -> service.SignalWorkflowExecutionResponse:
        run = self.workflows.opened(request.workflow_execution)
        job = WorkflowActivationJob()
        job.signal_workflow.signal_name = request.signal_name
        job.signal_workflow.input.extend(request.input.payloads)
        job.signal_workflow.identity = request.identity
        job.signal_workflow.originating_event_id = run.events + 1
        self.workflows.add(run, job)
        return service.SignalWorkflowExecutionResponse()

    async def _request_cancel_workflow_execution(
        self, request: service.RequestCancelWorkflowExecutionRequest
    ) -> service.RequestCancelWorkflowExecutionResponse:
        run = self.workflows.known(request.workflow_execution)
        if run.runs and not run.cancel_asked:  # else nothing comes of it, and nobody is told
            run.cancel_asked = True
            job = WorkflowActivationJob()
            job.cancel_workflow.reason = request.reason
            self.workflows.add(run, job)
        return service.RequestCancelWorkflowExecutionResponse()

    async def _terminate_workflow_execution(
        self, request: service.TerminateWorkflowExecutionRequest
    ) -> service.TerminateWorkflowExecutionResponse:
        self.workflows.terminate(self.workflows.opened(request.workflow_execution), request.reason)
        return service.TerminateWorkflowExecutionResponse()

    async def _query_workflow(self, request: service.QueryWorkflowRequest) -> service.QueryWorkflowResponse:
        run = self.workflows.known(request.execution)
        rejected = QueryRejected(status=run.status)  # type: ignore[arg-type]
        only_stopped = int(request.query_reject_condition) == int(QueryRejectCondition.NOT_COMPLETED_CLEANLY)
        taken = run.runs or (only_stopped and run.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED)
        if request.query_reject_condition > 1 and not taken:
            return service.QueryWorkflowResponse(query_rejected=rejected)
        answer: asyncio.Future[service.QueryWorkflowResponse] = self._loop.create_future()
        run.queries.append((request, answer))
        self.workflows.wake(run)
        return await answer

    async def _update_workflow_execution(
        self, request: service.UpdateWorkflowExecutionRequest
    ) -> service.UpdateWorkflowExecutionResponse:
        run, update_id = self.workflows.known(request.workflow_execution), request.request.meta.update_id
        update = run.updates.get(update_id)
        if update is None:
            run = self.workflows.opened(request.workflow_execution)
            update = run.updates[update_id] = Update(request)
            self.workflows.ask(run, update_id, update)
        waits = request.wait_policy.lifecycle_stage
        await _reached(update, waits)
        return _stage_of(update_id, update)

    async def _poll_workflow_execution_update(
        self, request: service.PollWorkflowExecutionUpdateRequest
    ) -> service.PollWorkflowExecutionUpdateResponse:
        update_id = request.update_ref.update_id
        run = self.workflows.known(request.update_ref.workflow_execution)
        update = next((r.updates[update_id] for r in self.workflows.chain(run) if update_id in r.updates), None)
        if update is None:
            raise RPCError(f"update {update_id!r} not found", RPCStatusCode.NOT_FOUND, b"")
        await _reached(update, request.wait_policy.lifecycle_stage)
        stage = _stage_of(update_id, update)
        answer = service.PollWorkflowExecutionUpdateResponse(stage=stage.stage, update_ref=stage.update_ref)
        if stage.HasField("outcome"):
            answer.outcome.CopyFrom(stage.outcome)
        return answer

    async def _describe_workflow_execution(
        self, request: service.DescribeWorkflowExecutionRequest
    ) -> service.DescribeWorkflowExecutionResponse:
        run = self.workflows.known(request.execution)
        answer = service.DescribeWorkflowExecutionResponse(workflow_execution_info=_row(run))
        for call in run.calls.values():
            pending = answer.pending_activities.add(
                activity_id=call.order.activity_id,
                attempt=call.attempt,
                state=(
                    PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
                    if call.token
                    else PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
                ),
            )
            pending.activity_type.name = call.order.activity_type
            pending.scheduled_time.FromDatetime(call.scheduled)
            if call.last_failure is not None:
                pending.last_failure.CopyFrom(call.last_failure)
        if run.busy or run.jobs:
            answer.pending_workflow_task.attempt = 1
        return answer

    async def _get_workflow_execution_history(
        self, request: service.GetWorkflowExecutionHistoryRequest
    ) -> service.GetWorkflowExecutionHistoryResponse:
        """The event that ended the run, once there is one; no other is kept."""
        if not request.wait_new_event:
            raise RPCError("the server in memory keeps no history", RPCStatusCode.UNIMPLEMENTED, b"")
        run = self.workflows.known(request.execution)
        await run.ended.wait()
        answer = service.GetWorkflowExecutionHistoryResponse()
        event = answer.history.events.add(event_id=run.events)
        status = WorkflowExecutionStatus.Name(run.status).removeprefix("WORKFLOW_EXECUTION_STATUS_")  # type: ignore[arg-type]
        event.event_type = EventType.Value(f"EVENT_TYPE_WORKFLOW_EXECUTION_{status}")
        match status:
            case "COMPLETED":
                event.workflow_execution_completed_event_attributes.result.payloads.extend(run.result)
            case "FAILED":
                assert run.failure is not None
                event.workflow_execution_failed_event_attributes.failure.CopyFrom(run.failure)
            case "CANCELED":
                event.workflow_execution_canceled_event_attributes.SetInParent()
            case "TERMINATED":
                event.workflow_execution_terminated_event_attributes.reason = run.reason
            case "TIMED_OUT":
                event.workflow_execution_timed_out_event_attributes.SetInParent()
            case "CONTINUED_AS_NEW":
                event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id = run.next_run
        return answer

    async def _list_workflow_executions(
        self, request: service.ListWorkflowExecutionsRequest
    ) -> service.ListWorkflowExecutionsResponse:
        return service.ListWorkflowExecutionsResponse(
            executions=[_row(run) for run in self.workflows.listed(request.query)]
        )

    async def _count_workflow_executions(
        self, request: service.CountWorkflowExecutionsRequest
    ) -> service.CountWorkflowExecutionsResponse:
        return service.CountWorkflowExecutionsResponse(count=len(self.workflows.listed(request.query)))

    async def _describe_task_queue(
        self, request: service.DescribeTaskQueueRequest
    ) -> service.DescribeTaskQueueResponse:
        answer = service.DescribeTaskQueueResponse()
        for core in self.workflows.cores:
            if core.queue == request.task_queue.name:
                answer.pollers.add(identity=core.queue).last_access_time.FromDatetime(utc_now())  # clients go by theirs
        return answer


def create(real: Callable[[Any, Any], Any], client: Any, config: Any) -> Any:
    """Create a worker as `temporalio.bridge.worker.Worker.create` (`real`) does, also for a client in memory."""
    return Core(client, config.task_queue) if isinstance(client, Workflows) else real(client, config)


def in_memory() -> Client:
    """A client of a new, empty server, on the loop that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TurnedLoop)
    return Client(InMemoryTemporal(loop, NAMESPACE), namespace=NAMESPACE, data_converter=data_converter)


async def _reached(update: Update, stage: int) -> None:
    """Somebody has accepted it, or (as `stage` says) answered it. Errors: RPCError where its run ended before."""
    accepted: asyncio.Future[Any] = asyncio.ensure_future(update.accepted.wait())
    waits = [accepted, asyncio.ensure_future(asyncio.shield(update.outcome))]
    try:
        await asyncio.wait(waits if stage < _COMPLETED else waits[1:], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    if update.lost:
        raise RPCError(OVER, RPCStatusCode.NOT_FOUND, b"")


def _stage_of(update_id: str, update: Update) -> service.UpdateWorkflowExecutionResponse:
    answer = service.UpdateWorkflowExecutionResponse(stage=_ACCEPTED)
    answer.update_ref.update_id = update_id
    answer.update_ref.workflow_execution.CopyFrom(update.request.workflow_execution)
    if update.outcome.done():
        answer.stage = _COMPLETED
        answer.outcome.CopyFrom(update.outcome.result())
    return answer


def _row(run: Run) -> WorkflowExecutionInfo:
    row = WorkflowExecutionInfo(
        execution=run.execution,
        status=run.status,  # type: ignore[arg-type]
        history_length=run.events,
        task_queue=run.queue,
    )
    row.type.name = run.kind
    row.start_time.FromDatetime(run.started)
    row.execution_time.FromDatetime(run.started)
    if run.closed is not None:
        row.close_time.FromDatetime(run.closed)
    row.memo.CopyFrom(Memo(fields=run.memo))
    row.search_attributes.CopyFrom(SearchAttributes(indexed_fields=run.attributes))
    row.first_run_id = run.first_run
    return row
