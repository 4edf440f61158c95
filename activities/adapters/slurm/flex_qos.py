"""Which QOS a cluster's flex is sized by.

A slurmdbd may serve several clusters, and has one limit for each QOS: two clusters that sized one would undo each
other's work at every look. So a cluster's own QOS, where there is one, is its to size; the shared one is sized by one
cluster alone, the one that has always done so, and the others are told what to do (ADR 0035).
"""

from __future__ import annotations

from dataclasses import dataclass

from activities.adapters.ledger.scheduler_mirror import SchedulerBook
from activities.adapters.slurm.command_line import Talk
from activities.adapters.slurm.names import QOS, plain_name, quotable
from activities.adapters.slurm.parsing import QOS_FORMAT, qos_in
from models.cluster.sources import SlurmSource


@dataclass(frozen=True)
class FlexQos:
    """Of one cluster. Units: whole GPUs; None: no limit. `sized`: the QOS that is its to size; None: there is none."""

    sized: str | None
    limits: dict[str, int | None]
    """Of each QOS of flex that there is."""
    keeper: str = ""
    """Who sizes the QOS that this cluster shares, where that is another one."""
    deserted: bool = False
    """It has a QOS of its own, and nobody else uses the shared one either."""

    def given_back(self, qos: str, shared: str) -> bool:
        """Whether the limit of this QOS, which is not sized here any more, is still this cluster's to give back."""
        return qos in self.limits and (qos != shared or self.deserted)


def flex_qos_of(talk: Talk, book: SchedulerBook, cluster: str, source: SlurmSource) -> FlexQos:
    """Errors: Unavailable."""
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
    """The limit of each of these that there is. Errors: Unavailable; Refusal for a first name that is none in Slurm."""
    asked = ",".join([plain_name(names[0]), *(name for name in names[1:] if quotable(name))])
    return qos_in(talk.run("sacctmgr", "-n", "-P", "show", "qos", f"name={asked}", QOS_FORMAT), source.tres)


def _sizes(book: SchedulerBook, cluster: str, qos: str) -> bool:
    limit = book.mirrored_cluster(cluster).limits.get(QOS + qos)
    return limit is not None and limit.ours


def advice(cluster: str, source: SlurmSource, keeper: str) -> str:
    """What to do where another cluster sizes the shared QOS."""
    own = source.own_flex_qos(cluster)
    return (
        f"{keeper} sizes the QOS {source.flex_qos} of their slurmdbd, and so bounds the flex of {cluster} too: "
        f"make the QOS {own} for its flex jobs (docs/slurm.md)"
    )
