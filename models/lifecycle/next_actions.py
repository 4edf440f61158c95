"""What every lifecycle may decide to do next: wait, or finish. Each has actions of its own beside these."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `until` (None: before somebody says something, or what is under way ends)."""

    until: datetime | None

    def ahead_of(self, now: datetime) -> datetime | None:
        """`until`, where that is still to come."""
        return self.until if self.until is not None and self.until > now else None


@dataclass(frozen=True)
class Finish:
    """It has ended."""
