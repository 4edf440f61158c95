"""Rollouts with encrypted payloads: a whole story, forged messages, and a switch while one is open."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.common import RawValue

from client import payload_keys
from client.connection import NAMESPACE
from client.converter import converter_with, data_converter
from client.encryption import ENCRYPTED, Encrypted
from client.payload_keys import KeyRing, PayloadKeys, new_key, rotate_keys, write_keys
from models.errors import Unavailable
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest, RolloutInput
from models.rollout.stages import Command, Stage
from models.temporal_names import ROLLOUT_WORKFLOW, TASK_QUEUE, rollout_workflow_id
from tests.e2e.world import World, fresh, world_of
from tests.encrypted import payloads_in, ring_of
from tests.loop.test_requests import roomy

pytestmark = pytest.mark.e2e
MARKER = "NobodyMayReadThisReason"


def address_of(client: Client) -> str:
    return str(client.service_client.config.target_host)


async def hidden(client: Client, ring: KeyRing) -> Client:
    return await Client.connect(address_of(client), namespace=NAMESPACE, data_converter=converter_with(ring))


class ByHand(Encrypted):
    """Sends what it is given, and reads what it gets, to see what is said of it."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


async def by_hand(client: Client, ring: KeyRing) -> Client:
    converter = dataclasses.replace(converter_with(ring), payload_codec=ByHand(ring))
    return await Client.connect(address_of(client), namespace=NAMESPACE, data_converter=converter)


def keys_from_now() -> PayloadKeys:
    now = datetime.now(UTC)
    return PayloadKeys(since=now, keys=(new_key(now, now),))


async def events_of(client: Client, cluster: str) -> list[Any]:
    history = await client.get_workflow_handle(rollout_workflow_id(cluster)).fetch_history()
    return list(history.events)


async def command_sent(client: Client, cluster: str, payload: Payload) -> str:
    """Return why an update that was made by hand was refused; empty: it was accepted."""
    handle = client.get_workflow_handle(rollout_workflow_id(cluster))
    try:
        await handle.execute_update("pause", RawValue(payload))
    except WorkflowUpdateFailedError as error:
        return str(error.cause)
    return ""


async def test_a_whole_rollout_leaves_nothing_readable_with_temporal(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_keys, "_LOOK_SECONDS", 0.05)
    keys, name, other = keys_from_now(), fresh("hidden"), fresh("hidden")
    ring = ring_of(tmp_path, keys)
    client = await hidden(temporal, ring)
    async with world_of(client, sqlite_ledger_url, tmp_path) as world:
        await world.fleet(roomy(name), roomy(other))
        await world.launch(name)
        await world.launch(other)

        hand = await by_hand(temporal, ring)
        # Somebody with Temporal's credentials and without the keys, or with what was said elsewhere.
        asked = CommandRequest(actor="tpm", reason=MARKER)
        (in_clear,) = await data_converter.encode([asked])
        assert "is not encrypted" in await command_sent(hand, name, in_clear)
        (of_another,) = await Encrypted(ring, rollout_workflow_id(other)).encode([in_clear])
        assert "the payload is encrypted with a key" in await command_sent(hand, name, of_another)
        garbage = Payload(metadata=of_another.metadata, data=b"x" * 100)
        assert "the payload is encrypted with a key" in await command_sent(hand, name, garbage)
        (right,) = await Encrypted(ring, rollout_workflow_id(name)).encode([in_clear])
        assert await command_sent(hand, name, right) == "", "else the three above prove nothing"
        await world.say(name, Command.RESUME, reason=MARKER)
        await nothing_begins_in_clear(hand, fresh("forged"))

        write_keys(tmp_path / "payload.json", rotate_keys(keys, datetime.now(UTC), timedelta(0)))
        await world.approve(name)
        await world.until(name, Stage.MONITORED)
        assert any(MARKER in record.reason for record in await world.tpm.audit(name))
        stranger = await Client.connect(address_of(temporal), namespace=NAMESPACE, data_converter=data_converter)
        with pytest.raises(Unavailable, match=r"the payload is encrypted.*BACKSTOP_PAYLOAD_KEYS"):
            await World(stranger, world.sql, tmp_path).tpm.status(name)
        await world.say(name, Command.CLOSE, reason=MARKER)
        await world.ended(name)

        found, used = 0, set[bytes]()
        for event in await events_of(client, name):
            if event.HasField("marker_recorded_event_attributes"):
                continue  # patches' names, which Temporal's core writes
            assert MARKER.encode() not in event.SerializeToString()
            for payload in payloads_in(event):
                if "type" not in payload.metadata:  # a search attribute has its type
                    assert payload.metadata["encoding"] == ENCRYPTED
                    used.add(payload.metadata["encryption-key-id"])
                    found += 1
        assert (found > 40, len(used)) == (True, 2)


async def nothing_begins_in_clear(client: Client, cluster: str) -> None:
    given = RolloutInput(launch=LaunchRequest(cluster=cluster, rollout=f"{cluster}/1", owner="tpm", reason="forged"))
    (payload,) = await data_converter.encode([given])
    handle = await client.start_workflow(
        ROLLOUT_WORKFLOW, RawValue(payload), id=rollout_workflow_id(cluster), task_queue=TASK_QUEUE
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert "is not encrypted" in str(failed.value.cause)


@pytest.mark.nightly
async def test_a_rollout_that_is_open_at_the_switch_goes_on(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    name = fresh("switched")
    async with world_of(temporal, sqlite_ledger_url, tmp_path) as world:
        await world.fleet(roomy(name))
        await world.start(name)
        await world.until(name, Stage.BUFFERED)
        world.launched.discard(name)  # it stays open
    ring = ring_of(tmp_path, keys_from_now())
    client = await hidden(temporal, ring)
    async with world_of(client, sqlite_ledger_url, tmp_path) as world:
        world.launched.add(name)
        await world.until(name, Stage.MONITORED)
        (in_clear,) = await data_converter.encode([CommandRequest(actor="tpm", reason="from before")])
        assert await command_sent(await by_hand(temporal, ring), name, in_clear) == "", (
            "this run began before the switch"
        )
        await world.say(name, Command.CLOSE, reason=MARKER)
        await world.ended(name)
        encodings = {
            payload.metadata["encoding"] for event in await events_of(client, name) for payload in payloads_in(event)
        }
        assert {ENCRYPTED, b"json/plain"} <= encodings
        assert any(MARKER in record.reason for record in await world.tpm.audit(name))
