"""Tallies of days that are over are kept as sums, too. The watch fills them in, a day at a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "tally_days",
        sa.Column("cluster", NAME, primary_key=True),
        sa.Column("at", TIME, primary_key=True),
        sa.Column("monitored", sa.Boolean(), primary_key=True),
        sa.Column("tallies", sa.Integer(), nullable=False),
        sa.Column("first_at", TIME, nullable=False),
        sa.Column("last_at", TIME, nullable=False),
        sa.Column("lacking_known", sa.Integer(), nullable=False),
        sa.Column("lacking_gpus", sa.BigInteger(), nullable=False),
        sa.Column("phantom_known", sa.Integer(), nullable=False),
        sa.Column("phantom_gpus", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
    )
    op.create_index("tally_days_by_time", "tally_days", ["at"])
