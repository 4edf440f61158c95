"""Health out of Prometheus: the queries that are asked where nobody says others, and what their answers come to. Pure.

A GPU is installed where it has been seen within a day; it is healthy where it is seen now, on a node that answers, and
its last XID is none of those that mean broken hardware. Whoever runs another exporter gives queries of their own: each
answers GPUs by cluster and island.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from activities.sense import why_senseless
from models.base import MOST_GPUS, Model, Name, brief
from models.cluster.island import Island
from models.cluster.readings import CLOCK_SKEW, HealthSample
from models.cluster.sources import WHOLE
from models.errors import Unavailable

HARDWARE_XIDS = (48, 62, 64, 74, 79, 95, 119, 120, 140)
"""After these a GPU is out: of memory, links, firmware and bus. Source: NVIDIA, XID Errors."""

_OLDEST = timedelta(days=366)
_LONGEST = 300

KUBERNETES = "kubernetes"
NODES_READY = (
    'max by (Hostname) (label_replace(kube_node_status_condition{condition="Ready",status="true"} == 1, '
    '"Hostname", "$1", "node", "(.*)"))'
)
"""Nodes that Kubernetes says are ready, as kube-state-metrics tells, by the name that DCGM has for them."""


class Queries(Model):
    """PromQL for the GPUs of many clusters at once, with labels `cluster` and, where there are islands, `island`."""

    installed: str
    healthy: str
    seen: str
    """When the oldest of what `healthy` goes by was scraped, in seconds since 1970, by cluster."""
    cluster_label: Name = "cluster"
    island_label: Name = "island"


def dcgm(cluster: str = "cluster", island: str = "island", ready: str = "") -> Queries:
    """For NVIDIA's DCGM exporter. `ready`: a query of the nodes that answer, by Hostname, or "kubernetes" for its own.

    Empty: a scrape is enough.
    """
    gpu, by = f"{cluster}, {island}, Hostname, gpu", f"by ({cluster}, {island})"
    there = f"max by ({gpu}) (DCGM_FI_DEV_GPU_TEMP)"
    xid = f"max by ({gpu}) (DCGM_FI_DEV_XID_ERRORS)"
    broken = " or ".join(f"({xid} == {number})" for number in HARDWARE_XIDS)
    nodes = NODES_READY if ready == KUBERNETES else ready
    up = f" and on (Hostname) ({nodes})" if nodes else ""
    return Queries(
        installed=f"count {by} (max by ({gpu}) (last_over_time(DCGM_FI_DEV_GPU_TEMP[1d])))",
        # Where every GPU of an island is broken a count has no answer: none of them is not the same as none known.
        healthy=f"count {by} (({there}{up}) unless ({broken})) or 0 * count {by} ({there})",
        seen=f"min by ({cluster}) (timestamp(DCGM_FI_DEV_GPU_TEMP))",
        cluster_label=cluster,
        island_label=island,
    )


class SeriesRead(NamedTuple):
    """Of an instant query: its values by cluster and island, and what is wrong with the series of a cluster."""

    values: Mapping[tuple[str, str], float]
    wrong: Mapping[str, str]


def answers(document: Any, cluster_label: str, island_label: str) -> SeriesRead:
    """What a query was answered. A series that cannot be is its cluster's fault, and costs no other cluster anything.

    Errors: Unavailable for what is no such answer, and for one that is not whole: a series that is missing from it
    would look like hardware that is gone.
    """
    try:
        if document["status"] != "success" or document["data"]["resultType"] != "vector":
            raise Unavailable(
                f"Prometheus answered {document.get('error') or document['data']['resultType']}"[:_LONGEST]
            )
        if warnings := document.get("warnings"):
            raise Unavailable(f"Prometheus answered in part: {warnings}"[:_LONGEST])
        rows = list(document["data"]["result"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(
            f"Prometheus answered what we cannot read: {type(error).__name__} {error}"[:_LONGEST]
        ) from None
    values: dict[tuple[str, str], float] = {}
    wrong: dict[str, str] = {}
    for row in rows:
        cluster, island, value = _series(row, cluster_label, island_label)
        if value is None:
            wrong[cluster] = f"a value that is no number, {brief(row)}"
        elif (cluster, island) in values:
            wrong[cluster] = f"two series for {cluster_label} {brief(cluster)}, {island_label} {brief(island)}"
        else:
            values[cluster, island] = value
    return SeriesRead(values, wrong)


def _series(row: Any, cluster_label: str, island_label: str) -> tuple[str, str, float | None]:
    """Cluster, island and value; a series of no cluster is nobody's."""
    labels = row.get("metric") if isinstance(row, dict) else None
    if not isinstance(labels, dict):
        return "", "", None
    cluster, island = str(labels.get(cluster_label) or ""), str(labels.get(island_label) or WHOLE)
    try:
        return cluster, island, float(row["value"][1])
    except (LookupError, TypeError, ValueError):
        return cluster, island, None


class Found(NamedTuple):
    """What three answers come to: samples, and of the clusters that have none what is wrong with their series."""

    samples: list[HealthSample]
    wrong: dict[str, str]


def samples_of(
    installed: SeriesRead, healthy: SeriesRead, seen: SeriesRead, clusters: Mapping[str, str], now: datetime
) -> Found:
    """A sample of each cluster (by its label: our name) that Prometheus sees now. One that it does not see has none.

    An island without an answer has no GPU that is known to be healthy. More healthy GPUs than installed ones are as
    many as these. A cluster with a series that cannot be has no sample: what is known of it stands, and grows old.
    """
    reading = Found([], {})
    for label, cluster in sorted(clusters.items()):
        at = [when for (name, _), when in seen.values.items() if name == label]
        places = sorted({island for name, island in installed.values if name == label})
        try:
            for what, answer in (("installed", installed), ("healthy", healthy), ("seen", seen)):
                if label in answer.wrong:
                    raise ValueError(f"{answer.wrong[label]}, of `{what}`")
            if not at or not places:
                continue
            islands = [_island(p, installed.values[label, p], healthy.values.get((label, p), 0.0)) for p in places]
            when = min(_time(one, now) for one in at)
            reading.samples.append(HealthSample(cluster=cluster, at=when, islands=tuple(islands)))
        except ValueError as error:
            reading.wrong[cluster] = why_senseless(error)
    return reading


def _island(name: str, installed: float, healthy: float) -> Island:
    total = _count(installed, name, "installed")
    return Island(name=name, total_gpus=total, healthy_gpus=min(total, _count(healthy, name, "healthy")))


def _count(value: float, island: str, what: str) -> int:
    """Errors: ValueError for what is no number of GPUs."""
    if not (0 <= value <= MOST_GPUS and value == int(value)):
        raise ValueError(f"{value:g} GPUs are {what} in island {brief(island)}: that is no number of GPUs")
    return int(value)


def _time(seconds: float, now: datetime) -> datetime:
    """Errors: ValueError for what is no time of late, in seconds since 1970."""
    ahead = seconds - now.timestamp()
    if not -_OLDEST.total_seconds() <= ahead <= CLOCK_SKEW.total_seconds():
        raise ValueError(
            f"it is dated {seconds:.15g} s since 1970, which is no time of late (now: {now.timestamp():.0f})"
        )
    return datetime.fromtimestamp(seconds, UTC)


def wanted(sources: Mapping[str, str | None]) -> dict[str, str]:
    """Our clusters by the label that Prometheus has for them."""
    return {label or cluster: cluster for cluster, label in sources.items()}


__all__: Sequence[str] = ["HARDWARE_XIDS", "Queries", "answers", "dcgm", "samples_of", "wanted"]
