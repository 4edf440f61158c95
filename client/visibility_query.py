"""Values inside Temporal's visibility queries. Source: its SQL-like list filters."""

from __future__ import annotations


def quote(text: str) -> str:
    """The text as a literal of a query, whatever is in it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
