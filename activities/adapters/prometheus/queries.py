"""Health out of Prometheus: the default queries, and samples from their answers. Pure.

A GPU is installed if it has been seen within a day; it is healthy if it is seen now, on a node that answers, and had
no XID of broken hardware within a day, unless its exporter has forgotten all (ADR 0097). Users of another exporter
give queries of their own: each answers GPUs by cluster and island.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from activities.bad_rows import why_senseless
from models.base import MOST_GPUS, Model, Name
from models.cluster.island import Island
from models.cluster.readings import CLOCK_SKEW, HealthSample
from models.cluster.sources import WHOLE
from models.errors import Unavailable
from models.texts import brief

HARDWARE_XIDS = (48, 62, 64, 74, 79, 95, 119, 120, 140)
"""XIDs after which a GPU is out of service: errors of memory, links, firmware and bus. Source: NVIDIA, XID Errors."""

_OLDEST = timedelta(days=366)
_LONGEST = 300

KUBERNETES = "kubernetes"
TOLERATED_TAINTS = r"nvidia\.com/gpu"
_AS_HOSTNAME = 'max by (Hostname) (label_replace({}, "Hostname", "$1", "node", "(.*)"))'
"""Renames the node label of a kube-state-metrics series to DCGM's label for nodes."""
_ALLOCATABLE = _AS_HOSTNAME.format('kube_node_status_allocatable{resource="nvidia_com_gpu"}')


def nodes_ready(tolerated: str = TOLERATED_TAINTS) -> str:
    """Nodes on which Kubernetes would place a job: ready, not cordoned, without a taint that jobs do not tolerate."""
    taint = f'kube_node_spec_taint{{effect=~"NoSchedule|NoExecute", key!~{json.dumps(tolerated)}}}'
    return _AS_HOSTNAME.format(
        'kube_node_status_condition{condition="Ready", status="true"} == 1 '
        f"unless on (node) (kube_node_spec_unschedulable == 1) unless on (node) ({taint} == 1)"
    )


class Queries(Model):
    """PromQL for the GPUs of many clusters at once, with labels `cluster` and, if there are islands, `island`."""

    installed: str
    healthy: str
    seen: str
    """By cluster, the time at which the oldest series of `healthy` was scraped, in seconds since 1970."""
    cluster_label: Name = "cluster"
    island_label: Name = "island"


def dcgm(
    cluster: str = "cluster", island: str = "island", ready: str = "", tolerated: str = TOLERATED_TAINTS
) -> Queries:
    """Return the queries for NVIDIA's DCGM exporter.

    `ready`: a query of the nodes that answer, by Hostname, or "kubernetes" for its own; empty: a scrape is enough.
    `tolerated`: keys of taints that jobs tolerate, a regular expression.
    """
    of_node, by = f"by ({cluster}, {island}, Hostname)", f"by ({cluster}, {island})"
    of_gpu = f"by ({cluster}, {island}, Hostname, gpu)"
    there = f"max {of_gpu} (DCGM_FI_DEV_GPU_TEMP)"
    nodes = nodes_ready(tolerated) if ready == KUBERNETES else ready
    up = f" and on (Hostname) ({nodes})" if nodes else ""
    # A count over no GPU has no answer, and a node whose GPUs are all broken must count as 0.
    none = f"0 * count {of_node} ({there})"
    gpus = f"(count {of_node} (({there}{up}) unless ({_write_broken_query(of_gpu)})) or {none})"
    if ready == KUBERNETES:  # a device plugin keeps jobs off broken GPUs by offering fewer of a node's
        offered = f"({none} + on (Hostname) group_left () {_ALLOCATABLE})"
        both = (
            f'label_replace({each}, "of", "{what}", "", "")' for what, each in (("dcgm", gpus), ("plugin", offered))
        )
        gpus = f"min {of_node} ({' or '.join(both)})"
    return Queries(
        installed=f"count {by} (max {of_gpu} (last_over_time(DCGM_FI_DEV_GPU_TEMP[1d])))",
        healthy=f"sum {by} ({gpus})",
        seen=f"min by ({cluster}) (timestamp(DCGM_FI_DEV_GPU_TEMP))",
        cluster_label=cluster,
        island_label=island,
    )


