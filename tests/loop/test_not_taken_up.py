"""No worker is running, or a slow one: what is given is refused, and nothing is left of it.

Time passes at once, so that clients wait as long as they do for people. A worker that died is in tests/e2e.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from client.backstop import Backstop
from models.bringup.commands import BringupOrder
from models.bringup.messages import BringupStart
from models.bringup.stages import BringupCommand
from models.errors import Unavailable
from models.fleet.commands import FleetCommandRequest
from models.fleet.messages import FleetLaunch
from models.questions import EndWindow
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.state import QuotaAsk
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command
from tests.e2e.test_not_taken_up import ORDER, door_of
from tests.e2e.world import eventually, fresh, worked_case, world_of
from tests.loop.turned_loop import TurnedLoop
from tests.unit.bringup_world import entry, recipe
from tests.waiting import PATIENCE

GIVEN: dict[str, Callable[[Backstop], Awaitable[object]]] = {
    "the launch of a": lambda door: door.launch(LaunchRequest(cluster="a", rollout="a/1", owner="tpm", reason="x")),
    "`approve` for a": lambda door: door.command("a", Command.APPROVE, CommandRequest(**ORDER, plan_hash="h")),
    "the launch of the fleet rollout": lambda door: door.launch_fleet(FleetLaunch(fleet="f", owner="tpm", reason="x")),
    "`pause` for the fleet rollout": lambda door: door.fleet_command(
        "pause", FleetCommandRequest(actor="tpm", reason="x")
    ),
    "request r": lambda door: door.request(
        QuotaAsk(request="r", cluster="a", team="t", gpus=8, actor="tpm", reason="x")
    ),
    "`approve` for request r": lambda door: door.decide_request(
        "r", RequestCommand.APPROVE, RequestOrder(actor="tpm", reason="x")
    ),
    "the bring-up of a": lambda door: door.bring_up(
        BringupStart(entry=entry(cluster="a"), recipe=recipe(), actor="tpm", reason="x")
    ),
    "`cancel` for the bring-up of a": lambda door: door.bringup_command(
        "a", BringupCommand.CANCEL, BringupOrder(actor="tpm", reason="x")
    ),
}
"""Everything that starts or updates a workflow for a person, as a sentence names it."""


async def test_without_a_worker_nothing_is_given(temporal: Client) -> None:
    """Temporal itself is the witness: no workflow was ever started."""
    for what, give in GIVEN.items():
        with pytest.raises(Unavailable) as refused:
            await give(door_of(temporal, []))
        assert refused.value.message == (
            f"no worker is running, so {what} was not sent: start one with `backstop up` or `backstop worker`"
        )
    assert [run.id async for run in temporal.list_workflows("")] == []


async def test_doctor_without_a_worker_advises_to_start_one(temporal: Client) -> None:
    checks = {check.name: check for check in await door_of(temporal, []).doctor()}
    for name in ("workers", "ledger"):
        assert not checks[name].ok
        assert checks[name].remedy == "backstop up, or backstop worker"
    assert "migrate" not in str(checks)


async def test_doctor_says_that_a_worker_is_slow_and_not_that_none_runs(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that hangs holds the check up, and the worker is there."""
    loop, begun, over = asyncio.get_running_loop(), threading.Event(), Future[None]()
    assert isinstance(loop, TurnedLoop)

    def hangs() -> dict[str, str]:
        loop.waited_for(over)  # the clock goes on
        begun.set()
        over.result(PATIENCE)
        return {}

    def touch(ledger: Ledger, _: Notifier) -> None:
        monkeypatch.setattr(ledger.calendar, "faults", hangs)

    async with world_of(temporal, sqlite_ledger_url, tmp_path, touch=touch, watch_seconds=60) as world:
        await world.fleet(worked_case(fresh("slow")))
        try:
            checks = {check.name: check for check in await door_of(temporal, []).doctor()}
            assert begun.is_set()
        finally:
            over.set_result(None)
    assert checks["workers"].ok
    assert checks["ledger"].text == "a worker asked the ledger and all sources, but did not answer within 60 s"
    assert "no worker" not in str(checks)


async def test_a_question_that_changes_something_is_stopped_again(temporal: Client) -> None:
    with pytest.raises(Unavailable, match=r"^no worker is running: start one"):
        await door_of(temporal, []).ask(EndWindow(cluster="a", number=1, reason="x"))

    async def stopped() -> bool:
        runs = [run async for run in temporal.list_workflows("")]
        return bool(runs) and all(run.status is not WorkflowExecutionStatus.RUNNING for run in runs)

    await eventually(stopped, "it was begun, and does not run any more")
