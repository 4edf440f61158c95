"""A cluster's last readings at one moment, side by side, for explanations to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from models.cluster.classes import those_of
from models.cluster.jobs import Job
from models.cluster.readings import HealthSample, QuotaReading, TeamUsage
from models.cluster.team_work import TeamWork, team_work
from models.cluster.windows import Window


@dataclass(frozen=True)
class Evidence:
    reading: QuotaReading
    sample: HealthSample | None
    """The latest health sample; None: health is unknown."""
    usage: Mapping[str, TeamUsage]
    """Use by team; the use of a missing team is unknown."""
    at: datetime
    jobs: Sequence[Job] = ()
    windows: Sequence[Window] = ()
    classes: tuple[str, ...] = ()
    """The classes of jobs in the cluster's policy; a quota may have its own."""

    @property
    def classes_by_team(self) -> dict[str, tuple[str, ...]]:
        return {quota.team: those_of(quota.classes, self.classes) for quota in self.reading.quotas}

    @property
    def work(self) -> tuple[TeamWork, ...]:
        """The GPUs that running jobs hold by class, for teams whose jobs are known by name."""
        scheduled = {team: usage.scheduled_gpus for team, usage in self.usage.items()}
        blocks = {quota.team: sum(quota.protected_blocks) for quota in self.reading.quotas}
        return team_work(self.jobs, self.classes_by_team, scheduled, blocks)
