"""Flex as the ledger knows it, asked for through the desk."""

from __future__ import annotations

import pytest

from models.errors import Refusal
from models.flex import Mode
from tests.e2e.world import World, cluster, fresh, team


async def test_flex_is_what_the_ledger_says_now(world_on_each: World) -> None:
    world, name = world_on_each, fresh("flex-now")
    quotas = [team("research", 300, busy=310), team("evals", 6, busy=0)]
    await world.fleet(cluster(name, {"a": (200, 190), "b": (161, 129)}, quotas))
    (found,) = await world.tpm.flex(name, Mode.QUOTA)
    assert (found.healthy_gpus, found.promised_gpus, found.in_quota_gpus) == (319, 306, 300)
    assert (found.surplus_gpus, found.unused_gpus, found.used_gpus, found.available_gpus) == (13, 6, 10, 9)
    assert [(o.team, o.gpus) for o in found.on_flex] == [("research", 10)]
    assert [(i.name, i.healthy_gpus) for i in found.islands] == [("a", 190), ("b", 129)]
    await world.healthy(name, a=(200, 150), b=(161, 129))
    assert name in {one.cluster for one in await world.tpm.flex()}
    (worse,) = await world.tpm.flex(name)
    assert (worse.healthy_gpus, worse.flex_gpus, worse.available_gpus) == (279, 0, 0)
    with pytest.raises(Refusal, match="has no cluster"):
        await world.tpm.flex("nobody")
