"""Every golden history leads today's workflow to the same commands: a rollout in flight survives an upgrade."""

from __future__ import annotations

import functools
import gzip
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from client.compression import Zlib
from client.converter import data_converter
from models.bringup.stages import BringupStage
from models.planning.plan import Plan
from models.rollout.effects import EffectKind
from models.rollout.stages import Stage
from tests.replay.bringup_scenes import BRINGUPS
from tests.replay.record import HISTORIES, LARGEST, SCENES
from workers.main import FAILURES, sandbox
from workflows import cluster_rollout, haste, marks, quota_request
from workflows import patches as since
from workflows.bringup import BringupWorkflow
from workflows.cluster_rollout import ClusterRollout
from workflows.fleet_rollout import FleetRolloutWorkflow
from workflows.quota_request import QuotaRequest

plain = DataConverter(payload_codec=Zlib())
FILES = sorted(HISTORIES.glob("*.json.gz"))


_NO_TIME = "TMPRL1101"
"""Of Temporal's watch for a workflow that does not yield, which the sandbox alone cannot switch off."""


def replayer() -> Replayer:
    return Replayer(
        workflows=[BringupWorkflow, ClusterRollout, FleetRolloutWorkflow, QuotaRequest],
        workflow_runner=sandbox(),
        workflow_failure_exception_types=FAILURES,
        data_converter=data_converter,
    )


def history_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


@functools.cache
def parsed(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(f"rollout/{path.name}", history_of(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
async def test_a_golden_history_replays(path: Path) -> None:
    """A machine that had no two seconds for one activation says nothing of the history: it is played again."""
    for more in (True, True, False):
        try:
            await replayer().replay_workflow(parsed(path))
        except RuntimeError as error:
            if not more or _NO_TIME not in str(error):
                raise
        else:
            return


def test_each_scene_has_its_history_and_it_is_small() -> None:
    assert {path.name.split(".")[0].split("-")[0] for path in FILES} == {*SCENES, *BRINGUPS}
    assert max(path.stat().st_size for path in FILES) < LARGEST


async def calls(path: Path, activity: str) -> list[Any]:
    """What each call of an activity was given, as plain JSON."""
    history = parsed(path)
    found: list[Any] = []
    for event in history.events:
        call = event.activity_task_scheduled_event_attributes
        if call.activity_type.name == activity:
            found += await plain.decode(call.input.payloads)
    return found


async def test_together_they_pass_every_stage_and_make_every_call() -> None:
    stages: set[str] = set()
    effects: set[str] = set()
    for path in FILES:
        effects |= {request["change"]["kind"] for request in await calls(path, "apply_effect")}
        entries = [entry for request in await calls(path, "record") for entry in request["entries"]]
        stages |= {entry["data"]["after"] for entry in entries if entry["kind"] == "transition"}
    assert stages == {stage.value for stage in Stage}
    assert effects == {kind.value for kind in EffectKind}


BRINGUP_CALLS = {
    *("open_bringup", "record_bringup", "hand_over", "grant_owed", "wind_down", "tell"),
    *("wait_for_supply", "ask_checks", "choose_host", "start_run", "follow_run", "stop_run"),
}


async def test_bring_ups_together_pass_every_stage_and_make_every_call() -> None:
    stages = {BringupStage.PLANNED.value}
    called: set[str] = set()
    for path in FILES:
        entries = [entry for record in await calls(path, "record_bringup") for entry in record["entries"]]
        stages |= {entry["data"]["after"] for entry in entries if entry["kind"] == "transition"}
        if entries:
            made = [event.activity_task_scheduled_event_attributes for event in parsed(path).events]
            called |= {call.activity_type.name for call in made if call.activity_id}
    assert stages == {stage.value for stage in BringupStage}
    assert called == BRINGUP_CALLS


async def results(path: Path, activity: str) -> list[Any]:
    """What each call of an activity answered, as plain JSON."""
    called: dict[int, str] = {}
    found: list[Any] = []
    for event in parsed(path).events:
        called[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
        done = event.activity_task_completed_event_attributes
        if called.get(done.scheduled_event_id) == activity:
            found += await plain.decode(done.result.payloads)
    return found


async def test_a_plan_in_a_history_has_the_hash_that_was_approved() -> None:
    named = 0
    for path in FILES:
        plans = {Plan.model_validate(answer["plan"]).hash for answer in await results(path, "draft_plan")}
        entries = [entry for request in await calls(path, "record") for entry in request["entries"]]
        told = {entry["data"]["plan"] for entry in entries if "plan" in entry["data"]}
        assert told >= plans, path.name
        named += len(plans)
    assert named > 10


def patches(path: Path) -> set[str]:
    """The patches whose new side the history took."""
    events = parsed(path).events
    marks = [event.marker_recorded_event_attributes for event in events]
    data = [mark.details["patch-data"].payloads[0].data for mark in marks if mark.marker_name == "core_patch"]
    return {json.loads(datum)["id"] for datum in data}


def test_a_patched_shape_has_a_history_from_before_and_one_from_after() -> None:
    asked = (
        *((since, module, r"workflow\.patched\(patches\.(\w+)\)") for module in (cluster_rollout, haste, marks)),
        (quota_request, quota_request, r"workflow\.patched\((\w+)\)"),
    )
    known = {
        getattr(names, name) for names, module, how in asked for name in re.findall(how, inspect.getsource(module))
    }
    taken = {path.name: patches(path) for path in FILES}
    assert known == set().union(*taken.values())
    assert taken["continued-1.json.gz"] == set()
    assert taken["left-1.json.gz"] == {since.LEAVES_PROMPTLY}
    assert taken["breached.json.gz"] == set()
    assert taken["undone.json.gz"] == set()
    assert taken["unheard.json.gz"] == set()
    assert taken["untold.json.gz"] == {quota_request._GIVES_UP}
    assert taken["told.json.gz"] == {since.LOOKS_FIRST}
    assert since.CALLS_OWNER in taken["called.json.gz"]
    assert since.ONE_OBJECTION not in taken["insisted.json.gz"]
    assert since.ONE_OBJECTION in taken["reworded.json.gz"]
    assert taken["warned.json.gz"] == {since.WARNS}
    assert taken["digested.json.gz"] == set(), "a timer of its own only where a notice waits, as in no older history"
    for name in ("brought_up", "unmade-1", "unmade-2"):
        assert taken[f"{name}.json.gz"] == {since.LEAVES_MARKS}
    for name in ("marked", "fleet_marked"):
        assert since.LEAVES_MARKS in taken[f"{name}.json.gz"]
    assert taken["swift.json.gz"] == taken["slow.json.gz"] == {since.UNDO_FIRST}


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
