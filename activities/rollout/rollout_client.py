"""Reaches a cluster's rollouts from a thread: launches them, gives them commands, and orders a grant."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import (
    Client,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.workflow_starts import launch_rollout
from models.errors import Unavailable
from models.planning.grants import Granted, GrantOrder, GrantOutcome
from models.rollout.commands import CommandRequest
from models.rollout.messages import CommandAnswer, LaunchAnswer, LaunchRequest
from models.rollout.stages import Command
from models.rollout.status_models import RolloutStatus
from models.temporal_names import GRANT_UPDATE, STATUS_QUERY, rollout_workflow_id

_T = TypeVar("_T")
_PATIENCE = timedelta(seconds=45)


class TemporalRollouts:
    """RolloutDoor by Temporal. `loop`: the client's own; calls come from the threads of activities."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def grant(self, cluster: str, order: GrantOrder) -> Granted:
        try:
            answer: Granted = self._answer(
                self._client.get_workflow_handle(rollout_workflow_id(cluster)).execute_update(
                    GRANT_UPDATE, order, id=f"{order.request}/{_this_try()}", result_type=Granted, rpc_timeout=_PATIENCE
                )
            )
        except WorkflowUpdateFailedError as error:
            why = str(error.cause) or "the rollout refused it"
            return Granted(request=order.request, outcome=GrantOutcome.LATER, said=why)
        return answer

    def launch(self, request: LaunchRequest) -> LaunchAnswer:
        try:
            summary = f"{request.cluster}, owner {request.owner}: {request.reason}"[:200]
            return self._answer(launch_rollout(self._client, request, summary, _PATIENCE))
        except (WorkflowUpdateFailedError, WorkflowAlreadyStartedError) as error:
            raise Unavailable(f"{request.cluster}: {error}") from error

    def command(self, cluster: str, command: Command, request: CommandRequest) -> str:
        try:
            self._answer(
                self._client.get_workflow_handle(rollout_workflow_id(cluster)).execute_update(
                    command, request, id=f"{command}/{_this_try()}", result_type=CommandAnswer, rpc_timeout=_PATIENCE
                )
            )
        except WorkflowUpdateFailedError as error:
            if command in (Command.CLOSE, Command.ABORT) and self._has_ended(cluster):
                return ""  # it ends already, and its last records are on their way to the ledger
            return str(error.cause) or "refused"
        return ""

    def _has_ended(self, cluster: str) -> bool:
        try:
            status: RolloutStatus = self._answer(
                self._client.get_workflow_handle(rollout_workflow_id(cluster)).query(
                    STATUS_QUERY, result_type=RolloutStatus, rpc_timeout=_PATIENCE
                )
            )
        except WorkflowQueryFailedError:
            return False
        return status.stage.has_ended

    def _answer(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Wait for the call. Errors: Unavailable if nobody answers in time."""
        waiting = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return waiting.result(_PATIENCE.total_seconds())
        except RPCError as error:
            gone = error.status is RPCStatusCode.NOT_FOUND
            raise Unavailable("its rollout has just ended" if gone else str(error)) from error
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            waiting.cancel()
            raise Unavailable("its rollout did not answer in time") from error


def _this_try() -> str:
    """Make a new id: Temporal answers an update once for its id."""
    return uuid.uuid4().hex
