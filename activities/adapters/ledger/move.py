"""Copies a whole ledger out of a SQLite file into an empty one on PostgreSQL: every row, or none.

The file is locked meanwhile, so that the copy is of one moment and nobody's work is left behind. Values are copied by
their columns' types; a value of another type (SQLite can hold a text in a count's column) is refused by name.

PostgreSQL judges each row as usual: CHECKs, foreign keys and triggers stay on. The triggers on quotas and islands fire
as well: clusters are written first as if nothing were under way there, so that there is nothing to refuse and nobody's
change to note, and the triggers' counts are corrected last of all, with the clusters' own generations, rollouts and
reservations. Then all rows are read back and compared with what was read here, before the copy counts.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import exc
from sqlmodel import SQLModel

from activities.adapters.ledger.database import (
    PATIENCE,
    database_url,
    make_engine,
    newest_revision,
    translate_errors,
    upgrade,
)
from models.columns import UtcTime
from models.errors import BadInput, Conflict, Unavailable
from models.ledger_tables import BreachRow, ClusterRow, NoticeRow
from models.texts import count_text

__all__ = ["BreachRow", "NoticeRow", "move"]  # all modules with tables are imported: the copy is of all tables

Progressed = Callable[[str, int], object]
Cells = tuple[Any, ...]
_CLUSTERS = SQLModel.metadata.tables[str(ClusterRow.__tablename__)]
_UNDER_WAY = ("generation", "open_rollout", "reserve_limit")
"""Columns of clusters that the triggers on quotas and islands read or count up."""
_AT_FIRST = {"generation": 0, "open_rollout": None, "reserve_limit": None}
_FLEET = "fleet"
"""The only table with a row in a new ledger: the default policy, still without settings."""
_BATCH = 10_000
_LINE = re.compile(r"^COPY \w+, line (\d+)")


def move(source: Path, target_url: str, progress: Progressed) -> list[str]:
    """Copy all rows of the file into the ledger at the address, in one transaction.

    `progress` is called with each table and its rows. Returns the tables of the file that are none of Backstop's, which
    stay behind. A database without tables gets them first. Errors: BadInput if the target holds anything or is no
    PostgreSQL, if either has another schema, if the file is in use, or if PostgreSQL refuses one of its rows;
    Unavailable.
    """
    if database_url(target_url).drivername != "postgresql+psycopg":
        raise BadInput(
            "Backstop copies a ledger only to PostgreSQL: set BACKSTOP_LEDGER_URL to postgresql://USER@HOST/DATABASE"
        )
    with closing(_lock_file(source)) as book:
        others = _foreign_tables(book, source)
        engine = make_engine(target_url, PATIENCE)
        try:
            with translate_errors(), engine.connect() as connection:
                _refuse_other_schema(connection)
                _refuse_rows(connection)
            upgrade(target_url)
            with translate_errors(), engine.begin() as connection:
                _copy(book, connection, progress)
        except sqlite3.Error as error:
            raise BadInput(f"{source} cannot be read: {error}") from None
        finally:
            engine.dispose()
    return others


def _lock_file(source: Path) -> sqlite3.Connection:
    """Lock the file until this is closed. Errors: BadInput if somebody has it open, a worker for example."""
    if not source.is_file():
        raise BadInput(f"there is no ledger {source}")
    book = sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=1, isolation_level=None)
    try:
        # In exclusive mode even a reader of a file with a write-ahead log needs it for itself.
        book.execute("PRAGMA locking_mode = EXCLUSIVE")
        book.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        book.close()
        if "locked" in str(error):
            raise BadInput(f"{source} is in use: stop `backstop up` or its workers first") from None
        raise BadInput(f"{source} cannot be read: {error}") from None
    return book


def _foreign_tables(book: sqlite3.Connection, source: Path) -> list[str]:
    """Return the tables that are not ours. Errors: BadInput for another schema, and for a file that is no ledger."""
    names = {name for (name,) in book.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if "alembic_version" not in names:
        raise BadInput(f"{source} is not a ledger: it has no tables of Backstop")
    _refuse_schema(str(source), [row for (row,) in book.execute("SELECT version_num FROM alembic_version")])
    ours = {*SQLModel.metadata.tables, "alembic_version"}
    return sorted(name for name in names - ours if not name.startswith("sqlite_"))


def _refuse_other_schema(connection: sa.Connection) -> None:
    """A database without a schema gets one; one with an older schema is somebody's."""
    if sa.inspect(connection).has_table("alembic_version"):
        _refuse_schema("the target", list(connection.scalars(sa.text("SELECT version_num FROM alembic_version"))))


