"""Freed capacity cannot be taken by way of the tree or the islands, either."""

from __future__ import annotations

from alembic import op

from activities.adapters.ledger.migrations import freed_capacity_triggers

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    connection = op.get_bind()
    for statement in freed_capacity_triggers.STATEMENTS[connection.dialect.name]:
        connection.exec_driver_sql(statement)
