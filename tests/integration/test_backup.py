"""A backup is whole or is none."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from models.errors import BadInput, Refusal, Unavailable
from workers.backup import back_up


def test_a_backup_that_fails_leaves_nothing_and_takes_nothing_away(tmp_path: Path) -> None:
    """A folder of somebody's that is called as a half copy once was is not Backstop's to remove."""
    home, to = tmp_path / "home", tmp_path / "backups" / "copy"
    theirs = tmp_path / "backups" / "copy.part"
    theirs.mkdir(parents=True)
    (theirs / "thesis.txt").write_text("years of work")
    (home / "temporal").mkdir(parents=True)
    with closing(sqlite3.connect(home / "temporal" / "temporal.db")) as made:
        made.executescript("CREATE TABLE t (n)")
    (home / "ledger.db").write_text("no database " * 1000)
    with pytest.raises(Unavailable, match=r"ledger\.db cannot be copied"):
        back_up(home, f"sqlite:///{home / 'ledger.db'}", to, {})
    assert [path.name for path in to.parent.iterdir()] == ["copy.part"]
    (home / "ledger.db").unlink()
    with closing(sqlite3.connect(home / "ledger.db")) as made:
        made.executescript("CREATE TABLE t (n)")
    back_up(home, f"sqlite:///{home / 'ledger.db'}", to, {})
    assert sorted(path.name for path in to.parent.iterdir()) == ["copy", "copy.part"]
    assert (theirs / "thesis.txt").read_text() == "years of work"
    assert to.stat().st_mode & 0o077 == 0, "it has all that the home has"


def test_a_backup_is_refused_where_it_would_not_be_one(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "copy"
    (home / "temporal").mkdir(parents=True)
    url = f"sqlite:///{home / 'ledger.db'}"
    with pytest.raises(Refusal, match="pg_dump"):
        back_up(home, "postgresql://ledger/backstop", to, {})
    with pytest.raises(Refusal, match=r"there is no .*temporal\.db"):
        back_up(home, url, to, {})
    assert not to.exists()
    for path in (home / "temporal" / "temporal.db", home / "ledger.db", home / "notices.jsonl.book"):
        with closing(sqlite3.connect(path)) as made:
            made.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t (n); INSERT INTO t VALUES (1)")
    with closing(sqlite3.connect(home / "ledger.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO t VALUES (2)")  # under way, and not yet said to be done
        copied = ["ledger.db", "notices.jsonl.book", "temporal.db"]
        assert [path.name for path in back_up(home, url, to, {})] == copied
        writer.execute("COMMIT")
    with closing(sqlite3.connect(to / "ledger.db")) as copy:
        assert copy.execute("SELECT n FROM t").fetchall() == [(1,)]
    with pytest.raises(BadInput, match="already exists"):
        back_up(home, url, to, {})


def test_a_backup_has_the_books_of_keys_and_no_private_key(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "copy"
    (home / "temporal").mkdir(parents=True)
    (home / "keys").mkdir()
    for path in (home / "temporal" / "temporal.db", home / "ledger.db"):
        with closing(sqlite3.connect(path)) as made:
            made.executescript("CREATE TABLE t (n)")
    for name in ("front.pem", "seal.pem", "keys.json"):
        (home / "keys" / name).write_text(f"what {name} holds")
    payload = tmp_path / "elsewhere.json"
    payload.write_text("keys of payloads")
    keys = {"keys.json": home / "keys" / "keys.json", "payload.json": payload}
    copied = back_up(home, f"sqlite:///{home / 'ledger.db'}", to, keys)
    assert {str(p.relative_to(to)) for p in copied if p.parent.name == "keys"} == {
        "keys/keys.json",
        "keys/payload.json",
    }
    assert (to / "keys" / "keys.json").read_text() == "what keys.json holds"
    assert (to / "keys" / "payload.json").read_text() == "keys of payloads"
    assert {p.stat().st_mode & 0o777 for p in (to / "keys").iterdir()} == {0o600}
    assert (to / "keys").stat().st_mode & 0o777 == 0o700
