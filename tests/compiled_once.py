"""Engines of one database share what SQLAlchemy has compiled, and SQLite does not wait for the disk.

Each test makes engines of its own, and a fifth of a story's CPU time went into compiling the same statements again.
What the disk has matters after a power cut only; no test cuts it. A process that is killed loses nothing.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

_FIRST: dict[str, sa.Engine] = {}
plain_create_engine = sa.create_engine


def create_engine(url: str | sa.URL, **options: Any) -> sa.Engine:
    """Create an engine with the dialect and the cache of the first engine of this database."""
    engine = plain_create_engine(url, **options)
    # The schema that names without one mean differs between databases of PostgreSQL, not between SQLite's files.
    database = "sqlite" if engine.dialect.name == "sqlite" else engine.url.render_as_string(hide_password=False)
    first = _FIRST.setdefault(database, engine)
    if getattr(first.dialect, "server_version_info", None) is None:  # it has not reached its database yet
        _FIRST[database] = engine
    else:
        engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
    if database == "sqlite":
        sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    return engine
