"""What every call to a workflow has in common: to start one, to command it, to ask it, and to tell why it failed."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.api.errordetails.v1 import WorkflowNotReadyFailure
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from client.connection import TemporalTarget
from models.base import Model
from models.errors import BY_NAME, BackstopError, Refusal, Unavailable
from models.wire import LAUNCHED_UPDATE, MOVES_ON, TASK_QUEUE, rollout_workflow_id

UPDATE_FAILED = (WorkflowUpdateFailedError, RPCError, WorkflowUpdateRPCTimeoutOrCancelledError)
QUERY_FAILED = (WorkflowQueryFailedError, RPCError)
"""How an update or a query fails, in Temporal's errors."""

_PATIENCE = timedelta(seconds=30)
"""How long a person waits for a worker's answer."""
_QUESTIONS, _MOMENT_SECONDS = 5, 0.5
"""For a question that came at a moment when nobody may answer it."""
_AnswerT = TypeVar("_AnswerT", bound=Model)
_TRIES = 60
_PAUSE_SECONDS = 0.5
NO_WORKER = "no worker is running: start one with `backstop up` or `backstop worker`"


class Calls:
    """A connection for one actor."""

    def __init__(self, client: Client, actor: str, target: TemporalTarget) -> None:
        self._client = client
        self._actor = actor
        self._target = target
        self.heard = asyncio.Event()
        """Some worker has answered something."""

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
            answered: _AnswerT = await asyncio.wait_for(
                self._client.execute_update_with_start_workflow(
                    LAUNCHED_UPDATE, start_workflow_operation=start, result_type=answer
                ),
                seconds,
            )
        except WorkflowAlreadyStartedError:
            await _read(start)
            raise
        except (*UPDATE_FAILED, TimeoutError) as error:
            await _read(start)
            raise await self._told(error) from error
        self.heard.set()
        return answered

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
                self.heard.set()
                return answer
            except RPCError as error:
                tries -= 1
                if not (tries and _not_ready(error)):
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _query(self, workflow_id: str, name: str, kind: type[_AnswerT]) -> _AnswerT:
        handle = self._client.get_workflow_handle(workflow_id)
        for tries_left in reversed(range(_QUESTIONS)):
            try:
                answered: _AnswerT = await handle.query(name, result_type=kind, rpc_timeout=_PATIENCE)
                self.heard.set()
                return answered
            except QUERY_FAILED as error:
                if not (tries_left and MOVES_ON in str(error)):
                    raise
            await asyncio.sleep(_MOMENT_SECONDS)
        raise AssertionError("the last try neither answered nor failed")

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
                return Unavailable(NO_WORKER)
            return Unavailable(f"Temporal at {self._target.address}: {error.message}")
        if isinstance(error, TimeoutError | WorkflowUpdateRPCTimeoutOrCancelledError):
            return Unavailable(NO_WORKER)
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


def _not_ready(error: RPCError) -> bool:
    """The server did not hand the call to the workflow, and will when asked again."""
    return any(detail.Is(WorkflowNotReadyFailure.DESCRIPTOR) for detail in error.grpc_status.details)
