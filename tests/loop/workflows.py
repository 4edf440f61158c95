"""Workflows of the server in memory: who runs, what each is given next, and what comes of its commands."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from temporalio.api.common.v1 import Memo, Payload, SearchAttributes, WorkflowExecution
from temporalio.api.enums.v1 import (
    WorkflowExecutionStatus,
    WorkflowIdConflictPolicy,
    WorkflowIdReusePolicy,
)
from temporalio.api.failure.v1 import Failure
from temporalio.api.update.v1 import Outcome
from temporalio.api.workflowservice import v1 as service
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from tests.loop.activities import STEP_SECONDS, Activities
from tests.loop.core import Core
from tests.loop.runs import OVER, Run, Update, already_started, copied, query_failed
from tests.loop.turned_loop import TurnedLoop

_SUGGESTED_EVENTS = 4096
"""Events from which on a server suggests to continue as new."""

_UNANSWERED = "Workflow Update failed because the Workflow completed before the Update completed."


class Workflows:
    def __init__(self, loop: TurnedLoop, namespace: str) -> None:
        self._loop = loop
        self.cores = list[Core]()
        self._runs: dict[str, list[Run]] = {}
        """All runs by workflow id, the newest last."""
        self._by_run: dict[str, Run] = {}
        self._unserved: list[Run] = []
        self._again: asyncio.Future[None] | None = None
        self._replays: dict[str, asyncio.Future[WorkflowActivationCompletion]] = {}
        self.activities = Activities(loop, namespace, self.core, self.add)
        self.answered, self.beat = self.activities.answered, self.activities.beat

    def newest(self, workflow_id: str) -> Run | None:
        runs = self._runs.get(workflow_id)
        return runs[-1] if runs else None

    def known(self, execution: WorkflowExecution) -> Run:
        run = self._by_run.get(execution.run_id) if execution.run_id else self.newest(execution.workflow_id)
        if run is None:
            raise RPCError(f"workflow not found for ID: {execution.workflow_id}", RPCStatusCode.NOT_FOUND, b"")
        return run

    def opened(self, execution: WorkflowExecution) -> Run:
        run = self.known(execution)
        if not run.runs:
            raise RPCError(OVER, RPCStatusCode.NOT_FOUND, b"")
        return run

    def chain(self, run: Run) -> Iterable[Run]:
        """This run, and those that it continued as."""
        yield run
        while run.next_run:
            run = self._by_run[run.next_run]
            yield run

    def started(self, request: service.StartWorkflowExecutionRequest) -> tuple[Run, bool]:
        """The run that there is now, and whether it has just begun. Errors: RPCError, ALREADY_EXISTS."""
        last, conflicts = self.newest(request.workflow_id), WorkflowIdConflictPolicy
        if last is not None and last.runs:
            if request.workflow_id_conflict_policy == conflicts.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING:
                return last, False
            if request.workflow_id_conflict_policy != conflicts.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING:
                raise already_started(last)
            self.terminate(last, "TerminateIfRunning WorkflowIdReusePolicy Policy")
        policies = WorkflowIdReusePolicy
        failed_only = policies.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY
        well = last is not None and last.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED
        never = request.workflow_id_reuse_policy == policies.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE
        if last is not None and (never or (well and request.workflow_id_reuse_policy == failed_only)):
            raise already_started(last)
        run = Run(
            id=request.workflow_id,
            run_id=str(uuid.uuid4()),
            kind=request.workflow_type.name,
            queue=request.task_queue.name,
            arguments=list(request.input.payloads),
            started=self._loop.now(),
            memo=dict(request.memo.fields),
            attributes=dict(request.search_attributes.indexed_fields),
        )
        run.first_run = run.run_id
        limit = request.workflow_execution_timeout.ToTimedelta()
        run.ends_by = run.started + limit if limit else None
        self._begin(run)
        return run, True

    def _begin(self, run: Run) -> None:
        self._runs.setdefault(run.id, []).append(run)
        self._by_run[run.run_id] = run
        if run.ends_by is not None:
            out = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT
            left = (run.ends_by - self._loop.now()).total_seconds()
            self._loop.call_later(left, lambda: self.end(run, out) if run.runs else None)
        job = WorkflowActivationJob()
        first = job.initialize_workflow
        first.workflow_type, first.workflow_id = run.kind, run.id
        first.arguments.extend(run.arguments)
        first.randomness_seed = uuid.UUID(run.run_id).int >> 64
        first.first_execution_run_id, first.original_execution_run_id = run.first_run, run.run_id
        first.continued_from_execution_run_id = run.continued_from
        first.attempt = 1
        first.workflow_task_timeout.FromSeconds(10)
        first.start_time.FromDatetime(run.started)
        first.memo.CopyFrom(Memo(fields=run.memo))
        first.search_attributes.CopyFrom(SearchAttributes(indexed_fields=run.attributes))
        run.jobs.insert(0, job)
        self.wake(run)

    def add(self, run: Run, job: WorkflowActivationJob, events: int = 1) -> None:
        run.events += events
        run.jobs.append(job)
        self.wake(run)

    def ask(self, run: Run, update_id: str, update: Update) -> None:
        asked = update.request.request
        job = WorkflowActivationJob()
        job.do_update.id = job.do_update.protocol_instance_id = update_id
        job.do_update.name = asked.input.name
        job.do_update.input.extend(asked.input.args.payloads)
        job.do_update.meta.update_id, job.do_update.meta.identity = update_id, asked.meta.identity
        job.do_update.run_validator = True
        self.add(run, job, events=0)

    def listed(self, query: str) -> list[Run]:
        """Return the runs of a query made of `Name = 'value'` and `!=`, joined by AND; the newest first."""
        runs = [run for runs in self._runs.values() for run in runs]
        for name, sign, quoted in _conditions(query):
            value = re.sub(r"\\(.)", r"\1", quoted)
            runs = [run for run in runs if (self._value(run, name) == value) == (sign == "=")]
        return sorted(runs, key=lambda run: run.started, reverse=True)

    def _value(self, run: Run, name: str) -> str | None:
        match name:
            case "WorkflowId":
                return run.id
            case "WorkflowType":
                return run.kind
            case "ExecutionStatus":
                words = WorkflowExecutionStatus.Name(run.status).removeprefix("WORKFLOW_EXECUTION_STATUS_")  # type: ignore[arg-type]
                return "".join(word.capitalize() for word in words.split("_"))
        payload = run.attributes.get(name)
        return None if payload is None else str(DataConverter.default.payload_converter.from_payload(payload))

    # --- tasks of workflows -----------------------------------------------------------------------

    def serve(self, core: Core) -> None:
        self.cores.append(core)
        waiting, self._unserved = self._unserved, []
        for run in waiting:
            self.wake(run)

    def leave(self, core: Core) -> None:
        if core in self.cores:
            self.cores.remove(core)

    def core(self, queue: str) -> Core | None:
        return next((core for core in self.cores if core.queue == queue), None)

    def wake(self, run: Run) -> None:
        """Its worker gets what has happened, if it has nothing in hand."""
        if run.busy or not (run.jobs or run.queries):
            return
        if run.worker is None:
            run.worker = self.core(run.queue)
        if run.worker is None or run.worker not in self.cores:
            if run not in self._unserved:
                self._unserved.append(run)
            return
        self._loop.turn(STEP_SECONDS)
        task = WorkflowActivation(run_id=run.run_id, history_length=run.events + 1, history_size_bytes=run.events * 250)
        task.timestamp.FromDatetime(self._loop.now())
        task.continue_as_new_suggested = run.events > _SUGGESTED_EVENTS
        if run.jobs:
            task.jobs.extend(run.jobs)
            run.jobs.clear()
            run.events += 3
            run.tasks.append((copied(task), []))
        else:
            request, run.asked = run.queries.popleft()
            job = task.jobs.add()
            job.query_workflow.query_id = "legacy_query"
            job.query_workflow.query_type = request.query.query_type
            job.query_workflow.arguments.extend(request.query.query_args.payloads)
        run.busy = True
        run.worker.tasks.put_nowait(task)

    def done(self, completion: WorkflowActivationCompletion) -> None:
        """Take a worker's result of a task."""
        if completion.run_id in self._replays:
            self._replays.pop(completion.run_id).set_result(completion)
            return
        run = self._by_run[completion.run_id]
        run.busy = False
        asked, run.asked = run.asked, None
        self._loop.tasks_ended += asked is None
        if completion.HasField("failed"):
            why = completion.failed.failure
            if asked is not None and not asked.done():
                asked.set_exception(query_failed(why))
                self.wake(run)
                return
            raise AssertionError(f"a task of {run.id} failed: {why.message}\n{why.stack_trace}")
        if asked is None and run.runs and _is_unhandled(run.jobs, completion.successful.commands):
            run.busy = True
            self._again = asyncio.ensure_future(self._done_again(run))
            return
        if asked is None:
            run.tasks[-1][1].extend(copied(command) for command in completion.successful.commands)
        if not run.runs and asked is None:
            return
        for command in completion.successful.commands:
            self._obey(run, command, asked)
        self.wake(run)

    def _obey(
        self, run: Run, command: WorkflowCommand, asked: asyncio.Future[service.QueryWorkflowResponse] | None
    ) -> None:
        match command.WhichOneof("variant"):
            case "start_timer":
                timer = command.start_timer
                seconds = timer.start_to_fire_timeout.ToTimedelta().total_seconds()
                run.events += 1
                run.timers[timer.seq] = self._loop.call_later(seconds, self._fire, run, timer.seq)
            case "cancel_timer":
                run.events += 1
                self._cancel_timer(run, command.cancel_timer.seq)
            case "schedule_activity":
                run.events += 1
                self.activities.schedule(run, command.schedule_activity)
            case "request_cancel_activity":
                self.activities.cancel(run, command.request_cancel_activity.seq)
            case "respond_to_query" if asked is not None and not asked.done():
                said = command.respond_to_query
                if said.HasField("failed"):
                    asked.set_exception(query_failed(said.failed))
                else:
                    answer = service.QueryWorkflowResponse()
                    answer.query_result.payloads.append(said.succeeded.response)
                    asked.set_result(answer)
            case "update_response":
                self._responded(run, command.update_response)
            case "upsert_workflow_search_attributes":
                run.events += 1
                fields = command.upsert_workflow_search_attributes.search_attributes.indexed_fields
                run.attributes = _upserted(run.attributes, fields)
            case "modify_workflow_properties":
                run.events += 1
                run.memo = _upserted(run.memo, command.modify_workflow_properties.upserted_memo.fields)
            case "set_patch_marker":
                run.events += 2
            case "complete_workflow_execution":
                run.result = [command.complete_workflow_execution.result]
                self.end(run, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED)
            case "fail_workflow_execution":
                run.failure = command.fail_workflow_execution.failure
                self.end(run, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED)
            case "cancel_workflow_execution":
                self.end(run, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED)
            case "continue_as_new_workflow_execution":
                self._continue(run, command.continue_as_new_workflow_execution)
            case other:
                raise AssertionError(f"{run.id}: the server in memory knows no command {other}")

    def _responded(self, run: Run, response: Any) -> None:
        update = run.updates[response.protocol_instance_id]
        match response.WhichOneof("response"):
            case "accepted":
                run.events += 1
                update.accepted.set()
            case "rejected":  # or failed, where it was accepted before
                if not update.accepted.is_set():
                    del run.updates[response.protocol_instance_id]
                update.outcome.set_result(Outcome(failure=response.rejected))
            case "completed":
                run.events += 1
                outcome = Outcome()
                outcome.success.payloads.append(response.completed)
                update.outcome.set_result(outcome)

    def _cancel_timer(self, run: Run, seq: int) -> None:
        """One that has fired since its worker took the task is not heard of either, as on a real server."""
        if seq in run.timers:
            run.timers.pop(seq).cancel()
        run.jobs[:] = [job for job in run.jobs if not (job.HasField("fire_timer") and job.fire_timer.seq == seq)]

    def _fire(self, run: Run, seq: int) -> None:
        del run.timers[seq]
        job = WorkflowActivationJob()
        job.fire_timer.seq = seq
        self.add(run, job)

    def terminate(self, run: Run, reason: str) -> None:
        run.reason = reason or "terminated by user via frontend"
        self.end(run, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED)

    def end(self, run: Run, status: int) -> None:
        run.status, run.closed = status, self._loop.now()
        run.events += 1
        for timer in run.timers.values():
            timer.cancel()
        for call in run.calls.values():
            call.rest()
        run.timers.clear()
        if status != WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
            for update in run.updates.values():
                if not update.outcome.done():
                    update.lost = not update.accepted.is_set()
                    failure = Failure(message=_UNANSWERED)
                    failure.application_failure_info.type = "AcceptedUpdateCompletedWorkflow"
                    update.outcome.set_result(Outcome(failure=failure))
        run.jobs.clear()
        run.ended.set()

    def _continue(self, run: Run, command: Any) -> None:
        """The next run takes over the updates that came meanwhile, as a server's door asks it again."""
        left = [job for job in run.jobs if job.HasField("do_update")]
        after = Run(
            id=run.id,
            run_id=str(uuid.uuid4()),
            kind=command.workflow_type or run.kind,
            queue=command.task_queue or run.queue,
            arguments=list(command.arguments),
            started=self._loop.now(),
            memo={**run.memo, **command.memo},
            attributes={**run.attributes, **command.search_attributes.indexed_fields},
            ends_by=run.ends_by,
            first_run=run.first_run,
            continued_from=run.run_id,
        )
        for update_id, update in list(run.updates.items()):
            if not update.accepted.is_set():
                after.updates[update_id] = run.updates.pop(update_id)
        after.queries, run.queries = run.queries, deque()
        run.next_run = after.run_id
        self.end(run, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW)
        after.jobs = left
        self._begin(after)

    async def replay(self) -> None:
        """Replay each run that a worker has, from its tasks. Errors: AssertionError for other commands."""
        for run in list(self._by_run.values()):
            if run.worker in self.cores and not run.busy:
                await self._replayed(run)

    async def _replayed(self, run: Run) -> None:
        for number, (task, expected) in enumerate(self._replays_of(run, f"{run.run_id}, again")):
            again = list((await self._handed(run, task)).successful.commands)
            assert again == expected, f"{run.id} parts ways at task {number}: {again} instead of {expected}"

    async def _done_again(self, run: Run) -> None:
        """Its last task is given to it once more, with what came meanwhile: what it made of it counts for nothing."""
        given, _ = run.tasks.pop()
        leave = WorkflowActivation(run_id=run.run_id)
        leave.jobs.add().remove_from_cache.message = "its last task counts for nothing"
        await self._handed(run, leave)
        for task, _ in self._replays_of(run, run.run_id):
            await self._handed(run, task)
        run.jobs[:0] = given.jobs
        run.busy = False
        self.wake(run)

    async def _handed(self, run: Run, task: WorkflowActivation) -> WorkflowActivationCompletion:
        """Give the task to the run's worker; return its result, which has no effect."""
        done: asyncio.Future[WorkflowActivationCompletion] = self._loop.create_future()
        self._replays[task.run_id] = done
        assert run.worker is not None
        run.worker.tasks.put_nowait(task)
        return await done

    def _replays_of(self, run: Run, run_id: str) -> Iterator[tuple[WorkflowActivation, list[WorkflowCommand]]]:
        """Its tasks as a worker that plays them again gets them, and the commands that must come of each."""
        made = [command for _, commands in run.tasks for command in commands]
        patches = [command.set_patch_marker.patch_id for command in made if command.HasField("set_patch_marker")]
        refused = _answered(made, "rejected") - _answered(made, "accepted")  # a server notes nothing of these
        # Those of now: one that comes while they are played has no commands yet.
        for number, (given, commands) in enumerate(tuple(run.tasks)):
            task = WorkflowActivation(run_id=run_id, is_replaying=True)
            task.MergeFrom(copied(given, but=("run_id", "jobs")))
            if not number:
                for patch in patches:
                    task.jobs.add().notify_has_patch.patch_id = patch
            for job in given.jobs:
                if not job.HasField("do_update"):
                    task.jobs.add().CopyFrom(job)
                elif job.do_update.id not in refused:
                    task.jobs.add().CopyFrom(job)
                    task.jobs[-1].do_update.run_validator = False
            if len(task.jobs) > 0:
                yield task, [c for c in commands if c.update_response.protocol_instance_id not in refused]


