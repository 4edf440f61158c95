"""Stories on a turned clock: each has an event loop, a Temporal in memory, workers and a ledger of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import temporalio.bridge.worker
from temporalio.client import Client

from client import http_door, http_exchange
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.world import World, world_of
from tests.loop.fronts import InMemorySocket, InMemoryUrl
from tests.loop.temporal import create, in_memory
from tests.loop.turned_loop import TurnedLoop, in_counted_thread, run_coroutine_threadsafe


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
    return {"turned": TurnedLoop}


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Give each story an event loop of its own."""
    if isinstance(collector, pytest.Module):
        collector.add_marker(pytest.mark.asyncio(loop_scope="function"))


@pytest.fixture(scope="session", autouse=True)
def _workers_in_memory() -> Iterator[None]:
    """Workers of a client in memory poll there, and who speaks to a front in memory finds it; all others, as ever."""
    with pytest.MonkeyPatch.context() as patched:
        real = temporalio.bridge.worker.Worker.create
        patched.setattr(temporalio.bridge.worker.Worker, "create", lambda client, config: create(real, client, config))
        patched.setattr(asyncio, "run_coroutine_threadsafe", run_coroutine_threadsafe)
        patched.setattr(http_door, "_aside", in_counted_thread)
        patched.setattr(http_exchange, "AtUrl", InMemoryUrl)
        patched.setattr(http_exchange, "AtSocket", InMemorySocket)
        yield


@pytest_asyncio.fixture(loop_scope="function")
async def temporal() -> Client:
    return in_memory()


@pytest_asyncio.fixture(loop_scope="function")
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(temporal, sqlite_ledger_url, tmp_path) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="function")
async def world_on_each(temporal: Client, ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world, on SQLite and on PostgreSQL in turn."""
    async with world_of(temporal, ledger_url, tmp_path) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="function")
async def ticketed(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world with keys, where people give commands through a front."""
    async with world_of(temporal, sqlite_ledger_url, tmp_path, keys=(FRONT_KEY, public_keys)) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="function")
async def ticketed_on_each(temporal: Client, ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """The same on SQLite and on PostgreSQL in turn."""
    async with world_of(temporal, ledger_url, tmp_path, keys=(FRONT_KEY, public_keys)) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="function")
async def world_by_url(temporal: Client, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world on the database that the test's parameter names."""
    url = request.getfixturevalue("sqlite_ledger_url" if request.param == "sqlite" else "postgres_ledger_url")
    async with world_of(temporal, url, tmp_path) as found:
        yield found
