"""The ledger refuses by itself what makes no sense: sizes, names, times, settings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.adapters.ledger.migrations import row_constraints

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    connection = op.get_bind()
    for statement in row_constraints.statements(connection.dialect.name, row_constraints.RULES_0012):
        connection.exec_driver_sql(statement)
    for table, column in (("health_samples", "total_gpus"), ("usage_samples", "scheduled_gpus")):
        beyond = sa.text(f"{column} > {row_constraints.MOST_GPUS}")
        op.create_index(f"{table}_beyond", table, ["cluster"], postgresql_where=beyond, sqlite_where=beyond)
