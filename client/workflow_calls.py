"""Calls to workflows: start one, command it, query it, and say why that failed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.api.errordetails.v1 import WorkflowNotReadyFailure
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.common import QueryRejectCondition, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.clock import Clock, utc_now
from client.connection import TemporalTarget
from client.lost_rollouts import STOPPED, status_there
from client.repeats import is_repeatable, same_id
from client.worker_builds import none_polls
from models.access.tickets import Signer
from models.base import Model
from models.errors import BY_NAME, BackstopError, Refusal, Unavailable
from models.temporal_names import LAUNCHED_UPDATE, MOVES_ON, TAKE_BACK_SIGNAL, TASK_QUEUE

UPDATE_FAILED = (WorkflowUpdateFailedError, RPCError, WorkflowUpdateRPCTimeoutOrCancelledError)
QUERY_FAILED = (WorkflowQueryFailedError, RPCError)
"""Temporal's errors for an update or a query that fails."""

_PATIENCE = timedelta(seconds=30)
"""The longest wait of a person for a worker's answer."""
_ENDS_SECONDS = 60.0
"""Seconds that a shadow rollout, aborted to make room for another rollout, may take to end."""
_QUESTIONS, _MOMENT_SECONDS = 24, 0.5
"""Tries of a query, and the pause between them: after a worker died with a task nobody answers for ten seconds."""
_FIRST_STEP = "Workflow Task in failed state"
"""Temporal's words for a failed workflow task with which an update came."""
_STOPPED = "the workflow was stopped before it came to its end"
_CLOSING = "workflow is closing"
"""Temporal's words for a run that is ending, for good or to continue as new."""
_AnswerT = TypeVar("_AnswerT", bound=Model)
_MessageT = TypeVar("_MessageT", bound=Model)
_T = TypeVar("_T")
_TRIES = 60
_PAUSE_SECONDS = 0.5
_START_ONE = "start one with `backstop up` or `backstop worker`"
NO_WORKER = f"no worker is running: {_START_ONE}"
_NO_ANSWER = f"no worker has answered in time: if none is running, {_START_ONE} (see `backstop doctor`)"
_SHORT = timedelta(seconds=5)
"""How long Temporal itself may take to answer."""
_LOOKS, _LOOK_SECONDS = 3, 0.4
"""Looks for a worker that polls, and the pause between them: a new worker polls a moment after its start."""
_SILENT_SECONDS, TAKEN_SECONDS = 2.0, 30.0
"""After the first, the caller is told that the command waits for a worker; after both, it is withdrawn."""
_SETTLE_SECONDS = 1.0
"""By then a worker has answered a command that it took up just before the command was withdrawn."""
NEW_EVENTS = 2
"""Events in the history of a workflow that no worker has taken up: its start, and its first task."""


