"""The whole schema: tables as the models have them, what their rows may not say, views, and triggers.

A ledger of a build before the first release lacks whole tables, two columns and one index: it gets just these.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn
from sqlmodel import SQLModel

from activities.adapters.ledger.migrations import quota_triggers_postgresql as triggers_postgresql
from activities.adapters.ledger.migrations import quota_triggers_sqlite as triggers_sqlite
from activities.adapters.ledger.migrations import row_constraints, views
from models.ledger_access_tables import SealRow
from models.ledger_tables import FleetRow

__all__ = ["EARLIER", "SealRow", "make"]  # all modules with tables are imported

EARLIER = ("0018", "0019", "0020", "0021", "0022", "0023", "0024", "0025", "0100")
"""Revisions of builds up to the first release, whose ledgers `make` completes.

The first revision after 0100 must empty this list: `make` would not change existing tables as that revision does.
"""


def make(connection: sa.Connection, is_earlier: bool) -> None:
    """Make all tables, columns, indexes, views and triggers, in an empty database or in an earlier build's ledger."""
    dialect = connection.dialect.name
    inspector = sa.inspect(connection)
    there = set(inspector.get_table_names()) if is_earlier else set()
    tables = _tables(dialect)
    new = [table for table in tables.sorted_tables if table.name not in there]
    tables.create_all(connection, new, checkfirst=False)
    for table in tables.sorted_tables:
        if table not in new:
            names = {index["name"] for index in inspector.get_indexes(table.name)}
            columns = {column["name"] for column in inspector.get_columns(table.name)}
            for column in table.columns:
                if column.name not in columns:
                    text = CreateColumn(column).compile(dialect=connection.dialect)
                    connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {text}")
            for index in table.indexes:
                if index.name not in names:
                    index.create(connection)
    statements = list(row_constraints.statements(dialect, {table.name for table in new}))
    if not is_earlier:
        connection.execute(sa.insert(tables.tables[str(FleetRow.__tablename__)]), [{"id": 1, "policy": "{}"}])
        triggers = triggers_postgresql if dialect == "postgresql" else triggers_sqlite
        statements += [*views.statements(dialect), *triggers.STATEMENTS]
    for statement in statements:
        connection.exec_driver_sql(statement)


def _tables(dialect: str) -> sa.MetaData:
    """The models' tables for whoever writes by SQL as well: what a row leaves out has the model's default."""
    copies = sa.MetaData()
    for table in SQLModel.metadata.sorted_tables:
        copy = table.to_metadata(copies)
        for column in copy.columns:
            if isinstance(column.default, sa.ColumnDefault) and column.default.is_scalar:
                value = column.default.arg
                text = (sa.true() if value else sa.false()) if isinstance(value, bool) else str(value)
                column.server_default = sa.DefaultClause(text)
        counts = [c.name for c in copy.columns if isinstance(c.type, sa.Integer) and not c.primary_key]
        if dialect == "sqlite" and counts:
            # It keeps 10.5 and 'many' in a column of whole numbers; PostgreSQL does not.
            whole = " AND ".join(f"typeof({name}) IN ('integer', 'null')" for name in counts)
            copy.append_constraint(sa.CheckConstraint(whole, name=f"{copy.name}_whole"))
    return copies
