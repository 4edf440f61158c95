"""Payload keys of tests, and histories as they would be had they been encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowHistory

from client.encryption import Encrypted
from client.payload_keys import KeyRing, PayloadKeys, new_key, write_keys

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
LATER = datetime(2100, 1, 1, tzinfo=UTC)


def keys_of(since: datetime = LONG_AGO, keys: int = 1) -> PayloadKeys:
    """`keys` of them, each in use from some days after the one before."""
    made = [new_key(LONG_AGO, LONG_AGO.replace(day=1 + number)) for number in range(keys)]
    return PayloadKeys(since=since, keys=tuple(made))


def ring_of(folder: Path, keys: PayloadKeys | None = None, name: str = "payload.json") -> KeyRing:
    write_keys(folder / name, keys or keys_of())
    return KeyRing(folder / name)


def payloads_in(message: Message) -> Iterator[Payload]:
    """Every payload anywhere in a message, to be read or changed."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        values = value.values() if field.message_type.GetOptions().map_entry else value
        for each in values if field.is_repeated else [value]:
            if isinstance(each, Payload):
                yield each
            elif isinstance(each, Message):
                yield from payloads_in(each)


async def encrypted(history: WorkflowHistory, ring: KeyRing, from_event: int = 0) -> int:
    """The history's payloads are encrypted, from this event on; answers how many."""
    codec, count = Encrypted(ring, history.workflow_id), 0
    for event in history.events:
        if event.event_id < from_event:
            continue
        if event.HasField("upsert_workflow_search_attributes_event_attributes"):
            continue  # the server reads them
        if event.HasField("marker_recorded_event_attributes"):
            continue  # of patches: Temporal's core writes them, past every codec
        for payload in payloads_in(event):
            if "type" in payload.metadata:
                continue  # of a search attribute
            (hidden,) = await codec.encode(await Encrypted(ring).decode([payload]))
            payload.CopyFrom(hidden)
            count += 1
    return count
