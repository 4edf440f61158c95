"""What a bring-up needs of the ledger and the fleet; who runs its steps is in activities/ports/runners.py.

All calls block: activities run them in threads. Each may raise Unavailable, and each may be made again.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from models.bringup.messages import (
    BringupRecord,
    BringupStart,
    HandedOver,
    HandOverRequest,
    OpenedBringup,
    WindDownRequest,
    WoundDown,
)


class BringupsPort(Protocol):
    """The registry of bring-ups: the board, the weekly report, and how many there were of a cluster."""

    def open(self, start: BringupStart, at: datetime) -> OpenedBringup:
        """Whether it may begin (the cluster is not in the fleet, its quotas are below C), and its number.

        `at`: when the call was made. One that comes after the end of what it opened is refused.
        """
        ...

    def record(self, record: BringupRecord) -> None:
        """The row stands, and the entries are archived, each once by its key."""
        ...


class ProductionPort(Protocol):
    """The way into the fleet, and out of it. Each call finishes what an earlier one of the same bring-up began."""

    def hand_over(self, request: HandOverRequest) -> HandedOver:
        """Islands, sources and first quotas are in the fleet. Errors: Refusal, BadInput."""
        ...

    def grant_owed(self, request: HandOverRequest) -> HandedOver:
        """What is owed is granted as far as it fits now; through the rollout that is open, where one is."""
        ...

    def wind_down(self, request: WindDownRequest) -> WoundDown:
        """A rollout that takes the quotas to nothing is there; answers what still stands and runs. Errors: Refusal."""
        ...
