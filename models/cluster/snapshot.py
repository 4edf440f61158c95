"""One cluster at one moment: everything a plan is made from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from models.base import Count, Model, Name, PositiveCount, Time, content_hash
from models.cluster.derived_buffer import Derived
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island, healthy, total
from models.cluster.quota import Quota, QuotaTree, check_islands
from models.cluster.team_work import TeamWork

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
    """The buffer that its health history asks for, where its policy wants one. Units: GPUs."""
    work: tuple[TeamWork, ...] = Field(default=(), exclude_if=lambda work: not work)
    """What running jobs hold now by class, where they are known by name: no plan's numbers go by it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.tree  # noqa: B018 - building the tree refuses a bad one
        check_islands(self.quotas, [i.name for i in self.islands])
        return self

    @cached_property
    def tree(self) -> QuotaTree:
        return QuotaTree(self.quotas)

    @property
    def total_gpus(self) -> int:
        return total(self.islands)

    @property
    def healthy_gpus(self) -> int:
        return healthy(self.islands)

    @property
    def hash(self) -> str:
        """What it is, whatever the order of its rows, and whether or not a default is written out.

        Nobody makes it anew of a snapshot in a history: a plan carries it.
        """
        return content_hash(self.canonical, exclude_defaults=True)

    @property
    def canonical(self) -> Snapshot:
        """The same cluster, written in one way: rows by name, what says no more than its default left out."""
        names = [i.name for i in self.islands]
        return self.model_copy(
            update={
                "work": (),
                "islands": tuple(sorted((i.canonical for i in self.islands), key=lambda i: i.name)),
                "quotas": tuple(sorted((q.canonical(names) for q in self.quotas), key=lambda q: q.team)),
            }
        )

    def with_values(self, values: dict[str, int]) -> Snapshot:
        """The same cluster with other quota values (teams not named keep theirs)."""
        return self.model_copy(update={"quotas": tuple(q.with_gpus(values.get(q.team, q.gpus)) for q in self.quotas)})

    def with_islands(self, islands: tuple[Island, ...]) -> Snapshot:
        return self.model_copy(update={"islands": islands})


def with_named_islands(quotas: Sequence[Quota], islands: Sequence[Island]) -> tuple[Island, ...]:
    """The islands, and those that a quota names beside them: these have no GPU."""
    there = {i.name for i in islands}
    named = sorted({name for q in quotas for name in q.islands or ()} - there)
    return (*islands, *(Island(name=name, total_gpus=0, healthy_gpus=0) for name in named))


def on_islands(snapshot: Snapshot, islands: Sequence[Island]) -> Snapshot:
    """The snapshot on these islands; one that a quota names and that is not there has no healthy GPU."""
    return snapshot.with_islands(with_named_islands(snapshot.quotas, islands))


def present_snapshot(reading: QuotaReading, islands: Sequence[Island]) -> Snapshot:
    """The quotas as they were read on these islands; usage and size of a node left out, which backing does not ask for.

    Errors: ValueError for quotas that make no sense.
    """
    quotas = tuple(p.as_quota() for p in reading.quotas)
    return Snapshot(cluster=reading.cluster, islands=with_named_islands(quotas, islands), quotas=quotas)


def under_bound(snapshot: Snapshot, bound_gpus: int | None) -> Snapshot:
    """With what the quota system lets all quotas hold together as one quota above them, where that is less."""
    roots = snapshot.tree.roots
    if bound_gpus is None or bound_gpus >= sum(snapshot.tree.by_team[team].gpus for team in roots):
        return snapshot
    above = "root"
    while above in snapshot.tree.by_team:
        above += "'"
    under = tuple(q.model_copy(update={"parent": q.parent or above}) for q in snapshot.quotas)
    bound = Quota(team=above, gpus=bound_gpus)
    return Snapshot(cluster=snapshot.cluster, islands=snapshot.islands, quotas=(*under, bound))


def snapshot_of(cluster: ClusterSpec) -> Snapshot:
    """A cluster of a fleet file as a snapshot; usage is what the file says, an instant."""
    use_known = any(q.scheduled_gpus is not None for q in cluster.quotas)
    return Snapshot(
        cluster=cluster.name,
        gpus_per_node=cluster.gpus_per_node,
        islands=cluster.islands,
        quotas=tuple(
            q if q.pending_gpus is None else q.model_copy(update={"pending_gpus": None}) for q in cluster.quotas
        ),
        usage_from="instant" if use_known else "unknown",
    )
