"""Windows know where they come from, and who declared them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for name in ("source", "declared_by"):
        op.add_column("windows", sa.Column(name, sa.Text(), nullable=False, server_default=""))
