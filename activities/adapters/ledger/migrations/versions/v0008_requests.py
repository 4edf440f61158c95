"""Requests for more quota: their book and receipts, what Backstop wrote last, and who may target a quota."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.adapters.ledger.migrations import namespaces_in_triggers

revision = "0008"
down_revision = "0007"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.add_column("quotas", sa.Column("written_gpus", sa.Integer(), nullable=True))
    op.add_column("quotas", sa.Column("hand", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("quotas", sa.Column("namespaces", NAME, nullable=True))
    op.create_table(
        "requests",
        sa.Column("id", NAME, primary_key=True),
        sa.Column("cluster", NAME, nullable=False),
        sa.Column("team", NAME, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.Column("asked_at", TIME, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
    )
    op.create_index("requests_of_cluster", "requests", ["cluster", "ended"])
    op.create_table(
        "grant_receipts",
        sa.Column("rollout", NAME, primary_key=True),
        sa.Column("counter", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("cluster", NAME, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("receipt", sa.Text(), nullable=False),
    )
    connection = op.get_bind()
    for statement in namespaces_in_triggers.STATEMENTS[connection.dialect.name]:
        connection.exec_driver_sql(statement)
