"""Health and use from an API server that is an emulator: what is healthy, what a watch brings, and what breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from activities.adapters.kubernetes.kubernetes import Kuberneteses
from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from activities.adapters.runners.outside_checks import OutsideChecks
from activities.adapters.runners.settings import Allowed, RunnerSettings
from activities.bringup.health_checks import OwnHealth
from models.bringup.checks import CheckKind, CheckOrder, Colour
from models.cluster.sources import KubernetesSource
from tests.kubernetes.conftest import World
from tests.kubernetes.emulator import NODES, PODS, QUEUES, Cluster, node, pod, running
from tests.waiting import wait_until
from workers import main

BLOCK = "topology.example.com/block"
IN_BLOCKS = {"connection": "here", "island_label": BLOCK, "islands": {"block-7": "a", "block-8": "b"}}


@pytest.fixture
def make(ledger: Ledger, tmp_path: Path, server: Cluster) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def world(source: dict[str, Any] | None = None, **others: Any) -> World:
        worlds.append(World(ledger, tmp_path, {"here": server}, {"east": source or {"connection": "here"}, **others}))
        return worlds[-1]

    yield world
    for each in worlds:
        each.adapter.stop()


def scheduled(world: World, cluster: str = "east") -> int | None:
    """Return the GPUs that the pods of vision hold, as last sampled."""
    usage = world.usage(cluster)
    return usage["vision"].scheduled_gpus if "vision" in usage else None


def test_islands_come_from_a_label_and_blocks_from_wholly_healthy_nodes(
    server: Cluster, make: Callable[..., World]
) -> None:
    for name, block, changes in (
        ("n1", "block-7", {}),
        ("n2", "block-7", {"allocatable": 6}),
        ("n3", "block-7", {"unschedulable": True}),
        ("n4", "block-8", {}),
        ("n5", "block-8", {"ready": "Unknown"}),
    ):
        server.put(NODES, node(name, 8, labels={BLOCK: block}, **changes))
    server.put(NODES, node("cpu-only", None, ready="False"))
    world = make(IN_BLOCKS)
    assert world.gpus() == {"a": (14, 8), "b": (8, 8)}
    assert world.health().fault == ""


def test_a_change_in_the_cluster_is_in_the_ledger_and_pushed_before_anybody_asks(
    server: Cluster, make: Callable[..., World], ledger: Ledger
) -> None:
    server.put(NODES, node("n1"))
    server.put(NODES, node("n2"))
    world = make()
    assert world.gpus() == {"main": (16, 16)}
    assert ledger.pushes.take(lambda _: True) == {}
    server.put(NODES, node("n2", ready="False"))
    wait_until(lambda: "east" in ledger.pushes.take(lambda _: True), "the change was pushed")
    (sample,) = ledger.health.read(["east"]).values()
    assert sample.healthy_gpus == 8
    server.remove(NODES, "n1")
    server.put(NODES, node("n3"))
    server.put(NODES, node("n2"))
    wait_until(lambda: world.gpus() == {"main": (16, 16)}, "a node went, one came, one is well again")


def test_a_heartbeat_that_changes_nothing_pushes_nothing(
    server: Cluster, make: Callable[..., World], ledger: Ledger
) -> None:
    server.put(NODES, node("n1"))
    world = make()
    at = world.health().at
    server.put(NODES, node("n1"))
    wait_until(lambda: world.health().at > at, "the event was seen")
    assert ledger.pushes.take(lambda _: True) == {}


def test_a_list_comes_in_pages_and_the_watch_goes_on_from_its_version(
    server: Cluster, make: Callable[..., World]
) -> None:
    for number in range(1201):
        server.put(NODES, node(f"n{number:04}", 1))
    world = make({"connection": "here", "use": "off"})
    # 64 are installed by the last import: more than that is not believed, so the adapter's own picture is looked at.
    world.health()
    (follower,) = world.adapter._followers.values()
    assert len(follower.nodes.kept) == 1201
    asked = [parameters for what, parameters in server.emulator.asked if what == "list nodes"]
    assert [one["limit"] for one in asked] == ["500", "500", "500"]
    assert [one.get("continue") for one in asked] == [None, "2201-500", "2201-1000"]
    wait_until(lambda: any(what == "watch nodes" for what, _ in server.emulator.asked), "the watch has begun")
    (watched,) = [parameters for what, parameters in server.emulator.asked if what == "watch nodes"]
    assert watched["resourceVersion"] == "2201"
    assert watched["allowWatchBookmarks"] == "true"


def test_an_island_whose_nodes_are_all_gone_has_none(server: Cluster, make: Callable[..., World]) -> None:
    server.put(NODES, node("n1", labels={BLOCK: "block-7"}))
    server.put(NODES, node("n2", labels={BLOCK: "block-8"}))
    world = make({**IN_BLOCKS, "use": "off"})
    assert world.gpus() == {"a": (8, 8), "b": (8, 8)}
    server.remove(NODES, "n2")
    wait_until(lambda: world.gpus() == {"a": (8, 8)}, "the list is whole, so that b is known to have none")


def test_an_island_that_the_fleet_file_does_not_name_is_reported(server: Cluster, make: Callable[..., World]) -> None:
    server.put(NODES, node("n1", labels={BLOCK: "block-7"}))
    server.put(NODES, node("n2", labels={BLOCK: "block-9"}))
    world = make({**IN_BLOCKS, "use": "off"})
    assert world.gpus() == {"a": (8, 8)}
    assert world.adapter.check() == {
        "east": "some of its nodes are in islands that the fleet file does not name: block-9"
    }


def test_a_connection_that_drops_goes_on_from_the_last_version_and_misses_nothing(
    server: Cluster, make: Callable[..., World]
) -> None:
    server.put(NODES, node("n1"))
    world = make({"connection": "here", "use": "off"})
    assert world.gpus() == {"main": (8, 8)}
    server.hang_up()
    server.put(NODES, node("n2"))
    wait_until(lambda: world.gpus() == {"main": (16, 16)}, "the node that came meanwhile is seen")
    assert [what for what, _ in server.emulator.asked].count("list nodes") == 1


def test_a_bookmark_moves_the_version_from_which_a_watch_goes_on(server: Cluster, make: Callable[..., World]) -> None:
    server.put(NODES, node("n1"))
    world = make({"connection": "here", "use": "off"})
    at = world.health().at
    bookmark = {"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": "5000"}}
    server.send(NODES, {"type": "BOOKMARK", "object": bookmark})
    wait_until(lambda: world.health().at > at, "a quiet cluster is known to be well")
    server.hang_up()

    def last_version() -> str:
        return [asked["resourceVersion"] for what, asked in server.emulator.asked if what == "watch nodes"][-1]

    wait_until(lambda: last_version() == "5000", "the next watch begins there")


@pytest.mark.parametrize("within", ["the answer", "the watch"])
def test_a_version_that_is_forgotten_has_the_nodes_listed_anew(
    within: str, server: Cluster, make: Callable[..., World]
) -> None:
    server.put(NODES, node("n1"))
    server.put(NODES, node("n2"))
    world = make({"connection": "here", "use": "off"})
    assert world.gpus() == {"main": (16, 16)}
    server.forget(without="n1", refused=within == "the answer")
    wait_until(lambda: [what for what, _ in server.emulator.asked].count("list nodes") >= 2, "they are listed anew")
    server.on_loop(lambda emulator: emulator.refusals.clear())
    wait_until(lambda: world.gpus() == {"main": (8, 8)}, "what has gone unseen is gone")
    assert world.health().fault == ""


def test_an_api_server_that_falls_silent_costs_its_own_cluster_alone(
    server: Cluster, ledger: Ledger, tmp_path: Path
) -> None:
    with running() as other:
        server.put(NODES, node("n1"))
        other.put(NODES, node("n1"))
        server.silence(True)
        clusters = {"east": {"connection": "here"}, "west": {"connection": "there"}}
        world = World(ledger, tmp_path, {"here": server, "there": other}, clusters, patience=0)
        wait_until(lambda: world.gpus("west") == {"main": (8, 8)}, "the other cluster is read")
        assert world.gpus("east") == {}
        server.silence(False)
        wait_until(lambda: world.gpus("east") == {"main": (8, 8)}, "it is read once its server speaks")
        world.adapter.stop()


def test_a_connection_that_this_worker_does_not_have_is_named(server: Cluster, make: Callable[..., World]) -> None:
    server.put(NODES, node("n1"))
    world = make(west={"connection": "nowhere"})
    assert world.gpus("east") == {"main": (8, 8)}
    assert (
        "this worker has no Kubernetes 'nowhere': add it to the file that BACKSTOP_KUBERNETES names"
        in world.health("west").fault
    )
    assert world.health("west").healthy_gpus == 0
    assert world.adapter.check() == {
        "east": "",
        "west": "this worker has no Kubernetes 'nowhere': add it to the file that BACKSTOP_KUBERNETES names",
    }


def test_a_cluster_may_be_a_part_of_the_nodes(server: Cluster, make: Callable[..., World]) -> None:
    server.put(NODES, node("h1", 8, labels={"model": "h100"}))
    server.put(NODES, node("a1", 4, labels={"model": "a100"}))
    server.put(PODS, pod("train", "vision", 4, "h1"))
    server.put(PODS, pod("eval", "vision", 2, "a1"))
    server.put(PODS, pod("waits", "vision", 8, None))
    world = make({"connection": "here", "nodes": "model=h100"}, west={"connection": "here", "nodes": "model=a100"})
    assert (world.gpus("east"), world.gpus("west")) == ({"main": (8, 8)}, {"main": (4, 4)})
    wait_until(lambda: scheduled(world) == 4, "east has the pod on its node")
    wait_until(lambda: scheduled(world, "west") == 2, "west has the other")
    assert world.usage("east")["vision"].pending_gpus is None, "a pod that waits is on no node yet"


def test_use_is_what_pods_of_a_team_hold(server: Cluster, make: Callable[..., World]) -> None:
    server.put(NODES, node("n1"))
    server.put(PODS, pod("a", "cv-prod", 4))
    server.put(PODS, pod("b", "cv-dev", 2))
    server.put(PODS, pod("done", "cv-prod", 8, phase="Succeeded"))
    server.put(PODS, pod("waits", "language", 3, None))
    server.put(PODS, pod("nobody", "kube-system", 1))
    world = make({"connection": "here", "teams": {"cv-prod": "vision", "cv-dev": "vision"}})
    world.health()
    wait_until(lambda: scheduled(world) == 6, "the first sample")
    assert (world.usage()["language"].scheduled_gpus, world.usage()["language"].pending_gpus) == (0, 3)
    server.put(PODS, pod("a", "cv-prod", 4, phase="Failed"))
    wait_until(lambda: scheduled(world) == 2, "a pod that is over holds nothing")


def gpus(total: int | str, **more: str) -> dict[str, Any]:
    return {"name": "nvidia.com/gpu", "total": total, **more}


def test_use_is_what_cluster_queues_report_where_kueue_has_the_quotas(
    server: Cluster, make: Callable[..., World]
) -> None:
    server.put(NODES, node("n1"))
    usage = [
        {"name": "h100-a", "resources": [gpus("5", borrowed="1"), {"name": "cpu", "total": "40"}]},
        {"name": "h100-b", "resources": [gpus(2)]},
        {"name": "a100", "resources": [gpus("3")]},
    ]
    server.put(QUEUES, {"metadata": {"name": "cv"}, "status": {"flavorsUsage": usage}})
    server.put(QUEUES, {"metadata": {"name": "language"}, "status": {}})
    world = make({"connection": "here", "use": "kueue", "teams": {"cv": "vision"}, "flavors": ["h100-a", "h100-b"]})
    world.health()
    wait_until(lambda: scheduled(world) == 7, "the first sample")
    assert {t: (u.scheduled_gpus, u.pending_gpus) for t, u in world.usage().items()} == {
        "vision": (7, None),
        "language": (0, None),
    }


class Idle:
    """A worker of a task queue to which nothing comes."""

    async def __aenter__(self) -> Idle:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def shutdown(self) -> None: ...


async def test_a_worker_that_ends_leaves_no_connection_open(
    server: Cluster, make: Callable[..., World], ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put(NODES, node("n1"))
    connections = make().adapter._connections
    adapters: list[Kuberneteses] = []

    def kept(*terms: Any, **named: Any) -> Kuberneteses:
        adapters.append(Kuberneteses(*terms, **named))
        return adapters[0]

    monkeypatch.setattr(main, "Worker", lambda *_, **__: Idle())
    monkeypatch.setattr(main, "Kuberneteses", kept)
    client: Any = SimpleNamespace(data_converter=SimpleNamespace(payload_codec=None))
    before = set(threading.enumerate())
    with ThreadPoolExecutor(1) as pool:
        notifier = Notifier(tmp_path / "notices.jsonl", ledger.now)
        async with main.make_worker(client, ledger, notifier, pool, kubernetes=connections):
            await asyncio.to_thread(adapters[0].refresh_health, ledger.schedulers.all_sources())
            (thread,) = (t for t in set(threading.enumerate()) - before if t.name == "follows Kubernetes")
            await asyncio.to_thread(
                wait_until, lambda: any(w == "watch nodes" for w, _ in server.emulator.asked), "it watches"
            )
        await asyncio.to_thread(wait_until, lambda: not thread.is_alive(), "its thread has ended")
    assert adapters[0]._followers == {}


def test_the_checks_of_a_bring_up_ask_the_api_server_of_its_entry(server: Cluster, make: Callable[..., World]) -> None:
    """The cluster is not in the fleet yet, so the ledger has no sample of it, and nobody follows it."""
    world = make()
    source = KubernetesSource.model_validate(IN_BLOCKS)
    health = world.ledger.health
    checks = OwnHealth(cannot, cannot, world.adapter.read_islands, health, OutsideChecks(Allowed(RunnerSettings())))

    def answer(kind: CheckKind, by: KubernetesSource = source, **more: Any) -> tuple[Colour, str]:
        found = checks.check(CheckOrder(cluster="new", name="a", kind=kind, kubernetes=by, **more))
        return found.colour, found.said

    assert answer(CheckKind.CAPACITY, gpus=8) == (
        Colour.UNKNOWN,
        "Kubernetes here: no node has nvidia.com/gpu",
    )
    for name, block, allocatable in (("n1", "block-7", 8), ("n2", "block-8", 6), ("n3", "block-8", 8)):
        server.put(NODES, node(name, 8, labels={BLOCK: block}, allocatable=allocatable))
    assert answer(CheckKind.CAPACITY, gpus=24) == (Colour.GREEN, "24 GPUs installed, 24 required")
    assert answer(CheckKind.HEALTHY, share=Fraction(1)) == (
        Colour.RED,
        "22 of 24 GPUs healthy (91.7 %); 100 % required",
    )
    assert answer(CheckKind.CONTIGUOUS, gpus=8) == (
        Colour.GREEN,
        "the largest block has 8 GPUs, in b; 8 required",
    )
    assert answer(CheckKind.HEALTHY, source.but(connection="elsewhere"), share=Fraction(1))[0] is Colour.UNKNOWN
    assert "new" not in health.read(["new"])


def cannot(cluster: str, source: object) -> Any:
    raise AssertionError(f"{cluster} is not asked of {source}")
