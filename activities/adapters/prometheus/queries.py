"""Health out of Prometheus: the queries that are asked where nobody says others, and what their answers come to. Pure.

A GPU is installed where it has been seen within a day; it is healthy where it is seen now, on a node that answers, and
its last XID is none of those that mean broken hardware. Whoever runs another exporter gives queries of their own: each
answers GPUs by cluster and island.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from models.base import Model, Name
from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.cluster.sources import WHOLE
from models.errors import Unavailable

HARDWARE_XIDS = (48, 62, 64, 74, 79, 95, 119, 120, 140)
"""After these a GPU is out: of memory, links, firmware and bus. Source: NVIDIA, XID Errors."""

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


def answers(document: Any, cluster_label: str, island_label: str) -> dict[tuple[str, str], float]:
    """The values of an instant query by cluster and island. Errors: Unavailable for what is no such answer."""
    try:
        if document["status"] != "success" or document["data"]["resultType"] != "vector":
            raise Unavailable(f"Prometheus answered {document.get('error') or document['data']['resultType']}")
        values = {}
        for row in document["data"]["result"]:
            labels, (_, value) = row["metric"], row["value"]
            values[labels.get(cluster_label, ""), labels.get(island_label) or WHOLE] = float(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(f"Prometheus answered what we cannot read: {type(error).__name__} {error}") from None
    return values


def samples_of(
    installed: Mapping[tuple[str, str], float],
    healthy: Mapping[tuple[str, str], float],
    seen: Mapping[tuple[str, str], float],
    clusters: Mapping[str, str],
) -> list[HealthSample]:
    """A sample of each cluster (by its label: our name) that Prometheus sees now. One that it does not see has none.

    An island without an answer has no GPU that is known to be healthy. Counts that cannot be are cut to what can.
    """
    found = []
    for label, cluster in sorted(clusters.items()):
        at = [when for (name, _), when in seen.items() if name == label]
        places = sorted({island for name, island in installed if name == label})
        if not at or not places:
            continue
        islands = [_island(p, installed[label, p], healthy.get((label, p), 0.0)) for p in places]
        when = datetime.fromtimestamp(min(at), UTC)
        found.append(HealthSample(cluster=cluster, at=when, islands=tuple(islands)))
    return found


def _island(name: str, installed: float, healthy: float) -> Island:
    total = int(installed)
    return Island(name=name, total_gpus=total, healthy_gpus=max(0, min(total, int(healthy))))


def wanted(sources: Mapping[str, str | None]) -> dict[str, str]:
    """Our clusters by the label that Prometheus has for them."""
    return {label or cluster: cluster for cluster, label in sources.items()}


__all__: Sequence[str] = ["HARDWARE_XIDS", "Queries", "answers", "dcgm", "samples_of", "wanted"]
