"""GPUs that a driver of dynamic resource allocation publishes: devices of ResourceSlices, their taints, and claims.

A pool counts as a whole: its slices of the newest generation, and only if all of them were seen, as the scheduler
does. A GPU counts on the node that its slice, or the device itself, names. What cannot be counted in whole GPUs of one
node is named and makes the cluster's health unknown: a share of a GPU, or a device that several nodes reach
(docs/adr/0127). Fields and meaning: KEP-4381, KEP-4815 and KEP-5055 of Kubernetes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from activities.adapters.kubernetes.api import DEVICE_TAINT_RULES, RESOURCE_SLICES
from activities.adapters.kubernetes.followed import Followed, Pause
from activities.adapters.kubernetes.objects import BadObject, HeldGpus, NodeGpus, mapping_in, mappings_in, team_of
from activities.clock import Clock
from models.cluster.sources import KubernetesSource
from models.texts import brief

_BARS = frozenset({"NoSchedule", "NoExecute"})
"""Taint effects that bar jobs from a device. Kubernetes asks to treat unknown effects as None, which bars nobody."""


class Device(NamedTuple):
    """A device of a pool. `node`: where it is; empty: several nodes reach it."""

    name: str
    node: str
    counts: bool
    """Whether the device is a GPU: it has the attributes that the fleet file asks for."""
    tainted: bool
    share: str
    """The field that marks the device as a share of a GPU; empty: it is a whole GPU."""


class Slice(NamedTuple):
    pool: str
    generation: int
    slices: int
    """The number of slices that the pool has at this generation."""
    nodes: tuple[str, ...]
    """The nodes that the slice or its devices name."""
    devices: tuple[Device, ...]


class TaintRule(NamedTuple):
    """A rule that bars devices: those of this pool and name; None: of any."""

    pool: str | None
    device: str | None


class DeviceClaim(NamedTuple):
    """The devices, by pool and name, that a claim has allocated."""

    team: str
    devices: tuple[tuple[str, str], ...]


def slice_in(raw: Any, source: KubernetesSource) -> Slice | None:
    """Return what a ResourceSlice publishes; None for one of another driver. Errors: BadObject."""
    spec = mapping_in(raw, "spec")
    if spec.get("driver") != source.driver:
        return None
    pool = mapping_in(spec, "pool")
    name = _text(pool, "name", "spec.pool.name")
    generation, slices = (_number(pool, field) for field in ("generation", "resourceSliceCount"))
    node = _text(spec, "nodeName", "spec.nodeName", optional=True)
    devices = tuple(_device_in(one, node, source) for one in mappings_in(spec, "devices"))
    return Slice(name, generation, slices, tuple(sorted({node, *(one.node for one in devices)} - {""})), devices)


def _device_in(raw: Mapping[str, Any], node: str, source: KubernetesSource) -> Device:
    name = _text(raw, "name", "spec.devices.name")
    fields = mapping_in(raw, "basic") or raw  # v1beta1 has the fields there
    share = "consumesCounters" if mappings_in(fields, "consumesCounters") else ""
    share = share or ("allowMultipleAllocations" if fields.get("allowMultipleAllocations") else "")
    own = _text(fields, "nodeName", f"spec.devices[{brief(name)}].nodeName", optional=True)
    tainted = any(_bars(taint) for taint in mappings_in(fields, "taints"))
    return Device(name, node or own, _has(mapping_in(fields, "attributes"), source), tainted, share)


def _has(attributes: Mapping[str, Any], source: KubernetesSource) -> bool:
    """Return whether a device has the attributes of a GPU. A name without a domain is in the driver's."""
    named = {key if "/" in key else f"{source.driver}/{key}": key for key in attributes}
    for key, wanted in source.device.items():
        own = named.get(key if "/" in key else f"{source.driver}/{key}")
        values = {} if own is None else mapping_in(attributes, own)
        if wanted not in [str(one).lower() if isinstance(one, bool) else str(one) for one in values.values()]:
            return False
    return True


def _bars(taint: Mapping[str, Any]) -> bool:
    return _text(taint, "effect", "taints.effect") in _BARS


def taint_rule_in(raw: Any, source: KubernetesSource) -> TaintRule | None:
    """Return the devices that a DeviceTaintRule bars; None for a rule that bars none of the driver's.

    Errors: BadObject, also for one of Kubernetes 1.34 and before that selects devices by class or expression.
    """
    spec = mapping_in(raw, "spec")
    selector = mapping_in(spec, "deviceSelector")
    driver, pool, device = (selector.get(field) for field in ("driver", "pool", "device"))
    if spec.get("deviceSelector") is None or driver not in (None, source.driver):
        return None
    if not _bars(mapping_in(spec, "taint")):
        return None
    for field in ("deviceClassName", "selectors"):
        if selector.get(field):
            raise BadObject(
                f"spec.deviceSelector.{field} is {brief(selector[field])}, and Backstop does not evaluate it"
            )
    if not isinstance(pool, str | None) or not isinstance(device, str | None):
        raise BadObject(f"spec.deviceSelector is {brief(selector)}")
    return TaintRule(pool, device)


