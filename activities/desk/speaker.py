"""Holds the person who gives the ledger's desk a command: the archive reads it here, and no port takes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from models.access.principals import Principal

_SPEAKER: ContextVar[Principal | None] = ContextVar("speaker", default=None)


@contextmanager
def speak_as(principal: Principal) -> Iterator[None]:
    """Attribute to this person what this thread archives of them within."""
    token = _SPEAKER.set(principal)
    try:
        yield
    finally:
        _SPEAKER.reset(token)


def speaker() -> Principal | None:
    return _SPEAKER.get()
