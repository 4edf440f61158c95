"""A watch whose worker is gone is said to be silent, and watches on when a worker is back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client import checks
from models.messages import TASK_QUEUE
from tests.e2e.world import WATCH_SECONDS, connected
from workers.embedded import NAMESPACE, EmbeddedTemporal
from workers.main import serving
from workers.settings import Settings


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
        settings = Settings(sqlite_ledger_url, tmp_path, None, WATCH_SECONDS, TASK_QUEUE, build_id="")
        async with serving(settings):
            await until("watching")
        await until("silent since")
        async with serving(settings):
            await until("watching")
