"""Nodes, pods and ClusterQueues as Kubernetes describes them, down to the GPUs that they have or hold. Pure.

A GPU counts as healthy if a pod could be placed on it now. A device plugin, and the kubelet behind it, take a GPU that
is at fault out of a node's `allocatable` and leave it in `capacity`: so the first is what is healthy, the second what
is installed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from models.base import MOST_GPUS
from models.cluster.island import Island
from models.cluster.readings import TeamUsage
from models.cluster.sources import WHOLE, KubernetesSource
from models.texts import brief

_BARS = frozenset({"NoSchedule", "NoExecute"})
_ALLOWS = frozenset({"PreferNoSchedule"})
_OVER = frozenset({"Succeeded", "Failed"})
_PHASES = frozenset({"Pending", "Running", "Unknown"})
_QUANTITY = re.compile(r"(\+?\d{1,18}(?:\.\d{0,18})?)(|k|M|[eE]\+?\d)", re.ASCII)
_LONGEST = 50
_SCALES = {"": 1, "k": 1000, "M": 1_000_000}


class BadObject(ValueError):
    """The object makes no sense; the message names the field and its value."""


class NodeGpus(NamedTuple):
    """The GPUs of a node. `why`: the reason why no pod could be placed on it; empty: one could."""

    island: str
    installed: int
    healthy: int
    why: str = ""


class HeldGpus(NamedTuple):
    """The GPUs that a pod, or the workloads of a queue, hold or wait for. `node`: where; empty: on none yet."""

    team: str
    gpus: int
    node: str = ""
    waits: bool = False


def name_of(raw: Any) -> str:
    """Return the object's name, with its namespace if it has one. Errors: BadObject."""
    meta = mapping_in(raw, "metadata")
    name, namespace = meta.get("name"), meta.get("namespace") or ""
    if not (isinstance(name, str) and isinstance(namespace, str) and 0 < len(name) <= 253 and name.isprintable()):
        raise BadObject(f"metadata.name is {brief(name)}")
    return f"{namespace}/{name}" if namespace else name


def node_gpus(raw: Any, source: KubernetesSource) -> NodeGpus | None:
    """Return the GPUs of the node's device plugin; None for a node that has none, unless a driver publishes them.

    Errors: BadObject.
    """
    status = mapping_in(raw, "status")
    installed = _quantity(mapping_in(status, "capacity"), source.resource, "status.capacity")
    allocatable = _quantity(mapping_in(status, "allocatable"), source.resource, "status.allocatable")
    if not installed and source.driver is None:
        return None
    labels = mapping_in(mapping_in(raw, "metadata"), "labels")
    value = labels.get(source.island_label, "") if source.island_label else ""
    if not (isinstance(value, str) and len(value) <= 63 and value.isprintable()):
        raise BadObject(f"metadata.labels[{brief(source.island_label)}] is {brief(value)}")
    why = _why_barred(raw, status, frozenset(source.tolerated_taints))
    healthy = 0 if why else min(installed, allocatable)
    return NodeGpus(source.islands.get(value, value) or WHOLE, installed, healthy, why)


def _why_barred(raw: Mapping[str, Any], status: Mapping[str, Any], tolerated: Collection[str]) -> str:
    """Say why the scheduler places no pod on the node; empty: it does. Errors: BadObject."""
    if mapping_in(raw, "metadata").get("deletionTimestamp") is not None:
        return "it is being deleted"
    ready = [one.get("status") for one in mappings_in(status, "conditions") if one.get("type") == "Ready"]
    if ready != ["True"]:
        return f"its condition Ready is {brief(ready[0]) if ready else 'missing'}"
    spec = mapping_in(raw, "spec")
    if spec.get("unschedulable") not in (None, False):
        return "it is cordoned"
    for taint in mappings_in(spec, "taints"):
        key, effect = taint.get("key"), taint.get("effect")
        if not isinstance(key, str) or effect not in _BARS | _ALLOWS:
            raise BadObject(f"spec.taints has {brief(taint)}")
        if effect in _BARS and key not in tolerated:
            return f"it has the taint {brief(key)}"
    return ""


def islands_of(nodes: Iterable[NodeGpus]) -> tuple[Island, ...]:
    """Sum up the nodes by island, in the order of names. Blocks fit on wholly healthy nodes alone."""
    sums: dict[str, list[int]] = {}
    for node in nodes:
        totals = sums.setdefault(node.island, [0, 0, 0])
        totals[0] += node.installed
        totals[1] += node.healthy
        totals[2] += node.healthy if node.healthy == node.installed else 0
    return tuple(
        Island(name=name, total_gpus=total, healthy_gpus=healthy, block_gpus=block)
        for name, (total, healthy, block) in sorted(sums.items())
    )


