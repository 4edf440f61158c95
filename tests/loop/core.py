"""The core of the SDK in memory: what a worker polls, and whom it answers."""

from __future__ import annotations

import asyncio
from typing import Protocol

from temporalio.bridge.proto import ActivityHeartbeat, ActivityTaskCompletion, NamespaceInfo
from temporalio.bridge.proto.activity_task import ActivityCancelReason, ActivityTask
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.bridge.worker import PollShutdownError  # type: ignore[attr-defined]


class Server(Protocol):
    """The calls that a worker makes to its server."""

    def serve(self, core: Core) -> None:
        """Note that this core polls."""

    def leave(self, core: Core) -> None:
        """Note that this core polls no more."""

    def done(self, completion: WorkflowActivationCompletion) -> None:
        """Take a worker's result of a workflow task."""

    def answered(self, completion: ActivityTaskCompletion) -> None:
        """Take a worker's result of an attempt of an activity."""

    def beat(self, core: Core, heartbeat: ActivityHeartbeat) -> None:
        """Note that an attempt is still under way."""


class Core:
    """The queues that a worker polls: the tasks of one task queue."""

    def __init__(self, server: Server, queue: str) -> None:
        self.queue = queue
        self._server = server
        self.tasks: asyncio.Queue[WorkflowActivation | None] = asyncio.Queue()
        self.calls: asyncio.Queue[ActivityTask | None] = asyncio.Queue()
        self._running = set[bytes]()
        self._leaving = False
        server.serve(self)

    async def validate(self) -> NamespaceInfo:
        return NamespaceInfo()

    async def poll_workflow_activation(self) -> WorkflowActivation:
        task = await self.tasks.get()
        if task is None:
            raise PollShutdownError
        return task

    async def poll_activity_task(self) -> ActivityTask:
        task = await self.calls.get()
        while task is not None and task.HasField("cancel") and task.task_token not in self._running:
            task = await self.calls.get()  # it has ended meanwhile
        if task is None:
            raise PollShutdownError
        if task.HasField("start"):
            self._running.add(task.task_token)
        return task

    async def complete_workflow_activation(self, completion: WorkflowActivationCompletion) -> None:
        self._server.done(completion)

    async def complete_activity_task(self, completion: ActivityTaskCompletion) -> None:
        self._running.discard(completion.task_token)
        self._server.answered(completion)
        self._left()

    def record_activity_heartbeat(self, heartbeat: ActivityHeartbeat) -> None:
        self._server.beat(self, heartbeat)

    def request_workflow_eviction(self, run_id: str) -> None:
        """Evict nothing: there would be no history to replay."""

    def initiate_shutdown(self) -> None:
        self._server.leave(self)
        self._leaving = True
        self.tasks.put_nowait(None)
        for token in self._running:
            task = ActivityTask(task_token=token)
            task.cancel.reason = ActivityCancelReason.WORKER_SHUTDOWN
            task.cancel.details.is_worker_shutdown = True
            self.calls.put_nowait(task)
        self._left()

    def _left(self) -> None:
        """End the polling once the last activity has ended."""
        if self._leaving and not self._running:
            self.calls.put_nowait(None)

    async def finalize_shutdown(self) -> None:
        """Do nothing: everything is gone already."""
