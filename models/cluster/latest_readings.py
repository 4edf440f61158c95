"""What is known of a cluster at a moment: its last readings, side by side, for those who explain it to people."""

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
    """None: nobody knows its health."""
    usage: Mapping[str, TeamUsage]
    """By team; one that is not there is not known."""
    at: datetime
    jobs: Sequence[Job] = ()
    windows: Sequence[Window] = ()
    classes: tuple[str, ...] = ()
    """Of jobs, as the cluster's policy has them; a quota may have its own."""

    @property
    def classes_by_team(self) -> dict[str, tuple[str, ...]]:
        return {quota.team: those_of(quota.classes, self.classes) for quota in self.reading.quotas}

    @property
    def work(self) -> tuple[TeamWork, ...]:
        """What running jobs hold by class, of the teams whose jobs are known by name."""
        scheduled = {team: usage.scheduled_gpus for team, usage in self.usage.items()}
        blocks = {quota.team: sum(quota.protected_blocks) for quota in self.reading.quotas}
        return team_work(self.jobs, self.classes_by_team, scheduled, blocks)
