"""Flex as the ledger knows it, asked for through the desk."""

from __future__ import annotations

from datetime import timedelta

import pytest

from models.cluster.jobs import ClusterJob, RunsOn
from models.errors import BadInput
from models.flex.division import FlexMode
from models.questions import WhyNot
from tests.e2e.world import World, cluster, fresh, on_postgresql, team

HOUR = timedelta(hours=1)

nightly = on_postgresql


async def test_flex_is_what_the_ledger_says_now(world_on_each: World) -> None:
    world, name = world_on_each, fresh("flex-now")
    quotas = [team("research", 300, busy=310), team("evals", 6, busy=0)]
    await world.fleet(cluster(name, {"a": (200, 190), "b": (161, 129)}, quotas))
    (found,) = await world.tpm.flex(name, FlexMode.QUOTA)
    assert (found.healthy_gpus, found.promised_gpus, found.in_quota_gpus) == (319, 306, 300)
    assert (found.surplus_gpus, found.unused_gpus, found.used_gpus, found.available_gpus) == (13, 6, 10, 9)
    assert [(o.team, o.gpus) for o in found.on_flex] == [("research", 10)]
    assert [(i.name, i.healthy_gpus) for i in found.islands] == [("a", 190), ("b", 129)]
    await world.healthy(name, a=(200, 150), b=(161, 129))
    assert name in {one.cluster for one in await world.tpm.flex()}
    (worse,) = await world.tpm.flex(name)
    assert (worse.healthy_gpus, worse.flex_gpus, worse.available_gpus) == (279, 0, 0)
    with pytest.raises(BadInput, match="the ledger has no cluster 'nobody'"):
        await world.tpm.flex("nobody")


async def test_jobs_by_name_stand_in_the_ledger(world_on_each: World) -> None:
    world, name = world_on_each, fresh("flex-jobs")
    await world.fleet(cluster(name, {"main": (361, 319)}, [team("research", 300, busy=304)]))
    now = world.now().replace(microsecond=0)
    train = ClusterJob(cluster=name, job="train", team="research", gpus=300, idle_gpus=8, started=now - HOUR)
    sweep = ClusterJob(cluster=name, job="sweep", team="research", gpus=4, on=RunsOn.FLEX, started=now - 2 * HOUR)
    gone = sweep.model_copy(update={"started": now - 5 * HOUR, "ended": now - 3 * HOUR, "preempted": True})
    exporter = world.person("exporter")
    assert await exporter.add_jobs([train, sweep, gone]) == await exporter.add_jobs([gone, train, sweep]) == 3
    (found,) = await world.tpm.flex(name)
    assert [(j.job, j.gpus) for j in found.jobs] == [("sweep", 4)]
    assert found.lives is not None
    assert (found.lives.preempted, found.lives.median_seconds) == (1, 2 * 3600)
    assert [i.free_block_gpus for i in found.islands] == [319 - 304]
    (told,) = (await world.tpm.ask(WhyNot(team="research", cluster=name))).teams
    assert told.reasons[-1].text == "research's own running jobs hold 300 of its 300: train 300"
    await exporter.add_jobs([train.model_copy(update={"ended": now})])
    assert "train" not in (await world.tpm.ask(WhyNot(team="research", cluster=name))).teams[0].reasons[-1].text
    for changes, sentence in (
        ({"cluster": "nowhere"}, "a job names cluster 'nowhere', which the ledger does not have"),
        ({"team": "nobody"}, "names team 'nobody': nobody has no quota there"),
        ({"island": "mars"}, "names island 'mars', which the cluster does not have"),
        ({"gpus": 362}, "has 362 GPUs, more than the 361 of the cluster"),
        ({"started": now + HOUR}, "is dated ahead of now"),
    ):
        with pytest.raises(BadInput, match=sentence):
            await exporter.add_jobs([train.model_copy(update=changes)])
