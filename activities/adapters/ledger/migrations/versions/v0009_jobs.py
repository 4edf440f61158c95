"""Jobs by name: who holds what, and how long those on flex lived."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("cluster", NAME, primary_key=True),
        sa.Column("job", NAME, primary_key=True),
        sa.Column("started", TIME, primary_key=True),
        sa.Column("team", NAME, nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("idle_gpus", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("runs_on", sa.Text(), nullable=False, server_default="quota"),
        sa.Column("island", NAME, nullable=True),
        sa.Column("ended", TIME, nullable=True),
        sa.Column("preempted", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.CheckConstraint("gpus > 0 AND idle_gpus BETWEEN 0 AND gpus", name="jobs_counts"),
        sa.CheckConstraint("runs_on IN ('quota', 'flex')", name="jobs_runs_on"),
        sa.CheckConstraint("ended >= started", name="jobs_forward"),
        sa.ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
    )
    op.create_index("jobs_by_end", "jobs", ["cluster", "ended"])
