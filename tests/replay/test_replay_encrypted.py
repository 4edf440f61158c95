"""Golden histories replay encrypted too: whole, and from where a worker with keys took over."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.converter import DefaultFailureConverter
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from client.converter import converter_with
from client.payload_keys import KeyRing
from tests.encrypted import LATER, encrypted, keys_of, ring_of
from tests.replay.test_replay import FILES, history_of
from tests.replaying import replays
from workers.main import FAILURES, sandbox
from workflows.bringup import BringupWorkflow
from workflows.cluster_rollout import ClusterRollout
from workflows.fleet_rollout import FleetRolloutWorkflow
from workflows.quota_request import QuotaRequest

FEW = [path for number, path in enumerate(FILES) if number % 8 == 0]


def names(path: Path) -> str:
    return path.name.removesuffix(".json.gz")


def parsed(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(f"rollout/{path.name}", history_of(path))


def replayer(ring: KeyRing | None) -> Replayer:
    return Replayer(
        workflows=[BringupWorkflow, ClusterRollout, FleetRolloutWorkflow, QuotaRequest],
        workflow_runner=sandbox(),
        workflow_failure_exception_types=FAILURES,
        data_converter=dataclasses.replace(converter_with(ring), failure_converter_class=DefaultFailureConverter),
    )


async def played(history: WorkflowHistory, ring: KeyRing | None) -> None:
    await replays(lambda: replayer(ring), history)


@pytest.mark.parametrize("path", FEW, ids=names)
async def test_an_encrypted_history_replays(path: Path, tmp_path: Path) -> None:
    ring, history = ring_of(tmp_path, keys_of(keys=3)), parsed(path)
    assert await encrypted(history, ring) > 3
    await played(history, ring)


@pytest.mark.parametrize("path", FEW[:3], ids=names)
async def test_a_history_that_was_switched_over_replays(path: Path, tmp_path: Path) -> None:
    """Old payloads, compressed ones among them, and encrypted ones of two keys in one history."""
    history = parsed(path)
    ring = ring_of(tmp_path, keys_of(since=LATER - timedelta(days=1)))
    both = ring_of(tmp_path, ring._keys.but(keys=(*ring._keys.keys, *keys_of().keys)))
    middle = len(history.events) // 2
    assert await encrypted(history, ring, from_event=middle + middle // 2) > 0
    assert await encrypted(history, both, from_event=middle) > 0
    await played(history, both)


async def test_one_that_began_after_the_switch_is_refused_in_clear(tmp_path: Path) -> None:
    """A rollout that is started without the keys fails at once, unlike the one in the history."""
    with pytest.raises(NondeterminismError, match="Fail workflow machine"):
        await played(parsed(FEW[0]), ring_of(tmp_path))


async def test_without_the_keys_it_stands_still(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = parsed(FEW[0])
    await encrypted(history, ring_of(tmp_path))
    for ring in (None, ring_of(tmp_path, keys_of(), name="other.json")):
        caplog.clear()
        with pytest.raises(RuntimeError, match="activation completion failed"):
            await played(history, ring)
        assert "the payload is encrypted with a key that this process does not have" in caplog.text
