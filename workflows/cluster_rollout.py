"""ClusterRollout: one cluster's rollout as a durable loop around the pure interpreter.

Theory of operation. `models.rollout.decide.decide` says what to do next; this module does it, takes the outcome in
(`models.rollout.outcomes`, `models.rollout.effect_outcomes`) and asks again. Two side loops post notices and archive
what happened, so that neither can delay a rollback. Commands are updates: validators refuse with the stage table's
reason, handlers change the state at once and wake the loop. The state is one value, which is all that continue-as-new
carries. Cancelling the workflow means `abort`: what stands is undone first.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy, SearchAttributeKey, VersioningBehavior
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.archive import ArchiveActivities
    from activities.clusters import ClusterActivities
    from activities.effects import QuotaActivities
    from activities.notices import NoticeActivities
    from models.audit import AuditEntry, AuditKind
    from models.planning.grants import Granted, GrantOrder, GrantOutcome
    from models.rollout import effect_outcomes, granting, looks, mailing, outcomes
    from models.rollout.actions import Action, Aim, Draft, Finish, Look, Perform, Wait
    from models.rollout.calls import baseline_with, look_at
    from models.rollout.commands import CommandRequest, obey, refusal
    from models.rollout.decide import decide, urgent
    from models.rollout.effect_table import INVERSE
    from models.rollout.effects import Change, EffectKind
    from models.rollout.gates import drift_of
    from models.rollout.messages import (
        AimRequest,
        CommandAnswer,
        DraftRequest,
        EffectRequest,
        HealthChanged,
        LaunchAnswer,
        LaunchRequest,
        OpenRequest,
        RecordRequest,
        RolloutInput,
        RolloutResult,
        RolloutStatus,
    )
    from models.rollout.stages import Command, Stage
    from models.rollout.state import Rollout, UndoCause
    from models.rollout.status import needs_of, standing_now, status_of, waiting_sentence
    from models.wire import (
        GRANT_UPDATE,
        HEALTH_SIGNAL,
        LAUNCHED_UPDATE,
        NOT_LAUNCHED,
        ROLLOUT_WORKFLOW,
        STATUS_QUERY,
        SearchName,
        TellAnswer,
        TellRequest,
    )
    from workflows.cancellation import lived
    from workflows.failures import reason_of

_CLUSTER = SearchAttributeKey.for_keyword(SearchName.CLUSTER)
_STAGE = SearchAttributeKey.for_keyword(SearchName.STAGE)
_WAVE = SearchAttributeKey.for_keyword(SearchName.WAVE)
_OWNER = SearchAttributeKey.for_keyword(SearchName.OWNER)
_UNBACKED = SearchAttributeKey.for_int(SearchName.UNBACKED)

_CALL = timedelta(seconds=60)
"""One attempt of one call; a late one is fenced off."""
_SILENCE = timedelta(seconds=15)
"""A call whose worker has not been heard of for this long is made again elsewhere."""
_STEADY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=60))
"""Without limit: inverses, the archive, aiming."""
_FORWARD = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30), maximum_attempts=10
)
"""About three minutes of trying; waiting for a dead worker does not count. Then the step is undone."""
_READ = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10), maximum_attempts=4)
_LAST = Priority(priority_key=5)
"""Mail waits where calls queue for a worker: a breach's notices must not stand before another one's rollback."""
_MAIL_PAUSE = timedelta(seconds=30)
_BATCH = 50
_NEEDS = 500
"""Characters of what a person has to do, in the registry; the status has all."""
_BATCH_VALUES = 20_000
"""Entries of one call name at most so many values: it must stay below Temporal's 2 MiB, compressed."""
_SETTLED = timedelta(seconds=10)
"""A run this old moves on to another build of the worker; a deployment that flaps must not make a storm of runs."""
_OVERDUE = timedelta(minutes=5)
"""From then on a new run begins even while a side loop's call is being tried."""
_LEAVES_PROMPTLY = "leaves-promptly"
"""The patch since which neither a flood nor an outage keeps a rollout from its next run."""
_UNDO_FIRST = "undo-first"
"""The patch since which archive and mail wait while a breach is answered."""
_HASTE = timedelta(seconds=5)
"""How long they wait at most: an answer that does not get through has to be told."""
_GRANT_PATIENCE = timedelta(seconds=20)
"""How long a request's order waits for what is in its way; then whoever sent it comes again later."""
_LAST_MAIL = timedelta(minutes=5)
"""How long an ended rollout still tries to tell its teams."""


