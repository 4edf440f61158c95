"""Real servers, one of each for all tests of a process: a SQLite file, a PostgreSQL and a Temporal of our own.

Their fixtures are in tests/conftest.py, so that folders share them: a folder that imports them has servers of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from temporalio.client import Client

from tests.postgres_server import started
from tests.warden import ends_with_us


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server for this run, stopped and removed at its end. The URL names its `postgres` database.

    Where it cannot start, CI fails; on a laptop the tests that need it are skipped.
    """
    # Not pytest's tmp_path: a socket's path must be short, and the server's user must reach it.
    directory = Path(tempfile.mkdtemp(prefix="backstop-pg-"))
    try:
        server = started(directory)
    except Exception as error:
        shutil.rmtree(directory, ignore_errors=True)
        reason = f"no PostgreSQL can be started here: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        url = str(server.get_uri())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        with ends_with_us(server.get_pid()):
            yield url
    finally:
        server.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_ledger(postgres_url: str) -> str:
    from activities.adapters.ledger.database import upgrade

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE ledger")
    url = sa.make_url(postgres_url).set(database="ledger").render_as_string(hide_password=False)
    upgrade(url)
    return url


@functools.cache
def _migrated() -> bytes:
    """The file of a ledger with its schema and nothing in it."""
    from activities.adapters.ledger.database import upgrade

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        upgrade(f"sqlite:///{path}")
        return path.read_bytes()


def new_ledger(path: Path) -> str:
    """The URL of a SQLite ledger at this path with nothing in it. To migrate it there takes a hundred times as long."""
    path.write_bytes(_migrated())
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def sqlite_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    new_ledger(path)
    return path


@pytest.fixture(scope="session")
async def temporal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    from tests.e2e.world import connected
    from workers.embedded_temporal import EmbeddedTemporal

    async with EmbeddedTemporal(tmp_path_factory.mktemp("temporal"), None, None) as server:
        with ends_with_us(server.pid):
            yield await connected(server.address)


# One database serves one test after the other: emptying it takes a hundredth of the time of a new one. Who empties it
# stays connected: a new connection reads the whole schema first.


@pytest.fixture(scope="session")
def sqlite_broom(sqlite_ledger: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(sqlite_ledger, isolation_level=None, timeout=30)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        yield connection


@pytest.fixture
def sqlite_ledger_url(sqlite_ledger: Path, sqlite_broom: sqlite3.Connection) -> str:
    """An empty ledger with its schema, in a file."""
    sqlite_broom.execute("BEGIN IMMEDIATE")
    tables = sqlite_broom.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    for delete in _emptied(sqlite_broom.execute(_with_rows(tables)).fetchall()):
        sqlite_broom.execute(delete)  # a plain connection checks no foreign keys
    sqlite_broom.execute("COMMIT")
    return f"sqlite:///{sqlite_ledger}"


@pytest.fixture(scope="session")
def postgres_brooms(postgres_ledger: str) -> Iterator[list[psycopg.Connection]]:
    """The last one sweeps; a test may have ended it."""
    brooms = [psycopg.connect(postgres_ledger, autocommit=True)]
    yield brooms
    brooms[-1].close()


@pytest.fixture
def postgres_ledger_url(postgres_ledger: str, postgres_brooms: list[psycopg.Connection]) -> str:
    """An empty ledger with its schema, in PostgreSQL."""
    try:
        postgres_brooms[-1].execute("SELECT 1")
    except psycopg.OperationalError:
        postgres_brooms.append(psycopg.connect(postgres_ledger, autocommit=True))
    broom = postgres_brooms[-1]
    broom.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'"
    )
    tables = broom.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    full = broom.execute(_with_rows(tables)).fetchall()
    # A replica runs no triggers and checks no foreign keys.
    broom.execute("; ".join(["SET session_replication_role = replica", *_emptied(full)]))
    return postgres_ledger


def _with_rows(tables: Iterable[tuple[str]]) -> str:
    """The question which of these tables have any."""
    return " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM \"{name}\")" for (name,) in tables)


def _emptied(tables: Iterable[tuple[str]]) -> list[str]:
    kept = {"alembic_version", "fleet"}
    return [*(f'DELETE FROM "{name}"' for (name,) in tables if name not in kept), "UPDATE fleet SET policy = '{}'"]


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """An empty ledger with its schema, on each database in turn."""
    name = "sqlite_ledger_url" if request.param == "sqlite" else "postgres_ledger_url"
    url: str = request.getfixturevalue(name)
    return url
