"""Second persons: commands that wait for one, and what was done without one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.adapters.ledger.migrations import row_constraints

revision = "0022"
down_revision = "0021"

TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "waiting_commands",
        sa.Column("hash", sa.Text(), primary_key=True),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("given_by", sa.Text(), nullable=False),
        sa.Column("given_at", TIME, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("second", sa.Text(), nullable=False, server_default=""),
        sa.Column("taken_at", TIME, nullable=True),
        sa.Column("ended", sa.Text(), nullable=False, server_default=""),
        sa.Column("ended_at", TIME, nullable=True),
        sa.CheckConstraint("length(hash) = 64", name="waiting_commands_hash"),
        sa.CheckConstraint("ended IN ('', 'given', 'withdrawn')", name="waiting_commands_ended"),
    )
    op.create_table(
        "emergencies",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("key", sa.Text(), nullable=False, unique=True),
        sa.Column("given_by", sa.Text(), nullable=False),
        sa.Column("given_at", TIME, nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("seen_by", sa.Text(), nullable=False, server_default=""),
        sa.Column("seen_at", TIME, nullable=True),
        sa.Column("seen_reason", sa.Text(), nullable=False, server_default=""),
        sa.CheckConstraint("number >= 1", name="emergencies_counts"),
    )
    connection = op.get_bind()
    for statement in row_constraints.statements(connection.dialect.name, row_constraints.RULES_0022):
        connection.exec_driver_sql(statement)
