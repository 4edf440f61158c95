"""Seals of the archive's chains, so that every sealer knows the last one, and how sealing goes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "seals",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("leaf", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.CheckConstraint("number >= 1", name="seals_counts"),
    )
    op.create_table(
        "sealing",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("every_seconds", sa.Integer(), nullable=False),
        sa.Column("since", TIME, nullable=False),
        sa.Column("trouble", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name="sealing_one"),
    )