def _refuse_schema(which: str, revisions: Sequence[str]) -> None:
    newest = newest_revision()
    if revisions != [newest]:
        is_older = len(revisions) == 1 and revisions[0] < newest
        remedy = "bring it up to date with `backstop migrate`" if is_older else "use the Backstop version that made it"
        raise BadInput(f"{which} has schema {', '.join(revisions) or 'none'}, but this Backstop has {newest}: {remedy}")


def _refuse_rows(connection: sa.Connection) -> None:
    there = sa.inspect(connection).get_table_names()
    for table in SQLModel.metadata.sorted_tables:
        if table.name not in there:
            continue
        rows = sa.select(sa.func.count()).select_from(table)
        if table.name == _FLEET:
            rows = rows.where(table.c.policy != "{}")
        if count := connection.scalar(rows):
            holds = (
                "settings for all clusters" if table.name == _FLEET else f"{count_text(count, 'row')} of {table.name}"
            )
            raise BadInput(f"the target holds {holds}: copy a ledger into an empty database")


def _copy(book: sqlite3.Connection, connection: sa.Connection, progress: Progressed) -> None:
    tables = SQLModel.metadata.sorted_tables
    names = sql.SQL(", ").join(sql.Identifier(table.name) for table in tables)
    _raw(connection).execute(sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(names))
    _refuse_rows(connection)  # again: nobody else can write any more
    connection.execute(sa.delete(SQLModel.metadata.tables[_FLEET]))
    read: dict[str, _Sum] = {}
    for table in tables:
        counted = _Sum(_rows(book, table))
        rows = map(_idle_row, counted) if table is _CLUSTERS else counted
        _write(connection, table, rows, partial(_rows, book, table))
        read[table.name] = counted
        progress(table.name, counted.rows)
    _put_under_way(book, connection)
    _count_on(connection, tables)
    connection.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))
    for table in tables:
        if not read[table.name].equals(_Sum(_read_back(connection, table))):
            raise Conflict(
                f"the rows of table {table.name} in PostgreSQL differ from those that were written, so nothing "
                "is copied: try again"
            )


class _Sum:
    """Counts rows as they pass, with a checksum that does not depend on their order."""

    def __init__(self, rows: Iterable[Cells]) -> None:
        self._given = rows
        self._total = 0
        self.rows = 0

    def __iter__(self) -> Iterator[Cells]:
        for row in self._given:
            self.rows += 1
            self._total += int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=16).digest())
            yield row

    def equals(self, other: _Sum) -> bool:
        for _ in other:
            pass
        return (self.rows, self._total) == (other.rows, other._total)


def _rows(book: sqlite3.Connection, table: sa.Table) -> Iterator[Cells]:
    columns = list(table.columns)
    names = ", ".join(f'"{column.name}"' for column in columns)
    for row in book.execute(f'SELECT {names} FROM "{table.name}"'):  # noqa: S608 - names of our own tables
        yield tuple(_value(column, value, row) for column, value in zip(columns, row, strict=True))


def _read_back(connection: sa.Connection, table: sa.Table) -> Iterator[Cells]:
    with connection.execution_options(yield_per=_BATCH).execute(sa.select(*table.columns)) as result:
        for row in result:
            yield tuple(row)


