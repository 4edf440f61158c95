"""The book of bring-ups, and what first quotas are owed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.adapters.ledger.migrations import row_constraints

revision = "0018"
down_revision = "0016"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "bringups",
        sa.Column("cluster", NAME, primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("opening", sa.Text(), nullable=False),
        sa.Column("opened_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("stage_at", TIME, nullable=False),
        sa.Column("orders", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("board", sa.Text(), nullable=False),
        sa.CheckConstraint("number >= 1 AND orders >= 0", name="bringups_counts"),
        sa.CheckConstraint("ended_at >= opened_at", name="bringups_forward"),
    )
    still = sa.text("ended_at IS NULL")
    op.create_index("bringups_open", "bringups", ["cluster"], unique=True, postgresql_where=still, sqlite_where=still)
    op.create_table(
        "owed",
        sa.Column("cluster", NAME, sa.ForeignKey("clusters.name", ondelete="CASCADE"), primary_key=True),
        sa.Column("team", NAME, primary_key=True),
        sa.Column("wanted_gpus", sa.Integer(), nullable=False),
        sa.Column("granted_gpus", sa.Integer(), nullable=False),
        sa.Column("until", TIME, nullable=True),
        sa.CheckConstraint("wanted_gpus >= 0 AND granted_gpus >= 0", name="owed_counts"),
    )
    connection = op.get_bind()
    for statement in row_constraints.statements(connection.dialect.name, row_constraints.RULES_0018):
        connection.exec_driver_sql(statement)
