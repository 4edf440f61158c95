"""The flex pool's surplus is published, for schedulers to read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("clusters", sa.Column("flex_gpus", sa.Integer(), nullable=True))
    op.add_column("clusters", sa.Column("flex_band_gpus", sa.Integer(), nullable=False, server_default="0"))
