"""What a rollout can do next: one of these at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from models.cluster.island import Island
from models.rollout.effects import EffectKind


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `until` (None: before somebody says something)."""

    until: datetime | None

    def ahead_of(self, now: datetime) -> datetime | None:
        """`until`, where that is still to come."""
        return self.until if self.until is not None and self.until > now else None


@dataclass(frozen=True)
class Look:
    """Observe the cluster; test the backing of these values (None: of what it holds now)."""

    why: str
    values: dict[str, int] | None


@dataclass(frozen=True)
class Draft:
    """Make a plan from the baseline and today's health; `islands`: a proposal, on these."""

    why: str
    islands: tuple[Island, ...] = ()


@dataclass(frozen=True)
class Aim:
    """Find where a breach rollback goes."""


@dataclass(frozen=True)
class Perform:
    """One effect, forward or inverse; the workflow gives it its fence."""

    kind: EffectKind


@dataclass(frozen=True)
class Finish:
    """The rollout has ended."""


Action = Wait | Look | Draft | Aim | Perform | Finish
