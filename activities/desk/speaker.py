"""Who gives the ledger's desk a command: the archive learns it from here, and no port takes it as an argument."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from models.access.principals import Principal

_SPEAKER: ContextVar[Principal | None] = ContextVar("speaker", default=None)


@contextmanager
def spoken_by(principal: Principal) -> Iterator[None]:
    """Within, in this thread, what is archived of this actor is theirs."""
    token = _SPEAKER.set(principal)
    try:
        yield
    finally:
        _SPEAKER.reset(token)


def speaker() -> Principal | None:
    return _SPEAKER.get()