def claim_in(raw: Any, source: KubernetesSource) -> DeviceClaim | None:
    """Return the driver's devices that a ResourceClaim has allocated; None if there is none. Errors: BadObject.

    An allocation for an administrator's access takes the device from nobody.
    """
    allocation = mapping_in(mapping_in(raw, "status"), "allocation")
    results = [
        one
        for one in mappings_in(mapping_in(allocation, "devices"), "results")
        if one.get("driver") == source.driver and not one.get("adminAccess")
    ]
    if not results:
        return None
    devices = tuple((_text(one, "pool", "pool"), _text(one, "device", "device")) for one in results)
    return DeviceClaim(team_of(raw, source), devices)


class DeviceCount(NamedTuple):
    """The devices of complete pools. `fault`: why they cannot be counted; empty: they can."""

    devices: Mapping[tuple[str, str], Device]
    nodes: Mapping[str, str]
    """By pool: its node, if the pool has only one."""
    gpus: Mapping[str, tuple[int, int]]
    """By node: the number of published GPUs, and of those without a taint."""
    fault: str = ""


def count_devices(slices: Iterable[Slice], rules: Iterable[TaintRule], nodes: Mapping[str, NodeGpus]) -> DeviceCount:
    """Count the GPUs of these nodes. Pools of other nodes are no concern."""
    pools: dict[str, list[Slice]] = {}
    for one in slices:
        newest = pools.setdefault(one.pool, [])
        if newest and one.generation > newest[0].generation:
            newest.clear()
        if not newest or one.generation == newest[0].generation:
            newest.append(one)
    barred = {(rule.pool, rule.device) for rule in rules}
    installed, free = Counter[str](), Counter[str]()
    devices: dict[tuple[str, str], Device] = {}
    homes: dict[str, str] = {}
    faults: list[str] = []
    for pool, newest in sorted(pools.items()):
        of_nodes = sorted({node for one in newest for node in one.nodes})
        if of_nodes and not nodes.keys() & of_nodes:
            continue
        if len(of_nodes) == 1:
            homes[pool] = of_nodes[0]
        if any(one.slices != len(newest) for one in newest):
            faults.append(f"pool {brief(pool)} is incomplete: {len(newest)} of {newest[0].slices} ResourceSlices")
            continue
        for device in (device for one in newest for device in one.devices):
            key = pool, device.name
            ours = not device.node or device.node in nodes
            if ours and (fault := _fault_of(device, twice=key in devices)):
                faults.append(f"device {brief(device.name)} of pool {brief(pool)} {fault}")
            devices[key] = device
            if device.counts and ours:
                installed[device.node] += 1
                rules_apply = barred & {key, (pool, None), (None, device.name), (None, None)}
                free[device.node] += not device.tainted and not rules_apply
    gpus = {node: (count, free[node]) for node, count in installed.items()}
    return DeviceCount(devices, homes, gpus, min(faults, default=""))


def _fault_of(device: Device, *, twice: bool) -> str:
    if twice:
        return "is published twice"
    if device.counts and not device.node:
        return "belongs to no single node (allNodes or nodeSelector): Backstop counts GPUs by node"
    if device.counts and device.share:
        return f"is a share of a GPU ({device.share}): Backstop counts only whole GPUs"
    return ""


class Devices:
    """The devices of a driver, as an API server describes them."""

    def __init__(self, source: KubernetesSource, now: Clock, changed: Callable[[], object], pause: Pause) -> None:
        self.slices = Followed(
            RESOURCE_SLICES, f"spec.driver={source.driver}", partial(slice_in, source=source), now, changed, pause
        )
        # Kubernetes serves them since 1.33, where they are switched on.
        self.rules = Followed(
            DEVICE_TAINT_RULES, None, partial(taint_rule_in, source=source), now, changed, pause, optional=True
        )

    def count(self, nodes: Mapping[str, NodeGpus]) -> DeviceCount:
        return count_devices(list(self.slices.kept.values()), list(self.rules.kept.values()), nodes)


def nodes_with(gpus: Mapping[str, tuple[int, int]], nodes: Mapping[str, NodeGpus]) -> dict[str, NodeGpus]:
    """Return the nodes that have devices, with these as their GPUs; a node where no pod could be placed has none."""
    return {
        name: nodes[name]._replace(installed=installed, healthy=0 if nodes[name].why else free)
        for name, (installed, free) in gpus.items()
    }


def list_held_gpus(claims: Mapping[str, DeviceClaim], count: DeviceCount) -> list[HeldGpus]:
    """Return the GPUs that claims hold: each once, and none for a device that is no GPU.

    A device that is published no more still counts, on its pool's node: the claim's pod goes on.
    """
    held: dict[tuple[str, str], HeldGpus] = {}
    for _, claim in sorted(claims.items()):
        for key in claim.devices:
            device = count.devices.get(key)
            if device is None or device.counts:
                home = count.nodes.get(key[0], key[0]) if device is None else device.node
                held.setdefault(key, HeldGpus(claim.team, 1, home))
    return list(held.values())


def _text(raw: Mapping[str, Any], field: str, where: str, *, optional: bool = False) -> str:
    value = raw.get(field)
    if optional and value is None:
        return ""
    if not isinstance(value, str) or not 0 < len(value) <= 253 or not value.isprintable():
        raise BadObject(f"{where} is {brief(value)}")
    return value


def _number(pool: Mapping[str, Any], field: str) -> int:
    value = pool.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadObject(f"spec.pool.{field} is {brief(value)}")
    return value
