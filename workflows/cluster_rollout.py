"""ClusterRollout: one cluster's rollout as a durable loop around the pure interpreter.

Theory of operation. `models.rollout.decide.decide` says what to do next; the loop performs it
(workflows/rollout_actions.py) and asks again. Two side loops send notices and archive entries
(workflows/rollout_post.py), so that neither can delay a rollback. Commands are updates: validators refuse with the
stage table's reason, handlers change the state at once and wake the loop. The state is one value, which is all that
continue-as-new carries (workflows/rollout_waits.py). Cancelling the workflow means `abort`: effects in force are
undone first.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime
from typing import ClassVar

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.rollout.cluster_calls import ClusterActivities
    from models import temporal_names as wire
    from models.lifecycle.workflow_actions import Finish, Wait
    from models.planning.grants import Granted, GrantOrder, GrantOutcome
    from models.rollout import granting, messages, objections, plan_reducers, time_reducers
    from models.rollout.command_previews import Ahead, ahead_of
    from models.rollout.commands import (
        GOES_BACK,
        CommandRequest,
        accepts_bounded,
        apply_cancel,
        obey,
        refusal,
        without_approval,
    )
    from models.rollout.decide import decide, is_at_rest, is_urgent
    from models.rollout.look_reducers import knows_already
    from models.rollout.mailing import fit_rollout
    from models.rollout.stages import Command, Stage
    from models.rollout.state import Rollout
    from models.rollout.status import details_of, launch_answer, launch_refused, status_of
    from models.rollout.status_models import RolloutStatus
    from models.rollout.undo_lines import undo_line
    from models.rollout.workflow_actions import Look
    from workflows import options, patches
    from workflows.cancellation import live_through
    from workflows.durable import missing_input, raise_if_refused
    from workflows.failures import reason_of
    from workflows.history_lacks_effects import WAS_RESET
    from workflows.owner_notices import call_owner
    from workflows.query_clock import query_time
    from workflows.rollout_actions import RolloutActions
    from workflows.search_attributes import rollout_attributes
    from workflows.ticket_admission import TicketBook, is_signed
    from workflows.updates import takes_commands

_NOTHING = messages.RolloutInput(launch=messages.LaunchRequest(cluster="none", rollout="none", owner="none"))


@workflow.defn(name=wire.ROLLOUT_WORKFLOW, versioning_behavior=VersioningBehavior.PINNED)
@takes_commands(Command, CommandRequest)
class ClusterRollout(RolloutActions):
    wakes: ClassVar[str] = "until the next gate, look or breach"

    # A run started by hand without its argument must end: a failing __init__ would be retried for ever.
    @workflow.init
    def __init__(self, start: messages.RolloutInput | None = None) -> None:
        self._start = start or _NOTHING
        super().__init__(self._start)
        self._refused_launch = ""
        self._cancelled_early = False
        self._look_wanted = False
        self._edge: messages.HealthChanged | None = None
        """The last change of health that the watch reported; None: none in this run."""
        self._compares_edges = False
        """Whether the run has the patch, asked at its first line: amid signals and updates, it would not replay."""
        self._tickets = TicketBook("rollout", self._start.spent, attempt=lambda: self._state.attempt)

    @workflow.run
    async def run(self, start: messages.RolloutInput | None = None) -> messages.RolloutResult:
        """Run until the rollout has ended, or continue as new."""
        # Asked first: a run from before keeps to the other patches until it ends.
        self._compares_edges = patches.has_fewer_events()
        self._lapses.runs = True
        if start is None:
            raise missing_input("a rollout needs its launch")
        return await live_through(self._live(), self._apply_cancel)

    async def _live(self) -> messages.RolloutResult:
        if self._value is None and not await self._open():
            await workflow.wait_condition(workflow.all_handlers_finished)
            return self._result()
        if self._cancelled_early:
            self._apply_cancel()
        sides = [asyncio.create_task(loop()) for loop in (self._record, self._mail)]
        await self._loop()
        if not self._refused_launch:
            await self._settle()
        for side in sides:
            side.cancel()
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._note_event()
        return self._result()

    async def _open(self) -> bool:
        launch = self._start.launch
        try:
            opening = await workflow.execute_activity_method(
                ClusterActivities.open_rollout,
                messages.OpenRequest(launch=launch, at=workflow.now()),
                **options.FORWARD_CALL,
                summary=f"open {launch.cluster} for {launch.owner}",
            )
        except ActivityError as error:
            self._refused_launch = reason_of(error)[1]
            self._changes += 1
            return False
        self._set(plan_reducers.open_rollout(launch, opening, workflow.now()))
        return True

    def _result(self) -> messages.RolloutResult:
        start, rollout, why = self._start.launch, self._value, self._refused_launch
        if rollout is not None and not why:
            return messages.RolloutResult(
                cluster=rollout.cluster, rollout=rollout.id, stage=rollout.stage, reason=rollout.ended_because
            )
        return messages.RolloutResult(cluster=start.cluster, rollout=start.rollout, stage=Stage.ABORTED, reason=why)

    # --- the loop ---------------------------------------------------------------------------

    async def _loop(self) -> None:
        while True:
            if self._lapses.may_be(self._state):
                outcome = await self._lapses.compare_histories(lambda: self._state, self._unsent)
                if isinstance(outcome, str):
                    self._refused_launch, self._leaving = outcome, True
                    return
                self._set(outcome or self._state)
            now = workflow.now()
            if self._look_wanted:
                self._look_wanted = False
                self._set(self._state.but(look_asked=self._state.look_asked or not self._knows_edge()))
            self._set(time_reducers.advance(self._state, now))
            if self._state.post.unseen and not self._looks_first:
                self._looks_first = patches.since(patches.LOOKS_FIRST)
            self._set(call_owner(self._state, now))
            if not self._state.rests and is_at_rest(self._state, now) and patches.since(patches.RESTS):
                self._set(self._state.but(rests=True))
            self._show(rollout_attributes(self._state, by_tier=not self._compares_edges), details_of(self._state, now))
            action = decide(self._state, now)
            self._haste.turn(is_urgent(self._state, action))
            if isinstance(action, Look | Wait):
                self._leave(action, now)
            else:
                self._leaving = False
            if isinstance(action, Finish):
                return
            if isinstance(action, Wait):
                await self._wait(action)
            else:
                if not isinstance(action, Look):  # which seldom moves the due moment
                    self._timer.cancel()
                await self._act(action)

    def _next_run(self, now: datetime) -> messages.RolloutInput:
        return self._start.next_run(fit_rollout(self._state, now), self._tickets.carry_over())

    @property
    def _state(self) -> Rollout:
        if self._refused_launch:
            raise ApplicationError(f"{wire.NOT_LAUNCHED}{self._refused_launch}", type="Refusal", non_retryable=True)
        return super()._state

    # --- messages ---------------------------------------------------------------------------

    @workflow.signal(name=wire.HEALTH_SIGNAL)
    def health_changed(self, edge: messages.HealthChanged | None = None) -> None:
        self._edge = edge if self._compares_edges else None
        if self._looking or not self._knows_edge():
            self._look_wanted = True
            self._changes += 1

    def _knows_edge(self) -> bool:
        """Return whether a look would bring nothing. While one is under way, nobody knows yet."""
        return self._edge is not None and self._value is not None and knows_already(self._value, self._edge)

    @workflow.query(name=wire.STATUS_QUERY)
    def status(self) -> RolloutStatus:
        events = workflow.info().get_current_history_length()
        return status_of(self._state, query_time(), history_events=events, runs=self._start.runs)

    @workflow.query(name=wire.AHEAD_QUERY)
    def ahead(self) -> Ahead:
        return ahead_of(self._state, query_time())

    @workflow.update(name=wire.LAUNCHED_UPDATE)
    async def await_launch(self) -> messages.LaunchAnswer:
        """Answer once there is a plan, or a reason that there will be none."""
        await workflow.wait_condition(lambda: bool(self._refused_launch) or self._is_planned())
        if self._value is not None:
            return launch_answer(self._value)
        return launch_refused(self._start.launch, self._refused_launch)

    def _is_planned(self) -> bool:
        return self._value is not None and (self._value.plan is not None or self._value.stage.has_ended)

    @workflow.update(name=wire.GRANT_UPDATE)
    async def grant(self, order: GrantOrder) -> Granted:
        """Answer with the outcome of the order; one that has to wait long must be sent again."""
        self._set(granting.take_order(self._state, order))
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._state.grant_order != order, timeout=options.GRANT_PATIENCE)
        why = granting.why_not_yet(self._state, order, workflow.now())
        self._set(granting.put_off(self._state, order, why))
        await workflow.wait_condition(lambda: self._state.grant_order != order)
        answer = granting.answer_to(self._state, order)
        return answer or Granted(request=order.request, ends=order.ends, outcome=GrantOutcome.LATER, said=why)

    def _check(self, command: Command, request: CommandRequest) -> None:
        if self._lapses.reset:
            raise ApplicationError(WAS_RESET, type="Unavailable", non_retryable=True)
        raise_if_refused(refusal(self._state, command, request, by_roles=self._tickets.by_roles(request)))

    def _obey(self, command: Command, request: CommandRequest) -> messages.CommandAnswer:
        rollout = self._state
        stood = command is Command.OBJECT and any(objections.of_team(rollout, request.team))
        one = not stood or patches.since(patches.ONE_OBJECTION)
        refits = accepts_bounded(rollout, command, request) and patches.since(patches.REFITS)
        after, text = obey(rollout, command, request, workflow.now(), one_objection=one, refits=refits)
        self._set(without_approval(after) if is_signed(request) and command in GOES_BACK else after)
        undo = undo_line(rollout, after, command, request, by_roles=self._tickets.by_roles(request))
        return messages.CommandAnswer(cluster=rollout.cluster, command=command, stage=after.stage, said=text, undo=undo)

    def _apply_cancel(self) -> None:
        """Apply a cancel from Temporal: abort, or let a rollback under way go on."""
        if self._value is None:
            self._cancelled_early = True
            return
        self._set(apply_cancel(self._value, workflow.now(), by_ticket=bool(self._start.launch.ticket)))
