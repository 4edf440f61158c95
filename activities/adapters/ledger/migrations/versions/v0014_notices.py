"""What is to be told waits in the ledger, so that notices of one audience can go together; and how each wants it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.add_column("teams", sa.Column("notify", sa.Text(), nullable=True))
    op.create_table(
        "messages",
        sa.Column("key", NAME, primary_key=True),
        sa.Column("audience", NAME, nullable=False),
        sa.Column("formed_at", TIME, nullable=False),
        sa.Column("over", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("sent_at", TIME, nullable=True),
        sa.Column("refused", sa.Text(), nullable=False, server_default=""),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("try_at", TIME, nullable=False),
        sa.Column("trouble", sa.Text(), nullable=False, server_default=""),
        sa.Column("deliveries", sa.Text(), nullable=False, server_default="[]"),
    )
    op.create_index("messages_of", "messages", ["audience", "formed_at"])
    op.create_index("messages_open", "messages", ["over", "try_at"])
    op.create_table(
        "notices",
        sa.Column("key", NAME, primary_key=True),
        sa.Column("audience", NAME, nullable=False),
        sa.Column("cluster", NAME, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("posted_at", TIME, nullable=False),
        sa.Column("notice", sa.Text(), nullable=False),
        sa.Column("message", NAME, sa.ForeignKey("messages.key"), nullable=True),
    )
    op.create_index("notices_of_message", "notices", ["message", "audience"])
