"""The content of two ledgers, by plain SQL and each database's own driver: one in a file, one on PostgreSQL."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg


def tables_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as book:
        names = book.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        return sorted(name for (name,) in names)


def in_file(path: Path, table: str) -> tuple[list[str], list[str]]:
    """Columns, and rows as text in the order of that."""
    with closing(sqlite3.connect(path)) as book:
        cursor = book.execute(f"SELECT * FROM {table}")
        columns = sorted(column[0] for column in cursor.description)
        order = [[c[0] for c in cursor.description].index(column) for column in columns]
        return columns, sorted(repr([row[at] for at in order]) for row in cursor)


def in_server(url: str, table: str, columns: list[str]) -> list[str]:
    def plain(value: Any) -> Any:
        if isinstance(value, datetime):
            return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
        return int(value) if isinstance(value, bool) else bytes(value) if isinstance(value, memoryview) else value

    with psycopg.connect(url) as connection:
        found = connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    return sorted(repr([plain(value) for value in row]) for row in found)
