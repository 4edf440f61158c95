"""The audit as workflow history tells it: commands, effects, notices, transitions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any, TypeVar

from pydantic import Field
from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from models.audit import AuditKind
from models.base import Model, Time
from models.planning.grants import GrantOrder
from models.requests.messages import KeepRequest
from models.rollout.commands import CommandRequest
from models.rollout.effects import Receipt
from models.rollout.messages import EffectRequest, RecordRequest, RolloutInput
from models.wire import GRANT_UPDATE, LAUNCHED_UPDATE, REQUEST_WORKFLOW, TellAnswer, TellRequest

_T = TypeVar("_T")


class AuditRecord(Model):
    """One thing that happened, as history has it. `event`: the event's id in its run."""

    at: Time
    kind: AuditKind
    actor: str
    text: str
    reason: str = ""
    refused: bool = False
    run: str = ""
    event: int = 0
    data: dict[str, Any] = Field(default_factory=dict)


async def audit_of_run(cluster: str, history: WorkflowHistory, converter: DataConverter) -> list[AuditRecord]:
    """One run's records, in order.

    Commands come from accepted updates, effects with fence and receipt from their activities, notices
    from theirs; plans, transitions, holds and the guard's findings from what the run sent to the archive.
    """
    reader = _Reader(cluster, history, converter)
    for event in history.events:
        await reader.read(event)
    return sorted(reader.records, key=lambda r: (r.at, r.event))


