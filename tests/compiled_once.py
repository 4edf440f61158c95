"""Engines of one database share what SQLAlchemy has compiled.

Each test makes engines of its own, and a fifth of a story's CPU time went into compiling the same statements again.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

_FIRST: dict[str, sa.Engine] = {}
_create_engine = sa.create_engine


def create_engine(url: str | sa.URL, **options: Any) -> sa.Engine:
    """As `sqlalchemy.create_engine`, with the dialect and the cache of the first engine that reached this database."""
    engine = _create_engine(url, **options)
    # The schema that names without one mean differs between databases of PostgreSQL, not between SQLite's files.
    database = "sqlite" if engine.dialect.name == "sqlite" else engine.url.render_as_string(hide_password=False)
    first = _FIRST.setdefault(database, engine)
    if getattr(first.dialect, "server_version_info", None) is None:  # it has not reached its database yet
        _FIRST[database] = engine
    else:
        engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
    return engine
