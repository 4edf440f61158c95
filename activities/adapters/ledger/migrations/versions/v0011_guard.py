"""The guard over a fleet: sources in doubt, and breach rollbacks that are booked before they are aimed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "source_doubts",
        sa.Column("source", NAME, primary_key=True),
        sa.Column("since", TIME, nullable=True),
        sa.Column("judgement", sa.Text(), nullable=False, server_default=""),
        sa.Column("confirmed_at", TIME, nullable=True),
        sa.Column("confirmed_by", sa.Text(), nullable=False, server_default=""),
    )
    op.create_table(
        "breaches",
        sa.Column("cluster", NAME, primary_key=True),
        sa.Column("at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
    )
