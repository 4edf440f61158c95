"""A ledger of a build before the first release is brought up to date: rows and schema by plain SQL, chains by hashlib.

`earlier/` has what commit 3d311c6 left behind, on SQLite and PostgreSQL: `backstop up` there, three clusters, a rollout
at rest in monitored and a closed one, a granted and a refused request, milestones, a freeze; then dumps of the ledger
and of its copy by `backstop migrate --from`.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from activities.adapters.ledger.database import upgrade
from activities.adapters.ledger.facade import Ledger
from models.audit_chain import broken_links
from models.errors import Unavailable
from tests.integration.ledger.world import ForeignTool

EARLIER = Path(__file__).with_name("earlier")
RULE = re.compile(r"CONSTRAINT (\w+) CHECK \((.+?)\)(?=,? CONSTRAINT|, [A-Z]{2,}|,? *\)$)")
_numbers = count(1)


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    server = request.getfixturevalue("postgres_url")
    name = f"earlier_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return sa.make_url(server).set(database=name).render_as_string(hide_password=False)


@pytest.fixture
def old_url(new_url: str) -> str:
    """The ledger that 3d311c6 left."""
    dialect = "postgresql" if new_url.startswith("postgresql") else "sqlite"
    script = gzip.decompress((EARLIER / f"3d311c6.{dialect}.sql.gz").read_bytes()).decode()
    if dialect == "postgresql":
        with psycopg.connect(new_url, autocommit=True) as connection:
            connection.execute(script)
    else:
        with closing(sqlite3.connect(new_url.removeprefix("sqlite:///"))) as book:
            book.executescript(script)
    return new_url


@pytest.fixture
def tool(new_url: str) -> Iterator[ForeignTool]:
    foreign = ForeignTool(new_url)
    yield foreign
    foreign.close()


def tables(tool: ForeignTool) -> list[str]:
    query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    if not tool.postgresql:
        query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    return sorted(name for (name,) in tool.rows(query) if name != "alembic_version")


def contents(tool: ForeignTool) -> dict[str, list[tuple[Any, ...]]]:
    return {table: sorted(tool.rows(f"SELECT * FROM {table}"), key=repr) for table in tables(tool)}


def schema(tool: ForeignTool) -> dict[str, Any]:
    """All that the database says of its tables, views, functions and triggers, but the order of columns."""
    return _schema_of_a_server(tool) if tool.postgresql else _schema_of_a_file(tool)


def _schema_of_a_server(tool: ForeignTool) -> dict[str, Any]:
    return {
        key: " ".join(re.sub("[()]", "", value).split())  # a rule that went through pg_dump has other ones
        for key, value in tool.rows(
            """
            SELECT 'column ' || table_name || '.' || column_name,
                concat_ws(' ', data_type, is_nullable, column_default, collation_name)
            FROM information_schema.columns WHERE table_schema = 'public'
            UNION ALL SELECT 'rule ' || conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) || convalidated
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace
            UNION ALL SELECT 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
            UNION ALL SELECT 'view ' || viewname, definition FROM pg_views WHERE schemaname = 'public'
            UNION ALL SELECT 'function ' || oid::regprocedure, pg_get_functiondef(oid)
            FROM pg_proc WHERE pronamespace = 'public'::regnamespace
            UNION ALL SELECT 'trigger ' || tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
            """
        )
    }


def _schema_of_a_file(tool: ForeignTool) -> dict[str, Any]:
    of_it: dict[str, Any] = {}
    for kind, name, text in tool.rows("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'"):
        words = " ".join(text.split())
        if kind == "table":
            for column in tool.rows(f"PRAGMA table_xinfo({name})"):
                of_it[f"column {name}.{column[1]}"] = column[2:]
            for _, _, *key in tool.rows(f"PRAGMA foreign_key_list({name})"):
                of_it[f"key {name} {key}"] = "DEFERRABLE" in words
            for rule, text in re.findall(
                r"CONSTRAINT (\w+) CHECK \((.+?)\)(?=,? CONSTRAINT|, [A-Z]{2,}|,? *\)$)", words
            ):
                of_it[f"rule {name}.{rule}"] = text
        else:
            # The alias of one view in one trigger is new; it changes nothing.
            of_it[f"{kind} {name}"] = words.replace("refused_raises r WHERE", "refused_raises WHERE").replace("r.", "")
    return of_it


def test_every_row_of_an_earlier_build_stays_and_its_chains_hold(old_url: str, tool: ForeignTool) -> None:
    before = contents(tool)
    assert tool.one("SELECT version_num FROM alembic_version") == "0018"
    assert (len(before["audit"]), len(before["quotas"]), len(before["receipts"])) == (47, 6, 9)
    upgrade(old_url)
    after = contents(tool)
    # Nobody knows what held them, or how they stood: not "nothing".
    before["rollouts"] = [(*row, None, None) for row in before["rollouts"]]
    assert {table: after[table] for table in before} == before
    assert not any(after[table] for table in set(after) - set(before))
    assert tool.one("SELECT version_num FROM alembic_version") == "0100"
    for (cluster,) in tool.rows("SELECT DISTINCT cluster FROM audit"):
        previous = ""
        for number, (seq, link, stored, entry) in enumerate(
            tool.rows("SELECT seq, previous_hash, hash, entry FROM audit WHERE cluster = ? ORDER BY seq", cluster), 1
        ):
            assert (seq, link if number > 1 else "") == (number, previous)
            previous = hashlib.sha256((link + entry).encode()).hexdigest()
            assert previous == stored
        with Ledger(old_url) as ledger:  # what `backstop audit --verify` reads
            assert (
                broken_links(ledger.registry.entries_after(cluster, 0, 100), ledger.registry.chain_head(cluster)) == []
            )


def test_a_ledger_of_an_earlier_build_gets_the_schema_of_a_new_one(
    old_url: str, tool: ForeignTool, request: pytest.FixtureRequest
) -> None:
    upgrade(old_url)
    upgraded = schema(tool)
    fresh = request.getfixturevalue("postgres_ledger" if tool.postgresql else "sqlite_ledger")
    other = ForeignTool(fresh if tool.postgresql else f"sqlite:///{fresh}")
    wanted = schema(other)
    other.close()
    differ = {key for key in {*upgraded, *wanted} if upgraded.get(key) != wanted.get(key)}
    rules = {key for key in differ if key.startswith("rule ")}
    assert differ - rules == {"column requests.ended", "column rollouts.modes"}, differ
    if tool.postgresql:
        assert not rules
    else:
        assert {key for key in rules if not key.endswith("_whole")} == {"rule usage_samples.usage_samples_pending"}


def test_the_database_still_guards_a_ledger_of_an_earlier_build(old_url: str, tool: ForeignTool) -> None:
    upgrade(old_url)
    generation = tool.generation("alpha")
    assert tool.set("research", 305, "alpha") == 1
    assert tool.generation("alpha") == generation + 1
    assert "cannot rise to 330 GPUs" in tool.set_refused("research", 330, "alpha")
    assert "sealing_one" in tool.refused("INSERT INTO sealing VALUES (2, 60, '2026-11-25T12:00:00Z', '')")


@pytest.mark.parametrize("revision", ["0018", "0025"])
def test_a_worker_waits_for_the_step_where_tables_are_missing(revision: str, old_url: str, tool: ForeignTool) -> None:
    """Since 0025 no table is missing, so the worker runs and `migrate` only writes the new number."""
    if revision == "0025":
        upgrade(old_url)
        tool.run("UPDATE alembic_version SET version_num = '0025'")
    with Ledger(old_url) as ledger:
        if revision == "0018":
            with pytest.raises(Unavailable, match=r"older ones: run `backstop migrate`"):
                ledger.check_schema()
        upgrade(old_url)
        ledger.check_schema()
    assert tool.rows("SELECT version_num FROM alembic_version") == [("0100",)]


def test_a_ledger_that_is_too_old_is_left_alone_and_says_what_brings_it_up(
    old_url: str, tool: ForeignTool, tmp_path: Path
) -> None:
    tool.run("UPDATE alembic_version SET version_num = '0012'")
    before = contents(tool)
    words = [sys.executable, "-m", "workers.migrate"]
    settings = {**os.environ, "BACKSTOP_LEDGER_URL": old_url, "BACKSTOP_HOME": str(tmp_path / "home")}
    ran = subprocess.run(words, env=settings, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "backstop: the ledger has schema 0012, which is too old for this build: upgrade the ledger first with "
        "the build of commit 092a131"
        ' (docs/operations.md, "A ledger of an earlier build")\n'
    )
    assert (contents(tool), tool.one("SELECT version_num FROM alembic_version")) == (before, "0012")
