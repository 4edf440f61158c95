"""The ledger itself counts foreign changes and refuses foreign grabs of freed capacity."""

from __future__ import annotations

from alembic import op

from activities.adapters.ledger.migrations import generation_triggers_postgresql, generation_triggers_sqlite
from activities.adapters.ledger.migrations.reservation_views import VIEWS

revision = "0002"
down_revision = "0001"

TRIGGERS = {"postgresql": generation_triggers_postgresql.STATEMENTS, "sqlite": generation_triggers_sqlite.STATEMENTS}


def upgrade() -> None:
    connection = op.get_bind()
    for statement in (*VIEWS, *TRIGGERS[connection.dialect.name]):
        connection.exec_driver_sql(statement)
