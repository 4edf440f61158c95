"""RolloutActions: the call for each action that `models.rollout.decide.decide` names.

Each is one call, and the reducer that applies its outcome to the state.
"""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.rollout.cluster_calls import ClusterActivities
    from activities.rollout.effects import QuotaActivities
    from models.errors import HistoryLapse
    from models.rollout import effect_reducers, look_reducers, plan_reducers, proposals, request_builders
    from models.rollout.decide import confirms_breach
    from models.rollout.effect_table import EFFECT
    from models.rollout.effects import EffectKind
    from models.rollout.risk_notices import news_of_risk, warn_teams
    from models.rollout.workflow_actions import Action, Aim, Draft, Look, Perform
    from workflows import options, patches
    from workflows.failures import reason_of, room_at
    from workflows.rollout_waits import RolloutWaits


class RolloutActions(RolloutWaits):
    """The part of the host that acts."""

    async def _act(self, action: Action) -> None:
        self._note_event()
        match action:
            case Look():
                await self._look(action)
            case Draft():
                await self._draft(action)
            case Aim():
                await self._aim()
            case Perform():
                await self._perform(action.kind)

    async def _look(self, action: Look) -> None:
        rollout = self._state
        self._looking = True
        try:
            seen = await workflow.execute_activity_method(
                ClusterActivities.observe,
                request_builders.look_at(rollout, action, workflow.now()),
                **(options.DUE_READ_CALL if confirms_breach(rollout, workflow.now()) else options.READ_CALL),
                summary=f"look: {action.why}",
            )
        except ActivityError as error:
            self._set(look_reducers.fail_look(self._state, reason_of(error)[1], workflow.now()))
            return
        finally:
            self._looking = False
        now = workflow.now()
        rises = look_reducers.rise_waits(self._state, seen) and patches.since(patches.CONFIRMS_RISES)
        asks = look_reducers.asks_of(self._state, seen) and patches.since(patches.ASKS_OF_DRIFT)
        self._set(look_reducers.apply_look(self._state, seen, now, rollout.fence, rises=rises, asks=asks))
        if any(news_of_risk(self._state, now)) and patches.since(patches.WARNS):
            self._set(warn_teams(self._state, now))

    async def _draft(self, action: Draft) -> None:
        try:
            drafted = await workflow.execute_activity_method(
                ClusterActivities.draft_plan,
                request_builders.draft(self._state, action, workflow.now()),
                **options.LONG_CALL,
                summary=f"plan: {action.why}",
            )
        except ActivityError as error:
            failed = proposals.drop_proposal if action.islands else plan_reducers.fail_draft
            self._set(failed(self._state, reason_of(error)[1], workflow.now()))
            return
        if action.islands:
            self._set(proposals.take_proposal(self._state, drafted.plan, workflow.now()))
        else:
            self._set(plan_reducers.take_draft(self._state, drafted, workflow.now()))

    async def _aim(self) -> None:
        try:
            target = await workflow.execute_activity_method(
                ClusterActivities.aim_rollback,
                request_builders.aim(self._state, workflow.now()),
                **options.AIM_CALL,
                summary=f"aim the rollback: {', '.join(self._state.stay.aiming)}",
            )
        except ActivityError as error:
            self._set(plan_reducers.fail_aim(self._state, *reason_of(error), workflow.now()))
            return
        self._set(plan_reducers.start_breach_rollback(self._state, target, workflow.now()))

    async def _perform(self, kind: EffectKind) -> None:
        begun, change = effect_reducers.begin_effect(self._state, kind)
        self._set(begun)
        try:
            receipt = await workflow.execute_activity_method(
                QuotaActivities.apply_effect,
                request_builders.effect(begun, change, workflow.now()),
                **(options.EFFECT_CALL if kind in EFFECT else options.INVERSE_CALL),
                summary=request_builders.effect_summary(change),
            )
        except ActivityError as error:
            if (why := reason_of(error))[0] == HistoryLapse.__name__:
                self._lapses.suspected = True
                self._set(self._state.but(fence=begun.fence - 1))
                return
            self._set(effect_reducers.fail_effect(self._state, change, *why, workflow.now(), room_at(error)))
            return
        again = effect_reducers.aims_again(self._state, receipt) and patches.since(patches.AIMS_AGAIN)
        self._set(effect_reducers.apply_receipt(self._state, change, receipt, workflow.now(), again=again))
