"""The audit from workflow history: commands, effects, notices, transitions."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from datetime import UTC
from typing import Any, TypeVar

from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from client.answer_models import AuditRecord
from models.access.tickets import warrant_in
from models.access.warrants import AdmitAnswer
from models.audit_chain import BACKSTOP, AuditEntry, AuditKind
from models.planning.grants import GrantOrder
from models.requests.messages import KeepRequest
from models.rollout.commands import CommandRequest
from models.rollout.effects import Receipt
from models.rollout.messages import EffectRequest, Opening, RecordRequest, RolloutInput
from models.temporal_names import GRANT_UPDATE, LAUNCHED_UPDATE, REQUEST_WORKFLOW, TellAnswer, TellRequest
from models.texts import gpus_text

_T = TypeVar("_T")
_RECORDED = frozenset({AuditKind.PLAN, AuditKind.TRANSITION, AuditKind.EFFECT, AuditKind.HOLD, AuditKind.GUARD})
"""Kinds whose records are shown as they were sent to the archive."""
WAITS = "waits"
"""A key in the data of a notice that had not been delivered by then."""


async def audit_of(histories: AsyncIterable[WorkflowHistory], converter: DataConverter) -> list[AuditRecord]:
    """Return the records of these runs in order. Runs come in the order in which they followed each other.

    The product's own records (launch, effects with fence and receipt, plans, transitions, holds, the guard's findings)
    are read from what a run sent to the archive. The history itself says who gave a command and under which id, where a
    notice went and how often it failed, and what was not sent to the archive yet.
    """
    readers: dict[str, _Reader] = {}
    async for history in histories:
        first = history.events[0].workflow_execution_started_event_attributes.first_execution_run_id
        reader = readers.setdefault(first, _Reader(converter))
        for event in history.events:
            await reader.read(event)
    return [record for reader in readers.values() for record in reader.tell_records()]


def add_outcomes(records: Sequence[AuditRecord], archived: Iterable[AuditEntry]) -> list[AuditRecord]:
    """Return the records, with the outcome of notices that were waiting, as the sender archived it.

    The watch's rounds send what the ledger keeps, and no rollout's history records that.
    """
    keys = {waits: {record.data["key"] for record in records if _waits(record) is waits} for waits in (True, False)}
    waits = keys[True] - keys[False]
    later = [_record(e) for e in archived if "message" in e.data and e.data.get("key") in waits]
    return sorted([*records, *later], key=lambda record: record.at)


def _waits(record: AuditRecord) -> bool | None:
    """Return whether a notice was still waiting at that time; None: the record is no notice of a rollout."""
    if record.kind is not AuditKind.NOTICE or "key" not in record.data:
        return None
    return bool(record.data.get(WAITS))


def _record(entry: AuditEntry, **more: Any) -> AuditRecord:
    shared = AuditRecord.model_fields.keys() & AuditEntry.model_fields.keys()
    return AuditRecord(**{name: getattr(entry, name) for name in shared}, **more)


class _Reader:
    """Reads all runs of one workflow: a run may archive what the run before it did."""

    def __init__(self, converter: DataConverter) -> None:
        self._records: list[AuditRecord] = []
        self._launch: list[AuditRecord] = []
        self._effects: list[AuditRecord] = []
        """As their activities report them. The run sends each effect to the archive soon after, in the same order."""
        self._admitted: dict[str, AdmitAnswer] = {}
        """The answers of `admit` by nonce: what authorizes each command, and who gave it."""
        self._sent: set[str] = set()
        """Keys of entries. An entry may be sent twice: by a run that is ending, and by the next run."""
        self._last_told: dict[str, str] = {}
        """By a notice's key, the last text of its records."""
        self._converter = converter
        self._run = ""
        self._of_request = False
        self._scheduled: dict[int, HistoryEvent] = {}
        self._given: dict[int, tuple[int, str]] = {}
        """By the event that accepted a command: the index of its record, and the command's name."""

    def tell_records(self) -> list[AuditRecord]:
        """Return what was sent to the archive, and everything else that only the events tell."""
        recorded = max((record.at for record in self._records if self._is_of_an_effect(record)), default=None)
        launched = any(_is_launch(record) for record in self._records)
        effects = [e for e in self._effects if recorded is None or e.at > recorded]
        records = sorted([*([] if launched else self._launch), *self._records, *effects], key=lambda record: record.at)
        return [self._with_proof(record) for record in records]

    def _is_of_an_effect(self, record: AuditRecord) -> bool:
        """Return whether the record is an effect's archive entry; a grant's is a command by Backstop."""
        told_by_request = self._of_request and record.kind is AuditKind.COMMAND and record.actor == BACKSTOP
        return told_by_request or record.kind is AuditKind.EFFECT

    def _with_proof(self, record: AuditRecord) -> AuditRecord:
        """Return the record with how its author was proven, where a worker of this history admitted the command."""
        if record.kind is not AuditKind.COMMAND or not ({"command", "update"} & record.data.keys()):
            return record
        answer = self._admitted.get(str(record.data.get("warrant", "")), AdmitAnswer())
        return record.model_copy(update={"data": {**record.data, "proof": answer.as_data}})

    async def _one(self, payloads: Payloads, kind: type[_T]) -> _T:
        value: _T = (await self._converter.decode(payloads.payloads, [kind]))[0]
        return value

    def _of(self, event: HistoryEvent, kind: AuditKind, actor: str, text: str, **more: Any) -> AuditRecord:
        at = event.event_time.ToDatetime(tzinfo=UTC)
        return AuditRecord(at=at, kind=kind, actor=actor, text=text, run=self._run, event=event.event_id, **more)

    def _add(self, event: HistoryEvent, kind: AuditKind, actor: str, text: str, **more: Any) -> None:
        self._records.append(self._of(event, kind, actor, text, **more))

    def _add_entry(self, event: HistoryEvent, entry: AuditEntry) -> None:
        if entry.key in self._sent:
            return
        self._sent.add(entry.key)
        self._records.append(_record(entry, run=self._run, event=event.event_id))

    async def read(self, event: HistoryEvent) -> None:
        if event.HasField("workflow_execution_started_event_attributes"):
            await self._read_start(event)
        elif event.HasField("workflow_execution_update_accepted_event_attributes"):
            await self._read_accepted(event)
        elif event.HasField("workflow_execution_update_completed_event_attributes"):
            await self._read_refusal(event)
        elif event.HasField("activity_task_scheduled_event_attributes"):
            self._scheduled[event.event_id] = event
            await self._read_record(event)
        elif event.HasField("activity_task_completed_event_attributes"):
            await self._read_completed(event)
        elif event.HasField("activity_task_failed_event_attributes"):
            await self._read_failure(event)
        elif event.HasField("workflow_execution_cancel_requested_event_attributes"):
            asked = event.workflow_execution_cancel_requested_event_attributes
            self._add(event, AuditKind.COMMAND, asked.identity, "cancelled through Temporal", reason=asked.cause)
        elif event.HasField("workflow_execution_terminated_event_attributes"):
            ended = event.workflow_execution_terminated_event_attributes
            self._add(event, AuditKind.COMMAND, ended.identity, "TERMINATED: nothing was undone", reason=ended.reason)

    async def _read_start(self, event: HistoryEvent) -> None:
        started = event.workflow_execution_started_event_attributes
        self._run, self._scheduled = started.original_execution_run_id, {}
        self._given = {}
        self._of_request = started.workflow_type.name == REQUEST_WORKFLOW
        if self._of_request:
            return  # it tells of all that happens to it, its beginning included, when it is kept
        rollout_input = await self._one(started.input, RolloutInput)
        if rollout_input.state is None:
            by, reason = rollout_input.launch.actor or rollout_input.launch.owner, rollout_input.launch.reason
            self._launch.append(self._of(event, AuditKind.COMMAND, by, f"launch asked for by {by}", reason=reason))
        else:
            self._add(event, AuditKind.TRANSITION, BACKSTOP, f"continued as run {rollout_input.runs}")

    async def _read_accepted(self, event: HistoryEvent) -> None:
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
                f"{what} of {gpus_text(order.gpus)} to {order.team}, request {order.request}",
                reason=order.reason,
                data={"request": order.request},
            )
            return
        asked = await self._one(request.input.args, CommandRequest)
        self._given[event.event_id] = len(self._records), request.input.name
        named = {
            k: v
            for k, v in asked.model_dump(mode="json", exclude_defaults=True).items()
            if k not in ("actor", "ticket")
        }
        self._add(
            event,
            AuditKind.COMMAND,
            asked.actor,
            f"{request.input.name} by {asked.actor}",
            reason=asked.reason,
            data={
                "command": request.input.name,
                **named,
                **warrant_in(asked),
                "identity": request.meta.identity,
                "update": request.meta.update_id,
            },
        )

    async def _read_refusal(self, event: HistoryEvent) -> None:
        """Mark a command as refused that a worker accepted first: until then its record says that it was given."""
        completed = event.workflow_execution_update_completed_event_attributes
        if not completed.outcome.HasField("failure") or completed.accepted_event_id not in self._given:
            return
        error = await self._converter.decode_failure(completed.outcome.failure)
        number, command = self._given[completed.accepted_event_id]
        text = f"{command} refused: {getattr(error, 'message', '') or error}"
        self._records[number] = self._records[number].model_copy(update={"text": text, "refused": True})

    async def _read_record(self, event: HistoryEvent) -> None:
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == "keep_request":
            for entry in (await self._one(scheduled.input, KeepRequest)).request.outbox:
                self._add_entry(event, entry)
        elif scheduled.activity_type.name == "record":
            for entry in (await self._one(scheduled.input, RecordRequest)).entries:
                if entry.kind in _RECORDED or _is_launch(entry):
                    self._add_entry(event, entry)

    async def _read_completed(self, event: HistoryEvent) -> None:
        done = event.activity_task_completed_event_attributes
        scheduled = self._scheduled.get(done.scheduled_event_id)
        if scheduled is None:
            return
        asked = scheduled.activity_task_scheduled_event_attributes
        if asked.activity_type.name == "admit":
            self._note_admitted(await self._one(done.result, AdmitAnswer))
        elif asked.activity_type.name == "open_rollout":
            self._note_admitted((await self._one(done.result, Opening)).admitted)
        elif asked.activity_type.name == "apply_effect":
            change = (await self._one(asked.input, EffectRequest)).change
            receipt = await self._one(done.result, Receipt)
            data = {"fence": change.fence.counter, "receipt": receipt.model_dump(mode="json")}
            text = f"{change.kind} was carried out, and is not archived yet"
            self._effects.append(self._of(event, AuditKind.EFFECT, BACKSTOP, text, data=data))
        elif asked.activity_type.name == "tell":
            await self._read_notices(
                event, await self._one(asked.input, TellRequest), await self._one(done.result, TellAnswer)
            )

    def _note_admitted(self, answer: AdmitAnswer | None) -> None:
        if answer is not None and answer.warrant:
            self._admitted[answer.warrant] = answer

    async def _read_notices(self, event: HistoryEvent, request: TellRequest, answer: TellAnswer) -> None:
        for notice in request.notices:
            waits = notice.key not in answer.delivered
            if not waits:
                where = ", ".join(sorted({d.channel for d in answer.delivered[notice.key]}))
                text = f"{notice.notified_text} ({where})"
            elif notice.key in answer.waiting:
                at = f"{answer.waiting[notice.key]:%Y-%m-%d %H:%MZ}"
                text = f"Backstop will notify {notice.audience} at {at}: {notice.kind} (the ledger keeps it until then)"
            elif notice.key in answer.refused:
                text = f"Backstop could not notify {notice.audience}: {notice.kind} ({answer.refused[notice.key]})"
            else:
                why = answer.failed.get(notice.key) or "the worker did not say why"
                text = f"Backstop has not notified {notice.audience} yet: {notice.kind} ({why}); it tries again"
            if self._last_told.get(notice.key) == text:
                continue  # asked after again, and nothing is new
            self._last_told[notice.key] = text
            data = {"key": notice.key, **({WAITS: True} if waits else {})}
            self._add(event, AuditKind.NOTICE, BACKSTOP, text, data=data)

    async def _read_failure(self, event: HistoryEvent) -> None:
        failed = event.activity_task_failed_event_attributes
        scheduled = self._scheduled.get(failed.scheduled_event_id)
        if scheduled is None:
            return
        name = scheduled.activity_task_scheduled_event_attributes.activity_type.name
        if name == "apply_effect":
            error = await self._converter.decode_failure(failed.failure)
            text = f"an effect failed: {getattr(error, 'message', '') or error}"
            self._effects.append(self._of(event, AuditKind.EFFECT, BACKSTOP, text))


def _is_launch(record: AuditRecord | AuditEntry) -> bool:
    return record.kind is AuditKind.COMMAND and record.data.get("command") == "launch"
