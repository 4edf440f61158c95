"""Warrants, what genuine activities drew up, and what effects stood on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "warrants",
        sa.Column("nonce", NAME, primary_key=True),
        sa.Column("command", NAME, nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("subject", NAME, nullable=False),
        sa.Column("update_id", sa.Text(), nullable=False, server_default=""),
        sa.Column("attempt", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("plan_hash", sa.Text(), nullable=False, server_default=""),
        sa.Column("policy_hash", sa.Text(), nullable=False, server_default=""),
        sa.Column("generation", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("human", sa.Text(), nullable=False, server_default=""),
        sa.Column("ticket", sa.Text(), nullable=False, server_default=""),
        sa.Column("message", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("content", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("content_sha256", sa.Text(), nullable=False, server_default=""),
        sa.Column("inherits", NAME, nullable=True),
        sa.Column("admitted_at", TIME, nullable=False),
        sa.Column("voided_at", TIME, nullable=True),
        sa.Column("voided_by", sa.Text(), nullable=False, server_default=""),
    )
    op.create_index("warrants_of_subject", "warrants", ["subject", "admitted_at"])
    op.create_table(
        "drawn",
        sa.Column("subject", NAME, primary_key=True),
        sa.Column("sha256", NAME, primary_key=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False, server_default=""),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("drawn_at", TIME, nullable=False),
    )
    op.create_index("drawn_of_subject", "drawn", ["subject", "kind", "drawn_at"])
    op.create_table(
        "effect_proofs",
        sa.Column("rollout", NAME, primary_key=True),
        sa.Column("counter", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("ground", sa.Text(), nullable=False),
        sa.Column("stood_on", sa.Text(), nullable=False, server_default=""),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("after", sa.Text(), nullable=False, server_default=""),
        sa.Column("at", TIME, nullable=False),
    )