def pod_gpus(raw: Any, source: KubernetesSource) -> HeldGpus | None:
    """Return the GPUs that the pod holds or waits for; None for a pod that is over or asks for none.

    Errors: BadObject.
    """
    phase = mapping_in(raw, "status").get("phase", "Pending")
    if phase in _OVER:
        return None
    if phase not in _PHASES:
        raise BadObject(f"status.phase is {brief(phase)}")
    spec = mapping_in(raw, "spec")
    gpus = _asked_gpus(spec, source.resource)
    if not gpus:
        return None
    node = spec.get("nodeName") or ""
    if not isinstance(node, str):
        raise BadObject(f"spec.nodeName is {brief(node)}")
    return HeldGpus(team_of(raw, source), gpus, node, waits=not node)


def team_of(raw: Any, source: KubernetesSource) -> str:
    """Return the team of a pod or claim, by its label or its namespace. Errors: BadObject."""
    meta = mapping_in(raw, "metadata")
    whose = mapping_in(meta, "labels").get(source.team_label) if source.team_label else meta.get("namespace")
    if not isinstance(whose, str | None):
        raise BadObject(f"its team is {brief(whose)}")
    return source.teams.get(whose or "", whose or "")


def _asked_gpus(spec: Mapping[str, Any], resource: str) -> int:
    """Return what the scheduler sets aside: the containers' sum, or an init container's if that is more.

    An init container that is restarted always runs beside those that follow it.
    """
    beside, most = 0, 0
    for container in mappings_in(spec, "initContainers"):
        gpus = _container_gpus(container, resource)
        beside += gpus if container.get("restartPolicy") == "Always" else 0
        most = max(most, beside if container.get("restartPolicy") == "Always" else beside + gpus)
    return max(most, beside + sum(_container_gpus(one, resource) for one in mappings_in(spec, "containers")))


def _container_gpus(container: Mapping[str, Any], resource: str) -> int:
    wanted = mapping_in(container, "resources")
    asked = mapping_in(wanted, "requests") if "requests" in wanted else {}
    return _quantity(asked if resource in asked else mapping_in(wanted, "limits"), resource, "resources")


def queue_gpus(raw: Any, source: KubernetesSource) -> HeldGpus | None:
    """Return the GPUs that the admitted workloads of a ClusterQueue hold, with what they borrow. Errors: BadObject."""
    name = name_of(raw)
    gpus = 0
    for flavor in mappings_in(mapping_in(raw, "status"), "flavorsUsage"):
        if source.flavors and flavor.get("name") not in source.flavors:
            continue
        for one in mappings_in(flavor, "resources"):
            if one.get("name") == source.resource:
                gpus += _quantity(one, "total", "status.flavorsUsage")
    return HeldGpus(source.teams.get(name, name), gpus)


def use_of(
    held: Iterable[HeldGpus],
    nodes: Mapping[str, NodeGpus],
    teams: Iterable[str],
    at: datetime,
    source: KubernetesSource,
) -> list[TeamUsage]:
    """Sum up the GPUs that teams hold and wait for; none count as idle, as Kubernetes does not say.

    A pod that waits is on no node: where the cluster is a part of the nodes, nobody knows whether it waits for this
    part. A claim that waits asks for a class of devices, a ClusterQueue counts workloads: neither says how many GPUs.
    A team without a queue has no sample.
    """
    held = list(held)
    named = frozenset(teams)
    names = sorted(named if source.counts_pods else named & {one.team for one in held})
    holds, waits = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for one in held:
        if one.team in holds and (not one.node or one.node in nodes):
            (waits if one.waits else holds)[one.team] += one.gpus
    counts_waiting = source.counts_pods and source.nodes is None and source.driver is None
    return [
        TeamUsage(
            team=team,
            scheduled_gpus=min(holds[team], MOST_GPUS),
            pending_gpus=min(waits[team], MOST_GPUS) if counts_waiting else None,
            at=at,
        )
        for team in names
    ]


def mapping_in(raw: Any, field: str) -> Mapping[str, Any]:
    """Return a field that is an object, empty if it is missing. Errors: BadObject."""
    if not isinstance(raw, Mapping):
        raise BadObject(f"it is {brief(raw)}")
    value = raw.get(field)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadObject(f"{field} is {brief(value)}")
    return value


def mappings_in(raw: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    """Return a field that is a list of objects, empty if it is missing. Errors: BadObject."""
    values = raw.get(field)
    if values is None:
        return []
    if not (isinstance(values, list) and all(isinstance(one, Mapping) for one in values)):
        raise BadObject(f"{field} is {brief(values)}")
    return values


def _quantity(raw: Mapping[str, Any], field: str, where: str) -> int:
    """Return a quantity of whole GPUs, 0 where it is missing. Errors: BadObject."""
    value = raw.get(field, 0)
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if match := _QUANTITY.fullmatch(text[:_LONGEST]):
        number, suffix = match.groups()
        amount = Decimal(number) * (_SCALES[suffix] if suffix in _SCALES else 10 ** int(suffix[1:]))
        if amount <= MOST_GPUS and amount == int(amount):
            return int(amount)
    raise BadObject(f"{where}[{brief(field)}] is {brief(value)}, which is not a number of GPUs")