class _Reader:
    def __init__(self, cluster: str, history: WorkflowHistory, converter: DataConverter) -> None:
        self.cluster = cluster
        self.records: list[AuditRecord] = []
        self._converter = converter
        self._run = ""
        self._of_request = False
        self._scheduled: dict[int, HistoryEvent] = {}

    async def _one(self, payloads: Payloads, kind: type[_T]) -> _T:
        return (await self._all(payloads, [kind]))[0]

    async def _all(self, payloads: Payloads, kinds: Sequence[type[_T]]) -> list[_T]:
        return await self._converter.decode(payloads.payloads, list(kinds))

    def _add(self, event: HistoryEvent, kind: AuditKind, actor: str, text: str, **more: Any) -> None:
        at = more.pop("at", None) or event.event_time.ToDatetime(tzinfo=UTC)
        self.records.append(
            AuditRecord(at=at, kind=kind, actor=actor, text=text, run=self._run, event=event.event_id, **more)
        )

    async def read(self, event: HistoryEvent) -> None:
        if event.HasField("workflow_execution_started_event_attributes"):
            await self._started(event)
        elif event.HasField("workflow_execution_update_accepted_event_attributes"):
            await self._accepted(event)
        elif event.HasField("activity_task_scheduled_event_attributes"):
            self._scheduled[event.event_id] = event
            await self._recorded(event)
        elif event.HasField("activity_task_completed_event_attributes"):
            await self._completed(event)
        elif event.HasField("activity_task_failed_event_attributes"):
            self._failed(event)
        elif event.HasField("workflow_execution_cancel_requested_event_attributes"):
            asked = event.workflow_execution_cancel_requested_event_attributes
            self._add(event, AuditKind.COMMAND, asked.identity, "cancel by Temporal", reason=asked.cause)
        elif event.HasField("workflow_execution_terminated_event_attributes"):
            ended = event.workflow_execution_terminated_event_attributes
            self._add(event, AuditKind.COMMAND, ended.identity, "TERMINATED: nothing was undone", reason=ended.reason)

    async def _started(self, event: HistoryEvent) -> None:
        found = event.workflow_execution_started_event_attributes
        self._run = found.original_execution_run_id
        self._of_request = found.workflow_type.name == REQUEST_WORKFLOW
        if self._of_request:
            return  # it tells of all that happens to it, its beginning included, when it is kept
        start = await self._one(found.input, RolloutInput)
        if start.state is None:
            launch = start.launch
            by = launch.actor or launch.owner
            text = f"launched by {by}{' (shadow)' if launch.shadow else ''}"
            self._add(event, AuditKind.COMMAND, by, text, reason=launch.reason)
        else:
            self._add(event, AuditKind.TRANSITION, "backstop", f"continued as run {start.runs}")

    async def _accepted(self, event: HistoryEvent) -> None:
        request = event.workflow_execution_update_accepted_event_attributes.accepted_request
        if self._of_request or request.input.name == LAUNCHED_UPDATE or not request.input.args.payloads:
            return
        if request.input.name == GRANT_UPDATE:
            order = await self._one(request.input.args, GrantOrder)
            what = "end of the grant" if order.ends else "grant"
            self._add(
                event,
                AuditKind.COMMAND,
                order.actor,
                f"{what} of {order.gpus} GPUs to {order.team}, request {order.request}",
                reason=order.reason,
                data={"request": order.request},
            )
            return
        asked = await self._one(request.input.args, CommandRequest)
        named = {k: v for k, v in asked.model_dump(mode="json", exclude_defaults=True).items() if k != "actor"}
        self._add(
            event,
            AuditKind.COMMAND,
            asked.actor,
            f"{request.input.name} by {asked.actor}",
            reason=asked.reason,
            data={**named, "identity": request.meta.identity, "update": request.meta.update_id},
        )

    async def _recorded(self, event: HistoryEvent) -> None:
        found = event.activity_task_scheduled_event_attributes
        if found.activity_type.name == "keep_request":
            for entry in (await self._one(found.input, KeepRequest)).request.outbox:
                told = {"at": entry.at, "reason": entry.reason, "refused": entry.refused, "data": entry.data}
                self._add(event, entry.kind, entry.actor, entry.text, **told)
        if found.activity_type.name != "record":
            return
        sent = await self._one(found.input, RecordRequest)
        for entry in sent.entries:
            if entry.kind in (AuditKind.PLAN, AuditKind.TRANSITION, AuditKind.HOLD, AuditKind.GUARD):
                self._add(event, entry.kind, entry.actor, entry.text, at=entry.at, reason=entry.reason, data=entry.data)

    async def _completed(self, event: HistoryEvent) -> None:
        done = event.activity_task_completed_event_attributes
        scheduled = self._scheduled.get(done.scheduled_event_id)
        if scheduled is None:
            return
        asked = scheduled.activity_task_scheduled_event_attributes
        if asked.activity_type.name == "apply_effect":
            request = await self._one(asked.input, EffectRequest)
            receipt = await self._one(done.result, Receipt)
            moved = {t: (receipt.before.get(t), v) for t, v in receipt.after.items() if receipt.before.get(t) != v}
            values = ", ".join(f"{t} {old} -> {new}" for t, (old, new) in sorted(moved.items()))
            if receipt.flex_gpus is not None:
                values = f"flex pool {receipt.flex_gpus}"
            left = ", ".join(f"{c.team} holds {c.found_gpus}, left alone" for c in receipt.conflicts)
            text = (
                request.change.kind.value + (f": {values}" if values else "") + (f"; conflict: {left}" if left else "")
            )
            self._add(
                event,
                AuditKind.EFFECT,
                "backstop",
                text + (" (shadow)" if request.shadow else ""),
                data={"fence": request.change.fence.counter, "receipt": receipt.model_dump(mode="json")},
            )
        elif asked.activity_type.name == "tell":
            await self._told(event, await self._one(asked.input, TellRequest), await self._one(done.result, TellAnswer))

    async def _told(self, event: HistoryEvent, request: TellRequest, answer: TellAnswer) -> None:
        for notice in request.notices:
            if notice.key in answer.delivered:
                where = ", ".join(sorted({d.channel for d in answer.delivered[notice.key]}))
                text = f"{notice.audience} was told: {notice.kind} ({where})"
            else:
                text = (
                    f"{notice.audience} was not told: {answer.failed.get(notice.key) or answer.refused.get(notice.key)}"
                )
            self._add(event, AuditKind.NOTICE, "backstop", text, data={"key": notice.key})

    def _failed(self, event: HistoryEvent) -> None:
        failed = event.activity_task_failed_event_attributes
        scheduled = self._scheduled.get(failed.scheduled_event_id)
        if scheduled is None:
            return
        name = scheduled.activity_task_scheduled_event_attributes.activity_type.name
        if name == "apply_effect":
            self._add(event, AuditKind.EFFECT, "backstop", f"{name} failed: {failed.failure.message}")
