"""The codec: what it hides, what it reads, and how it treats everything else."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.exceptions import ApplicationError

from client import payload_keys
from client.compression import COMPRESS_FROM, ENCODING
from client.converter import converter_with, data_converter
from client.encryption import ENCRYPTED, IN_CLEAR, KEY_ID, WORKFLOW_ID, Encrypted, run_began
from client.payload_keys import KeyRing, configured_ring, new_key, rotate_keys, write_keys
from models.errors import BadInput, Unavailable
from models.rollout.commands import CommandRequest
from models.rollout.messages import RolloutInput
from tests.encrypted import LATER, LONG_AGO, keys_of, ring_of

SAID = CommandRequest(actor="tpm", reason="NobodyShallReadThis")


def of(ring: KeyRing | None, workflow: str) -> DataConverter:
    return converter_with(ring).with_context(WorkflowSerializationContext(namespace="n", workflow_id=workflow))


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return ring_of(tmp_path)


async def test_what_is_said_is_hidden_and_read_by_its_workflow(ring: KeyRing) -> None:
    (hidden,) = await of(ring, "rollout/a").encode([SAID])
    assert hidden.metadata["encoding"] == ENCRYPTED
    assert b"NobodyShallReadThis" not in hidden.SerializeToString()
    assert await of(ring, "rollout/a").decode([hidden], [CommandRequest]) == [SAID]
    assert await converter_with(ring).decode([hidden], [CommandRequest]) == [SAID], "a person reads a history"


async def test_the_same_is_hidden_otherwise_each_time(ring: KeyRing) -> None:
    first, second = await of(ring, "w").encode([SAID]), await of(ring, "w").encode([SAID])
    assert first[0].data[12:] != second[0].data[12:]


async def test_what_is_of_one_workflow_is_none_of_another(ring: KeyRing) -> None:
    (hidden,) = await of(ring, "rollout/a").encode([SAID])
    with pytest.raises(Unavailable, match="that this process does not have for this workflow"):
        await of(ring, "rollout/b").decode([hidden], [CommandRequest])
    hidden.metadata[WORKFLOW_ID] = b"rollout/b"  # which it then says of itself
    for converter in (of(ring, "rollout/b"), converter_with(ring)):
        with pytest.raises(Unavailable):
            await converter.decode([hidden], [CommandRequest])


async def test_no_bit_of_it_may_be_changed(ring: KeyRing) -> None:
    (hidden,) = await of(ring, "w").encode([SAID])
    for at in range(len(hidden.data)):
        for bit in (1, 128):
            changed = bytearray(hidden.data)
            changed[at] ^= bit
            altered = Payload(metadata=hidden.metadata, data=bytes(changed))
            assert await Encrypted(ring, "w").decode([altered]) == [altered]
    for cut in (0, 5, 12, 20, len(hidden.data) - 1):
        shorter = Payload(metadata=hidden.metadata, data=hidden.data[:cut])
        assert await Encrypted(ring, "w").decode([shorter]) == [shorter]
    for said in (b"", b"\xff", b"another", b"x" * 100_000):
        other = Payload(metadata={**hidden.metadata, KEY_ID: said}, data=hidden.data)
        assert await Encrypted(ring, "w").decode([other]) == [other]


async def test_it_is_compressed_before_it_is_encrypted(ring: KeyRing) -> None:
    large = "x" * COMPRESS_FROM * 4
    (hidden,) = await of(ring, "w").encode([large])
    assert len(hidden.data) < COMPRESS_FROM
    assert await of(ring, "w").decode([hidden], [str]) == [large]


async def test_compressed_and_plain_ones_of_before_are_read_in_runs_that_began_before(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, keys_of(since=LATER - timedelta(days=1)))
    old = [*await data_converter.encode([SAID]), *await data_converter.encode(["x" * 40_000])]
    assert old[1].metadata["encoding"] == ENCODING
    token = run_began.set(LONG_AGO)
    try:
        assert await of(ring, "w").decode(old[:1], [CommandRequest]) == [SAID]
        assert await of(ring, "w").decode(old[1:], [str]) == ["x" * 40_000]
    finally:
        run_began.reset(token)


async def test_what_came_in_clear_is_refused_in_runs_that_began_after(ring: KeyRing) -> None:
    (forged,) = await data_converter.encode([SAID])
    forged.metadata[IN_CLEAR] = b"2999-01-01T00:00:00+00:00"  # what somebody writes there counts nothing
    token = run_began.set(datetime.now(UTC))
    try:
        with pytest.raises(ApplicationError, match="the payload is not encrypted"):
            await of(ring, "w").decode([forged], [CommandRequest])
        (result,) = await data_converter.encode(["an activity's result" * 2_000])
        with pytest.raises(ValueError, match="is not encrypted"):  # and a worker with the keys is waited for
            await of(ring, "w").decode([result], [str])
    finally:
        run_began.reset(token)
    with pytest.raises(Unavailable, match="Temporal's answer cannot be read: the payload is not encrypted"):
        await of(ring, "w").decode([forged], [CommandRequest])


async def test_a_worker_without_the_keys_waits_and_refuses_nobody_s_rollout(ring: KeyRing, tmp_path: Path) -> None:
    """A start that it cannot read must not fail the rollout: another worker can."""
    (hidden,) = await of(ring, "w").encode([SAID])
    other = ring_of(tmp_path, name="other.json")
    token = run_began.set(datetime.now(UTC))
    try:
        for keys in (None, other):
            with pytest.raises(ValueError, match="the payload is encrypted"):
                await of(keys, "w").decode([hidden], [RolloutInput])
            with pytest.raises(ApplicationError, match=r"the payload is encrypted.*\(BACKSTOP_PAYLOAD_KEYS\)"):
                await of(keys, "w").decode([hidden], [CommandRequest])
    finally:
        run_began.reset(token)
    with pytest.raises(Unavailable, match="BACKSTOP_PAYLOAD_KEYS"):
        await of(None, "w").decode([hidden], [CommandRequest])


async def test_a_rotation_is_taken_up_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_keys, "_LOOK_SECONDS", 0.0)
    keys = keys_of()
    ring = ring_of(tmp_path, keys)
    (before,) = await of(ring, "w").encode([SAID])
    newer = rotate_keys(keys, datetime.now(UTC), timedelta(0))
    write_keys(tmp_path / "payload.json", newer)
    (after,) = await of(ring, "w").encode([SAID])
    assert before.metadata[KEY_ID].decode() == keys.keys[0].key_id
    assert after.metadata[KEY_ID].decode() == newer.keys[1].key_id
    assert await of(ring, "w").decode([before, after][:1], [CommandRequest]) == [SAID]
    assert await of(ring, "w").decode([after], [CommandRequest]) == [SAID]
    (tmp_path / "payload.json").write_text("broken")  # what was read last counts
    assert await of(ring, "w").decode([after], [CommandRequest]) == [SAID]


def test_a_new_key_encrypts_from_its_time_on() -> None:
    now = datetime.now(UTC)
    keys = rotate_keys(keys_of(), now, timedelta(hours=1))
    assert keys.encrypting_key(now) == keys.keys[0]
    assert keys.encrypting_key(now + timedelta(hours=1)) == keys.keys[1]
    first = keys_of().but(keys=(new_key(now, now + timedelta(hours=1)),))
    assert first.encrypting_key(now) == first.keys[0], "nothing is sent in clear meanwhile"


def test_without_keys_nothing_is_encrypted_and_a_named_file_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKSTOP_HOME", str(tmp_path))
    monkeypatch.delenv("BACKSTOP_PAYLOAD_KEYS", raising=False)
    assert configured_ring() is None
    assert converter_with(None) is data_converter
    monkeypatch.setenv("BACKSTOP_PAYLOAD_KEYS", str(tmp_path / "gone.json"))
    with pytest.raises(BadInput, match=r"gone.json does not exist: .*; `backstop keys payload new` makes"):
        configured_ring()
    write_keys(tmp_path / "gone.json", keys_of())
    ring = configured_ring()
    assert ring is not None
    assert (tmp_path / "gone.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.nightly
async def test_encrypting_costs_little(ring: KeyRing) -> None:
    """A small payload takes far below a millisecond each way, on any machine."""
    codec, payloads = Encrypted(ring, "w"), await data_converter.encode([SAID])
    began = time.process_time()
    for _ in range(200):
        await codec.decode(await codec.encode(payloads))
    assert (time.process_time() - began) / 200 < 0.005


def test_keys_are_shown_in_no_error_and_no_repr(tmp_path: Path) -> None:
    keys = keys_of()
    secret = keys.keys[0].key
    assert secret not in repr(keys) + str(keys) + repr(ring_of(tmp_path, keys))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_mounted_file_of_others_may_be_read_by_our_group(tmp_path: Path) -> None:
    ring_of(tmp_path)
    os.chown(tmp_path / "payload.json", 12345, 0)
    (tmp_path / "payload.json").chmod(0o440)
    assert KeyRing(tmp_path / "payload.json").since == LONG_AGO
    (tmp_path / "payload.json").chmod(0o444)
    with pytest.raises(BadInput, match="other users may read it: chmod 600"):
        KeyRing(tmp_path / "payload.json")