_NOTHING = RolloutInput(launch=LaunchRequest(cluster="none", rollout="none", owner="none"))


@workflow.defn(name=ROLLOUT_WORKFLOW, versioning_behavior=VersioningBehavior.PINNED)
class ClusterRollout:
    # Started by hand without its argument, it must end: calling this without one would be tried again for ever.
    @workflow.init
    def __init__(self, start: RolloutInput | None = None) -> None:
        self._start = start or _NOTHING
        self._r: Rollout | None = self._start.state
        self._refused_launch = ""
        self._cancelled_early = False
        self._changes = 0
        self._look_wanted = False
        self._busy_recording = False
        self._busy_mailing = False
        self._leaving = False
        """The side loops start nothing new, so that a busy rollout, too, comes to its next run."""
        self._leaving_since: datetime | None = None
        self._haste = False
        """Archive and mail wait: they take the workers and the ledger that a breach's answer needs."""
        self._haste_ends: asyncio.TimerHandle | None = None
        self._shown: tuple[Any, ...] = ()

    @workflow.run
    async def run(self, start: RolloutInput | None = None) -> RolloutResult:
        """The rollout has ended, or continues as new."""
        if start is None:
            raise ApplicationError("a rollout needs its launch as its input", type="BadInput", non_retryable=True)
        return await lived(self._live(), self._cancelled)

    async def _live(self) -> RolloutResult:
        if self._r is None and not await self._open():
            await workflow.wait_condition(workflow.all_handlers_finished)
            launch = self._start.launch
            return RolloutResult(
                cluster=launch.cluster, rollout=launch.rollout, stage=Stage.ABORTED, reason=self._refused_launch
            )
        if self._cancelled_early:
            self._cancelled()
        recording = asyncio.create_task(self._record())
        posting = asyncio.create_task(self._mail())
        await self._loop()
        await self._settle()
        recording.cancel()
        posting.cancel()
        await workflow.wait_condition(workflow.all_handlers_finished)
        r = self._state
        return RolloutResult(cluster=r.cluster, rollout=r.id, stage=r.stage, reason=r.ended_because)

    # --- the loop ---------------------------------------------------------------------------

    async def _loop(self) -> None:
        while True:
            now = workflow.now()
            if self._look_wanted:
                self._look_wanted = False
                self._r = self._state.but(look_asked=True)
            self._r = outcomes.advance(self._state, now)
            self._show(now)
            action = decide(self._state, now)
            self._hasten(action)
            if isinstance(action, Look | Wait):
                self._leave(action, now)
            else:
                self._leaving = False
            if isinstance(action, Finish):
                return
            if isinstance(action, Wait):
                await self._wait(action, now)
            else:
                await self._act(action)

    def _hasten(self, action: Action) -> None:
        if not urgent(self._state, action):
            if self._haste_ends is not None:
                self._haste_ends.cancel()
            self._haste, self._haste_ends = False, None
        elif self._haste_ends is None and workflow.patched(_UNDO_FIRST):
            self._haste = True
            self._haste_ends = asyncio.get_running_loop().call_later(_HASTE.total_seconds(), self._haste_over)

    def _haste_over(self) -> None:
        self._haste = False

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

    async def _wait(self, wait: Wait, now: datetime) -> None:
        changes = self._changes
        timeout = None if wait.until is None else max(timedelta(0), wait.until - now)
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._changes != changes, timeout=timeout, timeout_summary="until the next gate, look or breach"
            )
        if self._leaving_since is None:
            self._leaving = False

    def _leave(self, action: Look | Wait, now: datetime) -> None:
        """Continues as new where that is due and nothing is in the way.

        A flood of commands and signals, and a ledger that is away for weeks, are not: side loops start nothing
        new until then, a look can be made by the next run as well, and what a side loop tries for too long is
        tried again there (both calls are made to be repeated).
        """
        info = workflow.info()
        upgrades = info.is_target_worker_deployment_version_changed() and now - info.start_time >= _SETTLED
        if not (upgrades or info.is_continue_as_new_suggested()):
            self._leaving, self._leaving_since = False, None  # another build was wanted, and is no more
            return
        if workflow.patched(_LEAVES_PROMPTLY):
            self._leaving_since = self._leaving_since or now
        elif isinstance(action, Look):
            return
        if self._may_continue(now):
            workflow.continue_as_new(
                RolloutInput(launch=self._start.launch, state=self._state, runs=self._start.runs + 1),
                initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
            )
        self._leaving = True

    def _may_continue(self, now: datetime) -> bool:
        """Nothing is under way that the next run would have to do again, or it has been so for too long."""
        busy = self._busy_recording or self._busy_mailing
        overdue = self._leaving_since is not None and now - self._leaving_since >= _OVERDUE
        return (overdue or not busy) and workflow.all_handlers_finished()

    async def _settle(self) -> None:
        """Everything is archived; the teams are told, or have been tried for long enough."""
        await workflow.wait_condition(self._all_recorded)
        try:
            await workflow.wait_condition(lambda: not self._state.post.mail, timeout=_LAST_MAIL)
        except TimeoutError:
            workflow.logger.warning("ended with %d notices undelivered", len(self._state.post.mail))
        await workflow.wait_condition(self._all_recorded)

    def _all_recorded(self) -> bool:
        return not self._state.post.outbox and self._state.post.noted is self._state.stage and not self._busy_recording

    @property
    def _state(self) -> Rollout:
        if self._r is None and self._refused_launch:
            raise ApplicationError(f"{NOT_LAUNCHED}{self._refused_launch}", type="Refusal", non_retryable=True)
        if self._r is None:
            raise ApplicationError("the rollout is being opened; try again in a moment", type="Unavailable")
        return self._r

    def _set(self, r: Rollout) -> None:
        self._r = r
        self._changes += 1

    # --- actions ----------------------------------------------------------------------------

    async def _open(self) -> bool:
        launch = self._start.launch
        now = workflow.now()
        try:
            opening = await workflow.execute_activity_method(
                ClusterActivities.open_rollout,
                OpenRequest(launch=launch, at=now),
                start_to_close_timeout=_CALL,
                heartbeat_timeout=_SILENCE,
                retry_policy=_FORWARD,
                summary=f"open {launch.cluster} for {launch.owner}",
            )
        except ActivityError as error:
            self._refused_launch = reason_of(error)[1]
            self._changes += 1
            return False
        self._r = outcomes.opened(launch, opening, workflow.now())
        self._changes += 1
        return True

    async def _look(self, action: Look) -> None:
        r = self._state
        try:
            seen = await workflow.execute_activity_method(
                ClusterActivities.observe,
                look_at(r, action, workflow.now()),
                start_to_close_timeout=_CALL,
                heartbeat_timeout=_SILENCE,
                retry_policy=_READ,
                summary=f"look: {action.why}",
            )
        except ActivityError as error:
            self._r = looks.look_failed(self._state, reason_of(error)[1], workflow.now())
            return
        self._r = looks.looked(self._state, seen, workflow.now(), r.fence)

    async def _draft(self, action: Draft) -> None:
        r = self._state
        believed = r.sight.known if r.sight.unknown and r.sight.known is not None else None
        islands = action.islands or (None if believed is None else believed.islands)
        try:
            draft = await workflow.execute_activity_method(
                ClusterActivities.draft_plan,
                DraftRequest(
                    cluster=r.cluster,
                    rollout=r.id,
                    policy=r.policy,
                    baseline=r.baseline if r.values_stand else None,
                    frozen=r.baseline,
                    keep_usage=r.envelope is not None,
                    islands=islands,
                    promised=None if r.plan is None or r.plan.derived is None else r.plan.derived.promise,
                    at=workflow.now(),
                ),
                start_to_close_timeout=timedelta(minutes=5),
                heartbeat_timeout=_SILENCE,
                retry_policy=_STEADY,
                summary=f"plan: {action.why}",
            )
        except ActivityError as error:
            if action.islands:
                self._set(looks.not_reconsidered(self._state, reason_of(error)[1], workflow.now()))
                return
            self._set(outcomes.draft_failed(self._state, reason_of(error)[1], workflow.now()))
            return
        if action.islands:
            self._set(looks.reconsidered(self._state, draft.plan, workflow.now()))
        elif self._state.stay.replan:  # else a person's undo came first
            self._set(outcomes.drafted(self._state, draft.baseline, draft.reading, draft.plan, workflow.now()))

    async def _aim(self) -> None:
        r = self._state
        known = r.sight.known
        current = r.written if r.shadow or r.seen is None else r.seen.reading.values
        try:
            target = await workflow.execute_activity_method(
                ClusterActivities.aim_rollback,
                AimRequest(
                    cluster=r.cluster,
                    rollout=r.id,
                    baseline=r.baseline,
                    current=current,
                    islands=r.baseline.islands if known is None else known.islands,
                    policy=r.policy,
                    exempt=r.stay.exempt,
                    at=workflow.now(),
                ),
                start_to_close_timeout=timedelta(minutes=5),
                heartbeat_timeout=_SILENCE,
                retry_policy=_STEADY,
                summary=f"aim the rollback: {', '.join(r.stay.aiming)}",
            )
        except ActivityError as error:
            self._r = outcomes.aim_failed(self._state, *reason_of(error), workflow.now())
            return
        self._r = outcomes.aimed(self._state, target, workflow.now())

    async def _perform(self, kind: EffectKind) -> None:
        self._r, change = effect_outcomes.began(self._state, kind)
        forward = kind in INVERSE
        breach = self._state.undo is not None and self._state.undo.why is UndoCause.BREACH
        exempt = self._state.stay.exempt or (not forward and breach) or kind is EffectKind.CLOSE
        order = self._state.grant_order if kind is EffectKind.GRANT else None
        baseline = None if order is None else baseline_with(self._state, order)
        try:
            receipt = await workflow.execute_activity_method(
                QuotaActivities.apply_effect,
                EffectRequest(
                    change=change,
                    shadow=self._state.shadow,
                    limit_gpus=None if exempt or not forward else self._state.policy.max_moved_gpus,
                    limit_day_gpus=None if exempt or not forward else self._state.policy.max_moved_gpus_day,
                    generation=self._state.generation,
                    baseline=baseline,
                    at=workflow.now(),
                ),
                start_to_close_timeout=_CALL,
                heartbeat_timeout=_SILENCE,
                retry_policy=_FORWARD if forward else _STEADY,
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=_summary(change),
            )
        except ActivityError as error:
            self._r = effect_outcomes.failed(self._state, change, *reason_of(error), workflow.now(), _room_at(error))
            return
        self._r = effect_outcomes.landed(self._state, change, receipt, workflow.now())

    # --- side loops -------------------------------------------------------------------------

    async def _record(self) -> None:
        while True:
            await workflow.wait_condition(
                lambda: (
                    not self._leaving
                    and not self._state.closing  # the registry would end the rollout before its last effect
                    and (
                        self._state.post.noted is not self._state.stage
                        or (bool(self._state.post.outbox) and not self._haste)
                    )
                )
            )
            r = self._state
            self._busy_recording = True
            batch = _carried(r.post.outbox)
            try:
                await workflow.execute_activity_method(
                    ArchiveActivities.record,
                    RecordRequest(
                        rollout=r.id,
                        cluster=r.cluster,
                        entries=batch,
                        stage=r.stage,
                        ended=r.stage.ended,
                        completed=r.completed,
                        shadow=r.shadow,
                        needs=needs_of(r, workflow.now())[:_NEEDS],
                        rollbacks=r.rollbacks,
                    ),
                    start_to_close_timeout=_CALL,
                    heartbeat_timeout=_SILENCE,
                    retry_policy=_STEADY,
                    summary="; ".join(e.text for e in batch)[:180] or f"stage {r.stage}",
                )
            except ActivityError as error:
                # The registry belongs to somebody else by now. The entries stand in this history.
                workflow.logger.error("not archived: %s", reason_of(error)[1])
            self._busy_recording = False
            self._set(mailing.recorded(self._state, (e.key for e in batch), r.stage))

    def _may_record(self) -> bool:
        if self._leaving or self._state.closing:  # closing: the registry would end the rollout before its last effect
            return False
        post = self._state.post
        return post.noted is not self._state.stage or (bool(post.outbox) and not self._haste)

    async def _mail(self) -> None:
        while True:
            await workflow.wait_condition(lambda: not self._leaving and not self._haste and bool(self._state.post.mail))
            r = self._state
            batch = r.post.mail[:_BATCH]
            self._busy_mailing = True
            try:
                answer = await workflow.execute_activity_method(
                    NoticeActivities.tell,
                    TellRequest(cluster=r.cluster, notices=batch),
                    start_to_close_timeout=timedelta(minutes=5),
                    heartbeat_timeout=_SILENCE,
                    retry_policy=_STEADY,
                    priority=_LAST,
                    summary="tell " + ", ".join(f"{n.audience} ({n.kind})" for n in batch)[:170],
                )
            except ActivityError as error:
                why = reason_of(error)[1]
                answer = TellAnswer(delivered={}, failed={}, refused={n.key: why for n in batch})
            self._busy_mailing = False
            self._set(mailing.mailed(self._state, batch, answer, workflow.now()))
            if self._state.post.trouble:
                await asyncio.sleep(_MAIL_PAUSE.total_seconds())

    # --- what people see --------------------------------------------------------------------

    def _show(self, now: datetime) -> None:
        """Search attributes and the Temporal UI's details follow the state; written only on change."""
        r = self._state
        stands = standing_now(r)
        unbacked = max(0, stands.assigned_gpus - stands.backed_gpus)
        wave = "" if r.plan is None else r.plan.wave.value
        shown = (r.cluster, r.stage.value, wave, r.owner, unbacked)
        if shown != self._shown:
            self._shown = shown
            workflow.upsert_search_attributes(
                [
                    _CLUSTER.value_set(r.cluster),
                    _STAGE.value_set(r.stage.value),
                    _WAVE.value_set(wave or "none"),
                    _OWNER.value_set(r.owner),
                    _UNBACKED.value_set(unbacked),
                ]
            )
        workflow.set_current_details(_details(r, now))

    # --- messages ---------------------------------------------------------------------------

    @workflow.signal(name=HEALTH_SIGNAL)
    def health_changed(self, edge: HealthChanged | None = None) -> None:
        self._look_wanted = True
        self._changes += 1

    @workflow.query(name=STATUS_QUERY)
    def status(self) -> RolloutStatus:
        info = workflow.info()
        return status_of(
            self._state, workflow.now(), history_events=info.get_current_history_length(), runs=self._start.runs
        )

    @workflow.query(name="state")
    def state(self) -> Rollout:
        """The whole state, for tests and for `doctor`."""
        return self._state

    @workflow.update(name=LAUNCHED_UPDATE)
    async def launched(self) -> LaunchAnswer:
        """Answers once there is a plan, or a reason why there will be none."""
        await workflow.wait_condition(
            lambda: (
                bool(self._refused_launch)
                or (self._r is not None and (self._r.plan is not None or self._r.stage.ended))
            )
        )
        launch = self._start.launch
        if self._r is None:
            return LaunchAnswer(
                launched=False,
                rollout=launch.rollout,
                cluster=launch.cluster,
                stage=Stage.ABORTED,
                reason=self._refused_launch,
            )
        return LaunchAnswer(
            launched=not self._r.stage.ended,
            rollout=self._r.id,
            cluster=self._r.cluster,
            stage=self._r.stage,
            reason=self._r.ended_because,
            plan=self._r.plan,
        )

    @workflow.update(name=GRANT_UPDATE)
    async def grant(self, order: GrantOrder) -> Granted:
        """What became of the order; one that has to wait for long is to be sent again."""
        self._set(granting.ordered(self._state, order))
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._state.grant_order != order, timeout=_GRANT_PATIENCE)
        why = f"{self._state.cluster} is not at rest: {waiting_sentence(self._state, workflow.now())}"
        self._set(granting.put_off(self._state, order, why))
        await workflow.wait_condition(lambda: self._state.grant_order != order)
        answer = granting.answer_to(self._state, order)
        return answer or Granted(request=order.request, ends=order.ends, outcome=GrantOutcome.LATER, said=why)

    def _check(self, command: Command, request: CommandRequest) -> None:
        why = refusal(self._state, command, request)
        if why is not None:
            raise ApplicationError(why, type="Refusal", non_retryable=True)

    def _obey(self, command: Command, request: CommandRequest) -> CommandAnswer:
        r, said = obey(self._state, command, request, workflow.now())
        self._set(r)
        return CommandAnswer(cluster=r.cluster, command=command, stage=r.stage, said=said)

    def _cancelled(self) -> None:
        """Temporal's own cancel: an abort by whoever sent it; a rollback under way goes on."""
        if self._r is None:
            self._cancelled_early = True
            return
        request = CommandRequest(actor="temporal", reason="the workflow was cancelled")
        if refusal(self._r, Command.ABORT, request) is None:
            self._obey(Command.ABORT, request)
        else:
            self._set(
                self._r.noting(
                    AuditKind.COMMAND, f"cancel ignored while {self._r.stage}", workflow.now(), actor="temporal"
                )
            )

    @workflow.update(name=Command.APPROVE.value)
    def approve(self, request: CommandRequest) -> CommandAnswer:
        return self._obey(Command.APPROVE, request)

    @approve.validator
    def _may_approve(self, request: CommandRequest) -> None:
        self._check(Command.APPROVE, request)

    @workflow.update(name=Command.ACK.value)
    def ack(self, request: CommandRequest) -> CommandAnswer:
        return self._obey(Command.ACK, request)

    @ack.validator
    def _may_ack(self, request: CommandRequest) -> None:
        self._check(Command.ACK, request)

    @workflow.update(name=Command.OBJECT.value)
    def object_(self, request: CommandRequest) -> CommandAnswer:
        return self._obey(Command.OBJECT, request)

    @object_.validator
    def _may_object(self, request: CommandRequest) -> None:
        self._check(Command.OBJECT, request)

    @workflow.update(name=Command.PAUSE.value)
    def pause(self, request: CommandRequest) -> CommandAnswer:
        return self._obey(Command.PAUSE, request)

    @pause.validator
    def _may_pause(self, request: CommandRequest) -> None:
        self._check(Command.PAUSE, request)

    @workflow.update(name=Command.RESUME.value)
    def resume(self, request: CommandRequest) -> CommandAnswer:
        return self._obey(Command.RESUME, request)

    @resume.validator
    def _may_resume(self, request: CommandRequest) -> None:
        self._check(Command.RESUME, request)

    @workflow.update(name=Command.RESOLVE.value)
    def resolve(self, request: CommandRequest) -> CommandAnswer:
        return self._obey(Command.RESOLVE, request)

    @resolve.validator
    def _may_resolve(self, request: CommandRequest) -> None:
        self._check(Command.RESOLVE, request)

    @workflow.update(name=Command.PROMOTE.value)
    def promote(self, request: CommandRequest) -> CommandAnswer:
        return self._obey(Command.PROMOTE, request)

    @promote.validator
    def _may_promote(self, request: CommandRequest) -> None:
        self._check(Command.PROMOTE, request)

    @workflow.update(name=Command.ABORT.value)
    def abort(self, request: CommandRequest) -> CommandAnswer:
        return self._obey(Command.ABORT, request)

    @abort.validator
    def _may_abort(self, request: CommandRequest) -> None:
        self._check(Command.ABORT, request)

    @workflow.update(name=Command.ROLLBACK.value)
    def rollback(self, request: CommandRequest) -> CommandAnswer:
        return self._obey(Command.ROLLBACK, request)

    @rollback.validator
    def _may_rollback(self, request: CommandRequest) -> None:
        self._check(Command.ROLLBACK, request)

    @workflow.update(name=Command.RETRY.value)
    def retry(self, request: CommandRequest) -> CommandAnswer:
        return self._obey(Command.RETRY, request)

    @retry.validator
    def _may_retry(self, request: CommandRequest) -> None:
        self._check(Command.RETRY, request)

    @workflow.update(name=Command.CLOSE.value)
    def close(self, request: CommandRequest) -> CommandAnswer:
        return self._obey(Command.CLOSE, request)

    @close.validator
    def _may_close(self, request: CommandRequest) -> None:
        self._check(Command.CLOSE, request)


