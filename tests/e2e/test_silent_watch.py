"""A watch whose worker is gone is said to be silent, and watches on when a worker is back; so is a shard of it."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from activities import health_watch as activity
from client import doctor as checks
from client.connection import NAMESPACE
from models.rollout.stages import Stage
from models.wire import WATCH_ID, watch_parts
from tests.e2e.world import WATCH_SECONDS, connected, fresh, worked_case, world_of
from workers.embedded_temporal import EmbeddedTemporal
from workers.main import serving
from workers.settings import Settings
from workflows import health_watch


async def test_a_watch_without_a_worker_is_silent_until_one_is_back(
    sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_SILENCE", checks._SILENCE / 60)

    async def until(text: str) -> None:
        async with asyncio.timeout(60):
            while not (await checks.watch_check(client)).text.startswith(text):
                await asyncio.sleep(0.2)

    async with EmbeddedTemporal(tmp_path / "temporal", None, None) as server:
        monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
        monkeypatch.setenv("TEMPORAL_NAMESPACE", NAMESPACE)
        client = await connected(server.address)
        settings = Settings(sqlite_ledger_url, tmp_path, None, WATCH_SECONDS, build_id="")
        async with serving(settings):
            await until("watching")
        await until("silent since")
        async with serving(settings):
            await until("watching")


async def test_a_watch_in_shards_is_well_when_every_shard_is(
    sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def until(text: str) -> None:
        async with asyncio.timeout(60):
            while not (await checks.watch_check(client)).text.startswith(text):
                await asyncio.sleep(0.2)

    async def listed(*ids: str) -> None:
        """A list of workflows is a moment late, and a worker that begins goes by it."""
        async with asyncio.timeout(60):
            while await checks.watches(client) != set(ids):
                await asyncio.sleep(0.2)

    async with EmbeddedTemporal(tmp_path / "temporal", None, None) as server:
        monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
        monkeypatch.setenv("TEMPORAL_NAMESPACE", NAMESPACE)
        client = await connected(server.address)
        whole = Settings(sqlite_ledger_url, tmp_path, None, WATCH_SECONDS, build_id="")
        parts = watch_parts("health-watch/ledger/0-of-2")
        async with serving(whole):
            await until("watching, last heard of")
            await listed(WATCH_ID)
        async with serving(dataclasses.replace(whole, watch_shards=2)):
            await until("watching, in 2 shards")
            await listed(*parts)
            await client.get_workflow_handle(parts[1]).terminate("a story")
            await until(f"1 of 2 shards; {parts[1]}: not running")
        async with serving(whole):
            await until("watching, last heard of")
            await listed(WATCH_ID)


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [3, 1000], ids=["continues as new", "stays in its run"])
async def test_a_watch_that_is_called_again_tells_nothing_twice(
    rounds: int, temporal: Client, sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "_ROUND", timedelta(seconds=0.3))
    monkeypatch.setattr(health_watch, "_ROUNDS_A_RUN", rounds)
    async with world_of(temporal, sqlite_ledger_url, tmp_path) as world:
        name = fresh("told")
        await world.fleet(worked_case(name))
        await world.start(name)
        await world.until(name, Stage.MONITORED)
        await asyncio.sleep(1)  # what the last step changed is told

        async def calls() -> int:
            runs = [run async for run in temporal.list_workflows(f"WorkflowId = '{WATCH_ID}'")]
            handles = [temporal.get_workflow_handle(WATCH_ID, run_id=run.run_id) for run in runs]
            return sum([(await h.describe()).history_length for h in handles]) // 6

        before, events = await calls(), (await world.handle(name).describe()).history_length
        async with asyncio.timeout(60):
            while await calls() < before + 8:
                await asyncio.sleep(0.2)
        assert (await world.handle(name).describe()).history_length == events
        await world.healthy(name, main=(361, 300))  # and what is new is told
        await world.until(name, Stage.ROLLED_BACK)
