"""Objects of resource.k8s.io/v1 as drivers, people and the scheduler write them."""

from __future__ import annotations

from typing import Any


def resource_slice(node: str, gpus: int = 8, /, **changes: Any) -> dict[str, Any]:
    """A ResourceSlice of a node's GPUs. `changes`: pool, part, of, generation, taints and fields by device, spec."""
    pool, part = changes.get("pool", node), changes.get("part", 0)
    devices: list[dict[str, Any]] = [
        {
            "name": f"gpu-{part * 64 + number}",
            "attributes": {"type": {"string": "gpu"}, "resource.kubernetes.io/pcieRoot": {"string": f"pci{number}"}},
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for number in range(gpus)
    ]
    for number, effect in changes.get("taints", {}).items():
        devices[number]["taints"] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": effect}]
    for number, fields in changes.get("fields", {}).items():
        devices[number] |= fields
    numbers = {"generation": changes.get("generation", 1), "resourceSliceCount": changes.get("of", 1)}
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": pool, **numbers}, "nodeName": node, "devices": devices}
    spec = {key: value for key, value in (spec | changes.get("spec", {})).items() if value is not None}
    name = changes.get("name", f"{node}-gpu-nvidia-com-{part}")
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def taint_rule(name: str, effect: str = "NoSchedule", /, **selector: Any) -> dict[str, Any]:
    spec = {"deviceSelector": selector, "taint": {"key": "example.com/tested", "effect": effect}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}


def claim(name: str, namespace: str, *devices: str, **changes: Any) -> dict[str, Any]:
    """A claim of these devices, each as pool/device; none: it waits. `changes`: labels, or of each result."""
    labels = changes.pop("labels", {})
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": max(1, len(devices))}
    raw: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    if devices:
        places = [place.rsplit("/", 1) for place in devices]
        own = {"request": "gpu", "driver": "gpu.nvidia.com"}
        results = [{**own, "pool": pool, "device": device, **changes} for pool, device in places]
        raw["status"] = {"allocation": {"devices": {"results": results}}}
    return raw
