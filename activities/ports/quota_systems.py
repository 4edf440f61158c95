"""The ports of the systems that hold quotas: the ledger, Slurm, Git and Kueue implement them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from activities.ports.by_cluster import ByCluster
from models.cluster.fleet_file import ClusterInSlurm
from models.cluster.readings import ForeignChange, QuotaReading
from models.cluster.sources import QuotaSource, SlurmSource
from models.questions import SchedulerCheck
from models.rollout.effects import Change, Receipt


class QuotaPort(Protocol):
    """A quota system: reads with a generation, fenced writes with expected values."""

    def read(self, cluster: str) -> QuotaReading:
        """Return the cluster's quotas now. Errors: Refusal for an unknown cluster."""

    def look(self, cluster: str) -> QuotaReading:
        """Read; if the system does not answer soon, return the last reading and the reason (`unread`)."""

    def last_known(self, cluster: str) -> QuotaReading:
        """Return the last reading of any caller, without asking the outside or waiting for it."""

    def readings(self, clusters: Sequence[str]) -> ByCluster[QuotaReading]:
        """Return the reading of each, at once; unknown clusters are left out."""

    def barred_reason(self, cluster: str) -> str:
        """Return why the system would refuse a rollout's writes; empty if it would not. Errors: as `read`."""

    def versions(self, clusters: Sequence[str]) -> dict[str, str]:
        """Return a text for each known cluster, in one call: while it stays the same, so does the answer of `read`."""

    def changes(self, cluster: str, after: int) -> tuple[ForeignChange, ...]:
        """Return who changed quotas past Backstop since this generation, by team, as far as the system knows."""

    def apply(self, change: Change) -> Receipt:
        """Apply the effect once, however often this is called with its fence.

        The rollout's last fence again: its stored receipt. A smaller one, or another rollout's while one is open:
        Conflict. A moved generation if one is expected: Drift, and nothing is written.

        A GRANT while no rollout is open and none left anything reserved is fenced by its request, and counts as a
        change by others: a rollout that is just being opened has not seen it.
        """


class SchedulerPort(Protocol):
    """Schedulers that hold quotas themselves, beside the ledger's mirror of them."""

    def describe(self, cluster: str, source: SlurmSource) -> ClusterInSlurm:
        """Return the cluster as it is in the scheduler: islands, quotas and usage. Errors: Refusal if it has none."""

    def quotas_at(self, cluster: str, source: QuotaSource) -> dict[str, int]:
        """Return the quotas that the source has now, of a cluster that need not be in the ledger.

        Errors: Unavailable, Refusal, BadInput.
        """

    def check(self) -> dict[str, SchedulerCheck]:
        """Check each cluster that a scheduler holds."""

    def detach(self, cluster: str, *, restore: bool, look: bool = False) -> dict[str, tuple[int | None, int | None]]:
        """Leave the scheduler alone from now on; return the limits that were taken back: before and after, by name.

        `look`: change nothing; return what would be taken back. Errors: Refusal while a rollout is open, and for a
        cluster whose quotas the ledger holds itself.
        """