def _room_at(error: ActivityError) -> datetime | None:
    """When a blast radius has room again, where its error says so."""
    cause = error.cause
    if not isinstance(cause, ApplicationError) or cause.type != "BlastRadius" or not cause.details:
        return None
    return datetime.fromisoformat(str(cause.details[0]))


def _carried(outbox: tuple[AuditEntry, ...]) -> tuple[AuditEntry, ...]:
    """The first entries that one call can carry, at least one."""
    values = 0
    for count, entry in enumerate(outbox[:_BATCH]):
        values += 4 * len(entry.data.get("after", ()))  # before and after, and both again in the receipt
        if count and values > _BATCH_VALUES:
            return outbox[:count]
    return outbox[:_BATCH]


def _summary(change: Change) -> str:
    moved = [f"{w.team} {w.expected_gpus} -> {w.gpus}" for w in change.writes if w.leaf and w.expected_gpus != w.gpus]
    return f"{change.kind} (fence {change.fence.counter}){': ' + ', '.join(moved) if moved else ''}"[:190]


def _details(r: Rollout, now: datetime) -> str:
    """Markdown for the Temporal UI."""
    lines = [f"**{r.cluster}** is **{r.stage}**{' (shadow)' if r.shadow else ''}, attempt {r.attempt}, owner {r.owner}"]
    if r.plan is not None:
        lines.append(
            f"plan `{r.plan.hash}`: {r.plan.assigned_gpus} assigned, ceiling {r.plan.ceiling_gpus}, cut "
            f"{r.plan.cut_gpus} ({r.plan.phantom_gpus} never backed, {r.plan.to_flex_gpus} to flex), wave {r.plan.wave}"
        )
    if not r.stage.ended:
        lines.append(f"now: {waiting_sentence(r, now)}")
    if r.clocks.at_risk:
        lines.append("at risk: " + ", ".join(f"{t} lacks {g}" for t, g in r.clocks.at_risk.items()))
    if drift_of(r):
        lines.append("drift: " + ", ".join(drift_of(r)))
    return "\n\n".join(lines)
