"""The next actions that all lifecycles share: wait, or finish. Each lifecycle has more of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Wait:
    """Do nothing before `until`; None: before a message arrives or a call under way ends."""

    until: datetime | None

    def ahead_of(self, now: datetime) -> datetime | None:
        """Return `until` if it is still to come."""
        return self.until if self.until is not None and self.until > now else None


@dataclass(frozen=True)
class Finish:
    """End the workflow: the lifecycle has ended."""
