"""Classes of jobs: of each quota, of each job, and in views for schedulers that read the ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.adapters.ledger.migrations import class_views, row_constraints

revision = "0015"
down_revision = "0014"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("quotas", sa.Column("classes", NAME, nullable=True))
    op.add_column("jobs", sa.Column("job_class", NAME, nullable=True))
    dialect = op.get_bind().dialect.name
    for statement in (*row_constraints.statements(dialect, row_constraints.RULES_0015), *class_views.views(dialect)):
        op.get_bind().exec_driver_sql(statement)
