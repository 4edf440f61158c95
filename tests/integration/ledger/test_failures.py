"""A database that does not answer is Unavailable, in a sentence that gives nothing away."""

from __future__ import annotations

import ast
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import exc
from temporalio.exceptions import ApplicationError

from activities.adapters.ledger import database
from activities.adapters.ledger.database import translate_errors, upgrade
from activities.adapters.ledger.facade import Ledger
from activities.failures import translate_errors as activity_errors
from models.errors import BadInput, Unavailable
from models.rollout.effects import EffectKind
from tests.integration.ledger.world import (
    NOW,
    ForeignTool,
    effect,
    fleet,
    foreign_write,
    import_fleet,
    land,
    open_rollout,
    values,
)
from tests.servers import new_ledger
from tests.waiting import PATIENCE, wait_until

SHORT = timedelta(milliseconds=100)
CHANGE = effect(EffectKind.SET_SOFT, 1, writes=values(("a", 100, 90)))


def assert_gives_nothing_away(sentence: str) -> None:
    for word in ("SELECT", "UPDATE", "INSERT", "hunter2", "postgresql://", "sqlite:", "/"):
        assert word not in sentence


def test_a_locked_ledger_is_unavailable_and_the_retry_lands_once(ledger_url: str, tool: ForeignTool) -> None:
    with Ledger(ledger_url, now=lambda: NOW, patience=SHORT) as ledger:
        import_fleet(ledger, fleet())
        open_rollout(ledger)
        if tool.postgresql:
            tool.run("BEGIN")
            tool.run("UPDATE clusters SET gpu_model = 'B200' WHERE name = 'alpha'")
        else:
            tool.run("BEGIN IMMEDIATE")
        for _ in range(2):
            with pytest.raises(Unavailable) as unavailable:
                ledger.quotas.apply(CHANGE)
            assert_gives_nothing_away(unavailable.value.message)
        assert ledger.quotas.read("alpha").values["a"] == 100  # readers go on
        tool.run("ROLLBACK")
        land(ledger, EffectKind.SET_SOFT, 1, writes=CHANGE.writes)
    assert tool.gpus()["a"] == 90
    assert tool.one("SELECT count(*) FROM receipts") == 1


def test_threads_of_one_process_queue_for_the_ledger_and_give_up_in_time(ledger_url: str, tool: ForeignTool) -> None:
    with Ledger(ledger_url, now=lambda: NOW, patience=SHORT) as ledger:
        import_fleet(ledger, fleet())
        open_rollout(ledger)
        begun, over = threading.Event(), threading.Event()

        def busy() -> None:
            with ledger.quotas._database.begin() as session:
                session.connection().exec_driver_sql("UPDATE clusters SET gpu_model = 'B200' WHERE name = 'alpha'")
                begun.set()
                over.wait()

        writer = threading.Thread(target=busy)
        writer.start()
        try:
            assert begun.wait(PATIENCE)
            with pytest.raises(Unavailable) as unavailable:
                ledger.quotas.apply(CHANGE)
            assert_gives_nothing_away(unavailable.value.message)
        finally:
            over.set()
            writer.join()
        ledger.quotas.apply(CHANGE)
    assert tool.gpus()["a"] == 90


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@127.0.0.1:1/d?connect_timeout=2",
        "postgresql://u:hunter2@/d?host=/nowhere",
        "sqlite:////nowhere/at/all/ledger.db",
    ],
)
def test_a_ledger_that_cannot_be_reached_is_unavailable(url: str) -> None:
    with Ledger(url, patience=SHORT) as ledger:
        for call in (lambda: ledger.quotas.read("alpha"), lambda: ledger.quotas.apply(CHANGE), lambda: upgrade(url)):
            with pytest.raises(Unavailable) as unavailable:
                call()
            assert_gives_nothing_away(unavailable.value.message)


def test_a_lost_connection_is_unavailable_and_the_next_call_connects_again(postgres_ledger_url: str) -> None:
    tool = ForeignTool(postgres_ledger_url)
    with Ledger(postgres_ledger_url, now=lambda: NOW) as ledger:
        import_fleet(ledger, fleet())
        open_rollout(ledger)
        tool.run("BEGIN")
        tool.run("UPDATE clusters SET gpu_model = 'B200' WHERE name = 'alpha'")
        found: list[BaseException] = []

        def apply() -> None:
            try:
                ledger.quotas.apply(CHANGE)
            except Unavailable as error:
                found.append(error)

        waiting = threading.Thread(target=apply)
        waiting.start()
        cut = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        wait_until(lambda: bool(tool.rows(cut)), "it waits for the row, and is cut off")
        waiting.join(PATIENCE)
        (error,) = found
        assert_gives_nothing_away(str(error))
        tool.run("ROLLBACK")
        land(ledger, EffectKind.SET_SOFT, 1, writes=CHANGE.writes)
    assert tool.gpus()["a"] == 90
    tool.close()