def _write_broken_query(of_gpu: str) -> str:
    """Write the query for GPUs with an XID of broken hardware: the last one, or an earlier one of the day.

    An earlier one counts only while there is a last one: the exporter reports the last XID alone, which may be a
    harmless one that followed the first. An earlier XID shows as the day's largest, by a label with its number (DCGM
    exporter 3.3.6 and later), or as a count.
    """
    codes = "|".join(map(str, HARDWARE_XIDS))
    numbers = " or ".join(f'label_replace(vector(1), "xid", "{number}", "", "")' for number in HARDWARE_XIDS)

    def hardware(xids: str) -> str:
        return f'max {of_gpu} (count_values {of_gpu} ("xid", {xids}) and on (xid) ({numbers}))'

    last = f"max {of_gpu} (DCGM_FI_DEV_XID_ERRORS)"
    largest = f"max {of_gpu} (max_over_time(DCGM_FI_DEV_XID_ERRORS[1d]))"
    labelled = f'max {of_gpu} (last_over_time(DCGM_FI_DEV_XID_ERRORS{{err_code=~"{codes}"}}[1d]))'
    counted = f'max {of_gpu} (max_over_time(DCGM_EXP_XID_ERRORS_COUNT{{xid=~"{codes}"}}[1d]) > 0)'
    earlier = f"{hardware(largest)} or {labelled} or {counted}"
    return f"{hardware(last)} or (({earlier}) and ({last} > 0))"


class SeriesRead(NamedTuple):
    """The values of an instant query by cluster and island, and faults of series by cluster."""

    values: Mapping[tuple[str, str], float]
    wrong: Mapping[str, str]


def answers(document: Any, cluster_label: str, island_label: str) -> SeriesRead:
    """Parse the answer to a query. An impossible series is its cluster's fault, and costs no other cluster anything.

    Errors: Unavailable for another document, and for an incomplete answer: a missing series would look like hardware
    that is gone.
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
            f"Prometheus sent an answer that Backstop cannot read: {type(error).__name__} {error}"[:_LONGEST]
        ) from None
    values: dict[tuple[str, str], float] = {}
    wrong: dict[str, str] = {}
    for row in rows:
        cluster, island, value = _series(row, cluster_label, island_label)
        if value is None:
            wrong[cluster] = f"a value that is not a number, {brief(row)}"
        elif (cluster, island) in values:
            wrong[cluster] = f"two series for {cluster_label} {brief(cluster)}, {island_label} {brief(island)}"
        else:
            values[cluster, island] = value
    return SeriesRead(values, wrong)


def _series(row: Any, cluster_label: str, island_label: str) -> tuple[str, str, float | None]:
    """Return cluster, island and value; the cluster is empty for a series without the label."""
    labels = row.get("metric") if isinstance(row, dict) else None
    if not isinstance(labels, dict):
        return "", "", None
    cluster, island = str(labels.get(cluster_label) or ""), str(labels.get(island_label) or WHOLE)
    try:
        return cluster, island, float(row["value"][1])
    except (LookupError, TypeError, ValueError):
        return cluster, island, None


class Found(NamedTuple):
    """The samples from three answers, and the faults of clusters without one."""

    samples: list[HealthSample]
    wrong: dict[str, str]


def samples_of(
    installed: SeriesRead, healthy: SeriesRead, seen: SeriesRead, clusters: Mapping[str, str], now: datetime
) -> Found:
    """Make a sample for each cluster (by its label: our name) that Prometheus sees now. Others have none.

    An island without an answer has no GPU that is known to be healthy. More healthy GPUs than installed ones count as
    installed. A cluster with an impossible series has no sample: its last one stays, and grows old.
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
    """Return the value as GPUs. Errors: ValueError for what is no number of GPUs."""
    if not (0 <= value <= MOST_GPUS and value == int(value)):
        raise ValueError(f"{value:g} for the {what} GPUs of island {brief(island)} is not a number of GPUs")
    return int(value)


def _time(seconds: float, now: datetime) -> datetime:
    """Return the time in seconds since 1970. Errors: ValueError unless it is recent."""
    ahead = seconds - now.timestamp()
    if not -_OLDEST.total_seconds() <= ahead <= CLOCK_SKEW.total_seconds():
        raise ValueError(
            f"it is dated {seconds:.15g} s since 1970, which is not a recent time (now: {now.timestamp():.0f})"
        )
    return datetime.fromtimestamp(seconds, UTC)
