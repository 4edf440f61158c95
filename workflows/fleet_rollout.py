"""FleetRollout: a whole fleet, in waves, as a durable loop around pure steps.

Theory of operation. As ClusterRollout: `models.fleet.decide.decide` says what to do next, this module does it and
takes the outcome in (`models.fleet.reducers`). Each cluster's rollout is a workflow of its own, which goes on
whatever becomes of this one. A side loop follows all of them with one long call, which returns when something has
changed; so a thousand clusters at rest cost no event. The state is one value, and continue-as-new carries it.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.fleet.calls import FleetActivities
    from models.audit import AuditEntry
    from models.fleet import reducers
    from models.fleet.actions import AbortMembers, PickMembers, PlanFleet, StartMembers
    from models.fleet.commands import FLEET_COMMANDS, FleetCommand, FleetCommandRequest, obey, refusal
    from models.fleet.decide import decide
    from models.fleet.messages import (
        FLEET_PLAN_QUERY,
        FLEET_STATUS_QUERY,
        FLEET_WORKFLOW,
        AbortAnswer,
        AbortRequest,
        Candidate,
        Entrant,
        FleetCommandAnswer,
        FleetInput,
        FleetLaunchAnswer,
        FleetPlan,
        FleetPlanRequest,
        FleetRecord,
        FleetResult,
        FleetStatus,
        FollowRequest,
        Noted,
        PickRequest,
        StartAnswer,
        StartRequest,
    )
    from models.fleet.state import FleetRollout, FleetStage, MemberState
    from models.fleet.status import status_of, waiting_sentence
    from models.fleet.undo_lines import fleet_undo_line
    from models.lifecycle.actions import Finish, Wait
    from models.wire import LAUNCHED_UPDATE, TellAnswer
    from workflows.cancellation import lived
    from workflows.durable import Durable, over, refused
    from workflows.failures import reason_of
    from workflows.options import FLEET_CALL, LAST_FLEET_CALL, LAST_WHOLE_FLEET_CALL, WHOLE_FLEET_CALL
    from workflows.queries import asked_at
    from workflows.search_attributes import BY_OWNER, BY_STAGE, BY_WAVE
    from workflows.tickets import TicketBook
    from workflows.updates import take_commands


def _no_launch() -> ApplicationError:
    return ApplicationError("a fleet rollout needs its launch as its input", type="BadInput", non_retryable=True)


@workflow.defn(name=FLEET_WORKFLOW, versioning_behavior=VersioningBehavior.PINNED)
class FleetRolloutWorkflow(Durable[FleetRollout]):
    wakes: ClassVar[str] = "until the next wave or look"
    delivery_wakes: ClassVar[bool] = True

    @workflow.init
    def __init__(self, start: FleetInput | None = None) -> None:
        state = None if start is None else start.state or reducers.opened(start.launch, workflow.now())
        super().__init__(state, _no_launch())
        self._start = start
        self._plan: FleetPlan | None = None
        spent = () if start is None else start.spent
        self._tickets = TicketBook("fleet", spent, subject=lambda: self._state.id)
        take_commands(FLEET_COMMANDS, FleetCommandRequest, check=self._check, obey=self._obey, tickets=self._tickets)

    @workflow.run
    async def run(self, start: FleetInput | None = None) -> FleetResult:
        """The fleet rollout has ended, or continues as new."""
        if start is None:
            raise _no_launch()
        return await lived(self._live(), self._cancelled)

    async def _live(self) -> FleetResult:
        sides = [asyncio.create_task(loop()) for loop in (self._record, self._mail, self._follow)]
        try:
            await self._loop()
            await self._settle()
        except GeneratorExit:  # the worker has let go of it: what awaits then is complained of
            raise
        except BaseException:
            await over(sides)
            raise
        await over(sides)
        await workflow.wait_condition(workflow.all_handlers_finished)
        f = self._state
        done = sum(m.state is MemberState.DONE for m in f.members.values())
        return FleetResult(fleet=f.id, stage=f.stage, reason=f.ended_because, clusters=len(f.members), done=done)

    @property
    def _launch(self) -> FleetInput:
        assert self._start is not None
        return self._start

    # --- the loop ---------------------------------------------------------------------------------

    async def _loop(self) -> None:
        while True:
            now = workflow.now()
            self._set(reducers.advance(self._state, now))
            self._tell_temporal()
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
        """Continues as new where that is due. Every call of a side loop can be repeated, so none is waited for."""
        if self._may_leave():
            workflow.continue_as_new(
                FleetInput(
                    launch=self._launch.launch,
                    state=self._state.fitted(workflow.now()),
                    runs=self._launch.runs + 1,
                    spent=self._tickets.carried(),
                ),
                initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
            )

    # --- actions ----------------------------------------------------------------------------------

    async def _make_plan(self) -> None:
        launch = self._launch.launch
        try:
            plan = await workflow.execute_activity_method(
                FleetActivities.plan_fleet,
                FleetPlanRequest(launch=launch, at=workflow.now()),
                **WHOLE_FLEET_CALL,
                summary="plan every cluster",
            )
        except ActivityError as error:
            self._set(reducers.plan_failed(self._state, reason_of(error)[1], workflow.now()))
            return
        self._plan = plan
        self._set(reducers.planned(self._state, launch, plan, workflow.now()))

    async def _pick(self, action: PickMembers) -> None:
        f = self._state
        try:
            answer = await workflow.execute_activity_method(
                FleetActivities.pick,
                PickRequest(
                    fleet=f.id,
                    wave=f.wave,
                    candidates=tuple(
                        Candidate(cluster=m.cluster, wave=m.wave, moved=m.moved) for m in action.candidates
                    ),
                    most=action.most,
                    hour_gpus=action.hour_gpus,
                    day_gpus=action.day_gpus,
                    pace=f.pace,
                    policy=f.policy,
                    shadow=f.shadow,
                    at=workflow.now(),
                ),
                **LAST_WHOLE_FLEET_CALL,
                summary=f"pick up to {action.most} of {len(action.candidates)}",
            )
        except ActivityError as error:
            self._set(reducers.trouble(self._state, f"no cluster can be picked: {reason_of(error)[1]}", workflow.now()))
            return
        ids = {p.cluster: self._rollout_id(p.cluster) for p in answer.picked}
        self._set(reducers.picked(self._state, answer, ids, workflow.now()))

    def _rollout_id(self, cluster: str) -> str:
        return f"{cluster[:100]}/{workflow.now():%Y%m%dT%H%M%SZ}-{workflow.uuid4().hex[:6]}"

    async def _begin(self, action: StartMembers) -> None:
        f = self._state
        try:
            answer = await workflow.execute_activity_method(
                FleetActivities.start,
                StartRequest(
                    launch=self._launch.launch.but(pace=f.pace),
                    approved_by=f.approved_by,
                    entrants=tuple(Entrant(cluster=m.cluster, rollout=m.rollout) for m in action.members),
                ),
                **LAST_FLEET_CALL,
                summary="start " + ", ".join(m.cluster for m in action.members)[:170],
            )
        except ActivityError as error:
            answer = StartAnswer(refused={m.cluster: reason_of(error)[1] for m in action.members})
        self._set(reducers.started(self._state, (m.cluster for m in action.members), answer, workflow.now()))

    async def _abort(self, action: AbortMembers) -> None:
        f = self._state
        try:
            answer = await workflow.execute_activity_method(
                FleetActivities.abort,
                AbortRequest(
                    clusters=tuple(Entrant(cluster=m.cluster, rollout=m.rollout) for m in action.members),
                    actor=f.owner,
                    reason=f"fleet rollout aborted: {f.ended_because}",
                ),
                **FLEET_CALL,
                summary=f"abort {len(action.members)} rollouts",
            )
        except ActivityError as error:
            answer = AbortAnswer(refused={m.cluster: reason_of(error)[1] for m in action.members})
        self._set(reducers.aborted(self._state, [m.cluster for m in action.members], answer, workflow.now()))

    # --- side loops -------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            await workflow.wait_condition(lambda: any(m.rollout for m in self._state.members.values()))
            f = self._state
            last_seen = {
                m.rollout: Noted(rollout=m.rollout, stage=m.stage, needs=m.needs, rollbacks=m.rollbacks)
                for m in f.members.values()
                if m.rollout and m.stage
            }
            try:
                answer = await workflow.execute_activity_method(
                    FleetActivities.follow,
                    FollowRequest(
                        fleet=f.id,
                        known=last_seen,
                        unseen=tuple(m.rollout for m in f.members.values() if m.rollout and not m.stage),
                        waiting=tuple(m.cluster for m in f.waiting) if f.stage is FleetStage.RUNNING else (),
                        shadow=f.shadow,
                        every_seconds=_every(f),
                    ),
                    **WHOLE_FLEET_CALL,
                    summary=f"follow {len(last_seen)} rollouts",
                )
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                workflow.logger.error("members are not followed: %s", reason_of(error)[1])
                await asyncio.sleep(f.pace.recheck.total_seconds())
                continue
            if answer.changed:
                self._set(reducers.noted(self._state, answer.changed, workflow.now()))
            if answer.joined:
                self._set(reducers.found_open(self._state, answer.joined, workflow.now()))

    async def _archive(self, batch: tuple[AuditEntry, ...], summary: str) -> None:
        await workflow.execute_activity_method(
            FleetActivities.record, FleetRecord(entries=batch), **LAST_FLEET_CALL, summary=summary
        )

    def _mailed(self, keys: list[str], answer: TellAnswer) -> FleetRollout:
        return reducers.mailed(self._state, keys, answer, workflow.now())

    # --- what people see --------------------------------------------------------------------------

    def _tell_temporal(self) -> None:
        f = self._state
        self._show(
            [BY_STAGE.value_set(f.stage.value), BY_WAVE.value_set(f.wave.value), BY_OWNER.value_set(f.owner)],
            waiting_sentence(f, workflow.now()),
        )

    # --- messages ---------------------------------------------------------------------------------

    @workflow.query(name=FLEET_STATUS_QUERY)
    def status(self) -> FleetStatus:
        now, events = asked_at(), workflow.info().get_current_history_length()
        # What follows from time alone is taken in, as the loop is about to: no soak that is over is waited for.
        return status_of(reducers.advance(self._state, now), now, history_events=events, runs=self._launch.runs)

    @workflow.update(name=LAUNCHED_UPDATE)
    async def launched(self) -> FleetLaunchAnswer:
        """Answers once there is a plan, or a reason why there will be none."""
        await workflow.wait_condition(lambda: bool(self._state.plan_hash) or self._state.stage.ended)
        return self._answer()

    @workflow.query(name=FLEET_PLAN_QUERY)
    def plan(self) -> FleetLaunchAnswer:
        """What an approval would take; without a plan where none was made in this run."""
        return self._answer()

    def _answer(self) -> FleetLaunchAnswer:
        f = self._state
        return FleetLaunchAnswer(
            launched=not f.stage.ended, fleet=f.id, stage=f.stage, reason=f.ended_because, plan=self._plan
        )

    def _check(self, command: FleetCommand, request: FleetCommandRequest) -> None:
        refused(refusal(self._state, command, request))

    def _obey(self, command: FleetCommand, request: FleetCommandRequest) -> FleetCommandAnswer:
        before = self._state
        f, sentence = obey(before, command, request, workflow.now())
        self._set(f)
        undo = fleet_undo_line(before, f, command, request)
        return FleetCommandAnswer(command=command, stage=f.stage, said=sentence, undo=undo)

    def _cancelled(self) -> None:
        """Temporal's own cancel: an abort that undoes nothing; ignored where the launch had a ticket."""
        if self._launch.launch.ticket:
            self._set(reducers.cancel_ignored(self._state, workflow.now()))
            return
        request = FleetCommandRequest(actor="temporal", reason="the workflow was cancelled")
        if refusal(self._state, "abort", request) is None:
            self._obey("abort", request)


def _every(f: FleetRollout) -> float:
    """How often the members' stages are read, in seconds: often enough beside how often clusters are looked at."""
    return min(10.0, max(0.2, f.pace.recheck.total_seconds() / 60))
