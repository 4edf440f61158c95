"""Questions to the ledger's desk, asked over Temporal."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from client.calls import NO_WORKER, Calls
from client.composed import Composed
from client.repeats import repeatable, same_id
from models import questions as desk
from models.audit import ATTEMPT, DESK, AuditEntry, AuditKind
from models.base import Model, in_one_sentence
from models.errors import BackstopError, Unavailable
from models.questions import DeskAnswer, DeskRequest, Question
from models.wire import DESK_WORKFLOW, TASK_QUEUE

_WAITS = (1, 1, 2, 4, 12)
"""Seconds after which an answer is waited for anew; the last for ever.

A busy server (1.32) can miss that a run has ended while somebody waits for it, and then lets them wait for the whole
of its 20 s: one of some hundreds of questions on two full cores. Whoever asks after the end is answered at once.
"""
_UNHEARD_EVENTS = 2
"""A question whose history has after all these seconds still no more events, that it was asked and that a worker is
to take it up, was heard by nobody."""

_AnswerT = TypeVar("_AnswerT")


class Questions(Calls, Composed):
    """The desk, asked by one actor."""

    async def ask(self, question: Question[_AnswerT], payload: str = "") -> _AnswerT:
        """The answer. Errors: those of the question; Unavailable where nobody has taken it up."""
        request = DeskRequest(
            kind=question.kind, actor=self._actor, arguments=question.model_dump(mode="json"), payload=payload
        )
        workflow_id = desk_workflow_id(question)
        if workflow_id:
            once = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
        else:
            once = WorkflowIDReusePolicy.REJECT_DUPLICATE if repeatable() else WorkflowIDReusePolicy.ALLOW_DUPLICATE
            workflow_id = f"{DESK}{question.kind}/{same_id(question.kind, request)}"
        try:
            try:
                handle = await self._client.start_workflow(
                    DESK_WORKFLOW,
                    self._signed(request, f"desk.{question.kind}", workflow_id),
                    id=workflow_id,
                    task_queue=TASK_QUEUE,
                    result_type=DeskAnswer,
                    execution_timeout=timedelta(minutes=5),
                    static_summary=f"{question.kind} for {self._actor}",
                    id_reuse_policy=once,
                )
            except WorkflowAlreadyStartedError:  # the same was asked before, under the same key
                handle = self._client.get_workflow_handle(workflow_id, result_type=DeskAnswer)
            answer: DeskAnswer = await self._answered(handle)
        except (WorkflowFailureError, RPCError) as error:
            raise await self._told(error) from error
        try:
            return question.answers().validate_python(answer.result)
        except ValidationError as error:
            raise Unavailable(f"the desk answers as another build of Backstop: {in_one_sentence(error)}") from None

    async def _answered(self, handle: WorkflowHandle[Any, DeskAnswer]) -> DeskAnswer:
        """The desk's answer, however long it takes. Errors: Unavailable where nobody has taken the question up."""
        waits, waited = chain(_WAITS, repeat(_WAITS[-1])), 0
        while (answer := await _heard_within(handle, seconds := next(waits))) is None:
            waited += seconds
            if waited == sum(_WAITS) and (await handle.describe()).history_length <= _UNHEARD_EVENTS:
                with contextlib.suppress(RPCError):
                    await handle.terminate("no worker has taken it up")
                raise Unavailable(NO_WORKER)
        self.heard.set()
        return answer

    async def _archive_refusal(
        self, cluster: str, command: str, reason: str, why: str, request: Model | None = None
    ) -> None:
        """A refused command leaves no event in the rollout's history: it is archived from here."""
        entry = AuditEntry(
            key=f"{ATTEMPT}{uuid.uuid4().hex}",
            cluster=cluster,
            at=datetime.now(UTC),
            kind=AuditKind.COMMAND,
            actor=self._actor,
            text=f"{command} refused: {why}",
            reason=reason,
            refused=True,
            data={} if request is None else request.model_dump(mode="json", exclude_defaults=True, exclude={"ticket"}),
        )
        try:
            await asyncio.wait_for(self.ask(desk.Archive(entries=(entry,))), 10)
        except (BackstopError, TimeoutError):
            return  # the refusal itself matters more to the person than its record


def desk_workflow_id(question: Question[Any]) -> str:
    """Of a question that has a run of its own; empty: it has none."""
    return f"{DESK}{question.kind}/{question.own_run}" if question.own_run else ""


async def _heard_within(handle: WorkflowHandle[Any, DeskAnswer], seconds: float) -> DeskAnswer | None:
    """The answer; None: not in so many seconds. Errors: those of the question."""
    asking = asyncio.ensure_future(handle.result())
    try:
        done, _ = await asyncio.wait({asking}, timeout=seconds)
        return asking.result() if done else None
    finally:
        asking.cancel()
