"""Many rows at once. PostgreSQL gets them as one JSON value: one statement, and one firing of its triggers.

SQLite is fastest row by row in one transaction, and its triggers fire for each row anyhow. A list to look up is
one value on both: as a parameter for each, 10,000 names took longer to hand over than to find, and 65,536 fail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine
from sqlmodel import Session, SQLModel

Row = dict[str, Any]

FEW_ROWS = 20
"""Up to here one statement for each row costs less than planning the other form."""


def add(session: Session, table: type[SQLModel], rows: Sequence[Row]) -> None:
    """New rows. Errors as for any insert, of a row that exists for example."""
    if rows:
        _insert(session, table, _insertion(table, _dialect(session)), rows)


def keep(session: Session, table: type[SQLModel], rows: Sequence[Row]) -> None:
    """Rows with these keys are in the table: those that were there stay as they were."""
    if rows:
        _insert(session, table, _insertion(table, _dialect(session)).on_conflict_do_nothing(), rows)


def store(session: Session, table: type[SQLModel], rows: Sequence[Row]) -> None:
    """The rows are in the table, in place of those with their keys. Rows must not share a key."""
    if not rows:
        return
    insertion = _insertion(table, _dialect(session))
    key, others = _key_and_others(table, rows[0])
    news = {name: insertion.excluded[name] for name in others}
    _insert(session, table, insertion.on_conflict_do_update(index_elements=key, set_=news), rows)


def update(session: Session, table: type[SQLModel], rows: Sequence[Row]) -> None:
    """The rows with these keys have the other values."""
    if not rows:
        return
    key, others = _key_and_others(table, rows[0])
    if _as_one(session, rows):
        given = _as_table(table, rows)
        same = [getattr(table, name) == given.c[name] for name in key]
        session.connection().execute(sa.update(table).where(*same).values({n: given.c[n] for n in others}))
        return
    session.connection().execute(_update(table, tuple(others)), _renamed(rows, [*key, *others]))


def delete(session: Session, table: type[SQLModel], rows: Sequence[Row]) -> None:
    """The rows with these keys are gone; their other values do not matter."""
    if not rows:
        return
    key, _ = _key_and_others(table, rows[0])
    statement = sa.delete(table)
    if _as_one(session, rows):
        given = _as_table(table, rows)
        session.connection().execute(statement.where(*(getattr(table, n) == given.c[n] for n in key)))
        return
    same = [getattr(table, name) == sa.bindparam(f"to_{name}") for name in key]
    session.connection().execute(statement.where(*same), _renamed(rows, key))


class _Names(TypeDecorator[Sequence[str]]):
    """A list of names as one value."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.ARRAY(sa.Text()) if dialect.name == "postgresql" else sa.Text())

    def process_bind_param(self, value: Sequence[str] | None, dialect: sa.Dialect) -> Any:
        names = list(value or ())
        return names if dialect.name == "postgresql" else json.dumps(names)


class _Among(FunctionElement[bool]):
    inherit_cache = True
    type = sa.Boolean()


def among(column: Any, names: str) -> sa.ColumnElement[bool]:
    """The column has one of the values that are given as the parameter `names`."""
    return _Among(column, sa.bindparam(names, type_=_Names()))


@compiles(_Among, "postgresql")
def _any(element: _Among, compiler: Any, **more: Any) -> str:
    column, names = (compiler.process(part, **more) for part in element.clauses)
    return f"{column} = ANY({names})"


@compiles(_Among, "sqlite")
def _each(element: _Among, compiler: Any, **more: Any) -> str:
    column, names = (compiler.process(part, **more) for part in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({names}))"  # noqa: S608 - parts that were compiled


def _insert(session: Session, table: type[SQLModel], statement: Any, rows: Sequence[Row]) -> None:
    if not _as_one(session, rows):
        session.connection().execute(statement, rows)
        return
    given = _as_table(table, rows)
    names = list(rows[0])
    session.connection().execute(statement.from_select(names, sa.select(*(given.c[n] for n in names))))


# Built once for each table: to build a statement takes about as long as to run it.
@cache
def _insertion(table: type[SQLModel], dialect: str) -> Any:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


@cache
def _update(table: type[SQLModel], names: tuple[str, ...]) -> sa.Update:
    key = [column.name for column in sa.inspect(table).primary_key]
    same = [getattr(table, name) == sa.bindparam(f"to_{name}") for name in key]
    return sa.update(table).where(*same).values({name: sa.bindparam(f"to_{name}") for name in names})


def _dialect(session: Session) -> str:
    return session.get_bind().dialect.name


def _as_one(session: Session, rows: Sequence[Row]) -> bool:
    return len(rows) > FEW_ROWS and _dialect(session) == "postgresql"


def _as_table(table: type[SQLModel], rows: Sequence[Row]) -> Any:
    """A FROM clause that is these rows, typed like the table's columns."""
    types = sa.inspect(table).columns
    columns = [sa.column(name, types[name].type) for name in rows[0]]
    text = sa.literal(json.dumps(rows, default=_instant), sa.Text())
    given = sa.func.json_to_recordset(sa.cast(text, postgresql.JSON()))
    return given.table_valued(*columns, name="given").render_derived(with_types=True)


def _instant(value: object) -> str:
    if not isinstance(value, datetime):
        raise TypeError(f"no JSON for {type(value).__name__}")
    return value.isoformat()


def _key_and_others(table: type[SQLModel], row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    key = [column.name for column in sa.inspect(table).primary_key]
    return key, [name for name in row if name not in key]


def _renamed(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """SQLAlchemy keeps the columns' own names for itself in an UPDATE."""
    return [{f"to_{name}": row[name] for name in names} for row in rows]
