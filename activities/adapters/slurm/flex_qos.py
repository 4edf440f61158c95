"""Chooses the QOS by which a cluster's flex is sized.

A slurmdbd may serve several clusters, and has one limit for each QOS: two clusters that sized one would undo each
other's work at every look. So a cluster sizes its own QOS, if there is one; the shared one is sized by one cluster
alone, the one that has always done so, and the others' administrators are told what to do (ADR 0035).
"""

from __future__ import annotations

from dataclasses import dataclass

from activities.adapters.ledger.scheduler_mirror import SchedulerBook
from activities.adapters.slurm.command_line import Talk
from activities.adapters.slurm.names import QOS, is_quotable, plain_name
from activities.adapters.slurm.parsing import QOS_FORMAT, qos_in
from models.cluster.sources import SlurmSource


@dataclass(frozen=True)
class FlexQos:
    """The flex QOS of a cluster. Units: whole GPUs; None: no limit. `sized`: the QOS that it sizes, if any."""

    sized: str | None
    limits: dict[str, int | None]
    """The limits of the flex QOS that exist, by name."""
    keeper: str = ""
    """The cluster that sizes the shared QOS, if it is another cluster; empty: none."""
    deserted: bool = False
    """The cluster has a QOS of its own, and no other cluster uses the shared one."""

    def can_give_back(self, qos: str, shared: str) -> bool:
        """Return whether the limit of this QOS, which it sizes no more, is still this cluster's to give back."""
        return qos in self.limits and (qos != shared or self.deserted)


def flex_qos_of(talk: Talk, book: SchedulerBook, cluster: str, source: SlurmSource) -> FlexQos:
    """Read and choose the cluster's flex QOS. Errors: Unavailable."""
    shared, own = source.flex_qos, source.own_flex_qos(cluster)
    others = {
        name: other.own_flex_qos(name)
        for name, other in book.sources().items()
        if name != cluster and other.size_flex and other.flex_qos == shared
    }
    limits = qos_limits(talk, source, [shared, own, *others.values()])
    sharing = [name for name, qos in others.items() if qos not in limits]
    if sharing and shared in limits:
        there = talk.run("sacctmgr", "-n", "-P", "show", "cluster", "format=Cluster").split("\n")
        named = book.sources(sharing)
        sharing = [name for name in sharing if (named[name].cluster or name) in there]
    if own in limits:
        return FlexQos(own, limits, deserted=not sharing)
    if shared not in limits:
        return FlexQos(None, limits)
    keeper = min([cluster, *sharing], key=lambda name: (not _sizes(book, name, shared), name))
    return FlexQos(shared if keeper == cluster else None, limits, keeper="" if keeper == cluster else keeper)


def qos_limits(talk: Talk, source: SlurmSource, names: list[str]) -> dict[str, int | None]:
    """Return the limits of these QOS that exist. Errors: Unavailable; Refusal if Slurm cannot have the first name."""
    asked = ",".join([plain_name(names[0]), *(name for name in names[1:] if is_quotable(name))])
    return qos_in(talk.run("sacctmgr", "-n", "-P", "show", "qos", f"name={asked}", QOS_FORMAT), source.tres)


def _sizes(book: SchedulerBook, cluster: str, qos: str) -> bool:
    limit = book.mirrored_cluster(cluster).limits.get(QOS + qos)
    return limit is not None and limit.ours


def advice(cluster: str, source: SlurmSource, keeper: str) -> str:
    """Say what to do if another cluster sizes the shared QOS."""
    own = source.own_flex_qos(cluster)
    return (
        f"{cluster} and {keeper} share the QOS {source.flex_qos} in one slurmdbd, and Backstop sizes it for {keeper}: "
        f"make the QOS {own} for the flex jobs of {cluster} (docs/slurm.md)"
    )
