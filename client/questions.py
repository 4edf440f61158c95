"""Asks the ledger's desk over Temporal."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError

from client.repeats import is_repeatable, same_id
from client.workflow_calls import NEW_EVENTS, NO_WORKER, Calls, in_time, stop_again
from models.access.rights import READS_DESK
from models.audit_chain import ATTEMPT, DESK, AuditEntry, AuditKind
from models.base import Model, in_one_sentence
from models.errors import Unavailable
from models.question_base import DeskAnswer, DeskRequest, Question
from models.temporal_names import DESK_WORKFLOW, TASK_QUEUE

if TYPE_CHECKING:
    from client.composed import Composed
else:

    class Composed:
        """Imports client/composed.py, which needs all questions, only when one of its methods is used."""

        def __getattr__(self, name: str) -> Any:
            from client.operations import composed_method

            if (method := composed_method(self, name)) is None:
                raise AttributeError(name)
            return method


_WAITS = (1, 1, 2, 4, 12)
"""Seconds after which the client starts to wait for an answer again; the last one repeats for ever.

A busy server (1.32) can miss the end of a run for which somebody waits, and then keeps them waiting for its full 20 s:
one of some hundreds of questions on two full cores. A wait that begins after the run's end is answered at once.
"""
_SURE_SECONDS = 2
"""Seconds after which the client withdraws a question if Temporal knows of no worker that polls."""

_AnswerT = TypeVar("_AnswerT")


class Questions(Calls, Composed):
    """The desk, asked by one actor."""

    async def ask(self, question: Question[_AnswerT], payload: str = "") -> _AnswerT:
        """Return the answer. Errors: those of the question; Unavailable if no worker has taken it up."""
        request = DeskRequest(
            kind=question.kind, actor=self._actor, arguments=question.model_dump(mode="json"), payload=payload
        )
        workflow_id = desk_workflow_id(question)
        if workflow_id:
            once = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
        else:
            once = WorkflowIDReusePolicy.REJECT_DUPLICATE if is_repeatable() else WorkflowIDReusePolicy.ALLOW_DUPLICATE
            workflow_id = f"{DESK}{question.kind}/{same_id(question.kind, request)}"
        try:
            try:
                handle = await self._client.start_workflow(
                    DESK_WORKFLOW,
                    self._sign(request, f"desk.{question.kind}", workflow_id),
                    id=workflow_id,
                    task_queue=TASK_QUEUE,
                    result_type=DeskAnswer,
                    execution_timeout=timedelta(minutes=5),
                    static_summary=f"{question.kind} for {self._actor}",
                    id_reuse_policy=once,
                )
            except WorkflowAlreadyStartedError:  # the same was asked before, under the same key
                handle = self._client.get_workflow_handle(workflow_id, result_type=DeskAnswer)
            answer: DeskAnswer = await self._await_answer(handle, question)
        except (WorkflowFailureError, RPCError) as error:
            if isinstance(error.__cause__, ApplicationError):
                self.heard.set()  # a worker has answered, by a failure
            raise self._translate(error) from error
        try:
            return question.read(answer.result)
        except ValidationError as error:
            raise Unavailable(
                f"the worker runs another version of Backstop: install the same version here ({in_one_sentence(error)})"
            ) from None

    async def _await_answer(self, handle: WorkflowHandle[Any, DeskAnswer], question: Question[Any]) -> DeskAnswer:
        """Return the desk's answer, however long it takes. Errors: Unavailable if no worker took the question up."""
        waits, waited, changes = chain(_WAITS, repeat(_WAITS[-1])), 0, question.kind not in READS_DESK
        try:
            while (answer := await _hear_within(handle, seconds := next(waits))) is None:
                waited += seconds
                if not self.heard.is_set() and waited >= _SURE_SECONDS:
                    await self._look_for_a_worker(handle, waited, changes=changes)
        except asyncio.CancelledError:
            stopped = not question.own_run and await _stop_unserved(handle)
            if changes:
                what = "was withdrawn: no worker carries it out" if stopped else "goes on: a worker has it"
                self.note(f"Interrupted: {question.kind} {what}.")
            raise
        self.heard.set()
        return answer

    async def _look_for_a_worker(
        self, handle: WorkflowHandle[Any, DeskAnswer], waited: float, *, changes: bool
    ) -> None:
        """Check that a worker has taken the question up, or still may. Errors: Unavailable, and it is withdrawn."""
        if (await handle.describe()).history_length > NEW_EVENTS:
            self.heard.set()
        elif (waited >= sum(_WAITS) or await self.unserved()) and await _stop_unserved(handle):
            raise Unavailable(NO_WORKER)
        else:
            self.note(f"No worker has answered yet.{' Ctrl-C withdraws the command.' * changes}")

    async def _archive_refusal(
        self, cluster: str, command: str, reason: str, why: str, request: Model | None = None
    ) -> None:
        """Archive a refused command from here: it leaves no event in the rollout's history."""
        from models.questions import Archive

        entry = AuditEntry(
            key=f"{ATTEMPT}{uuid.uuid4().hex}",
            cluster=cluster,
            at=self._now(),
            kind=AuditKind.COMMAND,
            actor=self._actor,
            text=f"{command} refused: {why}",
            reason=reason,
            refused=True,
            data={} if request is None else request.model_dump(mode="json", exclude_defaults=True, exclude={"ticket"}),
        )
        # Without an answer too: the refusal itself matters more to the person than its record.
        await in_time(self.ask(Archive(entries=(entry,))), 10)


def desk_workflow_id(question: Question[Any]) -> str:
    """Return the workflow id of a question that has a run of its own; empty: it has none."""
    return f"{DESK}{question.kind}/{question.own_run}" if question.own_run else ""


async def _stop_unserved(handle: WorkflowHandle[Any, DeskAnswer]) -> bool:
    """End the question's run where no worker has taken it up, so that none will; return whether that was so."""
    try:
        return await stop_again(handle)
    except RPCError:
        return False


async def _hear_within(handle: WorkflowHandle[Any, DeskAnswer], seconds: float) -> DeskAnswer | None:
    """Return the answer; None: it did not come within so many seconds. Errors: those of the question."""
    asking = asyncio.ensure_future(handle.result())
    try:
        done, _ = await asyncio.wait({asking}, timeout=seconds)
        return asking.result() if done else None
    finally:
        asking.cancel()
