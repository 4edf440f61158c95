"""FleetRollout: a whole fleet, in waves, as a durable loop around pure steps.

Theory of operation. As in ClusterRollout, `models.fleet.decide.decide` says what to do next; this module does it and
applies the outcome (`models.fleet.reducers`). Each cluster's rollout is a workflow of its own, which goes on whatever
happens to this one. A side loop follows all of them with one long call, which returns when one of them changes; so a
thousand clusters at rest cost no event. The state is one value, and continue-as-new carries it.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.fleet.calls import FleetActivities
    from models.audit_chain import AuditEntry
    from models.fleet import messages, reducers, request_builders
    from models.fleet.commands import FLEET_COMMANDS, FleetCommand, FleetCommandRequest, apply_cancel, obey, refusal
    from models.fleet.decide import decide
    from models.fleet.state import FleetRollout, MemberState
    from models.fleet.status import status_of, waiting_sentence
    from models.fleet.undo_lines import fleet_undo_line
    from models.fleet.workflow_actions import AbortMembers, PickMembers, PlanFleet, StartMembers
    from models.lifecycle.workflow_actions import Finish, Wait
    from models.temporal_names import FLEET_PLAN_QUERY, FLEET_STATUS_QUERY, FLEET_WORKFLOW, LAUNCHED_UPDATE, TellAnswer
    from workflows.cancellation import live_through
    from workflows.durable import Durable, missing_input, raise_if_refused, stop_tasks
    from workflows.failures import reason_of
    from workflows.next_run import begin_next_run
    from workflows.options import FLEET_CALL, LAST_FLEET_CALL, LAST_WHOLE_FLEET_CALL, WHOLE_FLEET_CALL
    from workflows.query_clock import query_time
    from workflows.search_attributes import fleet_attributes
    from workflows.ticket_admission import TicketBook
    from workflows.updates import takes_commands
_NEEDS = "a fleet rollout needs its launch"


@workflow.defn(name=FLEET_WORKFLOW, versioning_behavior=VersioningBehavior.PINNED)
@takes_commands(FLEET_COMMANDS, FleetCommandRequest)
class FleetRolloutWorkflow(Durable[FleetRollout]):
    wakes: ClassVar[str] = "until the next wave or look"
    delivery_wakes: ClassVar[bool] = True

    @workflow.init
    def __init__(self, start: messages.FleetInput | None = None) -> None:
        state = None if start is None else start.state or reducers.open_fleet(start.launch, workflow.now())
        super().__init__(state, missing_input(_NEEDS))
        self._start = start
        self._plan: messages.FleetPlan | None = None
        spent = () if start is None else start.spent
        self._tickets = TicketBook("fleet", spent, subject=lambda: self._state.id)

    @workflow.run
    async def run(self, start: messages.FleetInput | None = None) -> messages.FleetResult:
        """Run until the fleet rollout has ended, or continue as new."""
        if start is None:
            raise missing_input(_NEEDS)
        return await live_through(self._live(), self._apply_cancel)

    async def _live(self) -> messages.FleetResult:
        sides = [asyncio.create_task(loop()) for loop in (self._record, self._mail, self._follow)]
        try:
            await self._loop()
            await self._settle()
        except GeneratorExit:  # the worker dropped this workflow, and an await now would log an error
            raise
        except BaseException:
            await stop_tasks(sides)
            raise
        await stop_tasks(sides)
        await workflow.wait_condition(workflow.all_handlers_finished)
        fleet = self._state
        done = sum(m.state is MemberState.DONE for m in fleet.members.values())
        return messages.FleetResult(
            fleet=fleet.id, stage=fleet.stage, reason=fleet.ended_because, clusters=len(fleet.members), done=done
        )

    @property
    def _launch(self) -> messages.FleetInput:
        assert self._start is not None
        return self._start

    # --- the loop ---------------------------------------------------------------------------------

    async def _loop(self) -> None:
        while True:
            now = workflow.now()
            self._set(reducers.advance(self._state, now))
            self._show(fleet_attributes(self._state), waiting_sentence(self._state, now))
            self._leave()
            match decide(self._state, now):
                case Finish():
                    return
                case Wait() as wait:
                    await self._wait(wait.until)
                case PlanFleet():
                    await self._make_plan()
                case PickMembers() as pick:
                    await self._pick(pick)
                case StartMembers() as begin:
                    await self._begin(begin)
                case AbortMembers() as abort:
                    await self._abort(abort)

    def _leave(self) -> None:
        """Continue as new if that is due, without waiting for side loops: all their calls can be repeated."""
        if self._may_leave():
            state, spent = self._state.fit(workflow.now()), self._tickets.carry_over()
            begin_next_run(self._launch.but(state=state, runs=self._launch.runs + 1, spent=spent))

    # --- actions ----------------------------------------------------------------------------------

    async def _make_plan(self) -> None:
        launch = self._launch.launch
        try:
            plan = await workflow.execute_activity_method(
                FleetActivities.plan_fleet,
                messages.FleetPlanRequest(launch=launch, at=workflow.now()),
                **WHOLE_FLEET_CALL,
                summary="plan every cluster",
            )
        except ActivityError as error:
            self._set(reducers.fail_plan(self._state, reason_of(error)[1], workflow.now()))
            return
        self._plan = plan
        self._set(reducers.apply_plan(self._state, launch, plan, workflow.now()))

    async def _pick(self, action: PickMembers) -> None:
        try:
            answer = await workflow.execute_activity_method(
                FleetActivities.pick,
                request_builders.pick(self._state, action, workflow.now()),
                **LAST_WHOLE_FLEET_CALL,
                summary=f"pick up to {action.most} of {len(action.candidates)}",
            )
        except ActivityError as error:
            self._set(
                reducers.add_trouble(self._state, f"no cluster can be picked: {reason_of(error)[1]}", workflow.now())
            )
            return
        ids = {p.cluster: _new_id(p.cluster) for p in answer.picked}
        self._set(reducers.apply_picks(self._state, answer, ids, workflow.now()))

    async def _begin(self, action: StartMembers) -> None:
        clusters = [m.cluster for m in action.members]
        try:
            answer = await workflow.execute_activity_method(
                FleetActivities.start,
                request_builders.start(self._state, self._launch.launch, action),
                **LAST_FLEET_CALL,
                summary="start " + ", ".join(clusters)[:170],
            )
        except ActivityError as error:
            answer = messages.StartAnswer(refused=dict.fromkeys(clusters, reason_of(error)[1]))
        self._set(reducers.apply_starts(self._state, clusters, answer, workflow.now()))

    async def _abort(self, action: AbortMembers) -> None:
        clusters = [m.cluster for m in action.members]
        try:
            answer = await workflow.execute_activity_method(
                FleetActivities.abort,
                request_builders.abort(self._state, action),
                **FLEET_CALL,
                summary=f"abort {len(clusters)} rollouts",
            )
        except ActivityError as error:
            answer = messages.AbortAnswer(refused=dict.fromkeys(clusters, reason_of(error)[1]))
        self._set(reducers.apply_aborts(self._state, clusters, answer, workflow.now()))

    # --- side loops -------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            await workflow.wait_condition(lambda: any(m.rollout for m in self._state.members.values()))
            request, recheck = request_builders.follow(self._state), self._state.pace.recheck
            try:
                answer = await workflow.execute_activity_method(
                    FleetActivities.follow, request, **WHOLE_FLEET_CALL, summary=f"follow {len(request.known)} rollouts"
                )
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                workflow.logger.error("members are not followed: %s", reason_of(error)[1])
                await asyncio.sleep(recheck.total_seconds())
                continue
            if answer.changed:
                self._set(reducers.apply_news(self._state, answer.changed, workflow.now()))
            if answer.joined:
                self._set(reducers.join_open(self._state, answer.joined, workflow.now()))

    async def _archive(self, batch: tuple[AuditEntry, ...], summary: str) -> None:
        record = messages.FleetRecord(entries=batch)
        await workflow.execute_activity_method(FleetActivities.record, record, **LAST_FLEET_CALL, summary=summary)

    def _after_mail(self, keys: list[str], answer: TellAnswer) -> FleetRollout:
        return reducers.apply_delivery(self._state, keys, answer, workflow.now())

    # --- messages ---------------------------------------------------------------------------------

    @workflow.query(name=FLEET_STATUS_QUERY)
    def status(self) -> messages.FleetStatus:
        now, events = query_time(), workflow.info().get_current_history_length()
        # Apply the time first, as the loop is about to, so that the status waits for no soak that is over.
        return status_of(reducers.advance(self._state, now), now, history_events=events, runs=self._launch.runs)

    @workflow.update(name=LAUNCHED_UPDATE)
    async def await_launch(self) -> messages.FleetLaunchAnswer:
        """Answer once there is a plan, or a reason that there will be none."""
        await workflow.wait_condition(lambda: bool(self._state.plan_hash) or self._state.stage.has_ended)
        return self._answer()

    @workflow.query(name=FLEET_PLAN_QUERY)
    def plan(self) -> messages.FleetLaunchAnswer:
        """Return the plan that an approval would take; none if this run has made none."""
        return self._answer()

    def _answer(self) -> messages.FleetLaunchAnswer:
        fleet = self._state
        return messages.FleetLaunchAnswer(
            launched=not fleet.stage.has_ended,
            fleet=fleet.id,
            stage=fleet.stage,
            reason=fleet.ended_because,
            plan=self._plan,
        )

    def _check(self, command: FleetCommand, request: FleetCommandRequest) -> None:
        raise_if_refused(refusal(self._state, command, request))

    def _obey(self, command: FleetCommand, request: FleetCommandRequest) -> messages.FleetCommandAnswer:
        before = self._state
        fleet, sentence = obey(before, command, request, workflow.now())
        self._set(fleet)
        undo = fleet_undo_line(before, fleet, command, request)
        return messages.FleetCommandAnswer(command=command, stage=fleet.stage, said=sentence, undo=undo)

    def _apply_cancel(self) -> None:
        self._set(apply_cancel(self._state, workflow.now(), by_ticket=bool(self._launch.launch.ticket)))


def _new_id(cluster: str) -> str:
    return f"{cluster[:100]}/{workflow.now():%Y%m%dT%H%M%SZ}-{workflow.uuid4().hex[:6]}"
