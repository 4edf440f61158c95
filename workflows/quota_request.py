"""QuotaRequest: one request for more quota, from the ask to the return of the GPUs.

It waits durably for the cluster's owner, then until its order can be written, then for its end date, in a loop around
`decide`. A monitored rollout writes for it. A cancel ends it as a command would: a grant with an end is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta
from typing import ClassVar

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.requests.calls import RequestActivities
    from activities.rollout.effects import QuotaActivities
    from models.audit_chain import AuditEntry
    from models.lifecycle.workflow_actions import Finish, Wait
    from models.planning.grants import Granted
    from models.requests import messages, reducers, request_builders
    from models.requests.commands import RequestCommand, RequestOrder, obey, refusal
    from models.requests.decide import decide
    from models.requests.state import RequestState
    from models.requests.workflow_actions import Keep, Write
    from models.temporal_names import LAUNCHED_UPDATE, REQUEST_WORKFLOW, STATUS_QUERY
    from models.texts import gpus_text
    from workflows import options, patches
    from workflows.cancellation import live_through
    from workflows.durable import Durable, missing_input, raise_if_refused
    from workflows.failures import reason_of, to_application_error
    from workflows.no_empty_tasks import leave_mark
    from workflows.search_attributes import request_attributes
    from workflows.ticket_admission import TicketBook
    from workflows.updates import takes_commands

_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=2), timedelta(minutes=1)
"""The shortest and the longest pause between two tries to write a grant."""


@workflow.defn(name=REQUEST_WORKFLOW, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
@takes_commands(RequestCommand, RequestOrder)
class QuotaRequest(Durable[RequestState]):
    wakes: ClassVar[str] = "until the request's day, or another try"
    mail_call: ClassVar[options.CallOptions] = options.MAIL_CALL

    @workflow.init
    def __init__(self, start: messages.RequestInput | None = None) -> None:
        super().__init__(None if start is None else start.state)
        self._writing = self._telling = self._cancelled = False
        self._tickets = TicketBook("request", () if start is None else start.spent)

    @workflow.run
    async def run(self, start: messages.RequestInput | None = None) -> RequestState:
        """Run until the request has ended, or was granted for good."""
        if start is None:
            raise missing_input("a request needs what is asked for")
        return await live_through(self._life(start), self._cancel)

    def _cancel(self) -> None:
        self._cancelled = True
        self._changes += 1

    async def _life(self, start: messages.RequestInput) -> RequestState:
        if self._value is None and not await self._open(start):
            raise await self._start_failure()
        mailing = asyncio.create_task(self._mail())
        await self._live(start)
        await self._last_mail()
        mailing.cancel()
        if self._state.mail and workflow.patched(patches.GIVES_UP):
            lost = {n.key: "the notice could not be delivered before the request ended" for n in self._state.mail}
            self._set(reducers.give_up(self._state, lost, self._state.mail, workflow.now()))
        await self._keep()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._state

    async def _open(self, start: messages.RequestInput) -> bool:
        assessment = await self._try_to_open(
            workflow.execute_activity_method(
                RequestActivities.assess,
                messages.AssessRequest(ask=start.ask, at=workflow.now()),
                **options.LONG_ASKED_CALL,
                summary=f"check the room for {gpus_text(start.ask.gpus)} more in the quota of {start.ask.team}",
            )
        )
        if assessment is not None:
            self._set(reducers.open_request(start.ask, assessment, workflow.now()))
        return assessment is not None

    async def _live(self, start: messages.RequestInput) -> None:
        pause = _FIRST_PAUSE
        while True:
            if self._cancelled:
                self._cancelled = False
                self._set(reducers.apply_cancel(self._state, workflow.now(), by_ticket=bool(start.ask.ticket)))
            self._set(reducers.advance(self._state, workflow.now()))
            await self._keep()
            match decide(self._state):
                case Keep():
                    continue  # a command came meanwhile
                case Finish():
                    return
                case Wait() as wait:
                    await self._wait(wait.until)
                case Write():
                    stage = self._state.stage
                    await self._write()
                    if self._state.stage is not stage:
                        pause = _FIRST_PAUSE
                        continue
                    await self._keep()
                    again, day = workflow.now() + pause, self._state.ends_on
                    await self._wait(again if day is None else min(again, day))
                    pause = min(2 * pause, _LONGEST_PAUSE)
            self._leave(start)

    def _leave(self, start: messages.RequestInput) -> None:
        idle = not self._telling and not self._state.outbox and not self._cancelled and workflow.all_handlers_finished()
        due = workflow.info().is_continue_as_new_suggested() and idle
        if due and (not self._state.mail or workflow.patched(patches.GIVES_UP)):
            workflow.continue_as_new(start.but(state=self._state.fit(workflow.now()), spent=self._tickets.carry_over()))

    async def _write(self) -> None:
        """Try once to write the order, or to take it back."""
        self._writing = True
        try:
            answer = await self._try()
        except ActivityError as error:
            answer = request_builders.failure(self._state.order, *reason_of(error))
        finally:
            self._writing = False
        self._set(reducers.apply_grant(self._state, answer, workflow.now()))

    async def _try(self) -> Granted:
        state, order = self._state, self._state.order
        prepared = await workflow.execute_activity_method(
            RequestActivities.prepare,
            request_builders.prepare(state, workflow.now()),
            **options.LONG_CALL,
            summary=f"{'end the grant of' if order.ends else 'grant'} {gpus_text(order.gpus)} to {order.team}",
        )
        if prepared.through:
            request = messages.ThroughRequest(order=order, cluster=state.ask.cluster)
            answer = await workflow.execute_activity_method(
                RequestActivities.through, request, **options.CALL, summary="through the rollout that is open"
            )
            return answer.model_copy(update={"hands": prepared.hands})
        if prepared.change is None:
            return request_builders.answer(order, prepared.outcome, prepared.said)
        fence = state.fence + 1
        self._set(self._state.but(fence=fence))
        receipt = await workflow.execute_activity_method(
            QuotaActivities.apply_effect,
            request_builders.write(state, prepared.change, workflow.now()),
            **options.CALL,
            summary=f"write it (fence {fence})",
        )
        return request_builders.outcome_of(order, prepared, receipt)

    # --- side calls -----------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Keep the present state in the book, and archive the entries.

        If the ledger refuses, the request goes on: a grant must live to be taken back. The next call keeps the rest.
        """
        batch = self._state.outbox
        if batch:
            await self._send_to_archive(batch)
            self._set(self._state.without_entries(entry.key for entry in batch))

    async def _archive(self, batch: tuple[AuditEntry, ...], summary: str) -> None:
        await workflow.execute_activity_method(
            RequestActivities.keep, request_builders.keep(self._state), **options.CALL, summary=summary
        )

    async def _mail(self) -> None:
        while True:
            await workflow.wait_condition(lambda: bool(self._state.mail))
            batch = self._state.mail
            self._telling = True
            answer = await self._tell(batch)
            self._telling = False
            now = workflow.now()
            lost = reducers.undelivered_reasons(self._state, answer, now)
            self._set(reducers.apply_delivery(self._state, answer, now), wakes=self.delivery_wakes)
            if lost and workflow.patched(patches.GIVES_UP):
                self._set(reducers.give_up(self._state, lost, batch, now))
            leave_mark()
            if self._state.mail:
                await self._pause(now)

    async def _pause(self, now: datetime) -> None:
        """Wait before the next try, longer with each; new notices do not wait for those that cannot be delivered."""
        if not workflow.patched(patches.GIVES_UP):
            await asyncio.sleep(options.MAIL_PAUSE.total_seconds())
            return
        tried = now - min(self._state.unsent.values(), default=now)
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: any(n.key not in self._state.unsent for n in self._state.mail),
                timeout=min(max(options.MAIL_PAUSE, tried), options.LONGEST_MAIL_PAUSE),
                timeout_summary="until the mail is tried again",
            )

    def _gives_up(self) -> bool:
        return workflow.patched(patches.GIVES_UP)

    # --- messages -------------------------------------------------------------------------------

    def _set(self, state: RequestState, *, wakes: bool = True) -> None:
        """Set the state, and show a new stage before a command to the request is answered: histories replay by it."""
        if self._value is None or state.stage is not self._value.stage:
            workflow.upsert_search_attributes(request_attributes(state))
        super()._set(state, wakes=wakes)

    @workflow.query(name=STATUS_QUERY)
    def status(self) -> RequestState:
        return self._state

    @workflow.update(name=LAUNCHED_UPDATE)
    async def await_launch(self) -> RequestState:
        """Answer once it is known whether the request fits, and the book has it."""
        await self._wait_for_start()
        return self._state

    def _check(self, command: RequestCommand, request: RequestOrder, owners: tuple[str, ...] | None = None) -> None:
        why = refusal(self._state, command, request, owners, by_roles=self._tickets.by_roles(request))
        if why is None and self._writing and command is RequestCommand.WITHDRAW:
            why = "Backstop is writing the quota of this request at this moment: try again"
        raise_if_refused(why)

    async def _obey(self, command: RequestCommand, request: RequestOrder) -> RequestState:
        """Obey a command by the cluster's owners of today, not those at the time of the ask."""
        try:
            owners = await workflow.execute_activity_method(
                RequestActivities.owners,
                messages.OwnersRequest(cluster=self._state.ask.cluster),
                **options.ASKED_CALL,
                summary=f"who decides on {command} by {request.actor}",
            )
        except ActivityError as error:
            raise to_application_error(error) from error
        self._check(command, request, owners.names)  # it may have moved on meanwhile
        self._set(obey(self._state, command, request, workflow.now()))
        return self._state
