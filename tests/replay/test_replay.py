"""Every golden history leads today's workflow to the same commands: a rollout in flight survives an upgrade."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from client.payloads import data_converter
from tests.replay.record import HISTORIES, LARGEST, SCENES
from workers.main import FAILURES, sandbox
from workflows.cluster_rollout import ClusterRollout

FILES = sorted(HISTORIES.glob("*.json.gz"))


def replayer() -> Replayer:
    return Replayer(
        workflows=[ClusterRollout],
        workflow_runner=sandbox(),
        workflow_failure_exception_types=FAILURES,
        data_converter=data_converter,
    )


def history_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
async def test_a_golden_history_replays(path: Path) -> None:
    await replayer().replay_workflow(WorkflowHistory.from_json(f"rollout/{path.name}", history_of(path)))


def test_each_scene_has_its_history_and_it_is_small() -> None:
    assert {path.name.split(".")[0].split("-")[0] for path in FILES} == set(SCENES)
    assert max(path.stat().st_size for path in FILES) < LARGEST


async def test_another_shape_would_be_noticed() -> None:
    history = json.loads(history_of(HISTORIES / "straight.json.gz"))
    looks = [
        event["activityTaskScheduledEventAttributes"]["activityType"]
        for event in history["events"]
        if event.get("activityTaskScheduledEventAttributes", {}).get("activityType") == {"name": "observe"}
    ]
    looks[-1]["name"] = "peek"
    with pytest.raises(NondeterminismError, match="peek"):
        await replayer().replay_workflow(WorkflowHistory.from_json("rollout/straight", json.dumps(history)))
