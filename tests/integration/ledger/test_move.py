"""`backstop migrate --from`: a whole ledger out of a file into PostgreSQL, every row or none. Witness: plain SQL."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from activities.adapters.ledger.facade import Ledger
from activities.adapters.ledger.move import move
from models.audit_chain import AuditEntry, AuditKind
from models.errors import BadInput
from models.rollout.effects import Fence
from tests.integration.ledger.both_sides import in_file, in_server, tables_of
from tests.integration.ledger.world import (
    LEDGER_NOW,
    NOW,
    ForeignTool,
    fleet,
    import_fleet,
    note_stage,
    open_rollout,
    reserve,
    set_soft,
)
from tests.servers import new_ledger

SECRET = "https://hooks.slack.com/services/T000/B000/s3cr3t"  # not a real one
T = "'2026-03-01T12:00:00.123456Z'"
BY_HAND = {
    "jobs": f"('alpha', 'j-1', {T}, 'a', 8, 0, 'flex', 'X', NULL, 1, 'engines')",
    "scheduler_limits": "('alpha', 'pool:x', NULL, 7, 1)",
    "scheduler_locks": f"('alpha', 'w-1', {T})",
    "awaited_merges": "('alpha', '{}')",
    "tallies": f"('alpha', {T}, {T}, 400, 370, NULL, 360, 360, NULL, 4, 2, 5, 5, 'enforced', 0)",
    "tally_days": f"('alpha', {T}, 1, 24, {T}, {T}, 20, 31, 24, 5000000000)",
    "milestones": f"('static', 0, 'backed', 3, '2026-04-01', {T}, NULL)",
    "milestone_notes": f"('k', 'static', {T}, 2, 'tpm', 'two of ''em, 100 % \\ done\n(ü, 漢)')",
    "fleet_plans": "('fleet/1', 'alpha', '{}')",
    "grant_receipts": f"('request/1', 3, 'alpha', 'grant', {T}, '{{}}')",
    "requests": f"('r', 'alpha', 'a', 'asked', 1, {T}, '{{}}')",
    "source_doubts": f"('prometheus', {T}, '', NULL, '')",
    "breaches": f"('alpha', {T})",
    "health_pushes": f"('alpha', {T})",
    "seals": f"(1, {T}, '{{}}', 'n')",
    "sealing": f"(1, 3600, {T}, '')",
    "messages": f"('m', 'a', {T}, 1, NULL, '', 2, {T}, 'slow', '[]')",
    "notices": f"('n', 'a', 'alpha', 'planned', 'urgent', {T}, '{{}}', 'm')",
    "bringups": f"('new', 1, 'feed', {T}, NULL, 'planned', {T}, 0, '{{}}')",
    "warrants": f"('n-1', 'rollout.approve', 'rollout/alpha', 'r-1', 'u', 1, 'ab', 'cd', 7, '{{}}', 'user:tpm', "
    f"'a.b.c', '{{}}', '{{}}', 'ef', NULL, {T}, NULL, '')",
    "drawn": f"('r-1', 'ef', 'plan', 'ab', '{{}}', {T})",
    "effect_proofs": f"('r-1', 1, 'reserve', 'called', 'plan', 'n-1', 'plan ab', '', {T})",
    "owed": f"('alpha', 'a', 30, 22, {T})",
    "access_files": f"(1, 1, 0, 'feed', '{{}}', 'user:tpm', {T}, 'first', 'first', {T}, '')",
    "access_tokens": f"('ci', '{64 * 'a'}', 'service:ci', '{{}}', 'user:tpm', {T}, {T}, NULL, '')",
    "ended_sessions": f"('{64 * 'c'}', {T})",
    "waiting_commands": f"('{64 * 'b'}', 'bringup.add', 'user:tpm', {T}, '{{}}', '', NULL, '', NULL)",
    "emergencies": f"(1, 'desk/1', 'user:tpm', {T}, 'promote in alpha', 'a SEV', '', NULL, '')",
    "import_answers": f"('dry', {T}, '{{}}')",
    "import_parts": f"('half', 0, x'00ff7f', {T})",
}
"""A row of each table that the small fleet and its rollout leave empty."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger in a file with rows in every table: a rollout under way, one quota changed by others meanwhile."""
    path = tmp_path_factory.mktemp("written") / "ledger.db"
    new_ledger(path)
    with Ledger(f"sqlite:///{path}", now=lambda: LEDGER_NOW) as ledger:
        document = fleet()
        document["teams"][0]["contacts"].append(f"slack+{SECRET}")
        import_fleet(ledger, document)
        open_rollout(ledger)
        ledger.registry.reserve_moves(Fence(rollout="r-1", counter=1), "alpha", 40, 512, NOW)
        reserve(ledger, 1, 310, X=170)
        set_soft(ledger, 2, ("a", 100, 80), ("b", 120, 100))
        note_stage(ledger, "r-1", "buffered", ended=False, completed=False, needs="soak")
        entries = [
            AuditEntry(key=f"k{n}", cluster="alpha", at=NOW, kind=AuditKind.COMMAND, actor="tpm", text=f"said {n}")
            for n in range(3)
        ]
        ledger.registry.archive(entries)
    tool = ForeignTool(f"sqlite:///{path}")
    tool.set("c", 70)
    for table, values in BY_HAND.items():
        tool.run(f"INSERT INTO {table} VALUES {values}")
    tool.close()
    return path


