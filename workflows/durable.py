"""Durable: the part that the workflows of all lifecycles share around their pure steps.

Theory of operation. A lifecycle is one state value. Its workflow is a loop: apply the time, decide, act, apply the
outcome, decide again. Two side loops archive entries and send notices, so that neither can delay the loop. Commands are
updates: the lifecycle's own rules refuse or obey them, and wake the loop. Continue-as-new carries the state and nothing
else. Each workflow adds how it opens, how it performs each action, and what people see.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.notices.telling import NoticeActivities
    from models.audit_chain import AuditEntry
    from models.lifecycle.outgoing import Lifecycle
    from models.notices import Notice
    from models.temporal_names import TellAnswer, TellRequest
    from workflows.failures import reason_of, to_application_error
    from workflows.next_run import next_run_is_due
    from workflows.no_empty_tasks import leave_mark, patience
    from workflows.options import FLEET_MAIL_CALL, MAIL_PAUSE, CallOptions

_BATCH = 50
_LAST_MAIL = timedelta(minutes=5)
"""The time for which an ended lifecycle still tries to notify people."""

_State = TypeVar("_State")
_Carrier = TypeVar("_Carrier", bound=Lifecycle)
_Answer = TypeVar("_Answer")


class Host(Generic[_State]):
    """The holder of the one state value of a lifecycle; a change of it wakes the loop."""

    wakes: ClassVar[str] = "until something is due"
    """The event that the lifecycle waits for, as shown on Temporal's own page."""

    def __init__(self, state: _State | None, trouble: ApplicationError | None = None) -> None:
        self._value = state
        self._trouble = trouble
        """Why the lifecycle never began; None: it did, or is being opened."""
        self._changes = 0
        self._shown: list[SearchAttributeUpdate[Any]] = []

    @property
    def _state(self) -> _State:
        if self._value is None:
            raise self._trouble or ApplicationError("it is being opened; try again in a moment", type="Unavailable")
        return self._value

    def _set(self, state: _State, *, wakes: bool = True) -> None:
        """Set the state. `wakes`: if it changes, the loop decides again."""
        if state is not self._value:
            self._value = state
            self._changes += wakes

    async def _take_in(
        self,
        call: Awaitable[_Answer],
        succeeded: Callable[[_State, _Answer, datetime], _State],
        failed: Callable[[_State, str, datetime], _State],
    ) -> None:
        """Make a call and apply its outcome to the state: the answer, or the reason it failed."""
        try:
            answer = await call
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._set(failed(self._state, reason_of(error)[1], workflow.now()))
        else:
            self._set(succeeded(self._state, answer, workflow.now()))

    def _show(self, attributes: list[SearchAttributeUpdate[Any]], details: str) -> None:
        """Show the state in Temporal's own list and page; of the list only what changed is written."""
        if changed := [attribute for attribute in attributes if attribute not in self._shown]:
            self._shown = attributes
            workflow.upsert_search_attributes(changed)
        workflow.set_current_details(details)

    @workflow.query(name="state")
    def state(self) -> _State:
        """Return the whole state, for tests and for `doctor`."""
        return self._state


