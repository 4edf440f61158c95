"""The API server's answers that we rely on, compared with kubectl's.

Without BACKSTOP_KUBECONFIG against the emulator, so that not only our own client has checked it; with it against a real
cluster, where nothing is written (deploy/kubernetes/try.md). BACKSTOP_RESOURCE: the GPUs' name there. BACKSTOP_DRIVER:
the DRA driver that publishes them there.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from activities.adapters.kubernetes.api import NODES, PODS, RESOURCE_CLAIMS, ApiServer, Gone, KubernetesConnection
from activities.adapters.kubernetes.devices import Devices, claim_in
from activities.adapters.kubernetes.followed import Followed, pause_longer
from activities.adapters.kubernetes.objects import node_gpus, pod_gpus
from models.cluster.sources import KubernetesSource
from tests.kubernetes.device_objects import claim, resource_slice, taint_rule
from tests.kubernetes.emulator import CLAIMS, RULES, SLICES, kubectl_command, node, pod, running
from tests.kubernetes.emulator import NODES as NODE_OBJECTS
from tests.kubernetes.emulator import PODS as POD_OBJECTS

SOURCE = KubernetesSource(resource=os.environ.get("BACKSTOP_RESOURCE", "nvidia.com/gpu"))
DRIVER = KubernetesSource(driver=os.environ.get("BACKSTOP_DRIVER", "gpu.nvidia.com"))
pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if given := os.environ.get("BACKSTOP_KUBECONFIG"):
        yield given
        return
    with running() as cluster:
        for number in range(40):
            offered = {"allocatable": 5} if number % 7 == 3 else {}
            cluster.put(NODE_OBJECTS, node(f"n{number:02}", 8, unschedulable=number % 5 == 4, **offered))
        cluster.put(NODE_OBJECTS, node("down", 8, ready="False"))
        cluster.put(NODE_OBJECTS, node("kept", 8, taints=[{"key": "kept", "effect": "NoSchedule"}]))
        cluster.put(NODE_OBJECTS, node("cpu", None))
        for number in range(30):
            cluster.put(
                POD_OBJECTS, pod(f"p{number:02}", f"team-{number % 3}", number % 4, "n00" if number % 2 else None)
            )
        for number in range(20):
            changes = {"taints": {0: "NoSchedule", 1: "None"}} if number % 6 == 1 else {}
            cluster.put(SLICES, resource_slice(f"n{number:02}", 4, of=2, part=1))
            cluster.put(SLICES, resource_slice(f"n{number:02}", 4, of=2, part=0, **changes))
            devices = [f"n{number:02}/gpu-{device}" for device in range(number % 4)]
            cluster.put(CLAIMS, claim(f"c{number}", f"team-{number % 3}", *devices))
        cluster.put(SLICES, resource_slice("n00", 2, name="nics", spec={"driver": "nic.example.com"}))
        cluster.put(RULES, taint_rule("tested", pool="n02", device="gpu-3"))
        path: Path = tmp_path_factory.mktemp("kube") / "config"
        path.write_text(json.dumps(cluster.kubeconfig()))
        yield str(path)


def listed(kubeconfig: str, *arguments: str) -> list[dict[str, Any]]:
    answer = subprocess.run(
        kubectl_command(kubeconfig, "get", *arguments, "-o", "json", "--chunk-size=7"),
        capture_output=True,
        text=True,
        check=True,
    )
    items: list[dict[str, Any]] = json.loads(answer.stdout)["items"]
    return items


def followed(kind: Any, read: Any, source: KubernetesSource = SOURCE) -> Followed[Any]:
    return Followed(kind, None, partial(read, source=source), lambda: datetime.now(UTC), lambda: None)


def opened(kubeconfig: str) -> ApiServer:
    return ApiServer("tried", KubernetesConnection(kubeconfig=kubeconfig))


async def test_the_nodes_are_those_of_kubectl_and_so_are_their_gpus(kubeconfig: str) -> None:
    nodes = followed(NODES, node_gpus)
    await nodes.list_all(opened(kubeconfig))
    wanted = {}
    for raw in await asyncio.to_thread(listed, kubeconfig, "nodes"):
        status, spec = raw["status"], raw.get("spec", {})
        installed = int(status["capacity"].get(SOURCE.resource, 0))
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status["conditions"])
        barred = [
            t for t in spec.get("taints", []) if t["effect"] != "PreferNoSchedule" and t["key"] != "nvidia.com/gpu"
        ]
        well = ready and not spec.get("unschedulable") and not barred and "deletionTimestamp" not in raw["metadata"]
        if installed:
            wanted[raw["metadata"]["name"]] = (
                installed,
                int(status["allocatable"].get(SOURCE.resource, 0)) if well else 0,
            )
    assert {name: (one.installed, one.healthy) for name, one in nodes.kept.items()} == wanted
    assert nodes.bad == {}


async def test_the_pods_are_those_of_kubectl(kubeconfig: str) -> None:
    pods = followed(PODS, pod_gpus)
    await pods.list_all(opened(kubeconfig))
    wanted = {}
    for raw in await asyncio.to_thread(listed, kubeconfig, "pods", "--all-namespaces"):
        limits = [one.get("resources", {}).get("limits", {}) for one in raw["spec"]["containers"]]
        gpus = sum(int(one.get(SOURCE.resource, 0)) for one in limits)
        if gpus and raw["status"]["phase"] not in ("Succeeded", "Failed"):
            meta = raw["metadata"]
            wanted[f"{meta['namespace']}/{meta['name']}"] = meta["namespace"], gpus, raw["spec"].get("nodeName", "")
    assert {name: (one.team, one.gpus, one.node) for name, one in pods.kept.items()} == wanted
    assert pods.bad == {}


async def test_devices_are_those_of_kubectl_and_so_are_those_that_claims_have(kubeconfig: str) -> None:
    server, nodes = opened(kubeconfig), followed(NODES, node_gpus, DRIVER)
    devices = Devices(DRIVER, lambda: datetime.now(UTC), lambda: None, pause_longer)
    claims = followed(RESOURCE_CLAIMS, claim_in, DRIVER)
    for one in (nodes, devices.slices, devices.rules, claims):
        await one.list_all(server)
    seen = devices.count(nodes.kept)

    async def read(*arguments: str) -> list[dict[str, Any]]:
        return await asyncio.to_thread(listed, kubeconfig, *arguments)

    slices = [raw["spec"] for raw in await read("resourceslices") if raw["spec"]["driver"] == DRIVER.driver]
    rules = [raw["spec"] for raw in await read("devicetaintrules")] if devices.rules.kept else []
    wanted, well = Counter[str](), Counter[str]()
    for spec in slices:
        for device in spec.get("devices", ()):
            if device.get("attributes", {}).get("type", {}).get("string") != "gpu":
                continue
            place = {"driver": DRIVER.driver, "pool": spec["pool"]["name"], "device": device["name"]}
            ruled = [rule["taint"] for rule in rules if rule.get("deviceSelector", {}).items() <= place.items()]
            effects = {taint["effect"] for taint in [*device.get("taints", ()), *ruled]}
            wanted[spec["nodeName"]] += 1
            well[spec["nodeName"]] += not {"NoSchedule", "NoExecute"} & effects
    assert dict(seen.gpus) == {name: (count, well[name]) for name, count in wanted.items() if name in nodes.kept}
    assert (devices.slices.bad, devices.rules.bad, claims.bad) == ({}, {}, {})
    allocated = {
        (one["pool"], one["device"])
        for raw in await read("resourceclaims", "--all-namespaces")
        for one in raw.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        if one["driver"] == DRIVER.driver and not one.get("adminAccess")
    }
    assert {device for one in claims.kept.values() for device in one.devices} == allocated
    if "BACKSTOP_KUBECONFIG" not in os.environ:
        assert (sum(wanted.values()), sum(wanted.values()) - sum(well.values()), len(allocated)) == (160, 5, 30)


async def test_small_pages_have_the_same_nodes_as_one(kubeconfig: str) -> None:
    server = opened(kubeconfig)
    pages = [page async for page in server.pages(NODES, None, limit=7)]
    whole = await server.page(NODES, None)
    names = [raw["metadata"]["name"] for page in pages for raw in page.items]
    assert sorted(names) == sorted(raw["metadata"]["name"] for raw in whole.items)
    assert len(pages) == -(-len(names) // 7)
    assert len({page.version for page in pages}) == 1, "all pages are of one version"


async def test_a_selector_is_the_servers_work(kubeconfig: str) -> None:
    page = await opened(kubeconfig).page(NODES, "backstop.example.com/nobody=has-this")
    assert page.items == []


async def test_a_watch_from_a_version_of_long_ago_is_refused_with_410(kubeconfig: str) -> None:
    if "BACKSTOP_KUBECONFIG" not in os.environ:
        pytest.skip("the emulator forgets only when it is told to: test_followed.py does")
    with pytest.raises(Gone):
        _ = [event async for event in opened(kubeconfig).events(NODES, None, "1")]
