"""ClusterRollout: one cluster's rollout as a durable loop around the pure interpreter.

Theory of operation. `models.rollout.decide.decide` says what to do next; this module does it, takes the outcome in
(the modules named reducers in `models.rollout`) and asks again. Two side loops post notices and archive
what happened, so that neither can delay a rollback. Commands are updates: validators refuse with the stage table's
reason, handlers change the state at once and wake the loop. The state is one value, which is all that continue-as-new
carries. Cancelling the workflow means `abort`: what stands is undone first.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.notices.telling import NoticeActivities
    from activities.rollout.archive import ArchiveActivities
    from activities.rollout.clusters import ClusterActivities
    from activities.rollout.effects import QuotaActivities
    from models import wire
    from models.audit import AuditEntry
    from models.errors import HistoryLapse
    from models.lifecycle.actions import Finish, Wait
    from models.planning.grants import Granted, GrantOrder, GrantOutcome
    from models.rollout import (
        calls,
        effect_reducers,
        granting,
        long_run,
        look_reducers,
        mailing,
        objections,
        plan_reducers,
        time_reducers,
    )
    from models.rollout.actions import Action, Aim, Draft, Look, Perform
    from models.rollout.ahead import Ahead, ahead_of
    from models.rollout.cancelling import cancelled
    from models.rollout.commands import GOES_BACK, CommandRequest, obey, refusal, without_approval
    from models.rollout.decide import at_rest, confirms_breach, decide, urgent
    from models.rollout.drift import is_bounded
    from models.rollout.effect_table import EFFECT
    from models.rollout.effects import EffectKind
    from models.rollout.fitting import fitted
    from models.rollout.messages import (
        CommandAnswer,
        HealthChanged,
        LaunchAnswer,
        LaunchRequest,
        OpenRequest,
        RecordRequest,
        RolloutInput,
        RolloutResult,
    )
    from models.rollout.shown import RolloutStatus
    from models.rollout.stages import Command, Stage
    from models.rollout.state import Rollout
    from models.rollout.status import details_of, launch_answer, status_of, waiting_sentence
    from models.rollout.undo_lines import undo_line
    from models.rollout.warnings import news_of_risk, warned
    from workflows import options, patches
    from workflows.cancellation import lived
    from workflows.durable import Host, refused
    from workflows.failures import reason_of, room_at
    from workflows.haste import Haste
    from workflows.lapses import WAS_RESET, Lapses
    from workflows.marks import leave_mark, patience
    from workflows.next_run import next_run_is_due
    from workflows.owner_calls import call_owner
    from workflows.queries import asked_at
    from workflows.search_attributes import rollout_attributes
    from workflows.tickets import TicketBook, signed
    from workflows.updates import take_commands

_MAIL_PAUSE = timedelta(seconds=30)
_NOTHING = RolloutInput(launch=LaunchRequest(cluster="none", rollout="none", owner="none"))


@workflow.defn(name=wire.ROLLOUT_WORKFLOW, versioning_behavior=VersioningBehavior.PINNED)
class ClusterRollout(Host[Rollout]):
    # Started by hand without its argument, it must end: calling this without one would be tried again for ever.
    @workflow.init
    def __init__(self, start: RolloutInput | None = None) -> None:
        self._start = start or _NOTHING
        super().__init__(self._start.state)
        self._refused_launch = ""
        self._cancelled_early = False
        self._look_wanted = False
        self._recording: RecordRequest | None = None
        """What is on its way to the archive."""
        self._busy_mailing = False
        self._leaving = False
        """The side loops start nothing new, so that a busy rollout, too, comes to its next run."""
        self._leaving_since: datetime | None = None
        self._haste = Haste()
        self._looks_first = False
        self._waits: int | None = None
        """The main loop waits by a timer, which starts anew whatever happens; it has seen so many changes."""
        self._tickets = TicketBook("rollout", self._start.spent, attempt=lambda: self._state.attempt)
        self._lapses = Lapses(self._start)
        take_commands(Command, CommandRequest, check=self._check, obey=self._obey, tickets=self._tickets)

    @workflow.run
    async def run(self, start: RolloutInput | None = None) -> RolloutResult:
        """The rollout has ended, or continues as new."""
        self._lapses.runs = True
        if start is None:
            raise ApplicationError("a rollout needs its launch as its input", type="BadInput", non_retryable=True)
        return await lived(self._live(), self._cancelled)

    async def _live(self) -> RolloutResult:
        if self._value is None and not await self._open():
            await workflow.wait_condition(workflow.all_handlers_finished)
            return self._result()
        if self._cancelled_early:
            self._cancelled()
        recording = asyncio.create_task(self._record())
        posting = asyncio.create_task(self._mail())
        await self._loop()
        if not self._refused_launch:
            await self._settle()
        recording.cancel()
        posting.cancel()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._result()

    def _result(self) -> RolloutResult:
        launch, r = self._start.launch, self._value
        if r is None or self._refused_launch:
            why = self._refused_launch
            return RolloutResult(cluster=launch.cluster, rollout=launch.rollout, stage=Stage.ABORTED, reason=why)
        return RolloutResult(cluster=r.cluster, rollout=r.id, stage=r.stage, reason=r.ended_because)

    # --- the loop ---------------------------------------------------------------------------

    async def _loop(self) -> None:
        while True:
            if self._lapses.may_be(self._state):
                outcome = await self._lapses.compared(lambda: self._state, self._unsent)
                if isinstance(outcome, str):
                    self._refused_launch, self._leaving = outcome, True
                    return
                self._set(outcome or self._state)
            now = workflow.now()
            if self._look_wanted:
                self._look_wanted = False
                self._set(self._state.but(look_asked=True))
            self._set(time_reducers.advance(self._state, now))
            if self._state.post.unseen and not self._looks_first:
                self._looks_first = workflow.patched(patches.LOOKS_FIRST)
            self._set(call_owner(self._state, now))
            if not self._state.rests and at_rest(self._state, now) and workflow.patched(patches.RESTS):
                self._set(self._state.but(rests=True))
            self._show(rollout_attributes(self._state), details_of(self._state, now))
            action = decide(self._state, now)
            self._haste.turn(urgent(self._state, action))
            if isinstance(action, Look | Wait):
                self._leave(action, now)
            else:
                self._leaving = False
            if isinstance(action, Finish):
                return
            if isinstance(action, Wait):
                await self._wait(action)
            else:
                await self._act(action)

    async def _act(self, action: Action) -> None:
        match action:
            case Look():
                await self._look(action)
            case Draft():
                await self._draft(action)
            case Aim():
                await self._aim()
            case Perform():
                await self._perform(action.kind)

    async def _wait(self, wait: Wait) -> None:
        changes, until = self._changes, wait.until
        leaves = self._leaving and workflow.patched(patches.LEAVES_IN_TIME)
        if leaves and self._leaving_since and (late := self._leaving_since + options.OVERDUE) > workflow.now():
            until = min(until or late, late)
        timeout = patience(until)
        self._waits = None if timeout is None else changes
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: (
                    self._changes != changes or self._lapses.reset or (leaves and self._may_continue(workflow.now()))
                ),
                timeout=timeout,
                timeout_summary="until the next gate, look or breach",
            )
        self._waits = None
        if self._leaving_since is None:
            self._leaving = False

    def _leave(self, action: Look | Wait, now: datetime) -> None:
        """Continues as new where that is due and nothing is in the way.

        A flood of commands and signals, and a ledger that is away for weeks, are not: side loops start nothing
        new until then, a look can be made by the next run as well, and what a side loop tries for too long is
        tried again there (both calls are made to be repeated).
        """
        if not next_run_is_due():
            self._leaving, self._leaving_since = False, None  # another build was wanted, and is no more
            return
        if workflow.patched(patches.LEAVES_PROMPTLY):
            self._leaving_since = self._leaving_since or now
        elif isinstance(action, Look):
            return
        if self._may_continue(now):
            upgrade = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
            run = self._start.next_run(fitted(self._state, now), self._tickets.carried())
            workflow.continue_as_new(run, initial_versioning_behavior=upgrade)
        self._leaving = True

    def _may_continue(self, now: datetime) -> bool:
        """Nothing is under way that the next run would have to do again, or it has been so for too long."""
        busy = self._recording is not None or self._busy_mailing
        overdue = self._leaving_since is not None and now - self._leaving_since >= options.OVERDUE
        return (overdue or not busy) and workflow.all_handlers_finished()

    async def _settle(self) -> None:
        """Everything is archived; the teams are told, or have been tried for long enough."""
        await workflow.wait_condition(self._all_recorded)
        try:
            await workflow.wait_condition(lambda: not mailing.in_hand(self._state), timeout=options.LAST_MAIL)
        except TimeoutError:
            workflow.logger.warning("ended with %d notices undelivered", len(mailing.in_hand(self._state)))
        await workflow.wait_condition(self._all_recorded)

    def _all_recorded(self) -> bool:
        post = self._state.post
        return not post.outbox and post.noted is self._state.stage and self._recording is None

    @property
    def _state(self) -> Rollout:
        if self._refused_launch:
            raise ApplicationError(f"{wire.NOT_LAUNCHED}{self._refused_launch}", type="Refusal", non_retryable=True)
        return super()._state

    # --- actions ----------------------------------------------------------------------------

    async def _open(self) -> bool:
        launch = self._start.launch
        try:
            opening = await workflow.execute_activity_method(
                ClusterActivities.open_rollout,
                OpenRequest(launch=launch, at=workflow.now()),
                **options.FORWARD_CALL,
                summary=f"open {launch.cluster} for {launch.owner}",
            )
        except ActivityError as error:
            self._refused_launch = reason_of(error)[1]
            self._changes += 1
            return False
        self._set(plan_reducers.opened(launch, opening, workflow.now()))
        return True

    async def _look(self, action: Look) -> None:
        r = self._state
        try:
            seen = await workflow.execute_activity_method(
                ClusterActivities.observe,
                calls.look_at(r, action, workflow.now()),
                **(options.DUE_READ_CALL if confirms_breach(r, workflow.now()) else options.READ_CALL),
                summary=f"look: {action.why}",
            )
        except ActivityError as error:
            self._set(look_reducers.look_failed(self._state, reason_of(error)[1], workflow.now()))
            return
        now = workflow.now()
        rises = look_reducers.rise_waits(self._state, seen) and workflow.patched(patches.CONFIRMS_RISES)
        asks = look_reducers.asks_of(self._state, seen) and workflow.patched(patches.ASKS_OF_DRIFT)
        self._set(look_reducers.looked(self._state, seen, now, r.fence, rises=rises, asks=asks))
        if any(news_of_risk(self._state, now)) and workflow.patched(patches.WARNS):
            self._set(warned(self._state, now))

    async def _draft(self, action: Draft) -> None:
        try:
            drafted = await workflow.execute_activity_method(
                ClusterActivities.draft_plan,
                calls.draft(self._state, action, workflow.now()),
                **options.LONG_CALL,
                summary=f"plan: {action.why}",
            )
        except ActivityError as error:
            failed = long_run.not_reconsidered if action.islands else plan_reducers.draft_failed
            self._set(failed(self._state, reason_of(error)[1], workflow.now()))
            return
        if action.islands:
            self._set(long_run.reconsidered(self._state, drafted.plan, workflow.now()))
        else:
            self._set(plan_reducers.drafted(self._state, drafted, workflow.now()))

    async def _aim(self) -> None:
        try:
            target = await workflow.execute_activity_method(
                ClusterActivities.aim_rollback,
                calls.aim(self._state, workflow.now()),
                **options.AIM_CALL,
                summary=f"aim the rollback: {', '.join(self._state.stay.aiming)}",
            )
        except ActivityError as error:
            self._set(plan_reducers.aim_failed(self._state, *reason_of(error), workflow.now()))
            return
        self._set(plan_reducers.aimed(self._state, target, workflow.now()))

    async def _perform(self, kind: EffectKind) -> None:
        begun, change = effect_reducers.began(self._state, kind)
        self._set(begun)
        try:
            receipt = await workflow.execute_activity_method(
                QuotaActivities.apply_effect,
                calls.effect(begun, change, workflow.now()),
                **(options.EFFECT_CALL if kind in EFFECT else options.INVERSE_CALL),
                summary=calls.effect_summary(change),
            )
        except ActivityError as error:
            if (why := reason_of(error))[0] == HistoryLapse.__name__:
                self._lapses.suspected = True
                self._set(self._state.but(fence=begun.fence - 1))
                return
            self._set(effect_reducers.failed(self._state, change, *why, workflow.now(), room_at(error)))
            return
        again = effect_reducers.aims_again(self._state, receipt) and workflow.patched(patches.AIMS_AGAIN)
        self._set(effect_reducers.landed(self._state, change, receipt, workflow.now(), again=again))

    # --- side loops -------------------------------------------------------------------------

    async def _record(self) -> None:
        while True:
            await workflow.wait_condition(self._may_record)
            if workflow.patched(patches.TOGETHER):
                await self._linger()
                if not self._may_record():  # a breach came between
                    leave_mark()
                    continue
            self._recording = request = calls.record(self._state, workflow.now())
            try:
                await workflow.execute_activity_method(
                    ArchiveActivities.record,
                    request,
                    **options.CALL,
                    summary="; ".join(e.text for e in request.entries)[:180] or f"stage {request.stage}",
                )
            except ActivityError as error:
                # The registry belongs to somebody else by now. The entries stand in this history.
                workflow.logger.error("not archived: %s", reason_of(error)[1])
            self._recording = None
            self._set(mailing.recorded(self._state, request))
            if self._waits is None:
                leave_mark()

    def _unsent(self) -> tuple[AuditEntry, ...]:
        """Entries that are neither archived nor on their way there."""
        sent = () if self._recording is None else self._recording.entries
        return tuple(entry for entry in self._state.post.outbox if entry not in sent)

    def _may_record(self) -> bool:
        stays = self._leaving or self._lapses.reset
        if stays or self._state.closing:  # closing: the registry would end the rollout before its last effect
            return False
        post = self._state.post
        return post.noted is not self._state.stage or (bool(post.outbox) and not self._haste.on)

    async def _linger(self) -> None:
        """Until the main loop waits: each call is seven events and a workflow task, however many entries it takes."""
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(self._records_now, timeout=options.LINGER, timeout_summary="for more entries")

    def _records_now(self) -> bool:
        """Nothing more is about to come; or others count on the stage, as the fleet's brake does on rollbacks."""
        r = self._state
        rolls_back = r.stage is Stage.ROLLING_BACK and r.post.noted is not r.stage
        return self._waits == self._changes or r.stage.ended or rolls_back

    def _may_mail(self) -> bool:
        may_mail = mailing.may_mail if self._looks_first else mailing.ready
        stays = self._leaving or self._lapses.reset or self._haste.on
        return not stays and bool(may_mail(self._state, workflow.now()))

    async def _mail_is_due(self) -> None:
        """A timer runs only where the ledger sends something that the notice period waits for."""
        while True:
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(self._may_mail, timeout=mailing.asks_in(self._state, workflow.now()))
                return

    async def _mail(self) -> None:
        while True:
            await self._mail_is_due()
            self._busy_mailing = True
            request = calls.tell(self._state, workflow.now())
            try:
                answer = await workflow.execute_activity_method(
                    NoticeActivities.tell,
                    request,
                    **options.MAIL_CALL,
                    summary="tell " + ", ".join(f"{n.audience} ({n.kind})" for n in request.notices)[:170],
                )
            except ActivityError as error:
                why = reason_of(error)[1]
                answer = wire.TellAnswer(delivered={}, failed={}, refused={n.key: why for n in request.notices})
            self._busy_mailing = False
            self._set(mailing.mailed(self._state, request.notices, answer, workflow.now()))
            if self._waits is None:
                leave_mark()
            if self._state.post.trouble:
                await asyncio.sleep(_MAIL_PAUSE.total_seconds())
                leave_mark()

    # --- messages ---------------------------------------------------------------------------

    @workflow.signal(name=wire.HEALTH_SIGNAL)
    def health_changed(self, edge: HealthChanged | None = None) -> None:
        self._look_wanted = True
        self._changes += 1

    @workflow.query(name=wire.STATUS_QUERY)
    def status(self) -> RolloutStatus:
        events = workflow.info().get_current_history_length()
        return status_of(self._state, asked_at(), history_events=events, runs=self._start.runs)

    @workflow.query(name=wire.AHEAD_QUERY)
    def ahead(self) -> Ahead:
        return ahead_of(self._state, asked_at())

    @workflow.update(name=wire.LAUNCHED_UPDATE)
    async def launched(self) -> LaunchAnswer:
        """Answers once there is a plan, or a reason why there will be none."""
        await workflow.wait_condition(
            lambda: (
                bool(self._refused_launch)
                or (self._value is not None and (self._value.plan is not None or self._value.stage.ended))
            )
        )
        launch, why = self._start.launch, self._refused_launch
        if self._value is None:
            return LaunchAnswer(
                launched=False, rollout=launch.rollout, cluster=launch.cluster, stage=Stage.ABORTED, reason=why
            )
        return launch_answer(self._value)

    @workflow.update(name=wire.GRANT_UPDATE)
    async def grant(self, order: GrantOrder) -> Granted:
        """What became of the order; one that has to wait for long is to be sent again."""
        self._set(granting.ordered(self._state, order))
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._state.grant_order != order, timeout=options.GRANT_PATIENCE)
        why = f"{self._state.cluster} is not at rest: {waiting_sentence(self._state, workflow.now())}"
        self._set(granting.put_off(self._state, order, why))
        await workflow.wait_condition(lambda: self._state.grant_order != order)
        answer = granting.answer_to(self._state, order)
        return answer or Granted(request=order.request, ends=order.ends, outcome=GrantOutcome.LATER, said=why)

    def _check(self, command: Command, request: CommandRequest) -> None:
        if self._lapses.reset:
            raise ApplicationError(WAS_RESET, type="Unavailable", non_retryable=True)
        refused(refusal(self._state, command, request, by_roles=self._tickets.by_roles(request)))

    def _obey(self, command: Command, request: CommandRequest) -> CommandAnswer:
        r = self._state
        stood = command is Command.OBJECT and any(objections.of_team(r, request.team))
        one = not stood or workflow.patched(patches.ONE_OBJECTION)
        accepts = command is Command.RESOLVE and request.hold == "drift" and request.how != "restore" and is_bounded(r)
        refits = accepts and workflow.patched(patches.REFITS)
        after, sentence = obey(r, command, request, workflow.now(), one_objection=one, refits=refits)
        self._set(without_approval(after) if signed(request) and command in GOES_BACK else after)
        undo = undo_line(r, after, command, request, by_roles=self._tickets.by_roles(request))
        return CommandAnswer(cluster=r.cluster, command=command, stage=after.stage, said=sentence, undo=undo)

    def _cancelled(self) -> None:
        """Temporal's own cancel: an abort by whoever sent it; a rollback under way goes on."""
        if self._value is None:
            self._cancelled_early = True
            return
        self._set(cancelled(self._value, workflow.now(), by_ticket=bool(self._start.launch.ticket)))
