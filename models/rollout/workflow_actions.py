"""The next actions of a rollout; one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from models.cluster.island import Island
from models.lifecycle.workflow_actions import Finish, Wait
from models.rollout.effects import EffectKind


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
    """Make one effect, forward or inverse; the workflow gives it its fence."""

    kind: EffectKind


Action = Wait | Look | Draft | Aim | Perform | Finish
