"""Writes values into Temporal's visibility queries. Source: its SQL-like list filters."""

from __future__ import annotations


def quote(text: str) -> str:
    """Return the text as a literal of a query, safe for any content."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
