"""The clock is a port: code that reads the time is given it as `now`. A worker gives the real one, a test one it turns.

Durations within one process (pauses, deadlines, heartbeats) go by the event loop's time, and in threads by
`time.monotonic`. tests/unit/test_clock.py finds code that reads another clock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The real clock: the default of everything that takes a clock."""
    return datetime.now(UTC)


worker_clock: ContextVar[Clock] = ContextVar("backstop_worker_clock", default=utc_now)
"""The worker's clock, so that a query is answered as of now although the workflow's time stands still."""
