"""What clusters were hour by hour, the plan's milestones, and what queued jobs ask for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
_COUNTS = ("total_gpus", "healthy_gpus", "assigned_gpus", "backed_gpus", "flex_gpus", "pending_gpus", "lacking_gpus")


def upgrade() -> None:
    # By hand: alembic adds no column with its check.
    whole = " AND typeof(pending_gpus) IN ('integer', 'null')" if _sqlite() else ""
    op.execute(
        "ALTER TABLE usage_samples ADD COLUMN pending_gpus INTEGER"
        f" CONSTRAINT usage_samples_pending CHECK (pending_gpus >= 0{whole})"
    )
    op.create_table(
        "tallies",
        sa.Column("cluster", NAME, primary_key=True),
        sa.Column("at", TIME, primary_key=True),
        sa.Column("seen_at", TIME, nullable=False),
        *(sa.Column(name, sa.Integer()) for name in _COUNTS[:2]),
        sa.Column("health_at", TIME),
        *(sa.Column(name, sa.Integer()) for name in _COUNTS[2:]),
        sa.Column("known_quotas", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("quotas", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("stage", sa.Text()),
        sa.Column("shadow", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
        sa.CheckConstraint(
            "backed_gpus BETWEEN 0 AND assigned_gpus AND backed_gpus <= healthy_gpus", name="tallies_sums"
        ),
        sa.CheckConstraint("lacking_gpus BETWEEN 0 AND pending_gpus", name="tallies_lacking"),
        *_whole("tallies", *_COUNTS, "known_quotas", "quotas"),
    )
    op.create_index("tallies_by_time", "tallies", ["at", "cluster"])
    op.create_table(
        "milestones",
        sa.Column("name", NAME, primary_key=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("measure", sa.Text(), nullable=False),
        sa.Column("target", sa.Integer(), nullable=False),
        sa.Column("due", sa.Text(), nullable=False),
        sa.Column("began", TIME, nullable=False),
        sa.Column("started_from", sa.Integer()),
        *_whole("milestones", "position", "target", "started_from"),
    )
    op.create_table(
        "milestone_notes",
        sa.Column("key", NAME, primary_key=True),
        sa.Column("milestone", NAME, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        *_whole("milestone_notes", "number"),
    )
    op.create_index("milestone_notes_of", "milestone_notes", ["milestone", "at"])


def _sqlite() -> bool:
    return op.get_bind().dialect.name == "sqlite"


def _whole(table: str, *columns: str) -> list[sa.CheckConstraint]:
    """As in revision 0001: SQLite stores 10.5 and 'many' in an integer column."""
    if not _sqlite():
        return []
    texts = [f"typeof({column}) IN ('integer', 'null')" for column in columns]
    return [sa.CheckConstraint(" AND ".join(texts), name=f"{table}_whole")]
