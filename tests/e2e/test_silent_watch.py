"""A watch whose worker is gone is said to be silent, and watches on when a worker is back; so is a shard of it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

import workers.main
from activities.watch import health_watch as activity
from client import watch_check as checks
from client.connection import NAMESPACE
from models.rollout.stages import Stage
from models.temporal_names import WATCH_ID, watch_parts
from tests.e2e.test_crashes import free_ports
from tests.e2e.world import WATCH_SECONDS, connected, fresh, worked_case, world_of
from workers.embedded_temporal import EmbeddedTemporal
from workers.main import serving
from workers.settings import Settings
from workflows import health_watch


@pytest.mark.nightly
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


@pytest.mark.parametrize("database_too", [False, True], ids=["terminated", "database gone"])
@pytest.mark.nightly
async def test_a_watch_that_nobody_runs_any_more_is_started_by_a_worker_that_lives(
    database_too: bool, sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker outlives its server's database, and is not started again for it."""

    async def watched(server: EmbeddedTemporal) -> str:
        """Return the run that watches."""
        async with asyncio.timeout(60):
            while True:
                client = await connected(server.address)
                if (await checks.watch_check(client)).text.startswith("watching, last heartbeat"):
                    return (await client.get_workflow_handle(WATCH_ID).describe()).run_id
                await asyncio.sleep(0.2)

    async with EmbeddedTemporal(tmp_path / "temporal", *free_ports()) as server:
        monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
        monkeypatch.setenv("TEMPORAL_NAMESPACE", NAMESPACE)
        monkeypatch.setattr(workers.main, "_KEEP_SECONDS", 1.0)
        async with serving(Settings(sqlite_ledger_url, tmp_path, None, WATCH_SECONDS, build_id="")):
            before = await watched(server)
            if database_too:
                os.kill(server.pid, signal.SIGKILL)
                await server.wait()
                await server.stop()
                shutil.rmtree(server.directory)
                await server.start()
            else:
                client = await connected(server.address)
                await client.get_workflow_handle(WATCH_ID).terminate(reason="an operator's mistake")
            assert await watched(server) != before


@pytest.mark.nightly
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
        monkeypatch.setattr(workers.main, "_KEEP_SECONDS", 3600)  # or a worker would start what is terminated here
        parts = watch_parts("health-watch/ledger/0-of-2")
        async with serving(whole):
            await until("watching, last heartbeat")
            await listed(WATCH_ID)
        async with serving(dataclasses.replace(whole, watch_shards=2)):
            await until("watching, in 2 shards")
            await listed(*parts)
            await client.get_workflow_handle(parts[1]).terminate(reason="a story")
            await until(f"down in 1 of 2 shards; {parts[1]}: not running")
        async with serving(whole):
            await until("watching, last heartbeat")
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
