"""`backstop audit` out of histories as they were recorded: each effect is told once, archived or not yet."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory

from client.answer_models import AuditRecord
from client.audit import audit_of
from client.converter import data_converter
from models.audit_chain import text_with_subject
from models.rollout.effects import Receipt

FOLDER = Path(__file__).parents[1] / "replay" / "histories"
RUNS = {
    "straight": ("straight",),
    "breached": ("breached",),
    "drifted": ("drifted",),
    "stuck": ("stuck",),
    "undone": ("undone",),
    "unanswered": ("unanswered",),
    "shadowed": ("shadowed",),
    "left in the middle": ("left-1", "left-2"),
    "continued": ("continued-1", "continued-2"),
}


def history(name: str) -> WorkflowHistory:
    return WorkflowHistory.from_json("rollout/x", gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()).decode())


async def told(*histories: WorkflowHistory) -> list[AuditRecord]:
    async def each() -> AsyncIterator[WorkflowHistory]:
        for one in histories:
            yield one

    return await audit_of(each(), data_converter)


async def landed(*histories: WorkflowHistory) -> list[int]:
    """The fences of the receipts that came back, in order."""
    fences = []
    for one in histories:
        calls: set[int] = set()
        for event in one.events:
            if event.activity_task_scheduled_event_attributes.activity_type.name == "apply_effect":
                calls.add(event.event_id)
            done = event.activity_task_completed_event_attributes
            if done.scheduled_event_id in calls:
                (receipt,) = await data_converter.decode(done.result.payloads, [Receipt])
                fences.append(receipt.fence.counter)
    return fences


def cuts(one: WorkflowHistory) -> list[WorkflowHistory]:
    """The history as it was at any time that an effect had just landed, or was just recorded."""
    ends = {"record", "apply_effect"}
    marks: dict[int, str] = {}
    times = []
    for number, event in enumerate(one.events, 1):
        marks[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
        done = event.activity_task_completed_event_attributes.scheduled_event_id
        if marks.get(done) in ends or marks[event.event_id] in ends:
            times.append(WorkflowHistory(one.workflow_id, one.events[:number]))
    return times


@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
async def test_at_any_time_each_effect_that_landed_is_told_once(runs: tuple[str, ...]) -> None:
    *earlier, last = (history(name) for name in runs)
    for now in cuts(last):
        records = await told(*earlier, now)
        fences = [r.data["fence"] for r in records if r.kind == "effect" and "fence" in r.data]
        assert fences == await landed(*earlier, now)
        assert [r.at for r in records] == sorted(r.at for r in records)
    whole = await told(*earlier, last)
    assert not [r for r in whole if "not archived yet" in r.text]
    assert [r.text for r in whole if r.text.startswith("launch")] == ["launched by tpm"]


def sent_before(earlier: WorkflowHistory, later: WorkflowHistory) -> WorkflowHistory:
    """The earlier run, had it sent to the archive as it ended what the later one sent."""
    *events, end = earlier.events
    sent = [e for e in later.events if e.activity_task_scheduled_event_attributes.activity_type.name == "record"]
    return WorkflowHistory(earlier.workflow_id, [*events, *sent, end])


async def test_what_two_runs_sent_to_the_archive_is_told_once() -> None:
    earlier, later = history("left-1"), history("left-2")
    once, twice = await told(earlier, later), await told(sent_before(earlier, later), later)
    assert sorted((r.at, r.text) for r in twice) == sorted((r.at, r.text) for r in once)


async def test_what_is_not_archived_yet_is_told_as_it_happened() -> None:
    straight = history("straight")
    (first, *_) = [cut for cut in cuts(straight) if await landed(cut)]
    (effect,) = [r for r in await told(first) if r.kind == "effect"]
    assert effect.text == "reserve was carried out, and is not archived yet"
    assert effect.data["receipt"]["fence"]["counter"] == 1
    opened = WorkflowHistory("rollout/x", straight.events[:3])
    assert [r.text for r in await told(opened)] == ["launch asked for by tpm"]


async def test_a_grant_that_its_request_has_archived_is_told_once() -> None:
    texts = [r.text for r in await told(history("requested"))]
    assert len([text for text in texts if ": granted until " in text]) == 1
    assert not [text for text in texts if "not archived yet" in text]


async def test_a_failed_effect_is_told_as_the_archive_has_it() -> None:
    texts = [r.text for r in await told(history("stuck")) if r.kind == "effect"]
    assert any("failed: " in text for text in texts)
    assert not any(text.startswith("apply_effect") for text in texts)


@pytest.mark.parametrize("name", [name for runs in RUNS.values() for name in runs])
async def test_nobody_is_told_of_as_not_told_for_no_reason(name: str) -> None:
    assert not [r.text for r in await told(history(name)) if r.text.endswith(("None", "()"))]


async def test_what_waits_in_the_ledger_is_to_be_told() -> None:
    texts = [r.text for r in await told(history("digested")) if r.kind == "notice"]
    (waits,) = [text for text in texts if text.endswith("Z: planned (the ledger keeps it until then)")]
    assert waits.startswith("Backstop will notify b at 20")
    assert "Backstop notified b: planned (log, webhook)" in texts
    assert not any("could not notify" in text for text in texts)


async def test_a_rehearsal_told_nobody() -> None:
    texts = [r.text for r in await told(history("shadowed")) if r.kind == "notice"]
    assert "a shadow notifies nobody; Backstop would have notified b: planned (log)" in texts
    assert not any("Backstop notified " in text for text in texts)


async def test_a_command_that_was_refused_after_it_was_taken_in_is_told_as_refused() -> None:
    """With proven access a command is admitted first and refused later: history has it as accepted by then."""
    taken = history("straight")
    given = [r for r in await told(taken) if r.data.get("update")]
    for event in taken.events:
        if event.HasField("workflow_execution_update_completed_event_attributes"):
            outcome = event.workflow_execution_update_completed_event_attributes.outcome
            outcome.failure.message = "not yours to give"
    refused = [r for r in await told(taken) if r.data.get("update")]
    names = [r.text.partition(" by ")[0] for r in given]
    assert names == ["approve", "close"]
    assert [(r.text, r.refused) for r in refused] == [(f"{name} refused: not yours to give", True) for name in names]
    assert [r.refused for r in given] == [False, False]


@pytest.mark.parametrize(
    ("text", "data", "told"),
    [
        ("ack by user:lead", {"command": "ack", "team": "research"}, "ack by user:lead: team research"),
        (
            "approve by user:lead",
            {"command": "approve", "plan_hash": "3b3a9c108f742650"},
            "approve by user:lead: plan 3b3a9c108f742650",
        ),
        (
            "resolve by user:lead",
            {"command": "resolve", "hold": "drift", "how": "accept"},
            "resolve by user:lead: hold drift, how accept",
        ),
        ("pause by user:lead", {"command": "pause", "team": ""}, "pause by user:lead"),
        ("approve refused: by user:lead", {"command": "approve", "plan_hash": "3b3a"}, "approve refused: by user:lead"),
        ("ack by user:other", {"command": "ack", "team": "research"}, "ack by user:other"),
        ("declared by user:lead", {"command": "declare", "team": "research"}, "declared by user:lead"),
        ("seen by user:lead", {"team": "research"}, "seen by user:lead"),
    ],
)
def test_a_reader_learns_for_which_team_or_plan_a_command_was_given(text: str, data: dict[str, str], told: str) -> None:
    assert text_with_subject(text, "user:lead", data) == told