class Calls:
    """A connection for one actor. `signer`: a front's, which knows who it is; without one the actor is asserted."""

    def __init__(
        self, client: Client, actor: str, target: TemporalTarget, signer: Signer | None = None, now: Clock = utc_now
    ) -> None:
        self._now = now
        self._client = client
        self._actor = actor
        self._target = target
        self._signer = signer
        self.heard = asyncio.Event()
        """Set once any worker has answered."""
        self.note: Callable[[str], None] = lambda _: None
        """Called with each sentence that a person should read while they wait."""

    async def unserved(self) -> bool:
        """Return whether no worker polls, as far as Temporal knows; False also if Temporal does not say."""
        try:
            return await none_polls(self._client)
        except RPCError:
            return False

    def _sign(self, message: _MessageT, command: str, workflow_id: str) -> _MessageT:
        """Return the message with the command's ticket, where a front signs."""
        return message if self._signer is None else self._signer(message, command, workflow_id)

    async def _start(
        self,
        workflow: str,
        workflow_input: Model,
        workflow_id: str,
        summary: str,
        answer: type[_AnswerT],
        what: str,
        seconds: float = 120,
    ) -> _AnswerT:
        """Start a workflow and return its answer to `launched`; stop it again if no worker takes it up.

        `what`: for people, as "the launch of a". Errors: WorkflowAlreadyStartedError, those of models.errors.
        """
        handle = self._client.get_workflow_handle(workflow_id)

        async def begin() -> _AnswerT:
            start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
                workflow,
                workflow_input,
                id=workflow_id,
                task_queue=TASK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                static_summary=summary,
            )
            update_id = same_id(workflow_id, workflow_input)
            try:
                answered: _AnswerT = await asyncio.wait_for(
                    self._client.execute_update_with_start_workflow(
                        LAUNCHED_UPDATE, start_workflow_operation=start, id=update_id, result_type=answer
                    ),
                    seconds,
                )
            except WorkflowAlreadyStartedError:
                await _read(start)
                before = await self._earlier_answer(workflow_id, update_id, answer) if is_repeatable() else None
                if before is None:
                    raise
                return before
            except TimeoutError:
                await _read(start)
                why = f"a worker has taken up {what}, but has not answered within {seconds:.0f} s"
                raise Unavailable(f"{why}: {what} goes on, so look at its status later") from None
            except UPDATE_FAILED as error:
                await _read(start)
                if not (isinstance(error, RPCError) and _was_not_taken(error)):
                    raise self._translate(error) from error
                answered = await self._await_late_answer(workflow_id, update_id, answer)
            self.heard.set()
            return answered

        async def take_back(_: asyncio.Future[_AnswerT]) -> bool:
            return await stop_again(handle)

        return await self._await_taken(begin, what, take_back)

    async def _past_rehearsal(
        self,
        opened: Callable[[], Awaitable[_AnswerT]],
        gives_way: Callable[[], Awaitable[str]],
        already_open: Callable[[], Awaitable[BackstopError]],
    ) -> tuple[_AnswerT, str]:
        """Open it, and return the answer and the id of a rehearsal that gave way (empty: none). Errors: theirs."""
        try:
            return await opened(), ""
        except WorkflowAlreadyStartedError:
            rehearsal = await gives_way()
        try:
            return await opened(), rehearsal
        except WorkflowAlreadyStartedError:
            raise await already_open() from None

    async def _rehearsal_is_over(self, workflow_id: str, rehearsal: str) -> None:
        """Wait a while for the aborted rehearsal to end. Errors: Refusal if it has not ended."""
        with self._translate_errors(), contextlib.suppress(WorkflowFailureError):
            try:
                await asyncio.wait_for(self._client.get_workflow_handle(workflow_id).result(), _ENDS_SECONDS)
            except TimeoutError:
                why = f"the rehearsal {rehearsal} is being aborted and has not ended yet: launch again in a moment"
                raise Refusal(why) from None

    async def _await_late_answer(self, workflow_id: str, update_id: str, kind: type[_AnswerT]) -> _AnswerT:
        """Return the answer of a run whose first step a busy worker did not end: that step is repeated."""
        handle = self._client.get_workflow_handle(workflow_id)

        async def ask() -> _AnswerT:
            answered: _AnswerT = await handle.execute_update(
                LAUNCHED_UPDATE, id=update_id, result_type=kind, rpc_timeout=_PATIENCE
            )
            return answered

        await asyncio.sleep(_PAUSE_SECONDS)
        try:
            return await _ask_until_taken(ask)
        except UPDATE_FAILED as error:
            raise self._translate(error) from error

    async def _earlier_answer(self, workflow_id: str, update_id: str, kind: type[_AnswerT]) -> _AnswerT | None:
        """Return what the running workflow answered to the same launch; None if another launch started it."""
        handle = self._client.get_workflow_handle(workflow_id).get_update_handle(update_id, result_type=kind)
        try:
            answered: _AnswerT = await handle.result(rpc_timeout=_PATIENCE)
        except UPDATE_FAILED:
            return None
        return answered

    async def _update(
        self, workflow_id: str, of: str, name: str, request: Model, kind: type[_AnswerT], what: str
    ) -> _AnswerT:
        """Return the answer, asking again (under one id) where the server dropped the command before it was taken.

        The server does so when a rollout continues as new while something else arrives: that step of the workflow is
        made anew, and its updates are answered with WorkflowNotReady, or that it is closing. Each try is signed
        anew: a ticket is good for a minute. `of`: whose command it is, as the table of rights names it. `what`: for
        people, as "`approve` for a".
        """
        handle = self._client.get_workflow_handle(workflow_id)
        update_id = same_id(f"{workflow_id} {name}", request)

        async def ask() -> WorkflowUpdateHandle[_AnswerT]:
            signed = self._sign(request, f"{of}.{name}", workflow_id)
            return await handle.start_update(
                name,
                signed,
                id=update_id,
                result_type=kind,
                wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                rpc_timeout=_PATIENCE,
            )

        async def take_back(asking: asyncio.Future[WorkflowUpdateHandle[_AnswerT]]) -> bool:
            await handle.signal(TAKE_BACK_SIGNAL, update_id, rpc_timeout=_SHORT)
            if not await _is_done(asking, _SETTLE_SECONDS):
                return True
            try:  # a worker was just about to take it up, before the signal or after it
                await asyncio.wait_for((await asking).result(), _SETTLE_SECONDS)
            except UPDATE_FAILED:
                return True
            except TimeoutError:
                return False
            return False

        answer: _AnswerT = await (await self._await_taken(lambda: _ask_until_taken(ask), what, take_back)).result()
        self.heard.set()
        return answer

    async def _await_taken(
        self,
        begin: Callable[[], Coroutine[Any, Any, _T]],
        what: str,
        take_back: Callable[[asyncio.Future[_T]], Awaitable[bool]],
    ) -> _T:
        """Return the result once a worker takes the call up. Where none does, take it back: then it never happens.

        `take_back`: False if a worker has it already. Errors: Unavailable, and nothing was done; those of `begin`.
        """
        await self._check_polled(what)
        asking = asyncio.ensure_future(begin())
        try:
            if not await _is_done(asking, _SILENT_SECONDS):
                self.note(f"No worker has answered yet: {what} waits for one. Ctrl-C withdraws it.")
                if not await _is_done(asking, TAKEN_SECONDS) and await self._try_take_back(asking, take_back):
                    why = f"no worker took up {what} within {_SILENT_SECONDS + TAKEN_SECONDS:.0f} s"
                    raise Unavailable(f"{why}: it was withdrawn, so no worker carries it out (see `backstop doctor`)")
            return await asking
        except asyncio.CancelledError:
            if await self._try_take_back(asking, take_back):
                self.note(f"Interrupted: {what} was withdrawn: no worker carries it out.")
            else:
                self.note(f"Interrupted: a worker has taken up {what}, so it goes on: see `backstop status`.")
            raise
        finally:
            _leave(asking)

    async def _check_polled(self, what: str) -> None:
        """Check that some worker polls, as far as Temporal knows. Errors: Unavailable, and nothing was sent."""
        try:
            for left in reversed(range(_LOOKS)):
                if self.heard.is_set() or not await self.unserved():
                    return
                if left:
                    await asyncio.sleep(_LOOK_SECONDS)
        except asyncio.CancelledError:
            self.note(f"Interrupted: {what} was not sent.")
            raise
        raise Unavailable(f"no worker is running, so {what} was not sent: {_START_ONE}")

    async def _try_take_back(
        self, asking: asyncio.Future[_T], take_back: Callable[[asyncio.Future[_T]], Awaitable[bool]]
    ) -> bool:
        """Return whether the call was taken back. Errors: Unavailable where Temporal does not say so."""
        if asking.done():
            return False
        try:
            return await take_back(asking)
        except RPCError as error:
            why = f"Temporal at {self._target.address}: {error.message}"
            raise Unavailable(
                f"{why}; it is unknown whether a worker carries out the command: look at `backstop status`"
            ) from error

    async def _read_by_worker(self, asking: asyncio.Future[_T]) -> _T:
        """Return the answer to a call that changes nothing. Errors: Unavailable without a worker; the question's."""
        try:
            if not await _is_done(asking, _SILENT_SECONDS):
                if not self.heard.is_set() and await self.unserved():
                    raise Unavailable(NO_WORKER)
                self.note("No worker has answered yet.")
            return await asking
        finally:
            _leave(asking)

    async def _query(self, workflow_id: str, name: str, kind: type[_AnswerT]) -> tuple[_AnswerT, bool]:
        """Return the workflow's answer, asking again while it moves on, and whether it was stopped before its own end.

        If it was, the answer is its last state.

        One that was terminated before it took in all that had reached it would move on for ever, and no worker may
        answer for it: that error is the same as for a workflow that does not exist.
        """
        handle = self._client.get_workflow_handle(workflow_id)
        stopped, rejected_if = False, QueryRejectCondition.NOT_COMPLETED_CLEANLY
        for tries_left in reversed(range(_QUESTIONS)):
            query = handle.query(name, result_type=kind, reject_condition=rejected_if, rpc_timeout=_PATIENCE)
            try:
                answer: _AnswerT = await self._read_by_worker(asyncio.ensure_future(query))
                self.heard.set()
                return answer, stopped
            except WorkflowQueryRejectedError as rejected:
                stopped, rejected_if = rejected.status in STOPPED, QueryRejectCondition.NONE
                continue
            except QUERY_FAILED as error:
                if not (tries_left and MOVES_ON in str(error)):
                    raise
                if stopped:
                    raise RPCError(_STOPPED, RPCStatusCode.NOT_FOUND, b"") from None
            await asyncio.sleep(_MOMENT_SECONDS)
        raise AssertionError("the last try neither answered nor failed")

    async def _query_open(self, workflow_id: str, name: str, kind: type[_AnswerT]) -> _AnswerT:
        """Query as `_query`, for a workflow that must still run. A terminated one would answer with its last state."""
        answer, stopped = await self._query(workflow_id, name, kind)
        if stopped:
            raise RPCError(_STOPPED, RPCStatusCode.NOT_FOUND, b"")
        return answer

    async def _explain(
        self, error: BaseException, workflow_id: str, gone: Callable[[bool], Awaitable[BackstopError]]
    ) -> BackstopError:
        """Return Temporal's error as ours, or `gone`'s where the workflow does not run. It gets whether it ever ran."""
        if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
            try:
                status = await status_there(self._client, workflow_id)
            except RPCError as silence:
                return self._translate(silence)
            if status is not WorkflowExecutionStatus.RUNNING:
                return await gone(status is not None)
        return self._translate(error)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except RPCError as error:
            raise self._translate(error) from error

    def _translate(self, error: BaseException) -> BackstopError:
        """Return Temporal's error as ours: one sentence, and what to do next in its type."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ApplicationError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        if isinstance(cause, ApplicationError):
            return BY_NAME.get(cause.type or "", Unavailable)(cause.message)
        if isinstance(error, RPCError):
            if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                return Unavailable(_NO_ANSWER)
            return Unavailable(f"Temporal at {self._target.address}: {error.message}")
        if isinstance(error, TimeoutError | WorkflowUpdateRPCTimeoutOrCancelledError):
            return Unavailable(_NO_ANSWER)
        return Unavailable(str(error))


async def in_time(answer: Awaitable[_T], seconds: float) -> _T | None:
    """Return the answer; None if it is an error of ours, or does not come in time."""
    try:
        return await asyncio.wait_for(answer, seconds)
    except (BackstopError, TimeoutError):
        return None


async def archiving_refusal(
    answer: Awaitable[_T],
    explain: Callable[[BaseException], Awaitable[BackstopError]],
    archive: Callable[[str], Awaitable[None]],
) -> _T:
    """Return the answer to a command; archive the reason if it is refused. Errors: as `explain` returns them."""
    try:
        return await answer
    except UPDATE_FAILED as error:
        failure = await explain(error)
        if isinstance(failure, Refusal):
            await archive(failure.message)
        raise failure from error


async def _read(start: WithStartWorkflowOperation[Any, Any]) -> None:
    """Read the error of a start that failed with its update: unread, it would be printed at exit."""
    with contextlib.suppress(WorkflowAlreadyStartedError, RPCError, TimeoutError):
        await asyncio.wait_for(start.workflow_handle(), 0.1)


async def _is_done(asking: asyncio.Future[Any], seconds: float) -> bool:
    done, _ = await asyncio.wait({asking}, timeout=seconds)
    return bool(done)


def _leave(asking: asyncio.Future[Any]) -> None:
    """Abandon a task: nobody awaits it or reads its error any more."""
    asking.cancel()
    asking.add_done_callback(lambda left: None if left.cancelled() else left.exception())


async def stop_again(handle: WorkflowHandle[Any, Any]) -> bool:
    """Terminate the run if no worker has taken it up, so that nothing of it happens; return whether that was so."""
    if (await handle.describe(rpc_timeout=_SHORT)).history_length > NEW_EVENTS:
        return False
    await handle.terminate(reason="no worker has taken it up", rpc_timeout=_SHORT)
    return True


async def _ask_until_taken(ask: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Return the answer, asking again while the server drops the call before the workflow takes it."""
    for tries_left in reversed(range(_TRIES)):
        try:
            return await ask()
        except RPCError as error:
            if not (tries_left and _was_not_taken(error)):
                raise
        await asyncio.sleep(_PAUSE_SECONDS)
    raise AssertionError("the last try neither answered nor failed")


def _was_not_taken(error: RPCError) -> bool:
    """Return whether to ask again: the workflow did not take the call, and this run or the next one will answer it."""
    return any(words in error.message for words in (_CLOSING, _FIRST_STEP)) or any(
        detail.Is(WorkflowNotReadyFailure.DESCRIPTOR) for detail in error.grpc_status.details
    )
