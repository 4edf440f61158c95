"""Patterns of names: `*` matches any characters, `?` one, anything else itself."""

from __future__ import annotations

from collections.abc import Iterable

ANYTHING = "*"


def matches(pattern: str, name: str) -> bool:
    """Return whether the name matches, in time of at most the product of the lengths: people write patterns."""
    at, star, mark, n = 0, -1, 0, 0
    while n < len(name):
        if at < len(pattern) and pattern[at] == "*":
            star, mark, at = at, n, at + 1
        elif at < len(pattern) and pattern[at] in ("?", name[n]):
            at, n = at + 1, n + 1
        elif star >= 0:
            at, mark, n = star + 1, mark + 1, mark + 1
        else:
            return False
    return not pattern[at:].strip("*")


def any_matches(patterns: Iterable[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)
