"""The in-memory server's state of a run: its updates, its calls, and the tasks that its worker was given."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from temporalio.api.common.v1 import GrpcStatus, Payload, WorkflowExecution
from temporalio.api.enums.v1 import (
    WorkflowExecutionStatus,
)
from temporalio.api.errordetails.v1 import (
    MultiOperationExecutionFailure,
    QueryFailedFailure,
    WorkflowExecutionAlreadyStartedFailure,
)
from temporalio.api.failure.v1 import Failure, MultiOperationExecutionAborted
from temporalio.api.update.v1 import Outcome
from temporalio.api.workflowservice import v1 as service
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import ScheduleActivity, WorkflowCommand
from temporalio.service import RPCError, RPCStatusCode

from tests.loop.core import Core

_MessageT = TypeVar("_MessageT", bound=Message)
_RUNNING = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
OVER = "workflow execution already completed"


@dataclass
class Update:
    """An update of a run. `accepted` and `outcome` are set once it is so; a refused one has an outcome only."""

    request: service.UpdateWorkflowExecutionRequest
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: asyncio.Future[Outcome] = field(default_factory=asyncio.Future)
    lost: bool = False
    """Its run ended before anybody took it."""


class Mishap(StrEnum):
    """A fault of a call between a worker and its server."""

    FAILS_ONCE = "fails once"
    """Before it does anything; its retry goes well."""
    ANSWER_LOST = "answer lost"
    """It is done, nobody hears of it, and its retry does it again."""
    AT_ONCE = "twice at once"
    """Two attempts do it beside each other, and one of them is heard."""
    LATE = "again, late"
    """A second attempt does it once the run's next call of its kind is over, and is not heard."""
    FOR_GOOD = "fails for good"
    """Before it does anything, and nobody tries again."""


@dataclass
class Call:
    """An activity of a run, through all its attempts."""

    run: Run
    order: ScheduleActivity
    scheduled: datetime
    attempt: int = 1
    token: bytes = b""
    """Of the attempt that is under way."""
    queue: str = ""
    details: list[Payload] = field(default_factory=list)
    last_failure: Failure | None = None
    cancel_asked: bool = False
    mishap: Mishap | None = None
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    silence: asyncio.TimerHandle | None = None

    def rest(self) -> None:
        """No time limit runs."""
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
        if self.silence is not None:
            self.silence.cancel()
            self.silence = None


@dataclass
class Run:
    """One run of a workflow."""

    id: str
    run_id: str
    kind: str
    queue: str
    arguments: list[Payload]
    started: datetime
    memo: dict[str, Payload] = field(default_factory=dict)
    attributes: dict[str, Payload] = field(default_factory=dict)
    ends_by: datetime | None = None
    """Its execution timeout, of all its runs."""
    first_run: str = ""
    continued_from: str = ""
    status: int = _RUNNING
    closed: datetime | None = None
    result: list[Payload] = field(default_factory=list)
    failure: Failure | None = None
    next_run: str = ""
    reason: str = ""
    """Why it was terminated."""
    cancel_asked: bool = False
    events: int = 2
    jobs: list[WorkflowActivationJob] = field(default_factory=list)
    queries: deque[tuple[service.QueryWorkflowRequest, asyncio.Future[service.QueryWorkflowResponse]]] = field(
        default_factory=deque
    )
    asked: asyncio.Future[service.QueryWorkflowResponse] | None = None
    """The query that is under way."""
    busy: bool = False
    """A task of it is with its worker."""
    worker: Core | None = None
    timers: dict[int, asyncio.TimerHandle] = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    updates: dict[str, Update] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[tuple[WorkflowActivation, list[WorkflowCommand]]] = field(default_factory=list)
    """What its worker was given, and what it made of it."""

    @property
    def runs(self) -> bool:
        return self.status == _RUNNING

    @property
    def execution(self) -> WorkflowExecution:
        return WorkflowExecution(workflow_id=self.id, run_id=self.run_id)


def copied(message: _MessageT, but: Iterable[str] = ()) -> _MessageT:
    copied = type(message)()
    copied.CopyFrom(message)
    for name in but:
        copied.ClearField(name)
    return copied


def already_started(run: Run) -> RPCError:
    failure = WorkflowExecutionAlreadyStartedFailure(run_id=run.run_id, first_execution_run_id=run.first_run)
    return rpc_error("Workflow execution is already running", RPCStatusCode.ALREADY_EXISTS, failure)


def of_many(error: RPCError) -> RPCError:
    """A start that failed, as it is told of where an update came with it."""
    both = MultiOperationExecutionFailure()
    first = both.statuses.add(code=error.status, message=error.message)
    first.details.extend(error.grpc_status.details)
    second = both.statuses.add(code=RPCStatusCode.ABORTED, message="Operation was aborted.")
    second.details.add().Pack(MultiOperationExecutionAborted())
    return rpc_error("MultiOperation could not be executed", error.status, both)


def rpc_error(message: str, status: RPCStatusCode, details: Message) -> RPCError:
    packed = AnyMessage()
    packed.Pack(details)
    raw = GrpcStatus(code=status, message=message, details=[packed])
    return RPCError(message, status, raw.SerializeToString())


def query_failed(failure: Failure) -> RPCError:
    return rpc_error(failure.message, RPCStatusCode.INVALID_ARGUMENT, QueryFailedFailure(failure=failure))
