"""The cost of following a Kubernetes cluster: CPU and memory of a first list, and of a watch under heartbeats.

The API server is the tests' emulator, in a process of its own. `python benchmarks/kubernetes.py [--nodes 5000]`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from activities.adapters.kubernetes.api import NODES, PODS, ApiServer, KubernetesConnection
from activities.adapters.kubernetes.followed import Followed
from activities.adapters.kubernetes.objects import islands_of, node_gpus, pod_gpus
from models.cluster.sources import KubernetesSource

PODS_PER_NODE = 4


def full_node(number: int) -> dict[str, Any]:
    """Return a node as large as real ones: 40 labels and 50 images."""
    from tests.kubernetes.emulator import node

    labels = {f"l{k}.example.com/label-{k}": f"value-{number}-{k}" for k in range(40)}
    raw = node(f"gpu-{number:05}", 8, labels=labels)
    names = [[f"registry.example/image-{k}@sha256:{'0' * 64}", f"registry.example/image-{k}:v1"] for k in range(50)]
    raw["status"]["images"] = [{"names": two, "sizeBytes": 12345678} for two in names]
    return raw


def serve(pipe: Connection, count: int) -> None:
    """Run the emulator; at each word of the other side send a heartbeat of every node."""
    from tests.kubernetes.emulator import NODES as NODE_OBJECTS
    from tests.kubernetes.emulator import PODS as POD_OBJECTS
    from tests.kubernetes.emulator import Cluster, pod

    cluster = Cluster().start()
    for number in range(count):
        cluster.put(NODE_OBJECTS, full_node(number))
        for at in range(PODS_PER_NODE):
            cluster.put(POD_OBJECTS, pod(f"p{number}-{at}", f"team-{number % 50}", 2, f"gpu-{number:05}"))
    pipe.send(cluster.kubeconfig())
    while pipe.recv():
        for number in range(count):
            cluster.put(NODE_OBJECTS, full_node(number))


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


async def measure(pipe: Connection, config: str, count: int) -> None:
    source, started = KubernetesSource(), time.process_time()
    events = 0

    def read_node(raw: Any) -> Any:
        nonlocal events
        events += 1
        return node_gpus(raw, source)

    server = ApiServer("bench", KubernetesConnection(kubeconfig=config))
    nodes = Followed(NODES, None, read_node, lambda: datetime.now(UTC), lambda: None)
    pods = Followed(PODS, None, partial(pod_gpus, source=source), lambda: datetime.now(UTC), lambda: None)
    began = time.monotonic()
    await nodes.list_all(server)
    report(f"list of {len(nodes.kept):,} nodes", started, began)
    started, began = time.process_time(), time.monotonic()
    await pods.list_all(server)
    report(f"list of {len(pods.kept):,} pods", started, began)
    started, began = time.process_time(), time.monotonic()
    for _ in range(10):
        islands_of(nodes.kept.values())
    report("10 sums by island", started, began)
    task = asyncio.create_task(nodes.follow(server))
    while events < 2 * count:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    events, started, began = 0, time.process_time(), time.monotonic()
    pipe.send(True)
    while events < count:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    report(f"watch: {events:,} heartbeats", started, began)
    task.cancel()


def report(what: str, started: float, began: float) -> None:
    cpu, wall = time.process_time() - started, time.monotonic() - began
    print(f"{what}: {cpu:.2f} s of CPU, {wall:.2f} s in all, peak memory {peak_mb()} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    count = parser.parse_args().nodes
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, count), daemon=True)
    process.start()
    config = Path(tempfile.mkdtemp()) / "kubeconfig"
    config.write_text(json.dumps(here.recv()))
    print(f"before: peak memory {peak_mb()} MB")
    asyncio.run(measure(here, str(config), count))
    here.send(False)


if __name__ == "__main__":
    main()
