"""Ids of commands that a caller may repeat: a caller who got no answer sends the same key again.

The key, the author and the message make the id by which Temporal knows an update or a workflow. So a repeat gets the
answer of the first, whichever front forwards it: nothing is kept here.
"""

from __future__ import annotations

import hashlib
import uuid
from contextvars import ContextVar

from models.access.tickets import arguments_hash
from models.base import Model

repeat_key: ContextVar[str] = ContextVar("backstop_repeat_key", default="")
"""The key of the current command, with its author; empty: the command cannot be repeated."""


def is_repeatable() -> bool:
    return bool(repeat_key.get())


def same_id(where: str, message: Model) -> str:
    """Return the same id for the same message to the same place under the same key, and else a new one."""
    if not (key := repeat_key.get()):
        return uuid.uuid4().hex
    return hashlib.sha256("\0".join((key, where, arguments_hash(message))).encode()).hexdigest()[:32]
