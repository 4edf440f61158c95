"""Limits cannot be read, because slurmdbd hangs: health reaches the guard all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest_asyncio
from temporalio.client import Client

from models.cluster.readings import QuotaReading
from models.errors import Unavailable
from models.rollout.effects import Change, Receipt
from models.rollout.stages import Command, Stage
from tests.e2e.faults import FaultyQuotas
from tests.e2e.world import World, cluster, eventually, fresh, team, world_of

WHY = "sacctmgr did not answer within 20 s"


class HungQuotas(FaultyQuotas):
    """Quotas that answer as `SlurmQuotas` if sacctmgr hangs; tests/hostile/test_slurm.py has the real answers."""

    hung: ClassVar[set[str]] = set()

    def read(self, cluster: str) -> QuotaReading:
        if cluster in self.hung:
            raise Unavailable(WHY)
        return super().read(cluster)

    def look(self, cluster: str) -> QuotaReading:
        seen = super().look(cluster)
        return seen.model_copy(update={"unread": WHY}) if cluster in self.hung else seen

    def apply(self, change: Change) -> Receipt:
        if change.cluster in self.hung:
            raise Unavailable(WHY)
        return super().apply(change)


@pytest_asyncio.fixture(loop_scope="function")
async def hanging(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(temporal, sqlite_ledger_url, tmp_path, HungQuotas) as world:
        yield world
        HungQuotas.hung.clear()


async def short(world: World, name: str, **policy: Any) -> dict[str, int]:
    """61 of the promised GPUs are away since the limits hang; what is promised, by team."""
    quotas = [team("a", 200), team("b", 161, busy=100)]
    await world.fleet(cluster(name, {"main": (361, 361)}, quotas, buffer=0, spare_gpus=0, **policy))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    promised = world.sql.gpus(name)
    HungQuotas.hung.add(name)
    await world.healthy(name, main=(361, 300))
    return promised


async def test_a_shortage_is_told_while_the_limits_hang(hanging: World) -> None:
    """The team is at risk by the last known limits."""
    world, name = hanging, fresh("hung")
    promised = await short(world, name, breach_after="1h")
    status = await world.until(name, lambda s: bool(s.at_risk))
    assert sum(promised.values()) - sum(r.quota_gpus - r.backing_gpus for r in status.at_risk) == 300
    assert WHY in status.look_failed


async def test_a_shortage_is_a_breach_while_the_limits_hang(hanging: World) -> None:
    """Breached and withdrawn by the last known limits; written once the quota system answers again."""
    world, name = hanging, fresh("hung")
    promised = await short(world, name)
    await world.until(name, Stage.ROLLING_BACK)
    await eventually(lambda: ("breach", "a") in world.notices(name), "team a is told of the breach")
    assert world.sql.gpus(name) == promised, "nobody could write"
    HungQuotas.hung.clear()
    await world.until(name, Stage.ROLLED_BACK)
    assert sum(world.sql.gpus(name).values()) == 300
    await world.say(name, Command.CLOSE)
    await world.ended(name)


async def test_no_gate_opens_on_limits_that_nobody_could_read(hanging: World) -> None:
    """Changes by others are unknown meanwhile, so the next step waits."""
    world, name = hanging, fresh("gate")
    await world.fleet(cluster(name, {"main": (361, 361)}, [team("a", 300)], soak_buffered="1h", soak_enforced="1h"))
    await world.start(name)
    await world.until(name, lambda s: s.stage is Stage.BUFFERED and {c.name for c in s.waiting_for} == {"soak"})
    HungQuotas.hung.add(name)
    await world.healthy(name, main=(361, 360))
    await look_again(world, name)
    await world.until(name, lambda s: s.healthy_gpus == 360 and WHY in s.look_failed)
    await world.say(name, Command.PROMOTE)
    status = await world.status(name)
    assert (status.stage, world.sql.mode(name)) == (Stage.BUFFERED, "soft")
    HungQuotas.hung.clear()
    await look_again(world, name)
    await world.until(name, Stage.ENFORCED)


async def look_again(world: World, name: str) -> None:
    """The rollout looks at once. The watch would not tell it of a GPU that nobody's quota needs."""
    for command in (Command.PAUSE, Command.RESUME):
        await world.say(name, command)
