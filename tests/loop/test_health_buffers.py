"""A buffer from the ledger's health history: planned, launched, derived again, and refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from models.buffers.backtest import explain_buffer
from models.buffers.estimator import derive_buffer
from models.buffers.health_generator import Recipe, simulate_health
from models.cluster.derived_buffer import BufferBasis
from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.errors import Refusal
from models.planning.plan import make_plan
from models.questions import YearOfHealth
from models.rollout.stages import Command, Stage
from tests.e2e.world import World, cluster, eventually, fresh, team

TOTAL = 400
WEEKS = 16
"""More than the 13 for which the floor holds."""
BY_HEALTH = {"buffer": {"health": {}}, "spare_gpus": 0}
GROWN = {**BY_HEALTH, "buffer": {"health": {"history": "2w"}}}
"""For clusters of four and five weeks whose history is to count, and not the floor of the young."""


def spec(name: str, **policy: Any) -> dict[str, Any]:
    """50 nodes of 8, all healthy now, and every GPU promised."""
    quotas = [team("a", 240, busy=200), team("b", 160, busy=40)]
    return cluster(name, {"main": (TOTAL, TOTAL)}, quotas, **policy)


def down(seed: int = 3) -> np.ndarray:
    """GPUs down in each hour, oldest first."""
    made = simulate_health(Recipe(nodes=TOTAL // 8, weeks=WEEKS, bursts=0, waves=0), seed)
    found: np.ndarray = 8 * made.down
    return found


async def test_the_plan_goes_by_the_ledgers_history_and_everybody_finds_the_same(world_on_each: World) -> None:
    world, name = world_on_each, fresh("by-health")
    await world.fleet(spec(name, **BY_HEALTH))
    gone = down()
    await world.lived(name, TOTAL, gone)
    wanted = derive_buffer(gone, TOTAL, node=8)
    assert 0 < wanted.needed < TOTAL // 2

    snapshot, policy = await world.tpm.snapshot(name)
    assert snapshot.derived == wanted
    plan = make_plan(snapshot, policy)
    assert (plan.ceiling_gpus, plan.derived) == (TOTAL - wanted.needed, wanted)

    hours = await world.tpm.ask(YearOfHealth(cluster=name))
    assert policy.terms is not None
    assert explain_buffer(hours.series, policy.terms, hours.total_gpus).now == wanted
    assert (hours.healthy_gpus, hours.spare_gpus) == (TOTAL, 0)

    over, asked = await world.tpm.snapshot(name, {"buffer": 0.1})
    assert (over.derived, asked.terms) == (None, None)

    await world.start(name)
    status = await world.until(name, Stage.MONITORED)
    assert status.plan_hash == plan.hash
    assert sum(world.sql.gpus(name).values()) == TOTAL - wanted.needed


async def test_a_declared_absence_is_nobodys_failure(world: World) -> None:
    name = fresh("declared")
    hour = world.now().replace(minute=0, second=0, microsecond=0)
    window = {
        "kind": "maintenance",
        "starts": (hour - timedelta(hours=20)).isoformat(),
        "ends": (hour - timedelta(hours=1)).isoformat(),
        "reason": "new switches",
        "gpus": 96,
    }
    await world.fleet({**spec(name, **BY_HEALTH), "windows": [window]})
    gone = down()
    gone[-24:] = 0
    before = derive_buffer(gone, TOTAL, node=8)
    gone[-20:-1] = 96
    await world.lived(name, TOTAL, gone)
    snapshot, _ = await world.tpm.snapshot(name)
    assert snapshot.derived == before
    assert derive_buffer(gone, TOTAL, node=8).needed > before.needed


async def test_worse_history_is_proposed_and_waits_for_a_person(world_on_each: World) -> None:
    """A week is two seconds here. What is down for a day is not over yet, though all is healthy at the moment."""
    world, name = world_on_each, fresh("rederived")
    await world.fleet(spec(name, **BY_HEALTH, safety_poll="0.7s", replan_window="2s"))
    gone = down()
    gone[-30:] = 8
    await world.lived(name, TOTAL, gone)
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    promised = sum(world.sql.gpus(name).values())
    assert promised == TOTAL - derive_buffer(gone, TOTAL, node=8).needed

    gone[-30:] = 48
    await world.lived(name, TOTAL, gone)
    wanted = derive_buffer(gone, TOTAL, node=8)
    assert wanted.needed > TOTAL - promised
    status = await world.until(name, lambda s: s.proposal is not None)
    assert status.proposal is not None
    assert status.proposal.plan_hash in status.needs
    await asyncio.sleep(1)
    assert sum(world.sql.gpus(name).values()) == promised
    await world.say(name, Command.APPROVE, plan_hash=status.proposal.plan_hash)
    await eventually(lambda: sum(world.sql.gpus(name).values()) == TOTAL - wanted.needed, "the lower promise")
    texts = [e["text"] for e in world.sql.archive(name)]
    assert any(
        t.startswith(f"Backstop derived the buffer again: {wanted.needed} of {TOTAL} GPUs; 48 GPUs have been down")
        for t in texts
    )


async def test_a_cluster_too_wild_to_promise_is_refused_with_the_reason(world: World) -> None:
    name = fresh("wild")
    await world.fleet(spec(name, **GROWN))
    await world.lived(name, TOTAL, np.full(4 * 168, 240.0))
    with pytest.raises(Refusal) as refused:
        await world.launch(name)
    assert "no quota can be promised in this cluster" in refused.value.message
    assert "the largest allowed share is 0.5: 240 GPUs have been down most of the time" in refused.value.message
    assert sum(world.sql.gpus(name).values()) == TOTAL


@pytest.mark.parametrize("hours", [0, 100])
async def test_short_history_falls_back_to_the_floor(world: World, hours: int) -> None:
    name = fresh("short")
    await world.fleet(spec(name, **BY_HEALTH))
    await world.lived(name, TOTAL, np.zeros(hours))
    snapshot, policy = await world.tpm.snapshot(name)
    assert make_plan(snapshot, policy).ceiling_gpus == 340
    assert snapshot.derived is not None
    assert snapshot.derived.text.startswith(
        "only 100 hours of health are known" if hours else "there is no health history"
    )


async def test_an_island_that_has_fallen_silent_is_unknown_and_not_gone(world: World) -> None:
    """Its exporter died ten days ago: what is promised must not forget what it had down."""
    name = fresh("silent")
    await world.fleet(cluster(name, {"a": (512, 504), "b": (512, 256)}, [team("t", 1000)], **GROWN))
    hour = world.now().replace(minute=0, second=0, microsecond=0)
    samples = [
        HealthSample(
            cluster=name,
            at=hour - timedelta(hours=ago),
            islands=(Island(name=island, total_gpus=512, healthy_gpus=healthy),),
        )
        for island, healthy, last in (("a", 504, 1), ("b", 256, 240))
        for ago in range(last, 5 * 168)
    ]
    await world.person("exporter").add_health(samples)
    snapshot, _ = await world.tpm.snapshot(name)
    assert snapshot.derived is not None
    assert (snapshot.derived.ground, snapshot.derived.known_hours) == (BufferBasis.STALE, 5 * 168 - 240)
    assert snapshot.derived.needed >= 264