class Durable(Host[_Carrier]):
    """The host of a lifecycle whose state carries archive entries and notices that still have to go out."""

    delivery_wakes: ClassVar[bool] = False
    """Whether the loop decides again after entries were archived or notices delivered."""
    mail_call: ClassVar[CallOptions] = FLEET_MAIL_CALL

    # --- opening and ending -----------------------------------------------------------------------

    async def _try_to_open(self, call: Awaitable[_Answer]) -> _Answer | None:
        """Return the answer of the call that opens it; None if it failed, and the workflow fails for that reason."""
        try:
            return await call
        except ActivityError as error:
            self._trouble = to_application_error(error)
            return None

    async def _start_failure(self) -> ApplicationError:
        """Return the error to raise, once every caller has an answer."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        assert self._trouble is not None
        return self._trouble

    async def _wait_for_start(self) -> None:
        """Wait until the archive has its start, or it is known why it did not start."""
        await workflow.wait_condition(
            lambda: self._trouble is not None or (self._value is not None and not self._value.outbox)
        )

    async def _settle(self) -> None:
        """Wait until everything is archived and every notice was delivered or tried for long enough."""
        await workflow.wait_condition(lambda: not self._state.outbox)
        await self._last_mail()
        await workflow.wait_condition(lambda: not self._state.outbox)

    async def _last_mail(self) -> None:
        """Wait until every notice was delivered, or tried for long enough."""
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: not self._state.mail, timeout=_LAST_MAIL)

    # --- the loop ---------------------------------------------------------------------------------

    async def _wait(self, until: datetime | None) -> None:
        """Wait for a message, a change, or the time."""
        changes, timeout = self._changes, patience(until)
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._changes != changes, timeout=timeout, timeout_summary=self.wakes)

    def _may_leave(self) -> bool:
        """Return whether the next run may begin: it is due, and no command is being obeyed."""
        return next_run_is_due() and workflow.all_handlers_finished()

    # --- side loops -------------------------------------------------------------------------------

    def _archive(self, batch: tuple[AuditEntry, ...], summary: str) -> Awaitable[None]:
        """Archive these entries, and the present state."""
        raise NotImplementedError

    async def _send_to_archive(self, batch: tuple[AuditEntry, ...]) -> None:
        """Archive these entries; if the ledger refuses them for good, only this history has them."""
        try:
            await self._archive(batch, "; ".join(entry.text for entry in batch)[:180])
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.error("not archived: %s", reason_of(error)[1])

    async def _record(self) -> None:
        while True:
            await workflow.wait_condition(lambda: bool(self._state.outbox))
            batch = self._state.outbox[:_BATCH]
            await self._send_to_archive(batch)
            sent = self._state.without_entries(entry.key for entry in batch)
            self._set(sent, wakes=self.delivery_wakes)
            leave_mark()

    def _after_mail(self, keys: list[str], answer: TellAnswer) -> _Carrier:
        """Return the state after these notices were tried."""
        return self._state.apply_delivery(answer, workflow.now())

    async def _mail(self) -> None:
        while True:
            await workflow.wait_condition(lambda: bool(self._state.mail))
            batch = self._state.mail[:_BATCH]
            answer = await self._tell(batch)
            self._set(self._after_mail([notice.key for notice in batch], answer), wakes=self.delivery_wakes)
            leave_mark()
            if answer.failed:
                await asyncio.sleep(MAIL_PAUSE.total_seconds())

    async def _tell(self, batch: tuple[Notice, ...]) -> TellAnswer:
        """Send these notices and return the outcome. A call that failed for good counts as refused."""
        try:
            return await workflow.execute_activity_method(
                NoticeActivities.tell,
                TellRequest(cluster=self._state.place.cluster, notices=batch),
                **self.mail_call,
                summary="tell " + ", ".join(dict.fromkeys(notice.audience for notice in batch))[:170],
            )
        except ActivityError as error:
            if is_cancelled_exception(error) or not self._gives_up():
                raise
            return TellAnswer(delivered={}, failed={}, refused={n.key: reason_of(error)[1] for n in batch})

    def _gives_up(self) -> bool:
        """Return whether to give up notices whose call failed for good; otherwise the error is raised."""
        return True


def missing_input(needs: str) -> ApplicationError:
    """Return the error of a workflow that somebody started by hand without its argument."""
    return ApplicationError(f"{needs} as its input", type="BadInput", non_retryable=True)


def raise_if_refused(why: str | None) -> None:
    """Raise an ApplicationError of type Refusal if there is a reason."""
    if why is not None:
        raise ApplicationError(why, type="Refusal", non_retryable=True)


async def stop_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel these tasks and wait until they have ended."""
    ending = tuple(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
