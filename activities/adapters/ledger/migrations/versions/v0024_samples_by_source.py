"""What a source has said of late is found without a walk through all samples."""

from __future__ import annotations

from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.create_index("health_samples_of_source", "health_samples", ["source", "at", "cluster"])
