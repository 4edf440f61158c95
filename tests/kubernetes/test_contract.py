"""What an API server must do for us, compared with what kubectl reads there.

Without BACKSTOP_KUBECONFIG against the emulator, so that not only our own client has checked it; with it against a real
cluster, where nothing is written (deploy/kubernetes/try.md). BACKSTOP_RESOURCE: the GPUs' name there.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from activities.adapters.kubernetes.api import NODES, PODS, ApiServer, Gone, KubernetesConnection
from activities.adapters.kubernetes.followed import Followed
from activities.adapters.kubernetes.objects import node_gpus, pod_gpus
from models.cluster.sources import KubernetesSource
from tests.kubernetes.emulator import NODES as NODE_OBJECTS
from tests.kubernetes.emulator import PODS as POD_OBJECTS
from tests.kubernetes.emulator import node, pod, running

SOURCE = KubernetesSource(resource=os.environ.get("BACKSTOP_RESOURCE", "nvidia.com/gpu"))
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
        path: Path = tmp_path_factory.mktemp("kube") / "config"
        path.write_text(json.dumps(cluster.kubeconfig()))
        yield str(path)


def kubectl(kubeconfig: str, *arguments: str) -> list[dict[str, Any]]:
    answer = subprocess.run(
        ["kubectl", "--kubeconfig", kubeconfig, "get", *arguments, "-o", "json", "--chunk-size=7"],
        capture_output=True,
        text=True,
        check=True,
    )
    items: list[dict[str, Any]] = json.loads(answer.stdout)["items"]
    return items


def followed(kind: Any, read: Any) -> Followed[Any]:
    return Followed(kind, None, partial(read, source=SOURCE), lambda: datetime.now(UTC), lambda: None)


def opened(kubeconfig: str) -> ApiServer:
    return ApiServer("tried", KubernetesConnection(kubeconfig=kubeconfig))


async def test_the_nodes_are_those_of_kubectl_and_so_are_their_gpus(kubeconfig: str) -> None:
    nodes = followed(NODES, node_gpus)
    await nodes.list_all(opened(kubeconfig))
    wanted = {}
    for raw in await asyncio.to_thread(kubectl, kubeconfig, "nodes"):
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
    for raw in await asyncio.to_thread(kubectl, kubeconfig, "pods", "--all-namespaces"):
        limits = [one.get("resources", {}).get("limits", {}) for one in raw["spec"]["containers"]]
        gpus = sum(int(one.get(SOURCE.resource, 0)) for one in limits)
        if gpus and raw["status"]["phase"] not in ("Succeeded", "Failed"):
            meta = raw["metadata"]
            wanted[f"{meta['namespace']}/{meta['name']}"] = meta["namespace"], gpus, raw["spec"].get("nodeName", "")
    assert {name: (one.team, one.gpus, one.node) for name, one in pods.kept.items()} == wanted
    assert pods.bad == {}


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
