"""Bringup: one cluster from an order to production, and out of it again, as a durable loop around pure steps.

Theory of operation. `models.bringup.decide.decide` says what to begin, this module begins it as a task of its own and
takes the outcome in (`models.bringup.reducers`). A start is noted in the state, and so in history, before it is made;
what was noted is followed by its key, whoever had started it. What waits long (a run, the supply) is one call that says
it lives, so that months cost few events. The state is one value, and continue-as-new carries it: it lets go of what is
followed and asked, and of no call that changes the world.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.bringup.calls import BringupActivities, CheckActivities
    from models.audit import AuditEntry
    from models.bringup import calls, reducers
    from models.bringup.actions import (
        AskChecks,
        BringupAction,
        Follow,
        GrantOwed,
        HandOver,
        LookForSupply,
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
    from models.lifecycle.actions import Finish, Wait
    from models.wire import LAUNCHED_UPDATE, STATUS_QUERY
    from workflows import bringup_runs
    from workflows.cancellation import lived
    from workflows.durable import Durable, refused
    from workflows.failures import reason_of
    from workflows.options import (
        BRINGUP_LONG_CALL,
        LAST_FLEET_CALL,
        LONG_ASKED_CALL,
        LONG_CALL,
        START_PAUSES,
    )
    from workflows.queries import asked_at
    from workflows.search_attributes import BY_CLUSTER, BY_OWNER, BY_STAGE
    from workflows.tickets import TicketBook
    from workflows.updates import take_commands

_BEYOND_LIMIT = timedelta(minutes=1)
_LETS_GO = (Follow, AskChecks, LookForSupply)
"""What a history that begins anew takes up again by itself."""


@workflow.defn(name=BRINGUP_WORKFLOW, versioning_behavior=VersioningBehavior.PINNED)
class BringupWorkflow(Durable[Bringup]):
    @workflow.init
    def __init__(self, start: BringupInput | None = None) -> None:
        super().__init__(None if start is None else start.state)
        self._start = start
        self._tasks: dict[BringupAction, asyncio.Task[None]] = {}
        """What is under way."""
        self._sides: list[asyncio.Task[None]] = []
        self._tickets = TicketBook("bringup", () if start is None else start.spent)
        take_commands(BringupCommand, BringupOrder, check=self._check, obey=self._obey, tickets=self._tickets)

    @workflow.run
    async def run(self, start: BringupInput | None = None) -> BringupAnswer:
        """The bring-up has ended, or continues as new."""
        if start is None:
            raise ApplicationError("a bring-up needs its entry as its input", type="BadInput", non_retryable=True)
        return await lived(self._live(start), self._cancelled)

    async def _live(self, start: BringupInput) -> BringupAnswer:
        if self._value is None:
            await self._open(start)
        if self._trouble is not None:
            raise await self._never_began()
        self._sides = [asyncio.create_task(loop()) for loop in (self._record, self._mail)]
        await self._loop(start)
        await self._settle()
        self._let_go()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._answer()

    async def _open(self, start: BringupInput) -> None:
        opened = await self._opening(
            workflow.execute_activity_method(
                BringupActivities.open,
                OpenBringup(start=start.start, at=workflow.now()),
                **LONG_ASKED_CALL,
                summary=f"may {start.start.entry.cluster} begin",
            )
        )
        if opened is not None and opened.refused:
            self._trouble = ApplicationError(opened.refused, type="Refusal", non_retryable=True)
        elif opened is not None:
            self._set(reducers.opened(start.start, opened.number, workflow.now()))

    # --- the loop ---------------------------------------------------------------------------------

    async def _loop(self, start: BringupInput) -> None:
        while True:
            now = workflow.now()
            self._set(reducers.advance(self._state, now))
            self._tell_temporal()
            self._leave(start)
            match decide(self._state, now, tuple(self._tasks)):
                case Finish():
                    return
                case Wait() as wait:
                    await self._rest(wait.until)
                case action:
                    self._tasks[action] = asyncio.create_task(self._perform(action))

    async def _rest(self, until: datetime | None) -> None:
        """Until something ends, somebody speaks, or it is time. Errors: what a task has met that nobody planned for."""
        await self._wait(until)
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
        if loose and self._may_leave():
            asked = [name for action in self._tasks if isinstance(action, AskChecks) for name in action.names]
            state = reducers.let_go(self._state, asked).fitted(workflow.now())
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

    async def _archive(self, batch: tuple[AuditEntry, ...], summary: str) -> None:
        await workflow.execute_activity_method(
            BringupActivities.record,
            BringupRecord(row=row_of(self._state, workflow.now()), entries=batch),
            **LAST_FLEET_CALL,
            summary=summary,
        )

    # --- what people see --------------------------------------------------------------------------

    def _tell_temporal(self) -> None:
        b = self._state
        self._show(
            [BY_CLUSTER.value_set(b.cluster), BY_STAGE.value_set(b.stage.value), BY_OWNER.value_set(b.entry.owner)],
            waiting_sentence(b, workflow.now()),
        )

    # --- messages ---------------------------------------------------------------------------------

    @workflow.query(name=STATUS_QUERY)
    def status(self) -> BringupStatus:
        info = workflow.info()
        runs = 1 if self._start is None else self._start.runs
        events = info.get_current_history_length()
        return status_of(self._state, asked_at(), history_events=events, runs=runs)

    @workflow.update(name=LAUNCHED_UPDATE)
    async def launched(self) -> BringupAnswer:
        """Answers once it stands in the archive, or is refused."""
        await workflow.wait_condition(
            lambda: self._trouble is not None or (self._value is not None and not self._value.outbox)
        )
        return self._answer()

    def _answer(self) -> BringupAnswer:
        if self._trouble is not None or self._value is None:
            assert self._start is not None
            reason = "" if self._trouble is None else self._trouble.message
            return BringupAnswer(begun=False, cluster=self._start.start.entry.cluster, reason=reason)
        return BringupAnswer(
            begun=True, cluster=self._value.cluster, stage=self._value.stage, reason=self._value.because
        )

    def _check(self, command: BringupCommand, order: BringupOrder) -> None:
        refused(refusal(self._state, command, order, workflow.now(), tuple(self._tasks)))

    def _obey(self, command: BringupCommand, order: BringupOrder) -> BringupCommandAnswer:
        before, now = self._state, workflow.now()
        self._check(command, order)
        b, sentence = obey(before, command, order, now)
        self._set(b)
        undo = bringup_undo_line(before, b, command, order)
        return BringupCommandAnswer(command=command.value, stage=b.stage, said=sentence, undo=undo)

    def _cancelled(self) -> None:
        """Temporal's own cancel: a person's, who waits for what runs. In production, or with tickets, none."""
        if self._value is not None and self._start is not None and self._start.start.ticket:
            self._set(reducers.cancel_ignored(self._value, workflow.now()))
            return
        order = BringupOrder(actor="temporal", reason="the workflow was cancelled")
        if self._value is None or self._value.stage is BringupStage.IN_PRODUCTION:
            return
        if refusal(self._value, BringupCommand.CANCEL, order, workflow.now(), tuple(self._tasks)) is None:
            self._obey(BringupCommand.CANCEL, order)
