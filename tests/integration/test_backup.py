"""A backup is whole or is none."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from models.errors import BadInput, Refusal
from workers.backup import back_up


def test_a_backup_is_refused_where_it_would_not_be_one(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "copy"
    (home / "temporal").mkdir(parents=True)
    url = f"sqlite:///{home / 'ledger.db'}"
    with pytest.raises(Refusal, match="pg_dump"):
        back_up(home, "postgresql://ledger/backstop", to)
    with pytest.raises(Refusal, match=r"there is no .*temporal\.db"):
        back_up(home, url, to)
    assert not to.exists()
    for path in (home / "temporal" / "temporal.db", home / "ledger.db", home / "notices.jsonl.book"):
        with closing(sqlite3.connect(path)) as made:
            made.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t (n); INSERT INTO t VALUES (1)")
    with closing(sqlite3.connect(home / "ledger.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO t VALUES (2)")  # under way, and not yet said to be done
        copied = ["ledger.db", "notices.jsonl.book", "temporal.db"]
        assert [path.name for path in back_up(home, url, to)] == copied
        writer.execute("COMMIT")
    with closing(sqlite3.connect(to / "ledger.db")) as copy:
        assert copy.execute("SELECT n FROM t").fetchall() == [(1,)]
    with pytest.raises(BadInput, match="is there already"):
        back_up(home, url, to)
