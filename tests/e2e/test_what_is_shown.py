"""What status and doctor show beside what is so: a need that ended, health that nobody reports, a worker that died."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from client import questions
from client import rollouts as asking
from client.backstop import Backstop
from client.connection import NAMESPACE, TemporalTarget
from models.rollout.stages import Command, Stage
from tests.e2e.world import World, connected, fresh, worked_case, world_of
from workers.embedded_temporal import EmbeddedTemporal

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(temporal, sqlite_ledger_url, tmp_path) as found:
        yield found


async def test_needs_are_what_the_rollout_says_now_and_silence_is_a_need(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger notes a need as things happen: one that is over stands there until the next thing happens."""
    name = fresh("needs")
    await world.fleet(worked_case(name))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    asked = False
    async with asyncio.timeout(20):  # the rollout may write its row once more after this one
        while not asked:
            world.sql.run("UPDATE rollouts SET needs = 'an answer that was given' WHERE cluster = ?", name)
            (shown,) = [s for s in await world.tpm.overview() if s.cluster == name]
            assert shown.needs == ""
            asked = shown.asked_at is not None

    monkeypatch.setattr(asking, "STALE", timedelta(0))  # its policy's 30 minutes are what counts once it is asked
    (shown,) = [s for s in await world.tpm.overview() if s.cluster == name]
    assert shown.needs == ""
    old = (datetime.now(UTC) - timedelta(hours=2)).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    world.sql.run("UPDATE health_samples SET at = ? WHERE cluster = ?", old, name)
    (shown,) = [s for s in await world.tpm.overview() if s.cluster == name]
    assert (shown.needs or "").endswith("mend the health source")
    (check,) = [c for c in await world.tpm.doctor() if c.name == "health"]
    assert not check.ok
    assert name in check.text


async def test_a_shadow_is_marked_and_its_figures_are_what_is_so(world: World) -> None:
    name = fresh("rehearsal")
    await world.fleet(worked_case(name))
    await world.start(name, shadow=True)
    await world.until(name, Stage.MONITORED)
    (shown,) = [s for s in await world.tpm.overview() if s.cluster == name]
    assert (shown.shadow, shown.unbacked_gpus, shown.would_unbacked_gpus) == (True, 345 - 319, 0)
    status = await world.tpm.status(name)
    assert (status.assigned_gpus,) == world.sql.rows("SELECT gpus FROM quotas WHERE cluster = ?", name)[0]
    assert status.would is not None
    assert (status.flex_published_gpus, status.would.flex_published_gpus) == (None, 13)
    await world.say(name, Command.ABORT)
    await world.ended(name)
    async with asyncio.timeout(20):  # Temporal's list is a moment late
        while shown.open:
            (shown,) = [s for s in await world.tpm.overview() if s.cluster == name]
    assert shown.shadow


@pytest.mark.nightly  # a worker of its own takes half a minute to start on a slow machine
async def test_right_after_its_worker_was_killed_nothing_is_called_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal lists a dead worker for minutes, and the watch's last heartbeat is young."""
    monkeypatch.setattr(questions, "_UNHEARD_SECONDS", 5)
    async with EmbeddedTemporal(tmp_path / "temporal", None, None) as server:
        target = {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": NAMESPACE}
        home = {"BACKSTOP_HOME": str(tmp_path), "BACKSTOP_LEDGER_URL": f"sqlite:///{tmp_path / 'ledger.db'}"}
        program = (sys.executable, "-m", "cli.main")
        env = {**os.environ, **target, **home, "PYTHONPATH": str(ROOT)}
        migrated = await asyncio.create_subprocess_exec(*program, "migrate", env=env, cwd=ROOT)
        assert await migrated.wait() == 0
        worker = await asyncio.create_subprocess_exec(*program, "worker", env=env, cwd=ROOT, start_new_session=True)
        try:
            options = {"target_host": server.address, "namespace": NAMESPACE}
            door = Backstop(await connected(server.address), "tpm", TemporalTarget(options, embedded=False))

            async with asyncio.timeout(60):
                while not (await door.watch()).ok:
                    await asyncio.sleep(0.5)
            assert all(check.ok for check in await door.doctor())
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            await worker.wait()
        checks = {check.name: check for check in await door.doctor()}
        assert [name for name, check in checks.items() if not check.ok] == ["workers", "watch", "ledger"]
        assert checks["workers"].text.endswith("; but no worker answers")
        assert "last heard of at" in checks["watch"].text
