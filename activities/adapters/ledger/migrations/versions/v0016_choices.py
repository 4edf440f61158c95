"""How a team wants to be told is one of the words that there are; imports that wrote nothing keep their answer; and
classes are read past a policy that is no JSON.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.adapters.ledger.migrations import class_views, row_constraints

revision = "0016"
down_revision = "0015"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    connection = op.get_bind()
    dialect = connection.dialect.name
    for statement in (
        *row_constraints.statements(dialect, row_constraints.RULES_0016),
        *class_views.views_0016(dialect),
    ):
        connection.exec_driver_sql(statement)
    op.create_table(
        "import_answers",
        sa.Column("import_id", NAME, primary_key=True),
        sa.Column("at", TIME, nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
    )