@pytest.fixture
def book(written: Path, tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return Path(shutil.copy(written, tmp_path / "home"))


@pytest.fixture
def empty(postgres_url: str) -> str:
    """A database without a table, at its own address."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS moved WITH (FORCE)")
        connection.execute("CREATE DATABASE moved")
    return sa.make_url(postgres_url).set(database="moved").render_as_string(hide_password=False)


def test_every_row_of_every_table_is_on_the_other_side_as_it_was(book: Path, empty: str) -> None:
    said: dict[str, int] = {}
    assert move(book, empty, said.__setitem__) == []
    for table in tables_of(book):
        columns, rows = in_file(book, table)
        assert rows, f"{table} is empty: the test would say nothing of it"
        assert in_server(empty, table, columns) == rows, table
        assert said.pop(table, 1) == len(rows)
    assert said == {}


def test_what_was_held_to_is_held_to_on_the_other_side(book: Path, empty: str) -> None:
    """Freed capacity stays reserved, changes of others go on being counted and noted, rows are numbered on."""
    move(book, empty, lambda *_: None)
    here, there = ForeignTool(f"sqlite:///{book}"), ForeignTool(empty)
    refused = there.set_refused("b", 1000).partition("\n")[0]
    assert refused in here.set_refused("b", 1000).replace("''", "'")
    generation = there.generation()
    assert generation == here.generation() > 0
    there.set("c", 60)
    assert there.generation() == generation + 1
    assert there.one("SELECT changed_by FROM quota_changes WHERE team = 'c'").startswith("user ")
    highest = there.one("SELECT max(id) FROM windows")
    there.run(
        "INSERT INTO windows (cluster, kind, starts, ends, reason, source, declared_by) VALUES"
        " ('beta', 'sev', '2026-03-01', '2026-03-02', 'x', '', '')"
    )
    assert there.one("SELECT max(id) FROM windows") == highest + 1
    assert there.one("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'O'") == 0
    with Ledger(empty, now=lambda: LEDGER_NOW) as ledger:
        opened = ledger.registry.open_rollout_of("alpha")
        assert opened is not None
        assert (opened.rollout, opened.last_counter) == ("r-1", 2)
    here.close()
    there.close()


@pytest.mark.parametrize(
    ("ruin", "sentence"),
    [
        ("UPDATE alembic_version SET version_num = '0014'", "has schema 0014, .*: bring it up to date"),
        ("UPDATE alembic_version SET version_num = '9999'", ("has schema 9999, .*: use the Backstop version that made "
            "it")),
        ("UPDATE usage_samples SET at = 'yesterday'", "usage_samples with cluster alpha, team a, .* at is not a time"),
        ("UPDATE audit_heads SET length = 1.5 WHERE cluster = 'alpha'", "alpha .* length is not a whole number"),
        ("UPDATE clusters SET follows_health = 2 WHERE name = 'beta'", "name beta .* follows_health is not yes or no"),
        ("UPDATE milestones SET measure = 'a' || char(0)", "milestones with name static .* is not a text without NUL"),
        ("UPDATE scheduler_limits SET gpus = 3000000000", "with cluster alpha, name pool:x .* refuses it"),
        ("UPDATE islands SET total_gpus = 20000000 WHERE name = 'Z'", "with cluster beta, name Z .*total_gpus_sense"),
        ("UPDATE contacts SET team = 'nobody' WHERE position = 2", "a row of contacts .*contacts_team_fkey"),
        ("UPDATE quotas SET parent = 'gone' WHERE team = 'c'", "quotas_cluster_parent_fkey"),
    ],
)  # fmt: skip
def test_what_cannot_be_as_it_was_is_refused_whole_and_no_secret_is_shown(
    book: Path, postgres_ledger_url: str, ruin: str, sentence: str
) -> None:
    with closing(sqlite3.connect(book)) as tool:
        for (name,) in tool.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            tool.execute(f"DROP TRIGGER {name}")
        tool.execute("PRAGMA ignore_check_constraints = ON")
        tool.execute(ruin)
        tool.commit()
    with pytest.raises(BadInput, match=sentence) as refused:
        move(book, postgres_ledger_url, lambda *_: None)
    assert "s3cr3t" not in refused.value.message
    with psycopg.connect(postgres_ledger_url) as connection:
        for table in set(tables_of(book)) - {"alembic_version", "fleet"}:
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_only_an_empty_ledger_of_this_schema_is_copied_into(book: Path, empty: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="copies a ledger only to PostgreSQL"):
        move(book, f"sqlite:///{tmp_path / 'other.db'}", lambda *_: None)
    with pytest.raises(BadInput, match="there is no ledger"):
        move(tmp_path / "none.db", empty, lambda *_: None)
    (tmp_path / "text.db").write_text("no database, but longer than the head of one" * 9)
    with pytest.raises(BadInput, match="cannot be read"):
        move(tmp_path / "text.db", empty, lambda *_: None)
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as foreign:
        foreign.execute("CREATE TABLE t (n)")
    with pytest.raises(BadInput, match="is not a ledger"):
        move(tmp_path / "foreign.db", empty, lambda *_: None)
    with closing(sqlite3.connect(book)) as tool:
        tool.execute("CREATE TABLE spreadsheet (n)")
    assert move(book, empty, lambda *_: None) == ["spreadsheet"]
    with pytest.raises(BadInput, match=r"the target holds .*: copy a ledger into an empty database"):
        move(book, empty, lambda *_: None)
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("TRUNCATE clusters, fleet CASCADE")
        connection.execute("UPDATE alembic_version SET version_num = '0014'")
    with pytest.raises(BadInput, match="the target has schema 0014"):
        move(book, empty, lambda *_: None)


@pytest.mark.nightly
def test_a_file_that_is_in_use_is_refused_with_one_sentence(book: Path, empty: str) -> None:
    """The command itself refuses it; nothing is made on the other side, and the other user notices nothing."""
    words = [sys.executable, "-m", "workers.migrate", str(book.parent)]

    def run() -> tuple[int, str, str]:
        environment = {"BACKSTOP_LEDGER_URL": empty, "BACKSTOP_HOME": str(book.parent), "PATH": ""}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout, done.stderr

    with Ledger(f"sqlite:///{book}") as ledger:
        ledger.quotas.read("alpha")  # and nothing is under way any more
        sentence = f"backstop: {book} is in use: stop `backstop up` or its workers first\n"
        assert run() == (2, "", sentence)
        ledger.quotas.read("alpha")
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
    code, out, err = run()
    assert (code, err) == (0, ""), err
    assert out.endswith("ledger: copied in full, read back and compared\n")
    assert "           3  contacts\n" in out
    assert "s3cr3t" not in out
