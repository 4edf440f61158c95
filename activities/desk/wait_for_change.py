"""Waits at the ledger until something has happened there."""

from __future__ import annotations

import time
from collections.abc import Callable

from temporalio import activity

_LOOK_SECONDS = 0.5


def other_than(since: str, seconds: float, mark: Callable[[], str]) -> str:
    """Return the mark once it has changed, when so many seconds are over, or as the worker stops.

    One thread of a worker waits for each front that shows pages, and for none that shows none.
    """
    ends = time.monotonic() + seconds
    while (present := mark()) == since and time.monotonic() < ends and not activity.is_worker_shutdown():
        activity.wait_for_worker_shutdown_sync(_LOOK_SECONDS)
    return present
