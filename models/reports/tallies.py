"""Hourly figures of clusters, from which the curve of the outcome is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from pydantic import Field

from models.base import Count, GpuCount, Model, Name, Time
from models.cluster.flex_size import flex_pool
from models.cluster.readings import HealthSample, QuotaReading, TeamUsage
from models.cluster.snapshot import present_snapshot
from models.planning.backing import back_on
from models.planning.occupancy import standing_in_quota
from models.planning.placement import PlacementSolver
from models.reports.queued_in_quota import in_quota

USAGE_SAYS_NOW = timedelta(days=1)
"""A usage sample older than this does not count as present demand."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Tally(Model):
    """One cluster in the slot that begins at `at`, as read at `seen_at`. Units: whole GPUs; None: unknown.

    `health_at`: the time of the last known health sample. `stage`: the stage of the open rollout, None without one.
    """

    cluster: Name
    at: Time
    seen_at: Time
    total_gpus: GpuCount | None = None
    healthy_gpus: GpuCount | None = None
    health_at: Time | None = None
    assigned_gpus: GpuCount | None = None
    backed_gpus: GpuCount | None = None
    flex_gpus: GpuCount | None = None
    pending_gpus: GpuCount | None = None
    lacking_gpus: GpuCount | None = None
    known_quotas: Count = 0
    quotas: Count = 0
    stage: str | None = None
    shadow: bool = False


class Point(Model):
    """Sums over all clusters, or one, of the last tallies by some time, where their health was known.

    `at`: when the newest of them was read, which is the time of the figures; `oldest_at`: the oldest of them.
    `health_at`: the time of the oldest health behind them. `clusters`: clusters with a tally; `known`: those whose
    health was known. `asking`: clusters whose waiting jobs in quota are known; `pending_gpus` and `lacking_gpus` are
    sums over these, None if there are none.
    """

    at: Time
    clusters: Count
    known: Count
    total_gpus: Count
    healthy_gpus: Count
    promised_gpus: Count
    phantom_gpus: Count
    flex_gpus: Count
    asking: Count
    pending_gpus: Count | None
    lacking_gpus: Count | None
    oldest_at: Time | None = None
    health_at: Time | None = None
    of: str = Field(default="", exclude_if=lambda of: not of)
    """Identifies the set of clusters in the sums; empty: an earlier build did not set it."""

    def is_of_same(self, other: Point) -> bool:
        """Return whether both are sums over the same clusters, so that their difference means something."""
        return (self.known, self.of) == (other.known, other.of)


def of_same(points: Sequence[Point]) -> list[list[Point]]:
    """Split the points into stretches of sums over the same clusters: no line may lead from one to the next."""
    stretches: list[list[Point]] = []
    for point in points:
        if not stretches or not point.is_of_same(stretches[-1][-1]):
            stretches.append([])
        stretches[-1].append(point)
    return stretches


def slot_of(now: datetime, every: timedelta) -> datetime:
    """Return the beginning of the slot that contains `now`."""
    return now - (now - _EPOCH) % every


def tally_of(
    at: datetime,
    reading: QuotaReading,
    sample: HealthSample | None,
    usage: Mapping[str, TeamUsage],
    rollout: tuple[str, bool] | None,
    now: datetime,
) -> Tally:
    """Return the tally of these readings. `rollout`: the stage of the open one, and whether it is a shadow.

    Errors: ValueError for quotas that make no sense.
    """
    stage, shadow = rollout or (None, False)
    bare = Tally(cluster=reading.cluster, at=at, seen_at=now, stage=stage, shadow=shadow)
    if sample is None or not sample.islands:
        return bare
    snapshot = present_snapshot(reading, sample.islands)
    ground = PlacementSolver(snapshot)
    backing = back_on(ground)
    use = standing_in_quota(ground, usage)
    fresh = {team: u for team, u in usage.items() if u.at is None or now - u.at <= USAGE_SAYS_NOW}
    waiting = in_quota(ground, fresh)
    return bare.model_copy(
        update={
            "total_gpus": snapshot.total_gpus,
            "healthy_gpus": backing.healthy_gpus,
            "health_at": sample.at,
            "assigned_gpus": backing.assigned_gpus,
            "backed_gpus": backing.backed_gpus,
            "flex_gpus": flex_pool(backing.healthy_gpus, backing.backed_gpus, use).gpus,
            "pending_gpus": waiting.pending_gpus,
            "lacking_gpus": waiting.lacking_gpus,
            "known_quotas": waiting.known_quotas,
            "quotas": waiting.quotas,
        }
    )
