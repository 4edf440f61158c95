"""Monitored for good: the flex pool's surplus for schedulers to read, and who changed which quota."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.adapters.ledger.migrations import foreign_change_triggers_postgresql, foreign_change_triggers_sqlite

revision = "0007"
down_revision = "0006"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
TRIGGERS = {
    "postgresql": foreign_change_triggers_postgresql.STATEMENTS,
    "sqlite": foreign_change_triggers_sqlite.STATEMENTS,
}


def upgrade() -> None:
    op.add_column("clusters", sa.Column("flex_gpus", sa.Integer(), nullable=True))
    op.add_column("clusters", sa.Column("flex_band_gpus", sa.Integer(), nullable=False, server_default="0"))
    op.create_table(
        "quota_changes",
        sa.Column("cluster", NAME, primary_key=True),
        sa.Column("team", NAME, primary_key=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
    )
    connection = op.get_bind()
    for statement in TRIGGERS[connection.dialect.name]:
        connection.exec_driver_sql(statement)
