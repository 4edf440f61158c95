"""Rollouts say what they need from a person."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("needs", sa.Text(), nullable=False, server_default=""))
