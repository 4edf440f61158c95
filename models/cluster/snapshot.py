"""A snapshot: one cluster at one moment, with everything that a plan is made from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from models.base import Count, Model, Name, PositiveCount, Time
from models.cluster.derived_buffer import Derived
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island, healthy, total
from models.cluster.quota import Quota, QuotaTree, check_islands
from models.cluster.team_work import TeamWork
from models.hashes import content_hash

if TYPE_CHECKING:
    from models.cluster.readings import QuotaReading


class Snapshot(Model):
    """A cluster's islands, quotas and usage under one generation.

    `generation` counts changes made by others to quotas, tree and T; health is not in it.
    `usage_from` says where S and L come from: "instant", "p95 over 7d" or "unknown".
    """

    cluster: Name
    gpus_per_node: PositiveCount = 8
    islands: tuple[Island, ...] = Field(min_length=1)
    quotas: tuple[Quota, ...] = ()
    generation: Count = 0
    completed_rollouts: Count = 0
    usage_from: str = "instant"
    health_at: Time | None = None
    derived: Derived | None = None
    """The buffer that the cluster's health history asks for, in GPUs; None: its policy asks for none."""
    work: tuple[TeamWork, ...] = Field(default=(), exclude_if=lambda work: not work)
    """The GPUs that running jobs hold now by class, if jobs are known by name. No plan's numbers depend on it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.tree  # noqa: B018 - building the tree refuses a bad one
        check_islands(self.quotas, [island.name for island in self.islands])
        return self

    @cached_property
    def tree(self) -> QuotaTree:
        return QuotaTree(self.quotas)

    @property
    def values(self) -> dict[str, int]:
        """The quotas by team."""
        return {quota.team: quota.gpus for quota in self.quotas}

    @property
    def total_gpus(self) -> int:
        return total(self.islands)

    @property
    def healthy_gpus(self) -> int:
        return healthy(self.islands)

    @property
    def hash(self) -> str:
        """The hash of its content, whatever the order of its rows, and whether or not a default is written out.

        It is never computed again from a history's snapshot: a plan carries it.
        """
        return content_hash(self.canonical, exclude_defaults=True)

    @property
    def canonical(self) -> Snapshot:
        """The same cluster in one spelling: rows by name, fields that equal their defaults left out.

        Nor has it what no plan's numbers depend on: the jobs that run now, and the time of the health sample.
        """
        names = [island.name for island in self.islands]
        return self.model_copy(
            update={
                "work": (),
                "health_at": None,
                "islands": tuple(sorted((island.canonical for island in self.islands), key=lambda i: i.name)),
                "quotas": tuple(sorted((quota.canonical(names) for quota in self.quotas), key=lambda each: each.team)),
            }
        )

    def with_values(self, values: dict[str, int]) -> Snapshot:
        """Return the same cluster with other quota values (teams not named keep theirs)."""
        quotas = tuple(quota.with_gpus(values.get(quota.team, quota.gpus)) for quota in self.quotas)
        return self.model_copy(update={"quotas": quotas})

    def with_islands(self, islands: tuple[Island, ...]) -> Snapshot:
        return self.model_copy(update={"islands": islands})


def with_named_islands(quotas: Sequence[Quota], islands: Sequence[Island]) -> tuple[Island, ...]:
    """Add the islands that only a quota names: they have no GPU."""
    there = {island.name for island in islands}
    named = sorted({name for quota in quotas for name in quota.islands or ()} - there)
    return (*islands, *(Island(name=name, total_gpus=0, healthy_gpus=0) for name in named))


def on_islands(snapshot: Snapshot, islands: Sequence[Island]) -> Snapshot:
    """Return the snapshot on these islands; one that only a quota names has no healthy GPU."""
    return snapshot.with_islands(with_named_islands(snapshot.quotas, islands))


def present_snapshot(reading: QuotaReading, islands: Sequence[Island]) -> Snapshot:
    """Return the read quotas on these islands, without usage and node size, which backing does not need.

    Errors: ValueError for invalid quotas.
    """
    quotas = tuple(quota.as_quota() for quota in reading.quotas)
    return Snapshot(cluster=reading.cluster, islands=with_named_islands(quotas, islands), quotas=quotas)


def under_bound(snapshot: Snapshot, bound_gpus: int | None) -> Snapshot:
    """Add a quota above all others with the quota system's bound on them together, where that is less."""
    roots = snapshot.tree.roots
    if bound_gpus is None or bound_gpus >= sum(snapshot.tree.by_team[team].gpus for team in roots):
        return snapshot
    above = "root"
    while above in snapshot.tree.by_team:
        above += "'"
    under = tuple(quota.model_copy(update={"parent": quota.parent or above}) for quota in snapshot.quotas)
    bound = Quota(team=above, gpus=bound_gpus)
    return Snapshot(cluster=snapshot.cluster, islands=snapshot.islands, quotas=(*under, bound))


def snapshot_of(cluster: ClusterSpec) -> Snapshot:
    """Return a cluster of a fleet file as a snapshot; its usage is the file's, an instant."""
    use_known = any(quota.scheduled_gpus is not None for quota in cluster.quotas)
    return Snapshot(
        cluster=cluster.name,
        gpus_per_node=cluster.gpus_per_node,
        islands=cluster.islands,
        quotas=tuple(
            quota if quota.pending_gpus is None else quota.model_copy(update={"pending_gpus": None})
            for quota in cluster.quotas
        ),
        usage_from="instant" if use_known else "unknown",
    )
