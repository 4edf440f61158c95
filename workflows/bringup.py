"""Bringup: one cluster from an order to production, and out of it again, as a durable loop around pure steps.

Theory of operation. `models.bringup.decide.decide` says what to begin; this module begins it as a task of its own and
applies the outcome (`models.bringup.reducers`); workflows/bringup_runs.py runs steps. A start is noted in the state,
and so in history, before it is made. A long wait is one call with heartbeats, so that months cost few events.
Continue-as-new carries the state: it drops follows and questions, but not calls that change the world.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.bringup.calls import BringupActivities, CheckActivities
    from models.audit_chain import AuditEntry
    from models.bringup import messages, reducers, request_builders
    from models.bringup import workflow_actions as actions
    from models.bringup.commands import BringupOrder, apply_cancel, obey, refusal
    from models.bringup.decide import decide
    from models.bringup.stages import BringupCommand
    from models.bringup.status import BringupStatus, row_of, status_of, waiting_sentence
    from models.bringup.undo_lines import bringup_undo_line
    from models.lifecycle.workflow_actions import Finish, Wait
    from models.temporal_names import BRINGUP_WORKFLOW, LAUNCHED_UPDATE, STATUS_QUERY
    from workflows.bringup_runs import BringupRuns
    from workflows.cancellation import live_through
    from workflows.durable import missing_input, raise_if_refused
    from workflows.next_run import begin_next_run
    from workflows.options import BRINGUP_LONG_CALL, LAST_FLEET_CALL, LONG_ASKED_CALL, LONG_CALL
    from workflows.query_clock import query_time
    from workflows.search_attributes import bringup_attributes
    from workflows.ticket_admission import TicketBook
    from workflows.updates import takes_commands

_BEYOND_LIMIT = timedelta(minutes=1)
_LETS_GO = (actions.Follow, actions.AskChecks, actions.LookForSupply)
"""Actions that the next run starts again by itself, so a run may end while they are under way."""


@workflow.defn(name=BRINGUP_WORKFLOW, versioning_behavior=VersioningBehavior.PINNED)
@takes_commands(BringupCommand, BringupOrder)
class BringupWorkflow(BringupRuns):
    @workflow.init
    def __init__(self, start: messages.BringupInput | None = None) -> None:
        super().__init__(None if start is None else start.state)
        self._start = start
        self._tasks: dict[actions.BringupAction, asyncio.Task[None]] = {}  # the actions under way
        self._sides: list[asyncio.Task[None]] = []
        self._tickets = TicketBook("bringup", () if start is None else start.spent)

    @workflow.run
    async def run(self, start: messages.BringupInput | None = None) -> messages.BringupAnswer:
        """Run until the bring-up has ended, or continue as new."""
        if start is None:
            raise missing_input("a bring-up needs its entry")
        return await live_through(self._live(start), self._apply_cancel)

    async def _live(self, start: messages.BringupInput) -> messages.BringupAnswer:
        if self._value is None:
            await self._open(start)
        if self._trouble is not None:
            raise await self._start_failure()
        self._sides = [asyncio.create_task(loop()) for loop in (self._record, self._mail)]
        await self._loop(start)
        await self._settle()
        self._let_go()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._answer()

    async def _open(self, start: messages.BringupInput) -> None:
        opened = await self._try_to_open(
            workflow.execute_activity_method(
                BringupActivities.open,
                messages.OpenBringup(start=start.start, at=workflow.now()),
                **LONG_ASKED_CALL,
                summary=f"may {start.start.entry.cluster} begin",
            )
        )
        if opened is not None and opened.refused:
            self._trouble = ApplicationError(opened.refused, type="Refusal", non_retryable=True)
        elif opened is not None:
            self._set(reducers.open_bringup(start.start, opened.number, workflow.now()))

    # --- the loop ---------------------------------------------------------------------------------

    async def _loop(self, start: messages.BringupInput) -> None:
        while True:
            now = workflow.now()
            self._set(reducers.advance(self._state, now))
            self._show(bringup_attributes(self._state), waiting_sentence(self._state, now))
            self._leave(start)
            match decide(self._state, now, tuple(self._tasks)):
                case Finish():
                    return
                case Wait() as wait:
                    await self._rest(wait.until)
                case action:
                    self._tasks[action] = asyncio.create_task(self._perform(action))

    async def _rest(self, until: datetime | None) -> None:
        """Wait until a task ends, a message arrives, or it is time. Errors: those that a task did not expect."""
        await self._wait(until)
        for action, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[action]
                task.result()

    async def _perform(self, action: actions.BringupAction) -> None:
        try:
            match action:
                case actions.LookForSupply():
                    await self._look_for_supply()
                case actions.Start(run):
                    await self._start_run(run)
                case actions.Follow(run, attempt):
                    await self._follow(run, attempt)
                case actions.Stop(run, attempt):
                    await self._stop(run, attempt)
                case actions.AskChecks(names):
                    await self._ask(names)
                case actions.HandOver():
                    await self._hand_over()
                case actions.GrantOwed():
                    await self._grant_owed()
                case actions.WindDown():
                    await self._wind_down()
                case _:
                    raise AssertionError(action)
        finally:
            self._changes += 1

    def _leave(self, start: messages.BringupInput) -> None:
        """Continue as new if that is due, and no call that changes the world is under way."""
        loose = all(isinstance(action, _LETS_GO) for action in self._tasks)
        if loose and self._may_leave():
            asked = [name for action in self._tasks if isinstance(action, actions.AskChecks) for name in action.names]
            state = reducers.note_asked(self._state, asked, None).fit(workflow.now())
            self._let_go()
            begin_next_run(start.but(state=state, runs=start.runs + 1, spent=self._tickets.carry_over()))

    def _let_go(self) -> None:
        for task in (*self._sides, *self._tasks.values()):
            task.cancel()

    # --- actions ----------------------------------------------------------------------------------

    async def _look_for_supply(self) -> None:
        request = request_builders.supply_request(self._state)
        answer = await workflow.execute_activity_method(
            CheckActivities.supply,
            request,
            **BRINGUP_LONG_CALL,
            start_to_close_timeout=request.most + request.order.limit + _BEYOND_LIMIT,
            task_queue=messages.BRINGUP_QUEUE,
            summary="wait for the supply",
        )
        self._set(reducers.apply_supply(self._state, answer, workflow.now()))

    async def _ask(self, names: tuple[str, ...]) -> None:
        self._set(reducers.note_asked(self._state, names, workflow.now()))
        orders = tuple(request_builders.check_order(self._state, name) for name in names)
        await self._take_in(
            workflow.execute_activity_method(
                CheckActivities.ask,
                messages.AskRequest(orders=orders),
                **BRINGUP_LONG_CALL,
                start_to_close_timeout=max(order.limit for order in orders) + _BEYOND_LIMIT,
                task_queue=messages.BRINGUP_QUEUE,
                summary="ask " + ", ".join(names)[:170],
            ),
            lambda bringup, answer, now: reducers.apply_answers(bringup, answer.answers, now),
            lambda bringup, why, now: reducers.note_unasked(bringup, names, why, now),
        )

    async def _hand_over(self) -> None:
        request = request_builders.hand_over_request(self._state, workflow.now())
        await self._take_in(
            workflow.execute_activity_method(
                BringupActivities.hand_over, request, **LONG_CALL, summary="into the fleet"
            ),
            reducers.hand_over,
            lambda bringup, why, now: reducers.note_fault(bringup, f"it could not be handed over: {why}", now),
        )

    async def _grant_owed(self) -> None:
        request = request_builders.hand_over_request(self._state, workflow.now())
        await self._take_in(
            workflow.execute_activity_method(
                BringupActivities.grant_owed, request, **LONG_CALL, summary="grant what is owed"
            ),
            reducers.apply_owed,
            reducers.note_no_grant,
        )

    async def _wind_down(self) -> None:
        request = request_builders.wind_down_request(self._state, workflow.now())
        await self._take_in(
            workflow.execute_activity_method(
                BringupActivities.wind_down, request, **LONG_CALL, summary="out of the fleet"
            ),
            reducers.wind_down,
            lambda bringup, why, now: reducers.note_fault(bringup, f"its quotas cannot go to zero: {why}", now),
        )

    async def _archive(self, batch: tuple[AuditEntry, ...], summary: str) -> None:
        record = messages.BringupRecord(row=row_of(self._state, workflow.now()), entries=batch)
        await workflow.execute_activity_method(BringupActivities.record, record, **LAST_FLEET_CALL, summary=summary)

    # --- messages ---------------------------------------------------------------------------------

    @workflow.query(name=STATUS_QUERY)
    def status(self) -> BringupStatus:
        runs, events = 1 if self._start is None else self._start.runs, workflow.info().get_current_history_length()
        return status_of(self._state, query_time(), history_events=events, runs=runs)

    @workflow.update(name=LAUNCHED_UPDATE)
    async def await_launch(self) -> messages.BringupAnswer:
        """Answer once the archive has the start, or it is refused."""
        await self._wait_for_start()
        return self._answer()

    def _answer(self) -> messages.BringupAnswer:
        if self._trouble is not None or self._value is None:
            assert self._start is not None
            reason = "" if self._trouble is None else self._trouble.message
            return messages.BringupAnswer(begun=False, cluster=self._start.start.entry.cluster, reason=reason)
        bringup = self._value
        return messages.BringupAnswer(begun=True, cluster=bringup.cluster, stage=bringup.stage, reason=bringup.because)

    def _check(self, command: BringupCommand, order: BringupOrder) -> None:
        raise_if_refused(refusal(self._state, command, order, workflow.now(), tuple(self._tasks)))

    def _obey(self, command: BringupCommand, order: BringupOrder) -> messages.BringupCommandAnswer:
        before, now = self._state, workflow.now()
        self._check(command, order)
        bringup, sentence = obey(before, command, order, now)
        self._set(bringup)
        undo = bringup_undo_line(before, bringup, command, order)
        return messages.BringupCommandAnswer(command=command.value, stage=bringup.stage, said=sentence, undo=undo)

    def _apply_cancel(self) -> None:
        if self._value is not None and self._start is not None:
            by_ticket, under_way = bool(self._start.start.ticket), tuple(self._tasks)
            self._set(apply_cancel(self._value, workflow.now(), under_way, by_ticket=by_ticket))
