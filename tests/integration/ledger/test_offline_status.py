"""The fast reading, without a worker, says what the registry would have said."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.adapters.ledger.offline_status import overviews_in_ledger
from models.errors import Refusal, Unavailable
from models.status_questions import Overview
from tests.integration.ledger.world import LEDGER_NOW, NOW, minutes, note_stage, open_rollout

HEAVY = {"sqlalchemy", "sqlmodel", "pydantic", "temporalio", "numpy"}


def test_open_rollouts_are_told_as_the_registry_tells_them(ledger: Ledger, ledger_url: str) -> None:
    assert overviews_in_ledger(ledger_url, LEDGER_NOW) == []
    open_rollout(ledger, shadow=True)
    note_stage(ledger, "r-1", "planned", ended=False, completed=False, needs="approve the plan")
    told = tuple(Overview.model_validate(row) for row in overviews_in_ledger(ledger_url, LEDGER_NOW))
    assert told == tuple(row.but(held=None) for row in ledger.registry.overview()) != ()
    long_ago = NOW - timedelta(days=1)  # no sample of then: none is known
    assert [row["health_at"] for row in overviews_in_ledger(ledger_url, long_ago)] == [None]
    note_stage(ledger, "r-1", "aborted", ended=True, completed=False)
    assert overviews_in_ledger(ledger_url, LEDGER_NOW + minutes(1)) == []


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("sqlite:///{home}/away.db", Refusal),
        ("mysql://nobody/none", Refusal),
        ("sqlite:///{home}/bare.db", Unavailable),
        ("postgresql://nobody:sEcReT@127.0.0.1:1/none", Unavailable),
    ],
)
def test_without_a_ledger_nothing_is_made_and_nothing_told(url: str, error: type[Exception], tmp_path: Path) -> None:
    (tmp_path / "bare.db").touch()
    with pytest.raises(error) as refused:
        overviews_in_ledger(url.format(home=tmp_path), LEDGER_NOW)
    assert "sEcReT" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["bare.db"]


def test_a_ledger_that_nobody_has_open_is_read_and_left_as_it_was(sqlite_ledger_url: str, tmp_path: Path) -> None:
    """The last one to close it takes the files of its write-ahead log along."""
    copy = tmp_path / "ledger.db"
    with closing(sqlite3.connect(sqlite_ledger_url.removeprefix("sqlite:///"))) as book:
        book.execute("VACUUM INTO ?", (str(copy),))
    with closing(sqlite3.connect(copy)) as book:
        assert book.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    before = copy.read_bytes()
    assert overviews_in_ledger(f"sqlite:///{copy}", LEDGER_NOW) == []
    assert copy.read_bytes() == before


def test_the_program_imports_nothing_that_takes_long() -> None:
    script = "import sys, workers.offline_status; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & HEAVY == set()
