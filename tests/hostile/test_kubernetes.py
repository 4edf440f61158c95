"""Rubbish from an API server: it costs the one cluster its news, and no other cluster anything."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from tests.hostile import Rubbish, table, threw
from tests.kubernetes.conftest import World, ledger
from tests.kubernetes.device_objects import claim, resource_slice, taint_rule
from tests.kubernetes.emulator import CLAIMS, NODES, PODS, RULES, SLICES, Cluster, node, pod, running
from tests.waiting import wait_until

__all__ = ["ledger"]
SOURCE = "Kubernetes"


@pytest.fixture
def bad() -> Iterator[Cluster]:
    with running() as cluster:
        yield cluster


@pytest.fixture
def world(ledger: Ledger, tmp_path: Path, bad: Cluster) -> Iterator[World]:
    """`bad` of an API server that sends rubbish, and `well` of another one."""
    with running() as good:
        for server in (bad, good):
            server.put(NODES, node("n1"))
            server.put(NODES, node("n2"))
            server.put(PODS, pod("p", "vision", 4))
        clusters = {"bad": {"connection": "bad"}, "well": {"connection": "good"}}
        made = World(ledger, tmp_path, {"bad": bad, "good": good}, clusters)
        yield made
        made.adapter.stop()


def changed(**fields: Any) -> dict[str, Any]:
    """A third node, with other fields: `status__capacity` is a field within status."""
    raw = node("n3")
    for path, value in fields.items():
        *outer, last = path.split("__")
        inner = raw
        for part in outer:
            inner = inner[part]
        inner[last] = value
    return raw


OBJECTS = [
    Rubbish("a negative count", changed(status__capacity={"nvidia.com/gpu": "-8"})),
    Rubbish("a fraction", changed(status__allocatable={"nvidia.com/gpu": "7.5"})),
    Rubbish("a word for a count", changed(status__allocatable={"nvidia.com/gpu": "many"})),
    Rubbish("20,000,000 GPUs", changed(status__capacity={"nvidia.com/gpu": "20000000"})),
    Rubbish("a count of 5,000 digits", changed(status__capacity={"nvidia.com/gpu": "9" * 5000})),
    Rubbish("a list for a status", changed(status=["Ready"])),
    Rubbish("text for conditions", changed(status__conditions="Ready")),
    Rubbish("a condition that is a number", changed(status__conditions=[1])),
    Rubbish("text for a spec", changed(spec="cordoned")),
    Rubbish("a taint without a key", changed(spec={"taints": [{"effect": "NoSchedule"}]})),
    Rubbish("a taint of an effect that there is not", changed(spec={"taints": [{"key": "a", "effect": "Maybe"}]})),
    Rubbish("labels that are a list", changed(metadata={"name": "n3", "labels": ["a"]})),
]


@table(OBJECTS)
def test_a_node_that_makes_no_sense_is_named_and_its_cluster_unknown(
    rubbish: Rubbish, bad: Cluster, world: World
) -> None:
    assert world.gpus("bad") == {"main": (16, 16)}
    bad.put(NODES, rubbish.value)
    wait_until(lambda: "invalid nodes: 'n3': " in world.health("bad").fault, "it is named")
    assert world.gpus("bad") == {"main": (16, 16)}, "what was known stands"
    assert (world.gpus("well"), world.health("well").fault) == ({"main": (16, 16)}, "")
    sentence = world.adapter.check()
    assert sentence["bad"].startswith("invalid nodes: 'n3': ")
    assert len(sentence["bad"]) <= 400
    assert "\n" not in sentence["bad"]
    assert sentence["well"] == ""
    bad.put(NODES, node("n3"))
    wait_until(lambda: world.gpus("bad") == {"main": (24, 24)}, "mended, it counts")
    threw(SOURCE)


def test_a_pod_that_makes_no_sense_costs_use_alone(bad: Cluster, world: World) -> None:
    raw = pod("q", "vision", 4)
    raw["spec"]["containers"] = "none"
    bad.put(PODS, raw)
    assert world.gpus("bad") == {"main": (16, 16)}
    assert "'vision/q': containers is 'none'" in world.adapter.check()["bad"]
    threw(SOURCE)


def sliced(**spec: Any) -> dict[str, Any]:
    """A slice of a third node, with other fields in its spec."""
    raw = resource_slice("n3")
    raw["spec"] |= spec
    return raw


def with_device(**fields: Any) -> dict[str, Any]:
    return sliced(devices=[{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}, **fields}])


DEVICES = [
    Rubbish("no pool", sliced(pool=None)),
    Rubbish("a pool that is text", sliced(pool="n3")),
    Rubbish("a pool without a name", sliced(pool={"generation": 1, "resourceSliceCount": 1})),
    Rubbish("a generation that is text", sliced(pool={"name": "n3", "generation": "1", "resourceSliceCount": 1})),
    Rubbish("a negative count of slices", sliced(pool={"name": "n3", "generation": 1, "resourceSliceCount": -1})),
    Rubbish("a node that is a number", sliced(nodeName=3)),
    Rubbish("a node of 5,000 letters", sliced(nodeName="n" * 5000)),
    Rubbish("devices that are text", sliced(devices="all")),
    Rubbish("devices that are numbers", sliced(devices=[1])),
    Rubbish("a device without a name", with_device(name=None)),
    Rubbish("a device of two lines", with_device(name="gpu\n0")),
    Rubbish("attributes that are a list", with_device(attributes=["gpu"])),
    Rubbish("an attribute that is text", with_device(attributes={"type": "gpu"})),
    Rubbish("taints that are text", with_device(taints="all")),
    Rubbish("a taint without an effect", with_device(taints=[{"key": "a"}])),
    Rubbish("a counter that is text", with_device(consumesCounters="all")),
    Rubbish("fields of v1beta1 that are a list", with_device(basic=[1])),
]


@table(DEVICES)
def test_a_slice_that_makes_no_sense_is_named_and_its_cluster_unknown(
    rubbish: Rubbish, bad: Cluster, ledger: Ledger, tmp_path: Path
) -> None:
    with running() as good:
        for server in (bad, good):
            for name in ("n1", "n3"):
                server.put(NODES, node(name, None))
            server.put(SLICES, resource_slice("n1"))
        clusters = {name: {"connection": name, "driver": "gpu.nvidia.com"} for name in ("bad", "good")}
        world = World(ledger, tmp_path, {"bad": bad, "good": good}, clusters)
        assert world.gpus("bad") == {"main": (8, 8)}
        bad.put(SLICES, rubbish.value)
        words = "invalid resourceslices: 'n3-gpu-nvidia-com-0': "
        wait_until(lambda: words in world.health("bad").fault, "it is named")
        assert (world.gpus("bad"), world.gpus("good")) == ({"main": (8, 8)}, {"main": (8, 8)})
        sentence = world.adapter.check()["bad"]
        assert sentence.startswith(words)
        assert len(sentence) <= 400
        assert "\n" not in sentence
        bad.put(SLICES, resource_slice("n3"))
        wait_until(lambda: world.gpus("bad") == {"main": (16, 16)}, "mended, it counts")
        world.adapter.stop()
    threw(SOURCE)


def test_a_rule_or_a_claim_that_makes_no_sense_is_named(bad: Cluster, ledger: Ledger, tmp_path: Path) -> None:
    bad.put(NODES, node("n1", None))
    bad.put(SLICES, resource_slice("n1"))
    world = World(ledger, tmp_path, {"bad": bad}, {"bad": {"connection": "bad", "driver": "gpu.nvidia.com"}})
    bad.put(CLAIMS, claim("c", "vision", "n1/gpu-0", device=7))
    assert world.adapter.check() == {"bad": "invalid resourceclaims: 'vision/c': device is 7"}
    assert world.gpus("bad") == {"main": (8, 8)}, "a claim costs use alone"
    bad.put(RULES, taint_rule("r", pool=7))
    wait_until(lambda: "invalid devicetaintrules: 'r': " in world.health("bad").fault, "so does a rule")
    world.adapter.stop()
    threw(SOURCE)


EVENTS = [
    Rubbish("an event without an object", {"type": "ADDED"}),
    Rubbish("an event of another type", {"type": "RENAMED", "object": node("n3")}),
    Rubbish("an object without a version", {"type": "ADDED", "object": {"metadata": {"name": "n3"}}}),
    Rubbish("an object without a name", {"type": "ADDED", "object": {"metadata": {"resourceVersion": "9000"}}}),
    Rubbish("a list for an object", {"type": "MODIFIED", "object": []}),
    Rubbish("an error of the server", {"type": "ERROR", "object": {"code": 500, "message": "etcd is away"}}),
    Rubbish("an error without a code", {"type": "ERROR", "object": {}}),
    Rubbish("a list", [1, 2, 3]),
    Rubbish("a bookmark of nothing", {"type": "BOOKMARK", "object": {}}),
]


@table(EVENTS)
def test_an_event_that_makes_no_sense_has_the_nodes_read_anew(rubbish: Rubbish, bad: Cluster, world: World) -> None:
    assert world.gpus("bad") == {"main": (16, 16)}
    bad.on_loop(lambda emulator: emulator.objects.__setitem__((NODES, None, "n3"), node("n3")))  # nobody is notified
    bad.send(NODES, rubbish.value)
    wait_until(lambda: world.gpus("bad") == {"main": (24, 24)}, "all nodes are listed anew")
    assert world.gpus("well") == {"main": (16, 16)}
    threw(SOURCE)


ANSWERS = [
    Rubbish("a page in HTML", b"<html><body>Sign in</body></html>"),
    Rubbish("nothing", b""),
    Rubbish("another document", b"[]"),
    Rubbish("a list without a version", b'{"items": [], "metadata": {}}'),
    Rubbish("items that are text", b'{"items": "none", "metadata": {"resourceVersion": "5"}}'),
    Rubbish("items that are numbers", b'{"items": [1, 2], "metadata": {"resourceVersion": "5"}}'),
    Rubbish("a deep list", b"[" * 500_000),
    Rubbish("half a letter", b'{"items": "\xff"}'),
    Rubbish("a number of 5,000 digits", b"9" * 5000),
]


@table(ANSWERS)
def test_an_answer_that_is_rubbish_is_no_sample(rubbish: Rubbish, bad: Cluster, world: World) -> None:
    bad.on_loop(lambda emulator: emulator.answers.update(nodes=rubbish.value))
    assert world.gpus("well") == {"main": (16, 16)}
    assert world.gpus("bad") == {}, "nothing is known of it"
    wait_until(lambda: "Kubernetes bad: " in world.health("bad").fault, "its fault is kept")
    assert world.adapter.check()["bad"]
    bad.on_loop(lambda emulator: emulator.answers.clear())
    wait_until(lambda: world.gpus("bad") == {"main": (16, 16)}, "mended, it is read again")
    threw(SOURCE)


def test_a_list_without_gpus_is_no_sample(bad: Cluster, world: World) -> None:
    assert world.gpus("bad") == {"main": (16, 16)}
    for name in ("n1", "n2"):
        bad.remove(NODES, name)
    wait_until(lambda: "no node has nvidia.com/gpu" in world.health("bad").fault, "it is reported")
    assert world.gpus("bad") != {}, "the last sample stands"
    threw(SOURCE)


@pytest.mark.parametrize("code", [401, 403, 404, 429, 500, 503])
def test_a_refusal_is_no_sample_and_says_why(code: int, bad: Cluster, world: World) -> None:
    bad.on_loop(lambda emulator: emulator.refusals.update({"list nodes": code}))
    assert world.gpus("bad") == {}
    assert world.gpus("well") == {"main": (16, 16)}
    assert f"({code})" in world.adapter.check()["bad"]
    bad.on_loop(lambda emulator: emulator.refusals.clear())
    wait_until(lambda: world.gpus("bad") == {"main": (16, 16)}, "allowed, it is read")
    threw(SOURCE)


def test_a_page_that_would_fill_the_memory_is_cut(bad: Cluster, world: World) -> None:
    """70 MB of spaces, as 70 kB over the wire."""
    bomb = gzip.compress(b" " * 70_000_000)
    bad.on_loop(lambda emulator: emulator.answers.update(nodes=bomb))
    assert world.gpus("bad") == {}
    too_large = "its answer about nodes has more than 64,000,000 bytes, the most that Backstop reads"
    assert world.adapter.check()["bad"] == too_large
    assert json.dumps(world.gpus("well"))
    threw(SOURCE)
