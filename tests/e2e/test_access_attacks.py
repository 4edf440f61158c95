"""Temporal's own messages and a question that is asked twice lead to nothing new, where there is a history.

tests/loop/test_access_attacks.py has what needs none.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from datetime import UTC, datetime

import pytest
from temporalio.api.common.v1 import WorkflowExecution as OneRun
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecution, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from models.rollout.stages import Stage
from models.temporal_names import DESK_WORKFLOW, HEALTH_SIGNAL, TASK_QUEUE
from tests.e2e.world import PATIENCE, World, eventually, fresh, worked_case


@pytest.mark.nightly
async def test_temporals_own_words_undo_nothing(ticketed: World) -> None:
    """A signal looks, a cancel is archived and ignored, a reset brings nothing again, a terminate leaves quotas."""
    name = fresh("operator")
    await ticketed.fleet(worked_case(name))
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    dump = ticketed.sql.dump(name)
    handle = ticketed.handle(name)
    await handle.signal(HEALTH_SIGNAL, {"cluster": name, "at": datetime.now(UTC).isoformat(), "why": "a lie"})
    await handle.cancel()
    await eventually(
        lambda: any("a cancel from Temporal was ignored" in e["text"] for e in ticketed.sql.archive(name)),
        "the cancel in the archive",
    )
    assert (await ticketed.status(name)).stage is Stage.MONITORED
    assert ticketed.sql.dump(name) == dump
    described = await handle.describe()
    history = await ticketed.client.get_workflow_handle(handle.id, run_id=described.run_id).fetch_history()
    first = next(e.event_id for e in history.events if e.HasField("workflow_task_completed_event_attributes"))
    await ticketed.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=ticketed.client.namespace,
            workflow_execution=OneRun(workflow_id=handle.id, run_id=described.run_id),
            reason="by hand",
            workflow_task_finish_event_id=first,
            request_id=uuid.uuid4().hex,
        )
    )
    await asyncio.sleep(3)
    assert ticketed.sql.dump(name) == dump
    with contextlib.suppress(RPCError):  # the run that a reset made ended by itself: its ticket was used
        await ticketed.client.get_workflow_handle(handle.id).terminate(reason="by hand")
    assert ticketed.sql.dump(name) == dump
    assert [row.rollout for row in await ticketed.tpm.lost(name)] == [f"{name}/1"]
    ticketed.launched.discard(name)  # two runs of one beginning: what a reset makes is not ours to replay


@pytest.mark.nightly
async def test_a_question_that_changes_something_is_obeyed_once(ticketed: World) -> None:
    """Started again under its id within its minute, it is refused: its ticket was used."""
    name, began = fresh("twice"), datetime.now(UTC)
    await ticketed.fleet(worked_case(name))
    imports: list[WorkflowExecution] = []
    async with asyncio.timeout(PATIENCE):  # the server's list is a moment late
        while not imports:
            done = [w async for w in ticketed.client.list_workflows(f"WorkflowType = '{DESK_WORKFLOW}'")]
            imports = [w for w in done if w.id.startswith("desk/take_fleet/") and w.start_time >= began]
    (newest,) = imports
    history = await ticketed.client.get_workflow_handle(newest.id).fetch_history()
    payload = history.events[0].workflow_execution_started_event_attributes.input.payloads
    (request,) = await ticketed.client.data_converter.decode(payload, [dict])
    with pytest.raises(WorkflowFailureError) as refused:
        await ticketed.client.execute_workflow(
            DESK_WORKFLOW,
            request,
            id=newest.id,
            task_queue=TASK_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )
    assert "has been used" in str(refused.value.cause)
