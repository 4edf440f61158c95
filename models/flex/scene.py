"""The scene after each step of a story of jobs on flex: what runs, what waits and why, and each team's share."""

from __future__ import annotations

from enum import StrEnum

from models.base import Duration, Model
from models.flex.story import Gpus


class On(StrEnum):
    QUOTA = "quota"
    SIBLINGS = "siblings"
    """Quota that the siblings in its namespace leave unused."""
    FLEX = "flex"


class Waits(StrEnum):
    """The reason why a job waits."""

    TOO_LARGE = "too_large"
    """The job is larger than the cluster is now."""
    LIMIT = "limit"
    """A limit of its team or namespace is reached."""
    NO_QUOTA = "no_quota"
    """The job may run in quota only, and its quota has no room for it."""
    SHARE = "share"
    """The team's share has no room for the job, and no GPU is free."""
    PROTECTED = "protected"
    """The team may claim the GPUs, but their holders are protected by `min_run` or `window` for now."""
    HARDWARE = "hardware"
    """The team may claim GPUs, but all are held by others with as good a right."""


class JobNow(Model):
    job: str
    team: str
    gpus: Gpus
    on: On | None
    """The GPUs that the job runs on; None: it waits."""
    waits: Waits | None = None
    why: str = ""
    """The reason for waiting, in a sentence; empty for a running job."""


class Taken(Model):
    """A job that was preempted and waits again."""

    job: str
    team: str
    gpus: Gpus
    why: str


class TeamNow(Model):
    team: str
    quota_gpus: int
    share_gpus: int
    """The team's share in the fair division of all demand that could run now."""
    allocated_gpus: Gpus
    in_quota_gpus: Gpus
    siblings_gpus: Gpus
    """The GPUs that its jobs hold on quota that siblings leave unused."""
    queued_jobs: int
    queued_gpus: Gpus


class Scene(Model):
    """The state after a step, or after the end of a `min_run` or `window` that changed something."""

    step: int
    """The number of the step; for a scene after the end of a protection, that of the last step."""
    woken: bool = False
    """Whether the end of a protection, not a step, led to this scene."""
    what: str
    at: Duration
    """The time since the beginning of the story."""
    capacity_gpus: int
    started: tuple[str, ...]
    preempted: tuple[Taken, ...]
    running: tuple[JobNow, ...]
    queued: tuple[JobNow, ...]
    teams: tuple[TeamNow, ...]
    unused_gpus: Gpus
