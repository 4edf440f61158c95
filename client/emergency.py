"""Marks a command that one person gives alone, in an emergency, where two would be needed.

Only a front can judge that: a caller who speaks to Temporal directly is not proven.
"""

from __future__ import annotations

from contextvars import ContextVar

acts_alone: ContextVar[bool] = ContextVar("backstop_acts_alone", default=False)
NEEDS_FRONT = (
    "--emergency needs a front, which knows who you are (BACKSTOP_URL, or `backstop up` on this machine); without a "
    "front no command needs a second person, so leave --emergency out"
)
