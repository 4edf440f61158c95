"""Times of the front's answers, by door. Labels are fixed words, never text from a caller."""

from __future__ import annotations

from enum import StrEnum

from opentelemetry import metrics

_meter = metrics.get_meter("backstop")
_seconds = _meter.create_histogram(
    "backstop.front_seconds", unit="s", description="Time until a front began to answer, by door and status"
)


class FrontDoor(StrEnum):
    """A way into the front."""

    API = "api"
    PAGE = "page"
    SLACK = "slack"


def record_time(door: FrontDoor, status: int, seconds: float) -> None:
    """Record the time until a front begins its answer, without what it streams afterwards."""
    _seconds.record(seconds, {"door": door.value, "status": str(status)})
