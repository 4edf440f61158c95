"""Every golden history leads today's workflow to the same commands: a rollout in flight survives an upgrade."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import inspect
import json
import re
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import temporalio.worker._workflow
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
from tests.e2e.world import led_to_nothing
from tests.replay.bringup_scenes import BRINGUPS
from tests.replay.record import HISTORIES, LARGEST, SCENES
from tests.replaying import replays
from workers.main import FAILURES, sandbox
from workflows import (
    bringup_runs,
    cluster_rollout,
    owner_notices,
    quota_request,
    rollout_actions,
    rollout_post,
    rollout_waits,
)
from workflows import (
    no_empty_tasks as marks,
)
from workflows import patches as since
from workflows import (
    pause_during_breach as haste,
)
from workflows.bringup import BringupWorkflow
from workflows.cluster_rollout import ClusterRollout
from workflows.fleet_rollout import FleetRolloutWorkflow
from workflows.quota_request import QuotaRequest

plain = DataConverter(payload_codec=Zlib())
FILES = sorted(HISTORIES.glob("*.json.gz"))


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
    await replays(replayer, parsed(path))


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [0.06, 0.08, 0.1, 0.12, 0.14])
async def test_a_task_that_took_too_long_leaves_a_run_that_can_be_played_anew(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is so slow that an activation is called a deadlock.

    Before the core may have the run again it has to leave the cache. One in which two threads lived at once never did,
    and this did not end: by chance, about once in ten times, or once in three beside other work.
    """
    worker: Any = temporalio.worker._workflow._WorkflowWorker
    begin = worker.__init__

    def impatient(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self._deadlock_timeout_seconds = seconds

    monkeypatch.setattr(worker, "__init__", impatient)
    (path,) = (path for path in FILES if path.name.startswith("large."))
    async with asyncio.timeout(120):
        for _ in range(2):
            with contextlib.suppress(RuntimeError):
                await replayer().replay_workflow(parsed(path))


def test_each_scene_has_its_history_and_it_is_small() -> None:
    assert {path.name.split(".")[0].split("-")[0] for path in FILES} == {*SCENES, *BRINGUPS}
    assert max(path.stat().st_size for path in FILES) < LARGEST


async def calls(path: Path, activity: str) -> list[Any]:
    """Return the input of each call of an activity, as plain JSON."""
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


async def test_what_is_archived_while_a_rollout_acts_travels_together_and_waits_for_no_slow_effect() -> None:
    """`together` is the story of `straight`, but that its second effect is tried for seven seconds."""
    alone, together = [await calls(HISTORIES / f"{name}.json.gz", "record") for name in ("straight", "together")]
    texts = [[entry["kind"] for call in made for entry in call["entries"]] for made in (alone, together)]
    assert sorted(texts[0]) == sorted(texts[1])
    assert len(together) <= len(alone) - 2
    events = parsed(HISTORIES / "together.json.gz").events
    effects = [e for e in events if e.activity_task_scheduled_event_attributes.activity_type.name == "apply_effect"]
    slow = effects[1].event_id
    (landed,) = (e for e in events if e.activity_task_completed_event_attributes.scheduled_event_id == slow)
    meanwhile = [e for e in events if slow < e.event_id < landed.event_id]
    asked = [e.activity_task_scheduled_event_attributes.activity_type.name for e in meanwhile]
    assert "record" in asked, "what was done before is archived while it is tried"
    waited = next(e for e in meanwhile if e.activity_task_scheduled_event_attributes.activity_type.name == "record")
    seconds = (waited.event_time.ToDatetime() - effects[1].event_time.ToDatetime()).total_seconds()
    assert 1 < seconds < landed.event_time.ToDatetime().timestamp() - effects[1].event_time.ToDatetime().timestamp()


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
    """Return the result of each call of an activity, as plain JSON."""
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


NEWEST = ("rested", "together", "freed", "reported", "asked", "refitted", "aimed_again", "noted")
LEAN = ("lean", "lean_breach")
OVERSLEPT = "overslept-1.json.gz"
MOMENT = timedelta(milliseconds=5)


ASK_FOR_PATCHES = (
    cluster_rollout,
    rollout_actions,
    rollout_post,
    rollout_waits,
    haste,
    marks,
    owner_notices,
    bringup_runs,
    quota_request,
)
WAITED = [True, False, True, False]
"""Of `freed`, the runs that waited for something before they left."""


def patches(path: Path) -> set[str]:
    """The patches whose new side the history took."""
    events = parsed(path).events
    marks = [event.marker_recorded_event_attributes for event in events]
    data = [mark.details["patch-data"].payloads[0].data for mark in marks if mark.marker_name == "core_patch"]
    return {json.loads(datum)["id"] for datum in data}


def test_a_patched_shape_has_a_history_from_before_and_one_from_after() -> None:
    asked = [
        name
        for module in ASK_FOR_PATCHES
        for name in re.findall(r"(?:workflow\.patched|patches\.since)\(patches\.(\w+)\)", inspect.getsource(module))
    ]
    known = {getattr(since, name) for name in asked} | {since.FEWER_EVENTS}
    taken = {path.name: patches(path) for path in FILES}
    assert known == set().union(*taken.values())
    assert taken["continued-1.json.gz"] == set()
    assert taken["left-1.json.gz"] == {since.LEAVES_PROMPTLY}
    assert taken["breached.json.gz"] == set()
    assert taken["undone.json.gz"] == set()
    assert taken["unheard.json.gz"] == set()
    assert taken["untold.json.gz"] == {since.GIVES_UP}
    assert taken["told.json.gz"] == {since.LOOKS_FIRST}
    assert since.CALLS_OWNER in taken["called.json.gz"]
    assert since.OWNER_HEARS_OF_UNDO not in taken["called.json.gz"]
    assert since.OWNER_HEARS_OF_UNDO in taken["reported.json.gz"]
    assert since.ONE_OBJECTION not in taken["insisted.json.gz"]
    assert since.ONE_OBJECTION in taken["reworded.json.gz"]
    assert taken["warned.json.gz"] == {since.WARNS}
    assert taken["digested.json.gz"] == set(), "a timer of its own only where a notice waits, as in no older history"
    for name in ("brought_up", "unmade-1", "unmade-2"):
        assert taken[f"{name}.json.gz"] == {since.LEAVES_MARKS}
    assert taken["resent.json.gz"] == {since.LEAVES_MARKS, since.STEPS_IN_SIGHT}
    for name in ("marked", "fleet_marked"):
        assert since.LEAVES_MARKS in taken[f"{name}.json.gz"]
    assert since.RESTS in taken["rested.json.gz"]
    assert since.TOGETHER not in taken["rested.json.gz"]
    assert since.TOGETHER in taken["together.json.gz"]
    assert since.ASKS_OF_DRIFT not in taken["drifted.json.gz"]
    assert since.ASKS_OF_DRIFT in taken["asked.json.gz"]
    assert since.REFITS not in taken["asked.json.gz"], "its quota system has no limit above all quotas"
    assert since.REFITS in taken["refitted.json.gz"]
    assert since.AIMS_AGAIN in taken["aimed_again.json.gz"]
    assert since.NOTES_AT_REST in taken["noted.json.gz"]
    assert taken[OVERSLEPT] == {since.FEWER_EVENTS, since.MARKS_LATE_MAIL}
    lean = {name.split(".")[0] for name, took in taken.items() if took == {since.FEWER_EVENTS}}
    assert lean == {*LEAN, "overslept-2"}
    newest = {
        since.FEWER_EVENTS,
        since.NOTES_AT_REST,
        since.REFITS,
        since.AIMS_AGAIN,
        since.ASKS_OF_DRIFT,
        since.RESTS,
        since.TOGETHER,
        since.LEAVES_IN_TIME,
    }
    assert all(not took & newest for name, took in taken.items() if not name.startswith((*NEWEST, *LEAN, "overslept")))
    assert [since.LEAVES_IN_TIME in taken[f"freed-{run}.json.gz"] for run in (1, 2, 3, 4)] == WAITED
    assert taken["swift.json.gz"] == taken["slow.json.gz"] == {since.UNDO_FIRST}


def renewed_timers(path: Path) -> int:
    """Count the timers that were started for the moment, and the purpose, of an earlier one."""
    dues = list[tuple[bytes, datetime]]()
    for event in parsed(path).events:
        if event.HasField("timer_started_event_attributes"):
            left = event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
            dues.append((event.user_metadata.summary.data, event.event_time.ToDatetime() + left))
    return sum(
        any(what == purpose and abs(due - moment) < MOMENT for purpose, moment in dues[:number])
        for number, (what, due) in enumerate(dues)
    )


def marks_beside_others(path: Path) -> int:
    """Count the marks of workflow tasks that left another event and obeyed no command."""
    commands = {e.event_id for e in parsed(path).events if "update_accepted" in str(e.WhichOneof("attributes"))}
    left = Counter[int]()
    marks = list[int]()
    for event in parsed(path).events:
        attributes = getattr(event, str(event.WhichOneof("attributes")))
        if task := getattr(attributes, "workflow_task_completed_event_id", 0):
            left[task] += 1
            marks += [task] * event.HasField("workflow_properties_modified_event_attributes")
    return sum(left[task] > 1 and task + 1 not in commands for task in marks)


async def late_notices(path: Path) -> int:
    """Count the calls to an open rollout's archive that had nothing but notices."""
    made = [call for call in await calls(path, "record") if call["entries"] and not call["ended"]]
    return sum({entry["kind"] for entry in call["entries"]} == {"notice"} for call in made)


@pytest.mark.parametrize("name", LEAN)
async def test_a_run_with_fewer_events_writes_nothing_twice(name: str) -> None:
    """It renews no timer, notices travel with the entries that caused them, and no task leads to nothing."""
    path, before = HISTORIES / f"{name}.json.gz", HISTORIES / "together.json.gz"
    assert sum(event.HasField("marker_recorded_event_attributes") for event in parsed(path).events) == 1
    assert renewed_timers(path) == 0 < renewed_timers(before)
    assert await late_notices(path) == 0 < await late_notices(before)
    assert marks_beside_others(path) == 0 < marks_beside_others(before)
    assert led_to_nothing(parsed(path)) == []


def test_a_notice_that_is_due_while_no_mail_may_go_out_leaves_an_event() -> None:
    """Its timer ends in a task of its own, which nothing but a command follows."""
    assert led_to_nothing(parsed(HISTORIES / OVERSLEPT)) == []


async def test_another_shape_would_be_noticed() -> None:
    history = json.loads(history_of(HISTORIES / "straight.json.gz"))
    looks = [
        event["activityTaskScheduledEventAttributes"]["activityType"]
        for event in history["events"]
        if event.get("activityTaskScheduledEventAttributes", {}).get("activityType") == {"name": "observe"}
    ]
    looks[-1]["name"] = "peek"
    with pytest.raises(NondeterminismError, match="peek"):
        await replays(replayer, WorkflowHistory.from_json("rollout/straight", json.dumps(history)))
