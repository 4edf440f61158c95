"""What alembic runs: the revisions, on the connection and in the transaction that `upgrade` opened."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    # SQLite can roll DDL back; alembic takes care not to rely on it unless told.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
