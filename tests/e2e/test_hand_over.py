"""A worker that takes a workflow over hears what the one before heard, in the same order.

Each of these waits for a person alone while its side calls end. `world` looks at the histories: no task led to nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client

from models.requests.commands import RequestCommand
from models.requests.state import RequestStage
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from tests.e2e.faults import Fault, Faulty, Way, refused
from tests.e2e.world import World, fresh, worked_case, world_of
from tests.loop import test_fleet_rollout as fleets
from tests.loop import test_requests as requests

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
STILL = 0.7
"""Seconds in which all side calls end."""


async def test_of_a_fleet_that_is_planned(world: World) -> None:
    name = fresh("c")
    await world.fleet(fleets.cluster(name, 95, 98, busy=60))
    plan = await world.launch_fleet(fresh("fleet"))
    await asyncio.sleep(STILL)
    await world.say_fleet("skip", clusters=(name,))
    await asyncio.sleep(STILL)
    await world.say_fleet("approve", plan_hash=plan.hash)
    await world.until_fleet(lambda s: s.stage.has_ended)


async def test_of_a_request_that_is_asked(world: World) -> None:
    name = fresh("request")
    await world.fleet(requests.roomy(name))
    asked = await requests.ask(world, name, 10)
    await asyncio.sleep(STILL)
    await requests.say(world, asked, RequestCommand.APPROVE)
    await requests.until(world, asked, RequestStage.GRANTED)


async def test_of_a_rollout_that_is_stuck(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> None:
    faulty = Faulty()
    async with world_of(temporal, sqlite_ledger_url, tmp_path, faulty) as world:
        name = fresh("stuck")
        await world.fleet(worked_case(name))
        await world.start(name)
        await world.until(name, Stage.MONITORED)
        broken = Fault(Way.NEVER_LANDED, refused, times=None)
        faulty.quotas.inject(name, EffectKind.RESTORE, broken)
        await world.say(name, Command.ROLLBACK)
        await world.until(name, Stage.STUCK)
        await asyncio.sleep(STILL)
        broken.mend()
        await world.say(name, Command.RETRY)
        await world.until(name, Stage.ROLLED_BACK)
