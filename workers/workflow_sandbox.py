"""The sandbox of workers, and what it must keep from the server and from workflows.

A workflow names the build that it keeps to; a server takes that from versioned workers only, and refuses every task of
others that name one. So it is left out there.

A query that waits for a dead worker reaches the next one together with events that no workflow task has taken in yet,
such as a timer that has just fired. temporalio 1.35 then lets the workflow live through these events for real, at the
time of its last task; its decisions stay in the cache and become the next task's commands, which no replay can repeat
(TMPRL1100, and the rollout would stand still for good). Such an activation shows itself: history has grown, and time
has not. The query that follows is failed here: it is refused, the run leaves the cache with its decisions, and the next
workflow task replays it with its true time.

The activation itself is answered. A server whose clock was set back makes true tasks that look the same: the core never
shows a workflow an earlier time than the last. Failing them would stop every rollout until the clock has caught up; so
only queries are refused there, once each, and the replay that follows answers them.

If another worker had taken a task for these events, and died with it, the workflow lives at that task's time instead,
and nothing shows before the query follows (found by chaos, once in 65 rollouts). A worker that has just replayed a run,
lived once and is queried at once cannot tell that from a task of its own; so it refuses that query too, at the cost of
another replay. Queries that came with a task have ids of their own, and are answered.

An activation that takes more than two seconds is reported to the server as a deadlock (TMPRL1101). temporalio 1.35
means to wait for its thread before the run leaves the cache, and does not: its time limit cancels the very future it
waits for. So a second thread lived in the workflow's loop beside the first, steps were lost between the two, and that
run could never leave the cache: its slot was lost, and nothing answered its breaches before the worker was restarted
(found on a machine of two cores at a load of twelve). Here the second waits for the first. Nor is an exception thrown
into the first one's thread, which loses a step likewise: ours are slow where the machine is, and never endless.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import StorageDriverStoreContext, WorkflowSerializationContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import Info

from activities.clock import Clock, utc_now, worker_clock
from client.encryption import run_began
from models.temporal_names import MOVES_ON

_ASKED_ALONE = "legacy_query"
"""The id that Temporal's core gives to a query that came without a workflow task."""
_NO_EVENTS = {"query_workflow", "remove_from_cache"}
"""Jobs that do not stem from history."""


@dataclass(frozen=True)
class OnTimeRunner(SandboxedWorkflowRunner):
    """The sandbox, for workers; a replay is faster with it too. `versioned`: they name their build."""

    versioned: bool = False
    now: Clock = utc_now

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _OnTime(super().create_instance(det), self.versioned, det.info, self.now)


class _OnTime(WorkflowInstance):
    def __init__(self, inner: WorkflowInstance, versioned: bool, info: Info, now: Clock = utc_now) -> None:
        self._now = now
        self._inner = inner
        self._versioned = versioned
        self._began = info.start_time
        self._context = WorkflowSerializationContext(namespace=info.namespace, workflow_id=info.workflow_id)
        self._lives = 0
        """The number of activations that were no replay; counted up to two."""
        self._just_lived = False
        self._untimely = False
        """Whether the last activation brought events although no time had passed."""
        self._last: tuple[int, int, int] | None = None
        """The last activation's time (seconds, nanoseconds) and length of history."""
        self._one_at_a_time = threading.Lock()

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        with self._one_at_a_time:
            return self._activate(act)

    def _activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        jobs = {job.WhichOneof("variant") for job in act.jobs}
        if jobs <= _NO_EVENTS:
            asked_alone = any(job.query_workflow.query_id == _ASKED_ALONE for job in act.jobs)
            doubtful = asked_alone and (self._untimely or (self._just_lived and self._lives == 1))
            self._just_lived = False
            return _refuse(act) if doubtful else self._live(act)
        self._untimely = self._is_standing_still(act)
        if not act.is_replaying:
            self._lives, self._just_lived = min(2, self._lives + 1), True
        self._last = (act.timestamp.seconds, act.timestamp.nanos, act.history_length)
        return self._live(act)

    def _live(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        token, clock = run_began.set(self._began), worker_clock.set(self._now)
        try:
            done = self._inner.activate(act)
        finally:
            run_began.reset(token)
            worker_clock.reset(clock)
        if not self._versioned and done.HasField("successful"):
            done.successful.ClearField("versioning_behavior")
        return done

    def _is_standing_still(self, act: WorkflowActivation) -> bool:
        """Return whether history has grown since the last activation, and time has not."""
        if self._last is None or act.is_replaying:
            return False
        *time, length = self._last
        return act.history_length > length and [act.timestamp.seconds, act.timestamp.nanos] <= time

    # Called for each payload, in the sandbox, which is a seventh of a worker's time. The codec takes the workflow's id
    # alone, the same for all payloads to activities; no workflow of ours signals another or has a child.
    # Temporal names their argument's type in a private module.
    def get_serialization_context(self, command_info):  # type: ignore[no-untyped-def]
        return self._context

    def get_external_store_context(self, command_info):  # type: ignore[no-untyped-def]
        return StorageDriverStoreContext()

    def get_info(self) -> Info:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        """Return None: there is no thread into which an exception could be thrown."""
        return None


def _refuse(act: WorkflowActivation) -> WorkflowActivationCompletion:
    """Fail the activation, so that the run leaves the cache."""
    refused = WorkflowActivationCompletion(run_id=act.run_id)
    refused.failed.failure.message = MOVES_ON
    return refused
