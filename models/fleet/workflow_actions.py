"""The next actions of a fleet rollout; one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from models.fleet.state import Member
from models.lifecycle.workflow_actions import Finish, Wait


@dataclass(frozen=True)
class PlanFleet:
    """Plan every cluster, for a person to approve."""


@dataclass(frozen=True)
class PickMembers:
    """Choose, from fresh snapshots, which of these clusters start now, at most so many and within this budget."""

    candidates: tuple[Member, ...]
    most: int
    hour_gpus: int
    day_gpus: int


@dataclass(frozen=True)
class StartMembers:
    """Open the rollouts of these clusters."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class AbortMembers:
    """Tell the rollouts of these clusters to abort."""

    members: tuple[Member, ...]


FleetAction = Wait | PlanFleet | PickMembers | StartMembers | AbortMembers | Finish
