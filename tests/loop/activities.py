"""Activities of the server in memory: attempts, time limits, retries and cancellation."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import RetryPolicy
from temporalio.api.enums.v1 import (
    RetryState,
    TimeoutType,
)
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto import ActivityHeartbeat, ActivityTaskCompletion
from temporalio.bridge.proto.activity_task import ActivityCancelReason, ActivityTask
from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import ActivityCancellationType, ScheduleActivity

from tests.loop.core import Core
from tests.loop.runs import Call, Mishap, Run, copied
from tests.loop.turned_loop import TurnedLoop

STEP_SECONDS = 0.001
"""What each task takes: no two happen at one time, as they do nowhere."""


class Activities:
    def __init__(
        self,
        loop: TurnedLoop,
        namespace: str,
        core: Callable[[str], Core | None],
        add: Callable[[Run, WorkflowActivationJob, int], None],
    ) -> None:
        """`core`: who polls a queue; `add`: tells a run what became of a call, in so many events."""
        self._loop = loop
        self._namespace = namespace
        self._core = core
        self._add = add
        self._tokens: dict[bytes, Call] = {}
        self.mishap: Callable[[Call], Mishap | None] = lambda call: None
        """Asked once of each call, when it is made."""
        self._late_tasks: list[tuple[Call, ActivityTask]] = []

    def schedule(self, run: Run, order: ScheduleActivity) -> None:
        call = run.calls[order.seq] = Call(run, order, self._loop.now(), queue=order.task_queue or run.queue)
        call.mishap = self.mishap(call)
        limit = order.schedule_to_close_timeout.ToTimedelta().total_seconds()
        if limit:
            self._loop.call_later(limit, self._late, call, TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, None)
        limit = order.schedule_to_start_timeout.ToTimedelta().total_seconds()
        if limit:
            self._loop.call_later(limit, self._late, call, TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START, None)
        self._attempt(call)

    def _attempt(self, call: Call) -> None:
        """One attempt begins, as soon as somebody polls its queue."""
        if not call.run.runs or call.run.calls.get(call.order.seq) is not call:
            return
        core = self._core(call.queue)
        if core is None:
            call.timers = [self._loop.call_later(0.05, self._attempt, call)]
            return
        self._loop.turn(STEP_SECONDS)
        call.token = uuid.uuid4().bytes
        self._tokens[call.token] = call
        task = ActivityTask(task_token=call.token)
        start, order, now = task.start, call.order, self._loop.now()
        start.workflow_namespace, start.workflow_type = self._namespace, call.run.kind
        start.workflow_execution.CopyFrom(call.run.execution)
        start.activity_id, start.activity_type, start.attempt = order.activity_id, order.activity_type, call.attempt
        start.input.extend(order.arguments)
        start.heartbeat_details.extend(call.details)
        start.scheduled_time.FromDatetime(call.scheduled)
        start.current_attempt_scheduled_time.FromDatetime(now)
        start.started_time.FromDatetime(now)
        for name in ("schedule_to_close_timeout", "start_to_close_timeout", "heartbeat_timeout", "retry_policy"):
            if order.HasField(name):
                getattr(start, name).CopyFrom(getattr(order, name))
        limit = order.start_to_close_timeout.ToTimedelta().total_seconds()
        kind = TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE
        call.timers = [self._loop.call_later(limit, self._late, call, kind, call.token)] if limit else []
        self._listen(call)
        mishap = call.mishap if call.attempt == 1 else None
        if mishap in (Mishap.FAILS_ONCE, Mishap.FOR_GOOD):
            failed = ActivityTaskCompletion(task_token=call.token)
            failed.result.failed.failure.CopyFrom(_injected(for_good=mishap is Mishap.FOR_GOOD))
            self._loop.call_soon(self.answered, failed)
            return
        core.calls.put_nowait(task)
        if mishap is Mishap.AT_ONCE:
            core.calls.put_nowait(_unheard(task))
        elif mishap is Mishap.LATE:
            self._late_tasks.append((call, _unheard(task)))

    def _listen(self, call: Call) -> None:
        """Its next heartbeat is due in so long."""
        if call.silence is not None:
            call.silence.cancel()
        limit = call.order.heartbeat_timeout.ToTimedelta().total_seconds()
        kind = TimeoutType.TIMEOUT_TYPE_HEARTBEAT
        call.silence = self._loop.call_later(limit, self._late, call, kind, call.token) if limit else None

    def beat(self, core: Core, heartbeat: ActivityHeartbeat) -> None:
        call = self._tokens.get(heartbeat.task_token)
        gone = call is None or not call.run.runs or call.token != heartbeat.task_token
        if call is not None and not gone:
            call.details = list(heartbeat.details)
            self._listen(call)
        if gone or (call is not None and call.cancel_asked):
            task = ActivityTask(task_token=heartbeat.task_token)
            task.cancel.reason = ActivityCancelReason.NOT_FOUND if gone else ActivityCancelReason.CANCELLED
            task.cancel.details.is_not_found, task.cancel.details.is_cancelled = gone, not gone
            core.calls.put_nowait(task)

    def answered(self, completion: ActivityTaskCompletion) -> None:
        """Take a worker's result of an attempt; drop it if nobody waits for it any more."""
        self._loop.tasks_ended += 1
        call = self._tokens.pop(completion.task_token, None)
        if call is None or call.token != completion.task_token or not call.run.runs:
            return
        match completion.result.WhichOneof("status"):
            case "completed" if call.mishap is Mishap.ANSWER_LOST and call.attempt == 1:
                self._failed(call, _injected())
            case "completed":
                self.send_late(call)
                job = WorkflowActivationJob()
                job.resolve_activity.seq = call.order.seq
                job.resolve_activity.result.completed.result.CopyFrom(completion.result.completed.result)
                self._resolve(call, job)
            case "failed":
                self._failed(call, completion.result.failed.failure)
            case "cancelled" if call.cancel_asked:
                self._cancelled(call)
            case "cancelled":  # its worker shuts down
                self._failed(call, completion.result.cancelled.failure)

    def send_late(self, answered: Call | None = None) -> None:
        """Kept attempts are made once the run's next call of their kind is `answered`; all of them without one."""
        due = [
            (call, task)
            for call, task in self._late_tasks
            if answered is None or (_name(answered) == _name(call) and answered is not call)
        ]
        for call, task in due:
            self._late_tasks.remove((call, task))
            core = self._core(call.queue)
            assert core is not None
            core.calls.put_nowait(task)

    def _late(self, call: Call, kind: Any, token: bytes | None) -> None:
        """A limit is over; `token`: of the attempt that it was of, None: of all of them."""
        if call.run.calls.get(call.order.seq) is not call or (token is not None and token != call.token):
            return
        if kind == TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START and (call.token or call.attempt > 1):
            return
        name = TimeoutType.Name(kind).removeprefix("TIMEOUT_TYPE_")
        words = "".join(word.capitalize() for word in name.split("_"))
        failure = Failure(message=f"activity {words} timeout")
        failure.timeout_failure_info.timeout_type = kind
        failure.timeout_failure_info.last_heartbeat_details.payloads.extend(call.details)
        if token is None:
            self._give_up(call, failure, RetryState.RETRY_STATE_TIMEOUT)
        else:
            self._failed(call, failure)

    def _failed(self, call: Call, failure: Failure) -> None:
        call.rest()
        call.token, call.last_failure = b"", failure
        policy, now = call.order.retry_policy, self._loop.now()
        info = failure.application_failure_info
        of_kind = info.type in policy.non_retryable_error_types
        if failure.HasField("application_failure_info") and (info.non_retryable or of_kind):
            return self._give_up(call, failure, RetryState.RETRY_STATE_NON_RETRYABLE_FAILURE)
        if call.cancel_asked:
            return self._give_up(call, failure, RetryState.RETRY_STATE_CANCEL_REQUESTED)
        if policy.maximum_attempts and call.attempt >= policy.maximum_attempts:
            return self._give_up(call, failure, RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED)
        pause = _pause(policy, call.attempt)
        if info.HasField("next_retry_delay"):
            pause = info.next_retry_delay.ToTimedelta().total_seconds()
        limit = call.order.schedule_to_close_timeout.ToTimedelta()
        if limit and now + timedelta(seconds=pause) >= call.scheduled + limit:
            return self._give_up(call, failure, RetryState.RETRY_STATE_TIMEOUT)
        call.attempt += 1
        call.timers = [self._loop.call_later(pause, self._attempt, call)]
        return None

    def _give_up(self, call: Call, failure: Failure, state: Any) -> None:
        job = WorkflowActivationJob()
        job.resolve_activity.seq = call.order.seq
        whole = job.resolve_activity.result.failed.failure
        whole.message = (
            "Activity task timed out" if failure.HasField("timeout_failure_info") else "Activity task failed"
        )
        whole.cause.CopyFrom(failure)
        self._name(whole, call)
        whole.activity_failure_info.retry_state = state
        self._resolve(call, job)

    def _name(self, failure: Failure, call: Call) -> None:
        failure.activity_failure_info.activity_type.name = call.order.activity_type
        failure.activity_failure_info.activity_id = call.order.activity_id

    def cancel(self, run: Run, seq: int) -> None:
        call = run.calls.get(seq)
        if call is None:
            return
        call.cancel_asked = True
        waits = call.order.cancellation_type == ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
        if call.order.cancellation_type == ActivityCancellationType.ABANDON or (waits and call.token):
            return
        self._cancelled(call)

    def _cancelled(self, call: Call) -> None:
        job = WorkflowActivationJob()
        job.resolve_activity.seq = call.order.seq
        failure = job.resolve_activity.result.cancelled.failure
        failure.message = "Activity cancelled"
        failure.cause.canceled_failure_info.SetInParent()
        failure.activity_failure_info.retry_state = RetryState.RETRY_STATE_CANCEL_REQUESTED
        self._name(failure, call)
        self._resolve(call, job)

    def _resolve(self, call: Call, job: WorkflowActivationJob) -> None:
        call.rest()
        call.run.calls.pop(call.order.seq, None)
        self._add(call.run, job, 2)


def _name(call: Call) -> tuple[str, str]:
    return call.run.id, call.order.activity_type


def _unheard(task: ActivityTask) -> ActivityTask:
    """The same attempt once more; nothing comes of its answer."""
    again = copied(task)
    again.task_token = uuid.uuid4().bytes
    return again


def _injected(*, for_good: bool = False) -> Failure:
    failure = Failure(message="injected")
    failure.application_failure_info.type = "Refusal" if for_good else "Unavailable"
    failure.application_failure_info.non_retryable = for_good
    return failure


def _pause(policy: RetryPolicy, attempt: int) -> float:
    """Seconds until the attempt after this one."""
    first = policy.initial_interval.ToTimedelta().total_seconds() or 1.0
    most = policy.maximum_interval.ToTimedelta().total_seconds() or 100 * first
    return min(most, first * (policy.backoff_coefficient or 2.0) ** (attempt - 1))
