"""What somebody with Temporal's credentials tries past the front: commands, starts, questions, cancels, resets.

Each is refused or ignored, quotas stay as they are, and the archive tells of it where a worker heard it.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution as OneRun
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecution, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from client.front_signer import FrontSigner
from models.access.tickets import LIFETIME, SKEW
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command, Stage
from models.wire import DESK_WORKFLOW, HEALTH_SIGNAL, ROLLOUT_WORKFLOW, TASK_QUEUE, rollout_workflow_id
from tests.e2e.world import PATIENCE, World, eventually, fresh, worked_case

PAUSE = CommandRequest(actor="sre", reason="as the story goes")
ABORT = CommandRequest(actor="sre", reason="as the story goes")


def signed(world: World, cluster: str, command: str = "rollout.abort", **more: Any) -> CommandRequest:
    """What the front would have sent for `sre`."""
    signer = world.signer("sre", **more)
    assert isinstance(signer, FrontSigner)
    return signer(ABORT, command, rollout_workflow_id(cluster))


async def told(world: World, cluster: str, message: CommandRequest, update_id: str = "", name: str = "abort") -> str:
    """What the workflow answers to an update by hand: why it was refused, or nothing."""
    try:
        await world.handle(cluster).execute_update(name, message, id=update_id or uuid.uuid4().hex)
    except WorkflowUpdateFailedError as error:
        return str(error.cause)
    return ""


async def standing(world: World, name: str) -> tuple[list[Any], str]:
    return world.sql.dump(name), (await world.status(name)).stage.value


FORGED: dict[str, tuple[str, Callable[[World, str], CommandRequest]]] = {
    "no ticket": ("it has no ticket", lambda _, __: ABORT),
    "other words": ("not what was signed", lambda w, c: signed(w, c).but(reason="for no reason at all")),
    "another's name": ("not what was signed", lambda w, c: signed(w, c).but(actor="tpm")),
    "another workflow's": ("for another workflow", lambda w, c: signed(w, f"{c}-other")),
    "another command's": ("for another command", lambda w, c: signed(w, c, "rollout.pause")),
    "expired": (
        "expired",
        lambda w, c: signed(w, c, now=lambda: datetime.now(UTC) - LIFETIME - SKEW - timedelta(seconds=2)),
    ),
    "of a time to come": (
        "the clocks",
        lambda w, c: signed(w, c, now=lambda: datetime.now(UTC) + SKEW + timedelta(hours=1)),
    ),
    "altered": ("no ticket that a front", lambda w, c: (s := signed(w, c)).but(ticket=s.ticket[:-8] + "AAAAAAAA")),
    "a warrant that nobody has": ("no order that stands", lambda _, __: ABORT.but(warrant="n" * 24)),
}


async def test_an_update_without_a_ticket_of_its_own_is_refused(ticketed: World) -> None:
    name = fresh("forged")
    await ticketed.fleet(worked_case(name))
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    before = await standing(ticketed, name)
    for what, (why, forge) in FORGED.items():
        assert why in await told(ticketed, name, forge(ticketed, name)), what
    assert await standing(ticketed, name) == before
    assert ticketed.sql.rows("SELECT * FROM warrants WHERE command = 'rollout.abort'") == []


async def test_a_ticket_is_good_once(ticketed: World) -> None:
    """The same update again has the same answer; the nonce under another id is a replay, also in the next run."""
    name = fresh("replayed")
    await ticketed.fleet(worked_case(name))
    await ticketed.launch(name)
    await ticketed.until(name, Stage.PLANNED)
    pause = signed(ticketed, name, "rollout.pause")
    assert await told(ticketed, name, pause, "first", "pause") == ""
    assert await told(ticketed, name, pause, "first", "pause") == ""
    await ticketed.say(name, Command.RESUME)
    assert "was used already" in await told(ticketed, name, pause, "second", "pause")
    assert not (await ticketed.status(name)).holds
    used = ticketed.sql.rows("SELECT update_id FROM warrants WHERE command = 'rollout.pause'")
    assert used == [("first",)]


@pytest.mark.nightly
async def test_a_start_by_hand_opens_nothing_whatever_state_it_brings(ticketed: World) -> None:
    name, other = fresh("whole"), fresh("byhand")
    await ticketed.fleet(worked_case(name), worked_case(other))
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    state = await ticketed.state(name)
    launch = {"cluster": other, "rollout": f"{other}/1", "owner": "tpm", "actor": "tpm"}
    result = await ticketed.client.execute_workflow(
        ROLLOUT_WORKFLOW, {"launch": launch}, id=rollout_workflow_id(other), task_queue=TASK_QUEUE
    )
    assert "it has no ticket" in result["reason"]
    # The state of an approved rollout, made that of another cluster, about to write.
    forged = {**state, "cluster": other, "id": f"{other}/1", "stage": "planned", "standing": [], "written": {}}
    forged["ticketed"] = False
    await ticketed.client.start_workflow(
        ROLLOUT_WORKFLOW,
        {"launch": launch, "state": forged},
        id=rollout_workflow_id(other),
        task_queue=TASK_QUEUE,
    )
    await asyncio.sleep(3)
    assert ticketed.sql.gpus(other) == {"research": 345}
    assert ticketed.sql.row("clusters", name=other)["reserve_limit"] is None
    await ticketed.client.get_workflow_handle(rollout_workflow_id(other)).terminate("the story is over")


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
        await ticketed.client.get_workflow_handle(handle.id).terminate("by hand")
    assert ticketed.sql.dump(name) == dump
    assert [row.rollout for row in await ticketed.tpm.lost(name)] == [f"{name}/1"]
    ticketed.launched.discard(name)  # two runs of one beginning: what a reset makes is not ours to replay


async def test_a_question_to_the_desk_needs_a_ticket_of_its_own(ticketed: World) -> None:
    name = fresh("desk")
    await ticketed.fleet(worked_case(name))
    ask = {"kind": "remove_cluster", "actor": "tpm", "arguments": {"cluster": name, "reason": "x", "dry_run": False}}
    read = {"kind": "clusters", "actor": "tpm", "arguments": {"after": "", "limit": 5}}
    for number, question in enumerate((ask, read)):
        with pytest.raises(WorkflowFailureError) as refused:
            await ticketed.client.execute_workflow(
                DESK_WORKFLOW, question, id=f"desk/by-hand/{name}/{number}", task_queue=TASK_QUEUE
            )
        assert "it has no ticket" in str(refused.value.cause)
    assert ticketed.sql.gpus(name) == {"research": 345}


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
    assert "was used already" in str(refused.value.cause)