_LAST = ("complete", "fail", "cancel", "continue_as_new")


def _is_unhandled(jobs: Iterable[WorkflowActivationJob], commands: Iterable[WorkflowCommand]) -> bool:
    """A workflow ends without having heard what came meanwhile. An update that nobody has accepted does not count."""
    ends = any(command.HasField(f"{last}_workflow_execution") for command in commands for last in _LAST)  # type: ignore[arg-type]
    return ends and not all(job.HasField("do_update") for job in jobs)


def _upserted(fields: Mapping[str, Payload], new: Mapping[str, Payload]) -> dict[str, Payload]:
    """An empty value removes a name."""
    merged = {**fields, **new}
    return {name: value for name, value in merged.items() if value.metadata["encoding"] != b"binary/null"}


def _answered(commands: Iterable[WorkflowCommand], how: str) -> set[str]:
    """Ids of the updates to which a workflow answered so."""
    responses = [command.update_response for command in commands if command.HasField("update_response")]
    return {response.protocol_instance_id for response in responses if response.WhichOneof("response") == how}


def _conditions(query: str) -> list[tuple[str, str, str]]:
    found = re.findall(r"(\w+) (=|!=) '((?:[^'\\]|\\.)*)'", query)
    left = re.sub(r"(\w+) (=|!=) '((?:[^'\\]|\\.)*)'", "", query).replace(" AND ", "").strip()
    if left:
        raise RPCError(f"the server in memory cannot read {query!r}", RPCStatusCode.INVALID_ARGUMENT, b"")
    return found