def _value(column: sa.Column[Any], value: Any, row: Cells) -> Any:
    """Return the value as the column's type. Errors: BadInput, naming the row by its key and never its value."""
    if value is None:
        return None
    kind = column.type
    if isinstance(kind, UtcTime) and isinstance(value, str):
        try:
            instant = datetime.fromisoformat(value)
            return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    elif isinstance(kind, sa.Boolean):
        if value in (0, 1):
            return bool(value)
    elif isinstance(kind, sa.Integer):
        if isinstance(value, int):
            return value
    elif isinstance(kind, sa.LargeBinary):
        if isinstance(value, bytes):
            return value
    elif isinstance(value, str) and "\0" not in value and not isinstance(kind, UtcTime):
        return value
    what = {sa.Boolean: "yes or no", sa.Integer: "a whole number", sa.LargeBinary: "bytes", UtcTime: "a time"}
    wanted = next((text for column_type, text in what.items() if isinstance(kind, column_type)), "a text without NUL")
    raise BadInput(f"{_name_of_row(column.table, row)} cannot be copied: its {column.name} is not {wanted}")


def _name_of_row(table: Any, row: Cells) -> str:
    """Name a row by its key: no key is a secret."""
    at = [column.name for column in table.columns]
    key = ", ".join(f"{column.name} {row[at.index(column.name)]}" for column in table.primary_key)
    return f"the row of {table.name} with {key}"


def _idle_row(row: Cells) -> Cells:
    """Return a cluster's row as if no rollout were open there."""
    return tuple(_AT_FIRST.get(column.name, value) for column, value in zip(_CLUSTERS.columns, row, strict=True))


def _write(
    connection: sa.Connection, table: sa.Table, rows: Iterable[Cells], again: Callable[[], Iterator[Cells]]
) -> None:
    """Write the rows. `again`: the same rows in order, to name the one that PostgreSQL refuses by its number."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table.name), columns)
    try:
        with _raw(connection).cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
    except (psycopg.IntegrityError, psycopg.DataError) as error:
        line = _LINE.match(error.diag.context or "")
        which = (
            f"a row of {table.name}"
            if line is None
            else _name_of_row(table, next(islice(again(), int(line[1]) - 1, None)))
        )
        rule = error.diag.constraint_name or error.diag.column_name or type(error).__name__
        raise BadInput(
            f"{which} cannot be copied, because PostgreSQL refuses it ({rule}): correct that row in the SQLite ledger"
        ) from None
    except psycopg.Error as error:
        raise exc.DBAPIError.instance("COPY", None, error, psycopg.Error) from None


def _put_under_way(book: sqlite3.Connection, connection: sa.Connection) -> None:
    """Give clusters their own generations, rollouts and reservations again, over what the triggers have counted."""
    clusters = [dict(zip(_CLUSTERS.columns.keys(), row, strict=True)) for row in _rows(book, _CLUSTERS)]
    values: dict[str, Any] = {name: sa.bindparam(f"to_{name}") for name in _UNDER_WAY}
    statement = sa.update(_CLUSTERS).where(_CLUSTERS.c.name == sa.bindparam("of")).values(values)
    if clusters:
        rows = [{"of": row["name"], **{f"to_{name}": row[name] for name in _UNDER_WAY}} for row in clusters]
        connection.execute(statement, rows)


def _count_on(connection: sa.Connection, tables: Sequence[sa.Table]) -> None:
    """Let the database's own numbers go on after the highest number that was copied."""
    for table in tables:
        for column in table.primary_key:
            if not isinstance(column.type, sa.Integer):
                continue
            of_it = sa.func.pg_get_serial_sequence(table.name, column.name)
            highest = connection.scalar(sa.select(sa.func.max(column)))
            if highest is not None and (sequence := connection.scalar(sa.select(of_it))) is not None:
                connection.execute(sa.select(sa.func.setval(sa.cast(sequence, sa.Text()), highest)))


def _raw(connection: sa.Connection) -> psycopg.Connection[Any]:
    """Return psycopg's own connection, in the same transaction: only it can COPY."""
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        raise Unavailable("the ledger's database did not answer")
    return driver