def test_a_server_that_forgot_idle_connections_is_not_noticed(postgres_ledger_url: str) -> None:
    tool = ForeignTool(postgres_ledger_url)
    with Ledger(postgres_ledger_url) as ledger:
        assert ledger.registry.open_clusters() == {}
        tool.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert ledger.registry.open_clusters() == {}
    tool.close()


@pytest.mark.parametrize(
    "cause",
    [
        psycopg.errors.SerializationFailure("could not serialize access: SELECT 1"),
        psycopg.errors.DeadlockDetected("deadlock detected"),
        psycopg.errors.AdminShutdown("terminating connection"),
        psycopg.OperationalError("connection failed: password hunter2"),
        psycopg.InterfaceError("the connection is closed"),
        sqlite3.OperationalError("database is locked"),
        sqlite3.OperationalError("disk I/O error"),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_what_may_pass_is_unavailable(cause: Exception) -> None:
    wrapper = exc.InterfaceError if isinstance(cause, psycopg.InterfaceError) else exc.OperationalError
    with pytest.raises(Unavailable) as unavailable, translate_errors():
        raise wrapper("SELECT secret FROM quotas", {"password": "hunter2"}, cause)
    assert_gives_nothing_away(unavailable.value.message)
    assert unavailable.value.__cause__ is None
    assert unavailable.value.__suppress_context__


def test_a_value_that_the_database_refuses_is_bad_input(ledger: Ledger) -> None:
    with pytest.raises(BadInput, match="quotas_counts"):
        foreign_write(ledger, "alpha", "a", -1, "somebody")


CALLS: dict[str, Callable[[Ledger], object]] = {
    "quotas.read": lambda ledger: ledger.quotas.read("alpha"),
    "quotas.apply": lambda ledger: ledger.quotas.apply(CHANGE),
    "registry.open_clusters": lambda ledger: ledger.registry.open_clusters(),
    "check_schema": lambda ledger: ledger.check_schema(),
}


@pytest.mark.parametrize("damage", ["no-database", "malformed"])
@pytest.mark.parametrize("call", CALLS)
def test_a_damaged_file_is_unavailable_in_an_activity_too(tmp_path: Path, call: str, damage: str) -> None:
    """SQLite itself is the witness: it calls the file no database, or malformed, by an error of no kind of its own."""
    path = tmp_path / "ledger.db"
    new_ledger(path)
    with closing(sqlite3.connect(path)) as book:
        book.execute("PRAGMA journal_mode = DELETE")
    whole = path.read_bytes()
    path.write_bytes(b"no database" * 1000 if damage == "no-database" else whole[:4096] + b"\xff" * (len(whole) - 4096))
    with closing(sqlite3.connect(path)) as book, pytest.raises(sqlite3.DatabaseError) as witness:
        book.execute("SELECT * FROM quotas")
    assert type(witness.value) is sqlite3.DatabaseError

    with (
        Ledger(f"sqlite:///{path}", patience=SHORT) as ledger,
        pytest.raises(ApplicationError) as failed,
        activity_errors(),
    ):
        CALLS[call](ledger)
    assert failed.value.type == "Unavailable"
    assert not failed.value.non_retryable
    assert "SQL" not in failed.value.message
    assert "backup" in failed.value.message


@pytest.mark.parametrize("cause", [psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted, psycopg.DatabaseError])
def test_a_damaged_server_is_unavailable(cause: type[psycopg.Error]) -> None:
    with pytest.raises(Unavailable) as unavailable, translate_errors():
        raise exc.DBAPIError.instance(
            "SELECT 1", {"password": "hunter2"}, cause("invalid page in block 7"), psycopg.Error
        )
    assert_gives_nothing_away(unavailable.value.message)


def test_every_adapter_of_the_ledger_reaches_it_where_errors_are_translated() -> None:
    """A session or engine opened elsewhere would let the driver's errors out."""
    openers = {
        (path.name, call.func.id)
        for path in Path(database.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("Session", "make_engine")
    }
    assert openers == {("database.py", "Session"), ("database.py", "make_engine"), ("move.py", "make_engine")}


def test_our_own_bugs_are_not_dressed_up() -> None:
    bug = psycopg.errors.SyntaxError("syntax error")
    with pytest.raises(exc.ProgrammingError), translate_errors():
        raise exc.ProgrammingError("SELEC", {}, bug)


def test_a_ledger_of_an_older_backstop_says_what_to_run(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE clusters (name TEXT)")
    with Ledger(f"sqlite:///{path}") as ledger, pytest.raises(Unavailable, match="run `backstop migrate`"):
        ledger.quotas.read("alpha")
