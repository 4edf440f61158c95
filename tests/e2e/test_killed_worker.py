"""The messages that people read right after their worker was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from client import questions
from client.backstop import Backstop
from client.connection import NAMESPACE, TemporalTarget
from tests.e2e.world import connected
from workers.embedded_temporal import EmbeddedTemporal

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly  # a worker of its own takes half a minute to start on a slow machine
async def test_right_after_its_worker_was_killed_nothing_is_called_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal lists a dead worker for minutes, and the watch's last heartbeat is young."""
    monkeypatch.setattr(questions, "_WAITS", (5,))
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
        assert "last heartbeat at" in checks["watch"].text
