"""Ports that a bring-up needs to the ledger and the fleet; the runners of its steps are in activities/ports/runners.py.

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
        """Return whether it may begin (the cluster is not in the fleet, its quotas are below C), and its number.

        `at`: when the call was made. A call that comes after the end of the bring-up that it opened is refused.
        """

    def record(self, record: BringupRecord) -> None:
        """Store the row, and archive the entries, each once by its key."""


class ProductionPort(Protocol):
    """Takes clusters into the fleet, and out of it. A call finishes what an earlier one of its bring-up began."""

    def hand_over(self, request: HandOverRequest) -> HandedOver:
        """Take islands, sources and first quotas into the fleet. Errors: Refusal, BadInput."""

    def grant_owed(self, request: HandOverRequest) -> HandedOver:
        """Grant what is owed as far as it fits now; through the open rollout, if there is one."""

    def wind_down(self, request: WindDownRequest) -> WoundDown:
        """Have a rollout lower the quotas to nothing; return the quotas and jobs that are left. Errors: Refusal."""
