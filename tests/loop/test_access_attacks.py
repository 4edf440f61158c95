"""Attempts past the front with Temporal's credentials: commands, starts, questions, cancels, resets.

Each is refused or ignored, quotas stay as they are, and the archive tells of it where a worker heard it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError

from client.front_signer import FrontSigner
from models.access.tickets import LIFETIME, SKEW
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command, Stage
from models.temporal_names import DESK_WORKFLOW, ROLLOUT_WORKFLOW, TASK_QUEUE, rollout_workflow_id
from tests.e2e.world import World, fresh, worked_case

PAUSE = CommandRequest(actor="sre", reason="as the story goes")
ABORT = CommandRequest(actor="sre", reason="as the story goes")


def signed(world: World, cluster: str, command: str = "rollout.abort", **more: Any) -> CommandRequest:
    """Return the command as the front would have sent it for `sre`."""
    signer = world.signer("sre", **more)
    assert isinstance(signer, FrontSigner)
    return signer(ABORT, command, rollout_workflow_id(cluster))


async def told(world: World, cluster: str, message: CommandRequest, update_id: str = "", name: str = "abort") -> str:
    """Send an update by hand; return why the workflow refused it, or nothing."""
    try:
        await world.handle(cluster).execute_update(name, message, id=update_id or uuid.uuid4().hex)
    except WorkflowUpdateFailedError as error:
        return str(error.cause)
    return ""


async def standing(world: World, name: str) -> tuple[list[Any], str]:
    return world.sql.dump(name), (await world.status(name)).stage.value


FORGED: dict[str, tuple[str, Callable[[World, str], CommandRequest]]] = {
    "no ticket": ("the command has no ticket", lambda _, __: ABORT),
    "other words": (
        "changed after its ticket was signed",
        lambda w, c: signed(w, c).but(reason="for no reason at all"),
    ),
    "another's name": ("changed after its ticket was signed", lambda w, c: signed(w, c).but(actor="tpm")),
    "another workflow's": ("the ticket is for workflow", lambda w, c: signed(w, f"{c}-other")),
    "another command's": ("the ticket is for rollout.pause", lambda w, c: signed(w, c, "rollout.pause")),
    "expired": (
        "expired",
        lambda w, c: signed(w, c, now=lambda: w.now() - LIFETIME - SKEW - timedelta(seconds=2)),
    ),
    "of a time to come": (
        "the clocks",
        lambda w, c: signed(w, c, now=lambda: w.now() + SKEW + timedelta(hours=1)),
    ),
    "altered": (
        "does not match the front",
        lambda w, c: (given := signed(w, c)).but(ticket=given.ticket[:-8] + "AAAAAAAA"),
    ),
    "a warrant that nobody has": ("no person's command allows this", lambda _, __: ABORT.but(warrant="n" * 24)),
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
    assert "has been used" in await told(ticketed, name, pause, "second", "pause")
    assert not (await ticketed.status(name)).holds
    used = ticketed.sql.rows("SELECT update_id FROM warrants WHERE command = 'rollout.pause'")
    assert used == [("first",)]


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
    assert "the command has no ticket" in result["reason"]
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
    await ticketed.client.get_workflow_handle(rollout_workflow_id(other)).terminate(reason="the story is over")


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
        assert "the command has no ticket" in str(refused.value.cause)
    assert ticketed.sql.gpus(name) == {"research": 345}
