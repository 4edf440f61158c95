"""Stories on a real Temporal server: a worker, a watch and a ledger for each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from client import questions
from client import workflow_calls as calls
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.world import PATIENCE, World, world_of
from web import ledger_rights as rights


@pytest.fixture(autouse=True)
def patient_fronts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front waits longer for the access file than people do: the machine may be busy."""
    monkeypatch.setattr(rights, "_ANSWER_SECONDS", PATIENCE)


@pytest.fixture(autouse=True)
def patient_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take back nothing that a busy worker has not taken up yet, and wait for one that is just starting."""
    monkeypatch.setattr(calls, "TAKEN_SECONDS", PATIENCE)
    monkeypatch.setattr(calls, "_LOOKS", int(PATIENCE / calls._LOOK_SECONDS))
    monkeypatch.setattr(questions, "_SURE_SECONDS", PATIENCE)


@pytest.fixture
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(temporal, sqlite_ledger_url, tmp_path) as found:
        yield found


@pytest.fixture
async def ticketed(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world with keys, where people give commands through a front."""
    async with world_of(temporal, sqlite_ledger_url, tmp_path, keys=(FRONT_KEY, public_keys)) as found:
        yield found


@pytest.fixture
async def world_on_each(temporal: Client, ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world, on SQLite and on PostgreSQL in turn."""
    async with world_of(temporal, ledger_url, tmp_path, replays=ledger_url.startswith("sqlite")) as found:
        yield found
