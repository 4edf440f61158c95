"""Pushes of health: the watch looks at once, at what the ledger says and at nothing that the push says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from temporalio.client import Client

from models.rollout.stages import Stage
from tests.e2e.front_world import front_of, http_to
from tests.e2e.world import PATIENCE, World, fresh, worked_case, world_of
from tests.loop.fronts import AT_SOCKET

POLL_SECONDS = 600.0
"""No test lives that long: whatever the watch sees after its first round was pushed."""
FALLEN = (361, 300)


@pytest_asyncio.fixture(loop_scope="function")
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(temporal, sqlite_ledger_url, tmp_path, watch_seconds=POLL_SECONDS) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="function")
async def http(world: World, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    socket = tmp_path / "front.sock"
    async with front_of(world.client, socket), http_to(world.client, f"{AT_SOCKET}/api/v1", socket) as made:
        yield made


async def monitored(world: World) -> str:
    name = fresh("pushed")
    await world.fleet(worked_case(name))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    return name


async def events(world: World, name: str) -> int:
    """Once nothing is added any more."""
    await world.at_rest()
    return int((await world.handle(name).describe()).history_length)


def waiting(world: World) -> list[Any]:
    return list(world.sql.rows("SELECT cluster FROM health_pushes"))


async def taken(world: World) -> None:
    async with asyncio.timeout(PATIENCE):
        while waiting(world):
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)


@pytest.mark.nightly
async def test_a_fall_that_is_pushed_reaches_the_rollout_before_the_next_poll(
    world: World, http: httpx.AsyncClient
) -> None:
    name = await monitored(world)
    await events(world, name)
    await world.healthy(name, main=FALLEN)
    await asyncio.sleep(2)
    assert (await world.status(name)).stage == Stage.MONITORED, "somebody polls, and this test shows nothing"
    answer = await http.post("/health", json={"clusters": [name, "no-such"], "word": "node 7 is gone"})
    assert (answer.status_code, answer.json()) == (200, {"looking_at": [name], "unknown": ["no-such"]})
    await world.until(name, Stage.ROLLED_BACK)  # long before the next poll
    (promised,) = world.sql.rows("SELECT sum(gpus) FROM quotas WHERE cluster = ?", name)
    assert promised[0] <= FALLEN[1]


async def test_an_alert_of_alertmanager_is_a_push(world: World, http: httpx.AsyncClient) -> None:
    name = await monitored(world)
    await events(world, name)
    await world.healthy(name, main=FALLEN)
    alerts = [{"status": "firing", "labels": {"alertname": "NodeDown", "slurm_cluster": name}, "annotations": {}}]
    document = {"version": "4", "groupKey": "{}", "status": "firing", "receiver": "backstop", "alerts": alerts}
    refused = await http.post("/alertmanager", json=document)
    assert refused.status_code == 422
    assert refused.json()["detail"] == "no alert has the label 'cluster', which must name the cluster to look at"
    answer = await http.post("/alertmanager?label=slurm_cluster", json=document)
    assert (answer.status_code, answer.json()) == (200, {"looking_at": [name], "unknown": []})
    await world.until(name, Stage.ROLLED_BACK)


@pytest.mark.nightly
async def test_what_a_push_says_is_believed_by_nobody(world: World, http: httpx.AsyncClient) -> None:
    """No new sample, whatever is said: no event of the rollout, no row but the samples that were there."""
    name = await monitored(world)
    await http.post("/health", json={"clusters": [name]})  # what the watch has never told of it is told once
    await taken(world)
    before, samples = await events(world, name), world.sql.rows("SELECT count(*) FROM health_samples")
    quotas = world.sql.rows("SELECT cluster, team, gpus, mode FROM quotas ORDER BY cluster, team")
    for word in ("", "all 361 GPUs are gone", "0 healthy"):
        assert (await http.post("/health", json={"clusters": [name] * 2, "word": word})).status_code == 200
        await taken(world)
    lie = {"cluster": name, "healthy_gpus": "0", "severity": "critical"}
    answer = await http.post("/alertmanager", json={"version": "4", "alerts": [{"labels": lie}] * 50})
    assert answer.status_code == 200
    await taken(world)
    assert await events(world, name) == before
    assert world.sql.rows("SELECT count(*) FROM health_samples") == samples
    assert world.sql.rows("SELECT cluster, team, gpus, mode FROM quotas ORDER BY cluster, team") == quotas
