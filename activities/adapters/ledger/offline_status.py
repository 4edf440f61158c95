"""Reads the open rollouts by plain SQL, in a tenth of the time that importing the ledger's adapter takes.

workers/offline_status.py uses it for a person who asks while no worker answers. It only reads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from models.errors import Refusal, Unavailable

_FILES = ("sqlite:///", "sqlite+pysqlite:///")
_SERVERS = ("postgresql+psycopg://", "postgresql://", "postgres://")
_AHEAD = timedelta(minutes=1)
"""Samples dated further ahead than this are ignored (models.cluster.readings.CLOCK_SKEW)."""
_OPEN = """
    SELECT r.cluster, r.id, r.stage, r.needs, r.shadow, r.owner, r.opened_at
    FROM clusters c JOIN rollouts r ON r.id = c.open_rollout ORDER BY r.cluster
"""
_SEEN = """
    SELECT i.cluster, (
        SELECT max(h.at) FROM health_samples h
        WHERE h.cluster = i.cluster AND h.island = i.name AND h.at <= '{latest}' AND h.healthy_gpus <= i.total_gpus
    )
    FROM islands i JOIN clusters c ON c.name = i.cluster WHERE c.open_rollout IS NOT NULL
"""
Ask = Callable[[str], Sequence[Sequence[Any]]]


def overviews_in_ledger(url: str, now: datetime) -> list[dict[str, Any]]:
    """Return the fields of `models.questions.Overview` of each open rollout, by cluster; times as datetime or ISO text.

    Errors: Refusal if there is no such ledger; Unavailable if it does not answer, or has other tables.
    """
    for scheme in _FILES:
        if url.startswith(scheme):
            return _of_file(Path(url.removeprefix(scheme)), now)
    for scheme in _SERVERS:
        if url.startswith(scheme):
            return _of_server(f"postgresql://{url.removeprefix(scheme)}", now)
    raise Refusal("the ledger's URL names neither SQLite nor PostgreSQL: set BACKSTOP_LEDGER_URL")


def _of_file(path: Path, now: datetime) -> list[dict[str, Any]]:
    if not path.is_file():
        raise Refusal(f"there is no ledger {path}")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as book:
            book.execute("BEGIN")  # both answers of one moment
            return _rows(lambda sql: book.execute(sql).fetchall(), now)
    except sqlite3.Error as error:
        raise Unavailable(f"the ledger {path} cannot be read: {error}") from None


def _of_server(url: str, now: datetime) -> list[dict[str, Any]]:
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=2) as book:
            book.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            book.execute("SET statement_timeout = 1000")
            return _rows(lambda sql: book.execute(sql).fetchall(), now)
    except psycopg.Error as error:
        raise Unavailable(f"the ledger cannot be read: {type(error).__name__}") from None  # its text may hold the URL


def _rows(ask: Ask, now: datetime) -> list[dict[str, Any]]:
    latest = f"{(now + _AHEAD).astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    seen: dict[str, list[Any]] = {}
    for cluster, at in ask(_SEEN.format(latest=latest)):
        seen.setdefault(cluster, []).append(at)
    return [
        {
            "cluster": cluster,
            "rollout": rollout,
            "stage": stage,
            "needs": needs,
            "shadow": bool(shadow),
            "owner": owner,
            "opened_at": opened_at,
            "health_at": min(seen[cluster]) if all(seen.get(cluster, [None])) else None,
        }
        for cluster, rollout, stage, needs, shadow, owner, opened_at in ask(_OPEN)
    ]
