"""A command that no worker takes up is refused or taken back: what failed does not happen later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from client import workflow_calls as calls
from client.backstop import Backstop
from client.connection import TemporalTarget
from models.errors import Unavailable
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command, Stage
from models.temporal_names import rollout_workflow_id
from tests.e2e.world import World, connected, eventually, fresh, worked_case, world_of
from tests.unit.loop_clock import LoopClock
from workers.embedded_temporal import EmbeddedTemporal

ORDER = {"actor": "tpm", "reason": "a story"}


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    loop = asyncio.get_running_loop()
    loop_clock = LoopClock(loop)
    monkeypatch.setattr(loop, "time", loop_clock)
    return loop_clock


@pytest.fixture
async def deserted(tmp_path: Path) -> AsyncIterator[Client]:
    """A Temporal that no worker has ever polled."""
    async with EmbeddedTemporal(tmp_path / "temporal", None, None) as server:
        yield await connected(server.address)


def door_of(client: Client, notes: list[str]) -> Backstop:
    address = client.service_client.config.target_host
    options = {"target_host": address, "namespace": client.namespace}
    door = Backstop(client, "tpm", TemporalTarget(options=options, embedded=True))
    door.note = notes.append
    return door


@pytest.mark.parametrize("interrupted", [False, True], ids=["nobody-came", "interrupted"])
async def test_what_a_dead_worker_did_not_take_up_does_not_happen_when_one_comes(
    deserted: Client,
    sqlite_ledger_url: str,
    tmp_path: Path,
    interrupted: bool,
    clock: LoopClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker died a moment ago: Temporal lists it still. The ledger's rows say what came of each command."""
    planned, new, held = fresh("planned"), fresh("new"), fresh("held")
    async with world_of(deserted, sqlite_ledger_url, tmp_path) as world:
        await world.fleet(*map(worked_case, (planned, new, held)))
        for name in (planned, held):
            await world.launch(name)
        plan = (await world.status(planned)).plan_hash
        world.launched.clear()  # they go on

    approval = CommandRequest(**ORDER, plan_hash=plan or "")
    given: list[Callable[[Backstop], Awaitable[object]]] = [
        lambda door: door.command(planned, Command.APPROVE, approval),
        lambda door: door.launch(LaunchRequest(cluster=new, rollout=f"{new}/1", owner="tpm", reason="x")),
    ]
    monkeypatch.setattr(calls, "_SILENT_SECONDS", 0.0)
    for name, give, what in zip(
        (planned, new), given, (f"`approve` for {planned}", f"the launch of {new}"), strict=True
    ):
        notes: list[str] = []
        giving = asyncio.ensure_future(give(door_of(deserted, notes)))
        await eventually(partial(is_open, deserted, name), f"Temporal has what is given to {name}")
        await eventually(partial(bool, notes), "who gave it reads that it waits")
        waits = f"No worker has answered yet: {what} waits for one. Ctrl-C withdraws it."
        if interrupted:
            giving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await giving
            assert notes == [waits, f"Interrupted: {what} was withdrawn: no worker carries it out."]
        else:
            clock.forward(calls.TAKEN_SECONDS)
            with pytest.raises(Unavailable, match=f"no worker took up {what} .*: it was withdrawn, so no worker"):
                await giving
            assert notes == [waits]
    # One that nobody takes back shows that such a command would have happened.
    kept = asyncio.ensure_future(world.handle(held).execute_update("pause", CommandRequest(**ORDER)))

    async with world_of(deserted, sqlite_ledger_url, tmp_path) as world:
        world.launched |= {planned, held}
        await kept
        assert [h.kind for h in (await world.status(held)).holds] == ["paused"]
        assert (await world.status(planned)).stage is Stage.PLANNED
        await eventually(lambda: "pause" in commands(world, held), "what was not taken back is archived")
        assert world.sql.rows("SELECT id FROM rollouts WHERE cluster = ?", new) == []
        assert "approve" not in commands(world, planned)


def commands(world: World, cluster: str) -> set[str]:
    """First words of what the archive says was given."""
    return {e["text"].split()[0] for e in world.sql.archive(cluster) if e["kind"] == "command"}


async def is_open(client: Client, cluster: str) -> bool:
    try:
        described = await client.get_workflow_handle(rollout_workflow_id(cluster)).describe()
    except RPCError:
        return False
    return described.status is WorkflowExecutionStatus.RUNNING
