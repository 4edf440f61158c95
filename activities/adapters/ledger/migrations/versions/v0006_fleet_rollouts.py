"""Fleet rollouts: what was approved of each cluster, and how often its rollout has rolled back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("rollbacks", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("rollouts", sa.Column("fleet", _NAME, nullable=False, server_default=""))
    op.create_index("rollouts_of_fleet", "rollouts", ["fleet"])
    op.create_table(
        "fleet_plans",
        sa.Column("fleet", _NAME, primary_key=True),
        sa.Column("cluster", _NAME, primary_key=True),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
    )
