"""Where keys are configured, people give their commands through the front, and notice nothing of it."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from client.backstop import Backstop
from client.connection import NAMESPACE, TemporalTarget
from models.errors import Refusal
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command, Stage
from tests.e2e.front_world import through
from tests.e2e.keys import FRONT_KEY
from tests.e2e.world import World, fresh, worked_case
from web.callers import Callers
from web.doors import Doors
from web.front import Front
from web.server import listening
from web.settings import FrontSettings

ME = f"user:{getpass.getuser()}"


@pytest.fixture
async def socket(ticketed: World, tmp_path: Path) -> AsyncIterator[Path]:
    address = ticketed.client.service_client.config.target_host
    target = TemporalTarget(options={"target_host": address, "namespace": NAMESPACE}, embedded=True)

    async def connected() -> tuple[Client, TemporalTarget]:
        return ticketed.client, target

    path = tmp_path / "front.sock"
    front = Front(Doors(connected, lambda: FRONT_KEY), Callers())
    async with listening(front, FrontSettings(socket=path, shared=False, listen=None), {}):
        yield path


async def test_a_rollout_through_the_front_has_a_ticket_for_every_command(ticketed: World, socket: Path) -> None:
    name = fresh("front")
    await ticketed.fleet(worked_case(name))
    door = through(socket)
    ticketed.launched.add(name)
    plan = (await door.launch(LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", reason="x"))).plan
    assert plan is not None
    await door.command(name, Command.APPROVE, CommandRequest(actor="whoever", reason="x", plan_hash=plan.hash))
    await ticketed.until(name, Stage.MONITORED)
    await door.command(name, Command.CLOSE, CommandRequest(actor="whoever", reason="x"))
    assert (await ticketed.ended(name))["stage"] == "closed"
    rows = ticketed.sql.rows("SELECT command, human FROM warrants WHERE subject = ? ORDER BY admitted_at", f"{name}/1")
    assert [command for command, _ in rows] == ["rollout.launch", "rollout.approve", "rollout.close"]
    assert {e["actor"] for e in ticketed.sql.archive(name) if e["kind"] == "command" and e["rollout"]} == {ME}


async def test_past_the_front_the_same_command_is_refused(ticketed: World, socket: Path) -> None:
    name = fresh("past")
    await ticketed.fleet(worked_case(name))
    ticketed.launched.add(name)
    await through(socket).launch(LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", reason="x"))
    options = {"target_host": ticketed.client.service_client.config.target_host, "namespace": NAMESPACE}
    straight = Backstop(ticketed.client, ME, TemporalTarget(options=options, embedded=True))
    with pytest.raises(Refusal, match="the command has no ticket"):
        await straight.command(name, Command.ABORT, CommandRequest(actor=ME, reason="x"))
