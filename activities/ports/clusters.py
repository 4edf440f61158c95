"""The ports that read clusters, and ClusterPorts, which bundles the ports that most activities need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Protocol

from activities.ports.by_cluster import ByCluster
from activities.ports.quota_systems import QuotaPort
from activities.ports.registry import RegistryPort
from models.buffers.hourly_health import Stretch
from models.cluster.implausible_falls import DoubtedSource
from models.cluster.jobs import ClusterJob, Job
from models.cluster.readings import Doubt, HealthSample, TeamUsage, UsageReading
from models.cluster.windows import Window


class HealthPort(Protocol):
    def read(self, clusters: Sequence[str]) -> ByCluster[HealthSample]:
        """Return the latest sample of each cluster, in one call; a cluster without any is left out."""

    def least_healthy(self, cluster: str, since: datetime, now: datetime) -> dict[str, int]:
        """Return the fewest healthy GPUs of each island from `since` up to now, the value at `since` included."""

    def usual_healthy(self, cluster: str, window: timedelta, now: datetime) -> dict[str, int]:
        """Return the median of healthy GPUs by island, rounded down; an island with a shorter history is left out."""

    def history(self, cluster: str, since: datetime, now: datetime) -> dict[str, Stretch]:
        """Return the samples of each island from `since` up to now as stretches; an island without any is left out."""

    def histories(self, clusters: Sequence[str], since: datetime, now: datetime) -> dict[str, dict[str, Stretch]]:
        """Do `history` for many clusters, in one call."""


class DoubtPort(Protocol):
    """Judges falls of health across the clusters of a source: models/cluster/implausible_falls.py."""

    def doubt(self, cluster: str, plausible_drop: Fraction | None, most_clusters: int | None) -> Doubt | None:
        """Return why the cluster's sample is not to be believed, by its source's samples of all clusters; None: it is.

        These limits may put the source in doubt from now on; without limits only doubts that exist already count.
        """

    def doubted_clusters(self) -> dict[str, str]:
        """Return clusters whose sample is not believed, with the source in doubt; in one call."""

    def sources_in_doubt(self) -> tuple[DoubtedSource, ...]:
        """Return the sources in doubt. A source whose clusters are all back is in doubt no more."""

    def confirm(self, source: str, actor: str) -> DoubtedSource:
        """Believe the source's present samples. Errors: Refusal for a source that is not in doubt."""


class UsagePort(Protocol):
    def read(self, cluster: str, window: timedelta, now: datetime) -> UsageReading:
        """Return S and L per quota: the 95th percentile over the window if there is history."""

    def readings(self, windows: Mapping[str, timedelta], now: datetime) -> dict[str, UsageReading]:
        """Do `read` for each of these clusters by its window, in few calls.

        A change of history behind the last sample may show an hour late.
        """

    def latest(self, clusters: Sequence[str], now: datetime) -> dict[str, dict[str, TeamUsage]]:
        """Return the last sample of each leaf quota, by cluster and team, in one call; senseless ones are left out."""


class JobPort(Protocol):
    """Jobs by name, as far as a source names them: sums go by UsagePort."""

    def jobs(self, clusters: Sequence[str], since: datetime) -> dict[str, tuple[Job, ...]]:
        """Return running jobs, and those that have ended since, in the order of their starts; no senseless ones."""

    def add_jobs(self, jobs: Sequence[ClusterJob]) -> int:
        """Store the jobs, each in place of the one of its name and start; return how many. Errors: BadInput."""


class CalendarPort(Protocol):
    def windows(self, clusters: Sequence[str]) -> ByCluster[tuple[Window, ...]]:
        """Return declared windows that have not been deleted, past ones included; a cluster without any is left out.

        A row that is no window is left out, and costs no other one anything.
        """

    def faults(self) -> dict[str, str]:
        """Return clusters with rows that are no windows: which, and why."""


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """The ports through which a worker knows and changes clusters. Most activities need several of them."""

    quotas: QuotaPort
    health: HealthPort
    usage: UsagePort
    calendar: CalendarPort
    registry: RegistryPort
    jobs: JobPort
    doubts: DoubtPort
    one_moment: Callable[[str], AbstractContextManager[object]] = nullcontext
    """A context in which reads of the cluster see one moment, where they can."""
