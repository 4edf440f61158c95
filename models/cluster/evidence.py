"""What is known of a cluster at a moment: its last readings, side by side, for those who explain it to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from models.cluster.jobs import Job
from models.cluster.readings import HealthSample, QuotaReading, TeamUsage
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
