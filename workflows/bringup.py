"""Bringup: one cluster from an order to production, and out of it again, as a durable loop around pure steps.

Theory of operation. `models.bringup.decide.decide` says what to begin, this module begins it as a task of its own and
takes the outcome in (`models.bringup.reducers`). A start is noted in the state, and so in history, before it is made;
what was noted is followed by its key, whoever had started it. What waits long (a run, the supply) is one call that says
it lives, so that months cost few events. The state is one value, and continue-as-new carries it: it lets go of what is
followed and asked, and of no call that changes the world.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.bringup import BringupActivities, CheckActivities
    from activities.notices import NoticeActivities
    from models.bringup import calls, outgoing, reducers
    from models.bringup.actions import (
        AskChecks,
        BringupAction,
        End,
        Follow,
        GrantOwed,
        HandOver,
        LookForSupply,
        Rest,
        Start,
        Stop,
        WindDown,
    )
    from models.bringup.commands import BringupOrder, obey, refusal
    from models.bringup.decide import decide, startable
    from models.bringup.messages import (
        BRINGUP_QUEUE,
        BRINGUP_WORKFLOW,
        AskRequest,
        BringupAnswer,
        BringupCommandAnswer,
        BringupInput,
        BringupRecord,
        OpenBringup,
    )
    from models.bringup.runs import RunPhase, RunReport
    from models.bringup.stages import BringupCommand, BringupStage
    from models.bringup.state import Bringup
    from models.bringup.status import BringupStatus, row_of, status_of, waiting_sentence
    from models.bringup.undo_lines import bringup_undo_line
    from models.wire import LAUNCHED_UPDATE, STATUS_QUERY, TellAnswer, TellRequest
    from workflows import bringup_runs
    from workflows.cancellation import lived
    from workflows.failures import reason_of
    from workflows.marks import leave_mark, patience
    from workflows.next_run import next_run_is_due
    from workflows.options import (
        BRINGUP_LONG_CALL,
        FLEET_MAIL_CALL,
        LAST_FLEET_CALL,
        LONG_ASKED_CALL,
        LONG_CALL,
        START_PAUSES,
    )
    from workflows.queries import asked_at
    from workflows.search_attributes import BY_CLUSTER, BY_OWNER, BY_STAGE
    from workflows.tickets import TicketBook
    from workflows.updates import take_commands

_BATCH = 50
_LAST_MAIL = timedelta(minutes=5)
_MAIL_PAUSE = timedelta(seconds=30)
_BEYOND_LIMIT = timedelta(minutes=1)
_LETS_GO = (Follow, AskChecks, LookForSupply)
"""What a history that begins anew takes up again by itself."""


@workflow.defn(name=BRINGUP_WORKFLOW, versioning_behavior=VersioningBehavior.PINNED)
class BringupWorkflow:
    @workflow.init
    def __init__(self, start: BringupInput | None = None) -> None:
        self._start = start
        self._b: Bringup | None = None if start is None else start.state
        self._trouble: ApplicationError | None = None
        self._tasks: dict[BringupAction, asyncio.Task[None]] = {}
        """What is under way."""
        self._sides: list[asyncio.Task[None]] = []
        self._changes = 0
        self._shown: tuple[str, ...] = ()
        self._tickets = TicketBook("bringup", () if start is None else start.spent)
        take_commands(BringupCommand, BringupOrder, check=self._check, obey=self._obey, tickets=self._tickets)

    @workflow.run
    async def run(self, start: BringupInput | None = None) -> BringupAnswer:
        """The bring-up has ended, or continues as new."""
        if start is None:
            raise ApplicationError("a bring-up needs its entry as its input", type="BadInput", non_retryable=True)
        return await lived(self._live(start), self._cancelled)

    async def _live(self, start: BringupInput) -> BringupAnswer:
        if self._b is None:
            await self._open(start)
        if self._trouble is not None:
            await workflow.wait_condition(workflow.all_handlers_finished)
            raise self._trouble
        self._sides = [asyncio.create_task(loop()) for loop in (self._record, self._mail)]
        await self._loop(start)
        await workflow.wait_condition(lambda: not self._state.outbox)
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: not self._state.mail, timeout=_LAST_MAIL)
        await workflow.wait_condition(lambda: not self._state.outbox)
        self._let_go()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._answer()

    async def _open(self, start: BringupInput) -> None:
        try:
            opened = await workflow.execute_activity_method(
                BringupActivities.open,
                OpenBringup(start=start.start, at=workflow.now()),
                **LONG_ASKED_CALL,
                summary=f"may {start.start.entry.cluster} begin",
            )
        except ActivityError as error:
            kind, reason = reason_of(error)
            self._trouble = ApplicationError(reason, type=kind, non_retryable=True)
            return
        if opened.refused:
            self._trouble = ApplicationError(opened.refused, type="Refusal", non_retryable=True)
            return
        self._set(reducers.opened(start.start, opened.number, workflow.now()))

    # --- the loop ---------------------------------------------------------------------------------

    async def _loop(self, start: BringupInput) -> None:
        while True:
            now = workflow.now()
            self._set(reducers.advance(self._state, now))
            self._show()
            self._leave(start)
            match decide(self._state, now, tuple(self._tasks)):
                case End():
                    return
                case Rest() as rest:
                    await self._rest(rest.until)
                case action:
                    self._tasks[action] = asyncio.create_task(self._perform(action))

    async def _rest(self, until: datetime | None) -> None:
        """Until something ends, somebody speaks, or it is time. Errors: what a task has met that nobody planned for."""
        changes = self._changes
        timeout = patience(until)
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._changes != changes, timeout=timeout, timeout_summary="until something is due"
            )
        for action, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[action]
                task.result()

    async def _perform(self, action: BringupAction) -> None:
        try:
            await self._does(action)
        finally:
            self._changes += 1

    def _does(self, action: BringupAction) -> Awaitable[None]:
        match action:
            case LookForSupply():
                return self._look_for_supply()
            case Start(run):
                return self._start_run(run)
            case Follow(run, attempt):
                return self._follow(run, attempt)
            case Stop(run, attempt):
                return self._stop(run, attempt)
            case AskChecks(names):
                return self._ask(names)
            case HandOver():
                return self._hand_over()
            case GrantOwed():
                return self._grant_owed()
            case WindDown():
                return self._wind_down()
        raise AssertionError(action)

    def _leave(self, start: BringupInput) -> None:
        """Continues as new where that is due, and nothing that changes the world is under way."""
        loose = all(isinstance(action, _LETS_GO) for action in self._tasks)
        if next_run_is_due() and loose and workflow.all_handlers_finished():
            asked = [name for action in self._tasks if isinstance(action, AskChecks) for name in action.names]
            state = outgoing.fitted(reducers.let_go(self._state, asked), workflow.now())
            self._let_go()
            workflow.continue_as_new(
                BringupInput(start=start.start, state=state, runs=start.runs + 1, spent=self._tickets.carried()),
                initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
            )

    def _let_go(self) -> None:
        for task in (*self._sides, *self._tasks.values()):
            task.cancel()

    # --- runs -------------------------------------------------------------------------------------

    async def _start_run(self, run: str) -> None:
        host = ""
        if bringup_runs.needs_host(self._state, run):
            host = await self._choose_host(run)
            if not host or self._state.hold is not None or run not in startable(self._state, workflow.now()):
                return  # somebody has spoken meanwhile
        self._set(reducers.begun(self._state, run, workflow.now()))
        attempt = self._state.runs[run].attempt
        self._set(reducers.hosted(self._state, run, attempt, host))
        for pause in (*START_PAUSES, None):
            try:
                report = await bringup_runs.start(self._state, run)
            except ActivityError as error:
                if pause is None or not bringup_runs.may_be_sent_again(self._state.runs[run], error):
                    self._not_started(run, attempt, error)
                    return
                self._set(reducers.unheard(self._state, run, attempt, reason_of(error)[1], workflow.now()))
                await asyncio.sleep(pause.total_seconds())
                if not self._state.runs[run].phase.under_way or self._state.runs[run].stopping:
                    return  # its time limit is over, or somebody stops it
            else:
                self._reported(run, attempt, report)
                return

    def _not_started(self, run: str, attempt: int, error: ActivityError) -> None:
        kind, why = reason_of(error)
        if bringup_runs.untaken(error):
            why = f"nobody took it on host {self._state.runs[run].host}"
            self._set(reducers.not_begun(self._state, run, attempt, why, workflow.now()))
        elif kind in bringup_runs.REFUSED:
            self._set(reducers.refused(self._state, run, attempt, why, workflow.now()))
        elif kind == bringup_runs.STUCK:
            self._unanswered(run, attempt, error)
        else:
            self._set(reducers.lost(self._state, run, attempt, why, workflow.now()))

    async def _choose_host(self, run: str) -> str:
        try:
            return (await bringup_runs.choose_host(run)).host
        except ActivityError as error:
            self._set(reducers.no_host(self._state, run, reason_of(error)[1], workflow.now()))
            return ""

    async def _follow(self, run: str, attempt: int) -> None:
        try:
            followed = await bringup_runs.follow(self._state, run)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            if bringup_runs.untaken(error):
                await self._follow_elsewhere(run, attempt)
            else:
                self._unanswered(run, attempt, error)
            return
        if followed.unheard:
            self._set(reducers.unheard(self._state, run, attempt, followed.unheard, workflow.now()))
        elif followed.report is None:
            self._set(reducers.untraced(self._state, run, attempt, workflow.now()))
        else:
            self._reported(run, attempt, followed.report)

    def _reported(self, run: str, attempt: int, report: RunReport) -> None:
        news = report.phase is RunPhase.RUNNING and bringup_runs.is_news(self._state.runs[run], attempt)
        b = reducers.reported(self._state, run, attempt, report, workflow.now())
        self._set(reducers.seen_to_run(b, run, workflow.now()) if news else b)

    def _unanswered(self, run: str, attempt: int, error: ActivityError) -> None:
        """A call about it failed: it is made again, unless nobody can ever answer it."""
        kind, why = reason_of(error)
        failed = reducers.host_gone if kind == bringup_runs.STUCK else reducers.unanswered
        self._set(failed(self._state, run, attempt, why, workflow.now()))

    async def _follow_elsewhere(self, run: str, attempt: int) -> None:
        """Nobody serves its host."""
        report, answer = None, ""
        try:
            report = (await bringup_runs.follow_elsewhere(self._state, run)).report
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            answer = bringup_runs.last_answer(error)
        if report is None:
            why = f"host {self._state.runs[run].host} is gone, and no other worker sees what became of it{answer}"
            self._set(reducers.host_gone(self._state, run, attempt, why, workflow.now()))
            return
        self._reported(run, attempt, report)

    async def _stop(self, run: str, attempt: int) -> None:
        try:
            report = (await bringup_runs.stop(self._state, run)).report
        except ActivityError as error:
            self._unanswered(run, attempt, error)
            return
        if report is None:
            self._set(reducers.untraced(self._state, run, attempt, workflow.now()))
        elif report.phase is RunPhase.RUNNING:
            why, now = report.said, workflow.now()
            self._set(reducers.unanswered(self._state, run, attempt, why, now, endless=report.endless))
        else:
            self._reported(run, attempt, report)

    # --- checks -----------------------------------------------------------------------------------

    async def _look_for_supply(self) -> None:
        request = calls.supply_request(self._state)
        answer = await workflow.execute_activity_method(
            CheckActivities.supply,
            request,
            **BRINGUP_LONG_CALL,
            start_to_close_timeout=request.most + request.order.limit + _BEYOND_LIMIT,
            task_queue=BRINGUP_QUEUE,
            summary="wait for the supply",
        )
        self._set(reducers.supplied(self._state, answer, workflow.now()))

    async def _ask(self, names: tuple[str, ...]) -> None:
        self._set(reducers.asked(self._state, names, workflow.now()))
        orders = tuple(calls.check_order(self._state, name) for name in names)
        try:
            answer = await workflow.execute_activity_method(
                CheckActivities.ask,
                AskRequest(orders=orders),
                **BRINGUP_LONG_CALL,
                start_to_close_timeout=max(order.limit for order in orders) + _BEYOND_LIMIT,
                task_queue=BRINGUP_QUEUE,
                summary="ask " + ", ".join(names)[:170],
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._set(reducers.unasked(self._state, names, reason_of(error)[1], workflow.now()))
            return
        self._set(reducers.answered(self._state, answer.answers, workflow.now()))

    # --- production -------------------------------------------------------------------------------

    async def _hand_over(self) -> None:
        try:
            answer = await workflow.execute_activity_method(
                BringupActivities.hand_over,
                calls.hand_over_request(self._state, workflow.now()),
                **LONG_CALL,
                summary="into the fleet",
            )
        except ActivityError as error:
            why = f"it could not be handed over: {reason_of(error)[1]}"
            self._set(reducers.failed_over(self._state, why, workflow.now()))
            return
        self._set(reducers.handed(self._state, answer, workflow.now()))

    async def _grant_owed(self) -> None:
        try:
            answer = await workflow.execute_activity_method(
                BringupActivities.grant_owed,
                calls.hand_over_request(self._state, workflow.now()),
                **LONG_CALL,
                summary="grant what is owed",
            )
        except ActivityError as error:
            self._set(reducers.not_granted(self._state, reason_of(error)[1], workflow.now()))
            return
        self._set(reducers.owed_looked_at(self._state, answer, workflow.now()))

    async def _wind_down(self) -> None:
        try:
            answer = await workflow.execute_activity_method(
                BringupActivities.wind_down,
                calls.wind_down_request(self._state, workflow.now()),
                **LONG_CALL,
                summary="out of the fleet",
            )
        except ActivityError as error:
            why = f"its quotas cannot go to nothing: {reason_of(error)[1]}"
            self._set(reducers.failed_over(self._state, why, workflow.now()))
            return
        self._set(reducers.wound(self._state, answer, workflow.now()))

    # --- side loops -------------------------------------------------------------------------------

    async def _record(self) -> None:
        while True:
            await workflow.wait_condition(lambda: bool(self._state.outbox))
            batch = self._state.outbox[:_BATCH]
            try:
                await workflow.execute_activity_method(
                    BringupActivities.record,
                    BringupRecord(row=row_of(self._state, workflow.now()), entries=batch),
                    **LAST_FLEET_CALL,
                    summary="; ".join(e.text for e in batch)[:180],
                )
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                workflow.logger.error("not archived: %s", reason_of(error)[1])  # it stands in this history
            self._b = outgoing.recorded(self._state, (e.key for e in batch))  # nothing is decided by it
            leave_mark()

    async def _mail(self) -> None:
        while True:
            await workflow.wait_condition(lambda: bool(self._state.mail))
            batch = self._state.mail[:_BATCH]
            try:
                answer = await workflow.execute_activity_method(
                    NoticeActivities.tell,
                    TellRequest(cluster=self._state.cluster, notices=batch),
                    **FLEET_MAIL_CALL,
                    summary=f"tell {self._state.entry.owner}",
                )
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                answer = TellAnswer(delivered={}, failed={}, refused={n.key: reason_of(error)[1] for n in batch})
            self._b = outgoing.mailed(self._state, [n.key for n in batch], answer, workflow.now())
            leave_mark()
            if answer.failed:
                await asyncio.sleep(_MAIL_PAUSE.total_seconds())

    # --- what people see --------------------------------------------------------------------------

    def _show(self) -> None:
        b = self._state
        shown = (b.stage.value, waiting_sentence(b, workflow.now()))
        if shown[:1] != self._shown[:1]:
            workflow.upsert_search_attributes(
                [BY_CLUSTER.value_set(b.cluster), BY_STAGE.value_set(b.stage.value), BY_OWNER.value_set(b.entry.owner)]
            )
        self._shown = shown
        workflow.set_current_details(shown[1])

    # --- messages ---------------------------------------------------------------------------------

    @property
    def _state(self) -> Bringup:
        if self._b is None:
            raise self._trouble or ApplicationError("it is being opened; try again in a moment", type="Unavailable")
        return self._b

    def _set(self, b: Bringup) -> None:
        if b is not self._b:
            self._b = b
            self._changes += 1

    @workflow.query(name=STATUS_QUERY)
    def status(self) -> BringupStatus:
        info = workflow.info()
        runs = 1 if self._start is None else self._start.runs
        events = info.get_current_history_length()
        return status_of(self._state, asked_at(), history_events=events, runs=runs)

    @workflow.query(name="state")
    def state(self) -> Bringup:
        """The whole state, for tests and for `doctor`."""
        return self._state

    @workflow.update(name=LAUNCHED_UPDATE)
    async def launched(self) -> BringupAnswer:
        """Answers once it stands in the archive, or is refused."""
        await workflow.wait_condition(lambda: self._trouble is not None or (self._b is not None and not self._b.outbox))
        return self._answer()

    def _answer(self) -> BringupAnswer:
        if self._trouble is not None or self._b is None:
            assert self._start is not None
            reason = "" if self._trouble is None else self._trouble.message
            return BringupAnswer(begun=False, cluster=self._start.start.entry.cluster, reason=reason)
        return BringupAnswer(begun=True, cluster=self._b.cluster, stage=self._b.stage, reason=self._b.because)

    def _check(self, command: BringupCommand, order: BringupOrder) -> None:
        why = refusal(self._state, command, order, workflow.now(), tuple(self._tasks))
        if why is not None:
            raise ApplicationError(why, type="Refusal", non_retryable=True)

    def _obey(self, command: BringupCommand, order: BringupOrder) -> BringupCommandAnswer:
        before, now = self._state, workflow.now()
        self._check(command, order)
        b, sentence = obey(before, command, order, now)
        self._set(b)
        undo = bringup_undo_line(before, b, command, order)
        return BringupCommandAnswer(command=command.value, stage=b.stage, said=sentence, undo=undo)

    def _cancelled(self) -> None:
        """Temporal's own cancel: a person's, who waits for what runs. In production, or with tickets, none."""
        if self._b is not None and self._start is not None and self._start.start.ticket:
            self._set(reducers.cancel_ignored(self._b, workflow.now()))
            return
        order = BringupOrder(actor="temporal", reason="the workflow was cancelled")
        if self._b is None or self._b.stage is BringupStage.IN_PRODUCTION:
            return
        if refusal(self._b, BringupCommand.CANCEL, order, workflow.now(), tuple(self._tasks)) is None:
            self._obey(BringupCommand.CANCEL, order)
