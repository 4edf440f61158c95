"""Quotas that a scheduler holds: which one, what its limits were last, and who writes there now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.add_column("clusters", sa.Column("source", sa.Text(), nullable=True))
    op.add_column("clusters", sa.Column("health_source", sa.Text(), nullable=True))
    op.create_table(
        "scheduler_limits",
        sa.Column("cluster", NAME, primary_key=True),
        sa.Column("name", NAME, primary_key=True),
        sa.Column("gpus", sa.Integer(), nullable=True),
        sa.Column("first_gpus", sa.Integer(), nullable=True),
        sa.Column("ours", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
    )
    op.create_table(
        "scheduler_locks",
        sa.Column("cluster", NAME, primary_key=True),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", TIME, nullable=False),
    )
