"""Who may do what: access files, and the hashes of tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.adapters.ledger.migrations import row_constraints

revision = "0019"
down_revision = "0018"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "access_files",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("version", sa.Integer(), nullable=True, unique=True),
        sa.Column("stands_after", sa.Integer(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("imported_by", sa.Text(), nullable=False),
        sa.Column("imported_at", TIME, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False, server_default=""),
        sa.Column("how", sa.Text(), nullable=False, server_default=""),
        sa.Column("in_force_at", TIME, nullable=True),
        sa.Column("second", sa.Text(), nullable=False, server_default=""),
        sa.CheckConstraint("number >= 1 AND version >= 1 AND stands_after >= 0", name="access_files_counts"),
    )
    op.create_table(
        "access_tokens",
        sa.Column("name", NAME, primary_key=True),
        sa.Column("hash", sa.Text(), nullable=False, unique=True),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("made_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.Column("revoked_by", sa.Text(), nullable=False, server_default=""),
        sa.CheckConstraint("length(hash) = 64", name="access_tokens_hash"),
    )
    connection = op.get_bind()
    for statement in row_constraints.statements(connection.dialect.name, row_constraints.RULES_0019):
        connection.exec_driver_sql(statement)
