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

from models.columns import UtcTime

Row = dict[str, Any]

FEW_ROWS = 20
"""Up to this number of rows, one statement for each row is cheaper than planning a bulk statement."""


def add(session: Session, table: type[SQLModel], rows: Sequence[Row]) -> None:
    """Insert new rows. Errors as for any insert, for example if a row exists."""
    if rows:
        _insert(session, table, _insertion(table, _dialect(session)), rows)


def keep(session: Session, table: type[SQLModel], rows: Sequence[Row]) -> None:
    """Insert the rows whose keys are not in the table yet; the others stay as they are."""
    if rows:
        _insert(session, table, _insertion(table, _dialect(session)).on_conflict_do_nothing(), rows)


def store(session: Session, table: type[SQLModel], rows: Sequence[Row]) -> None:
    """Insert the rows, or replace those with their keys. Rows must not share a key."""
    if not rows:
        return
    insertion = _insertion(table, _dialect(session))
    key, others = _key_and_others(table, rows[0])
    news = {name: insertion.excluded[name] for name in others}
    _insert(session, table, insertion.on_conflict_do_update(index_elements=key, set_=news), rows)


def update(session: Session, table: type[SQLModel], rows: Sequence[Row]) -> None:
    """Set the other values of the rows with these keys."""
    if not rows:
        return
    key, others = _key_and_others(table, rows[0])
    if _as_one(session, rows):
        row_table = _as_table(table, rows)
        same = [getattr(table, name) == row_table.c[name] for name in key]
        session.connection().execute(sa.update(table).where(*same).values({n: row_table.c[n] for n in others}))
        return
    session.connection().execute(_update(table, tuple(others)), _rename_columns(rows, [*key, *others]))


def delete(session: Session, table: type[SQLModel], rows: Sequence[Row]) -> None:
    """Delete the rows with these keys; their other values do not matter."""
    if not rows:
        return
    key, _ = _key_and_others(table, rows[0])
    statement = sa.delete(table)
    if _as_one(session, rows):
        row_table = _as_table(table, rows)
        session.connection().execute(statement.where(*(getattr(table, n) == row_table.c[n] for n in key)))
        return
    same = [getattr(table, name) == sa.bindparam(f"to_{name}") for name in key]
    session.connection().execute(statement.where(*same), _rename_columns(rows, key))


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

    def self_group(self, against: Any = None) -> Any:
        """Return the element as it is: SQLAlchemy would compare it with 1 on SQLite, which then uses no index."""
        return self


def is_among(column: Any, names: str) -> sa.ColumnElement[bool]:
    """Return the condition that the column has one of the values given as the parameter `names`."""
    return _Among(column, sa.bindparam(names, type_=_Names()))


@compiles(_Among, "postgresql")
def _any(element: _Among, compiler: Any, **more: Any) -> str:
    column, names = (compiler.process(part, **more) for part in element.clauses)
    return f"{column} = ANY({names})"


@compiles(_Among, "sqlite")
def _each(element: _Among, compiler: Any, **more: Any) -> str:
    column, names = (compiler.process(part, **more) for part in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({names}))"  # noqa: S608 - parts that were compiled


def as_json(session: Session, rows: Sequence[Row]) -> str:
    """Write the rows as JSON, with times as the database keeps them, so that they compare as they are."""
    dialect, time = session.get_bind().dialect, UtcTime()

    @cache  # of a thousand rows, most end at the same time
    def as_kept(value: datetime) -> Any:
        return time.process_bind_param(value, dialect)

    def convert(value: object) -> object:
        return as_kept(value) if isinstance(value, datetime) else value

    return json.dumps([{name: convert(value) for name, value in row.items()} for row in rows], default=_instant)


def rows_of(dialect: str, name: str, **types: TypeEngine[Any]) -> Any:
    """Return a FROM clause with the rows in the parameter `name`, which `as_json` wrote."""
    text = sa.bindparam(name, type_=sa.Text())
    if dialect == "postgresql":
        return _recordset(text, name, types)
    each = sa.func.json_each(text).table_valued("value", name=f"{name}_each")
    values = (
        sa.type_coerce(sa.func.json_extract(each.c.value, f"$.{column}"), kind).label(column)
        for column, kind in types.items()
    )
    # Materialized: else SQLite reads the text again for each row that is compared with one of these.
    return sa.select(*values).cte(name).prefix_with("MATERIALIZED")


def _insert(session: Session, table: type[SQLModel], statement: Any, rows: Sequence[Row]) -> None:
    if not _as_one(session, rows):
        session.connection().execute(statement, rows)
        return
    row_table = _as_table(table, rows)
    names = list(rows[0])
    session.connection().execute(statement.from_select(names, sa.select(*(row_table.c[name] for name in names))))


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
    """Return a FROM clause with these rows, typed like the table's columns."""
    types = sa.inspect(table).columns
    text = sa.literal(json.dumps(rows, default=_instant), sa.Text())
    return _recordset(text, "given", {name: types[name].type for name in rows[0]})


def _recordset(text: Any, name: str, types: Mapping[str, TypeEngine[Any]]) -> Any:
    """Return PostgreSQL's rows of a JSON list, whose columns have these types."""
    columns = [sa.column(column, kind) for column, kind in types.items()]
    recordset = sa.func.json_to_recordset(sa.cast(text, postgresql.JSON()))
    return recordset.table_valued(*columns, name=name).render_derived(with_types=True)


def _instant(value: object) -> str:
    if not isinstance(value, datetime):
        raise TypeError(f"no JSON for {type(value).__name__}")
    return value.isoformat()


def _key_and_others(table: type[SQLModel], row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    key = [column.name for column in sa.inspect(table).primary_key]
    return key, [name for name in row if name not in key]


def _rename_columns(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    return [{f"to_{name}": row[name] for name in names} for row in rows]
