"""GPUs that a DRA driver publishes: which count, what takes them out, and who holds them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.adapters.kubernetes.devices import (
    DeviceClaim,
    claim_in,
    count_devices,
    list_held_gpus,
    slice_in,
    taint_rule_in,
)
from activities.adapters.kubernetes.objects import BadObject, HeldGpus, NodeGpus
from activities.adapters.ledger.facade import Ledger
from cli.main import run
from models.cluster.sources import KubernetesSource, health_source_in, source_text
from tests.kubernetes.conftest import World
from tests.kubernetes.device_objects import claim, resource_slice, taint_rule
from tests.kubernetes.emulator import CLAIMS, NODES, OLD_SLICES, PODS, RULES, SLICES, Cluster, node, pod
from tests.servers import new_ledger
from tests.waiting import wait_until

SOURCE = KubernetesSource(driver="gpu.nvidia.com")
TWO = {"n1": NodeGpus("main", 0, 0), "n2": NodeGpus("main", 0, 0)}
DRA = {"connection": "here", "driver": "gpu.nvidia.com"}


def counted(slices: list[Any], rules: list[Any] | None = None, source: KubernetesSource = SOURCE) -> Any:
    read = [slice_in(raw, source) for raw in slices], [taint_rule_in(raw, source) for raw in rules or []]
    return count_devices([one for one in read[0] if one is not None], [one for one in read[1] if one is not None], TWO)


HALVES = [resource_slice("n1", 4, part=0, of=2), resource_slice("n1", 4, part=1, of=2)]
MIG = {"attributes": {"type": {"string": "mig"}}, "consumesCounters": [{"counterSet": "gpu-0", "counters": {}}]}
QUALIFIED = {"attributes": {"gpu.nvidia.com/type": {"string": "gpu"}}}
COUNTERS = {"devices": None, "sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]}
COUNTED = [
    ("one slice", [resource_slice("n1")], [], {"n1": (8, 8)}),
    ("two slices of one pool", HALVES, [], {"n1": (8, 8)}),
    ("two nodes", [resource_slice("n1", 2), resource_slice("n2", 4)], [], {"n1": (2, 2), "n2": (4, 4)}),
    ("another node", [resource_slice("n1", 2), resource_slice("n9", 8)], [], {"n1": (2, 2)}),
    ("another driver", [resource_slice("n1", spec={"driver": "nic.example.com"})], [], {}),
    ("tainted NoSchedule", [resource_slice("n1", taints={0: "NoSchedule"})], [], {"n1": (8, 7)}),
    ("tainted NoExecute", [resource_slice("n1", taints={0: "NoExecute", 3: "NoSchedule"})], [], {"n1": (8, 6)}),
    ("tainted None", [resource_slice("n1", taints={0: "None"})], [], {"n1": (8, 8)}),
    ("a taint of later", [resource_slice("n1", taints={0: "Perhaps"})], [], {"n1": (8, 8)}),
    ("an older slice", [resource_slice("n1", 8, generation=6, name="old"), resource_slice("n1", 7, generation=7)], [],
     {"n1": (7, 7)}),
    ("partitions beside", [resource_slice("n1", 3, fields={2: MIG})], [], {"n1": (2, 2)}),
    ("a counter's slice", [resource_slice("n1", 4, of=2), resource_slice("n1", of=2, part=1, spec=COUNTERS)], [],
     {"n1": (4, 4)}),
    ("a qualified attribute", [resource_slice("n1", 1, fields={0: QUALIFIED})], [], {"n1": (1, 1)}),
    ("a node by device", [resource_slice("n1", 2, spec={"nodeName": None, "perDeviceNodeSelection": True},
                                         fields={0: {"nodeName": "n1"}, 1: {"nodeName": "n2"}})], [],
     {"n1": (1, 1), "n2": (1, 1)}),
    ("a rule for a device", HALVES, [taint_rule("r", pool="n1", device="gpu-0")], {"n1": (8, 7)}),
    ("a rule for the driver's pool", HALVES, [taint_rule("r", driver="gpu.nvidia.com", pool="n1")], {"n1": (8, 0)}),
    ("a rule for all", HALVES, [taint_rule("r", "NoExecute")], {"n1": (8, 0)}),
    ("a rule for another driver", HALVES, [taint_rule("r", driver="nic.example.com")], {"n1": (8, 8)}),
    ("a rule for another pool", HALVES, [taint_rule("r", pool="n2")], {"n1": (8, 8)}),
    ("a rule of effect None", HALVES, [taint_rule("r", "None")], {"n1": (8, 8)}),
    ("a rule without a selector", HALVES, [{"spec": {"taint": {"key": "a", "effect": "NoSchedule"}}}], {"n1": (8, 8)}),
]  # fmt: skip


@pytest.mark.parametrize(("slices", "rules", "gpus"), [row[1:] for row in COUNTED], ids=[row[0] for row in COUNTED])
def test_devices_of_complete_pools_count_on_their_node(slices: Any, rules: Any, gpus: Any) -> None:
    seen = counted(slices, rules)
    assert (dict(seen.gpus), seen.fault) == (gpus, "")


NO_NODE = "belongs to no single node (allNodes or nodeSelector): Backstop counts GPUs by node"
SHARED = {"allowMultipleAllocations": True}
UNKNOWN = [
    ("a slice is missing", HALVES[:1], "pool 'n1' is incomplete: 1 of 2 ResourceSlices"),
    ("a newer slice is alone", [HALVES[0], resource_slice("n1", 4, part=1, of=2, generation=2)],
     "pool 'n1' is incomplete: 1 of 2 ResourceSlices"),
    ("one slice too many", [resource_slice("n1"), resource_slice("n1", name="again", part=1)],
     "pool 'n1' is incomplete: 2 of 1 ResourceSlices"),
    ("a name twice", [resource_slice("n1", 1, of=2), resource_slice("n1", 1, of=2, name="again")],
     "device 'gpu-0' of pool 'n1' is published twice"),
    ("all nodes", [resource_slice("n1", 1, spec={"nodeName": None, "allNodes": True})],
     f"device 'gpu-0' of pool 'n1' {NO_NODE}"),
    ("selected nodes", [resource_slice("n1", 1, spec={"nodeName": None, "nodeSelector": {"nodeSelectorTerms": [{}]}})],
     f"device 'gpu-0' of pool 'n1' {NO_NODE}"),
    ("a whole GPU that may be partitioned", [resource_slice("n1", 1, fields={0: {"consumesCounters": [{}]}})],
     "device 'gpu-0' of pool 'n1' is a share of a GPU (consumesCounters): Backstop counts only whole GPUs"),
    ("a GPU that several may have", [resource_slice("n1", 1, fields={0: SHARED})],
     "device 'gpu-0' of pool 'n1' is a share of a GPU (allowMultipleAllocations): Backstop counts only whole GPUs"),
]  # fmt: skip


@pytest.mark.parametrize(("slices", "fault"), [row[1:] for row in UNKNOWN], ids=[row[0] for row in UNKNOWN])
def test_devices_that_cannot_be_counted_are_named(slices: Any, fault: str) -> None:
    assert counted(slices).fault == fault
    elsewhere = [one | {"spec": one["spec"] | {"nodeName": "n9"}} for one in slices if one["spec"].get("nodeName")]
    assert counted(elsewhere).fault == "", "pools of other nodes are no concern of this cluster"


def test_other_drivers_name_what_a_gpu_is() -> None:
    source = KubernetesSource(driver="gpu.example.com", device={"gpu.example.com/model": "x9", "virtual": "false"})
    attributes = [
        {"model": {"string": "x9"}, "virtual": {"bool": False}},
        {"model": {"string": "x9"}, "virtual": {"bool": True}},
        {"model": {"string": "x8"}, "virtual": {"bool": False}},
        {"other.example.com/model": {"string": "x9"}, "virtual": {"bool": False}},
        {},
    ]
    fields = {place: {"attributes": one} for place, one in enumerate(attributes)}
    raw = resource_slice("n1", 5, fields=fields, spec={"driver": "gpu.example.com"})
    assert dict(counted([raw], source=source).gpus) == {"n1": (1, 1)}
    assert dict(counted([raw], source=source.but(device={})).gpus) == {"n1": (5, 5)}


def test_a_rule_that_selects_by_class_or_expression_is_refused_by_field() -> None:
    for field, value in (("deviceClassName", "gpus"), ("selectors", [{"cel": {"expression": "true"}}])):
        with pytest.raises(BadObject, match=rf"spec.deviceSelector.{field} is .* Backstop does not evaluate it"):
            taint_rule_in(taint_rule("r", **{field: value}), SOURCE)
        assert taint_rule_in(taint_rule("r", driver="nic.example.com", **{field: value}), SOURCE) is None


@given(seed=st.integers(0, 2**32))
def test_the_count_is_that_of_a_list_of_the_devices(seed: int) -> None:
    """Witness: the GPUs are drawn first, one by one, and the objects are made from them."""
    draw = random.Random(seed)
    gpus = {(f"n{draw.randint(1, 4)}", f"gpu-{number}"): draw.random() < 0.3 for number in range(draw.randint(0, 24))}
    barred = [place for place in gpus if draw.random() < 0.2]
    slices: list[Any] = []
    for pool in sorted({pool for pool, _ in gpus}):
        own = [(device, tainted) for (of, device), tainted in gpus.items() if of == pool]
        parts, generation = draw.randint(1, 3), draw.randint(5, 9)
        for part in range(parts):
            devices = [
                {"name": name, "attributes": {"type": {"string": "gpu"}}}
                | ({"taints": [{"key": "a", "effect": draw.choice(["NoSchedule", "NoExecute"])}]} if tainted else {})
                for name, tainted in own[part::parts]
            ]
            raw = resource_slice(pool, part=part, of=parts, generation=generation, spec={"devices": devices})
            slices += [raw, resource_slice(pool, 3, name=f"{pool}-old-{part}", generation=draw.randint(1, 4))]
    draw.shuffle(slices)
    seen = counted(slices, [taint_rule(f"r{place}", pool=place[0], device=place[1]) for place in barred])
    for name in TWO:
        here = [(place, tainted) for place, tainted in gpus.items() if place[0] == name]
        well = [place for place, tainted in here if not tainted and place not in barred]
        assert seen.gpus.get(name, (0, 0)) == (len(here), len(well))
    assert seen.fault == ""


def test_a_claim_holds_the_devices_that_it_has_allocated_each_once() -> None:
    seen = counted([resource_slice("n1", 3, fields={2: MIG}), resource_slice("n2", 2, pool="rack/n2")])
    claims = {
        "a": claim("a", "vision", "n1/gpu-0", "n1/gpu-2", "rack/n2/gpu-0"),
        "b": claim("b", "language", "n1/gpu-0", "n1/gpu-1"),
        "c": claim("c", "vision", "n1/gpu-9"),
        "d": claim("d", "vision"),
        "e": claim("e", "vision", "n1/gpu-1", adminAccess=True),
        "f": claim("f", "vision", "n1/gpu-1", driver="nic.example.com"),
    }
    read = {name: one for name, raw in claims.items() if (one := claim_in(raw, SOURCE)) is not None}
    assert sorted(read) == ["a", "b", "c"]
    assert list_held_gpus(read, seen) == [
        HeldGpus("vision", 1, "n1"),
        HeldGpus("vision", 1, "n2"),
        HeldGpus("language", 1, "n1"),
        HeldGpus("vision", 1, "n1"),
    ]
    labelled = SOURCE.but(team_label="team", teams={"cv": "vision"})
    assert claim_in(claim("a", "shared", "n1/gpu-0", labels={"team": "cv"}), labelled) == DeviceClaim(
        "vision", (("n1", "gpu-0"),)
    )


@pytest.fixture
def make(ledger: Ledger, tmp_path: Path, server: Cluster) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def world(**source: Any) -> World:
        worlds.append(World(ledger, tmp_path, {"here": server}, {"east": DRA | source}))
        return worlds[-1]

    yield world
    for each in worlds:
        each.adapter.stop()


def test_health_is_what_resource_slices_publish_on_nodes_that_take_pods(
    server: Cluster, make: Callable[..., World], ledger: Ledger
) -> None:
    for name, changes in (("n1", {}), ("n2", {}), ("n3", {"unschedulable": True}), ("cpu", {})):
        server.put(NODES, node(name, None, **changes))
    for name in ("n1", "n2", "n3"):
        server.put(SLICES, resource_slice(name))
    world = make()
    assert world.gpus() == {"main": (16, 16)}
    assert ledger.pushes.take(lambda _: True) == {}
    server.put(SLICES, resource_slice("n2", taints={5: "NoExecute"}, generation=2))
    wait_until(lambda: "east" in ledger.pushes.take(lambda _: True), "a taint of the driver was pushed")
    assert world.gpus() == {"main": (15, 8)}
    server.put(RULES, taint_rule("tested", pool="n1", device="gpu-0"))
    wait_until(lambda: world.gpus() == {"main": (14, 0)}, "so is one of a person")
    server.remove(RULES, "tested")
    server.put(SLICES, resource_slice("n2", generation=3))
    server.put(NODES, node("n1", None, ready="False"))
    wait_until(lambda: world.gpus() == {"main": (8, 8)}, "devices of a node that is not ready are out")
    assert (world.adapter.check(), world.health().fault) == ({"east": ""}, "")


def test_an_incomplete_pool_is_unknown_and_what_was_known_stands(server: Cluster, make: Callable[..., World]) -> None:
    server.put(NODES, node("n1", None))
    server.put(SLICES, resource_slice("n1", 4, part=0, of=2))
    server.put(SLICES, resource_slice("n1", 4, part=1, of=2))
    world = make()
    assert world.gpus() == {"main": (8, 8)}
    server.remove(SLICES, "n1-gpu-nvidia-com-1")
    fault = "pool 'n1' is incomplete: 1 of 2 ResourceSlices"
    wait_until(lambda: fault in world.health().fault, "it is named")
    assert world.gpus() == {"main": (8, 8)}
    assert world.adapter.check() == {"east": fault}
    server.put(SLICES, resource_slice("n1", 3, part=1, of=2))
    wait_until(lambda: world.gpus() == {"main": (7, 7)}, "once it is whole, it counts")


def test_a_node_whose_driver_is_gone_has_no_gpu_and_a_cluster_without_any_is_unknown(
    server: Cluster, make: Callable[..., World]
) -> None:
    for name in ("n1", "n2"):
        server.put(NODES, node(name, None))
        server.put(SLICES, resource_slice(name))
    world = make()
    assert world.gpus() == {"main": (16, 16)}
    server.remove(SLICES, "n2-gpu-nvidia-com-0")
    wait_until(lambda: world.gpus() == {"main": (8, 8)}, "the other node's count")
    server.remove(SLICES, "n1-gpu-nvidia-com-0")
    fault = "no node has a device of gpu.nvidia.com with type gpu"
    wait_until(lambda: fault in world.health().fault, "that is no news of health")
    assert world.gpus() == {"main": (8, 8)}
    assert world.adapter.check() == {"east": fault}


def test_gpus_that_a_device_plugin_offers_too_are_not_counted_twice(
    server: Cluster, make: Callable[..., World]
) -> None:
    for name in ("n1", "n2"):
        server.put(NODES, node(name, 8))
        server.put(PODS, pod(f"p-{name}", "vision", 4, name))
    server.put(SLICES, resource_slice("n1"))
    server.put(CLAIMS, claim("p-n1", "vision", *(f"n1/gpu-{number}" for number in range(4))))
    world = make()
    assert world.gpus() == {"main": (8, 8)}
    wait_until(lambda: "vision" in world.usage(), "the first sample of use")
    assert (world.usage()["vision"].scheduled_gpus, world.usage()["vision"].pending_gpus) == (4, None)
    assert world.adapter.check() == {
        "east": "n2 has nvidia.com/gpu from a device plugin and none from gpu.nvidia.com: Backstop does not count "
        "these GPUs"
    }


def test_use_is_what_claims_have_allocated(server: Cluster, make: Callable[..., World]) -> None:
    server.put(NODES, node("n1", None, labels={"model": "h100"}))
    server.put(NODES, node("n9", None))
    for name in ("n1", "n9"):
        server.put(SLICES, resource_slice(name))
    server.put(CLAIMS, claim("a", "cv", "n1/gpu-0", "n1/gpu-1"))
    server.put(CLAIMS, claim("b", "cv", "n9/gpu-0"))
    server.put(CLAIMS, claim("waits", "language"))
    world = make(nodes="model=h100", teams={"cv": "vision"})
    world.health()
    held = partial(_scheduled, world)
    wait_until(lambda: held() == {"vision": 2, "language": 0}, "the first sample, of this cluster's nodes")
    server.put(CLAIMS, claim("waits", "language", "n1/gpu-2"))
    wait_until(lambda: held() == {"vision": 2, "language": 1}, "it waits no more")
    server.remove(CLAIMS, "a", "cv")
    wait_until(lambda: held() == {"vision": 0, "language": 1}, "its pod is over")


def _scheduled(world: World) -> dict[str, int]:
    return {team: use.scheduled_gpus for team, use in world.usage().items()}


def test_an_older_server_has_older_versions_and_no_taint_rules(server: Cluster, make: Callable[..., World]) -> None:
    server.on_loop(lambda emulator: emulator.unserved.symmetric_difference_update({SLICES, OLD_SLICES, RULES}))
    old = resource_slice("n1", 8, taints={0: "NoSchedule"})
    devices = [{"name": one.pop("name"), "basic": one} for one in old["spec"]["devices"]]
    server.put(NODES, node("n1", None))
    server.put(OLD_SLICES, old | {"spec": old["spec"] | {"devices": devices}})
    world = make(use="off")
    assert world.gpus() == {"main": (7, 0)}
    assert world.adapter.check() == {"east": ""}
    server.on_loop(lambda emulator: emulator.unserved.symmetric_difference_update({SLICES, OLD_SLICES, RULES}))
    server.put(SLICES, resource_slice("n1", 8))
    server.put(RULES, taint_rule("r", device="gpu-1"))
    server.hang_up()
    wait_until(lambda: world.gpus() == {"main": (7, 0)} and not world.health().fault, "an upgraded server is read anew")
    server.put(SLICES, resource_slice("n1", 8, taints={2: "NoExecute"}))
    wait_until(lambda: world.gpus() == {"main": (6, 0)}, "by its new versions")


def test_a_sample_is_as_old_as_what_was_not_heard_of_for_a_minute(server: Cluster, tmp_path: Path) -> None:
    time = [datetime(2026, 11, 26, 10, 0, tzinfo=UTC)]
    server.put(NODES, node("n1", None))
    server.put(SLICES, resource_slice("n1"))
    with Ledger(new_ledger(tmp_path / "turned.db"), now=lambda: time[0]) as ledger:
        world = World(ledger, tmp_path, {"here": server}, {"east": DRA | {"use": "off"}})
        assert (world.health().at, world.gpus()) == (time[0], {"main": (8, 8)})
        listed, time[0] = time[0], time[0] + timedelta(minutes=10)
        server.put(NODES, node("n1", None, unschedulable=True))
        wait_until(lambda: world.gpus() == {}, "the node's event was seen")
        assert world.health().at == listed + timedelta(minutes=1), "slices and rules may have changed since"
        for kind, name in ((SLICES, "ResourceSlice"), (RULES, "DeviceTaintRule")):
            bookmark = {"kind": name, "metadata": {"resourceVersion": "5000"}}
            server.send(kind, {"type": "BOOKMARK", "object": bookmark})
        wait_until(lambda: world.health().at == time[0], "all are heard of again")
        world.adapter.stop()


def test_slices_are_listed_in_pages_of_the_driver_and_followed_as_nodes_are(
    server: Cluster, make: Callable[..., World]
) -> None:
    for number in range(501):
        server.put(NODES, node(f"n{number:03}", None))
        server.put(SLICES, resource_slice(f"n{number:03}", 1))
    server.put(SLICES, resource_slice("n000", 9, name="nic", spec={"driver": "nic.example.com"}))
    world = make(use="off")
    world.health()  # 64 are installed by the last import: more than that is not believed
    (follower,) = world.adapter._followers.values()
    slices = follower.health_parts[1]
    assert len(slices.kept) == 501
    asked = [parameters for what, parameters in server.emulator.asked if what == "list resourceslices"]
    assert [(one["limit"], one["fieldSelector"]) for one in asked] == [("500", "spec.driver=gpu.nvidia.com")] * 2
    wait_until(lambda: "watch resourceslices" in [what for what, _ in server.emulator.asked], "the watch has begun")
    (watched,) = [parameters for what, parameters in server.emulator.asked if what == "watch resourceslices"]
    assert watched["resourceVersion"] == asked[1]["continue"].partition("-")[0]
    assert (watched["allowWatchBookmarks"], watched["fieldSelector"]) == ("true", "spec.driver=gpu.nvidia.com")
    server.forget(without="n000-gpu-nvidia-com-0", of=SLICES)
    wait_until(lambda: len(slices.kept) == 500, "a version that is forgotten has them listed anew")


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("resourceslices", 403, "the worker may not list and watch resourceslices (403): "),
        ("devicetaintrules", 403, "the worker may not list and watch devicetaintrules (403): "),
        ("resourceslices", 404, "it has no resourceslices (404): "),
    ],
)
def test_what_may_not_or_cannot_be_read_is_a_sentence_and_no_zero(
    server: Cluster, make: Callable[..., World], kind: str, code: int, words: str
) -> None:
    server.put(NODES, node("n1", None))
    server.put(SLICES, resource_slice("n1"))
    server.on_loop(lambda emulator: emulator.refusals.update({f"list {kind}": code}))
    world = make()
    wait_until(lambda: words in world.health().fault, "it is said")
    assert world.gpus() == {}
    server.on_loop(lambda emulator: emulator.refusals.clear())
    wait_until(lambda: world.gpus() == {"main": (8, 8)}, "mended, it counts")


def test_the_ledger_keeps_the_driver_and_what_a_gpu_is() -> None:
    for source in (SOURCE, KubernetesSource(driver="gpu.example.com", device={})):
        text = source_text(source)
        assert text is not None
        assert health_source_in(text) == source


NO_DRIVER = "must be the name of a DRA driver such as gpu.nvidia.com, not"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("driver: gpu.nvidia.com,spec.nodeName=n1", f"driver {NO_DRIVER} 'gpu.nvidia.com,spec.nodeName=n1'"),
        ("driver: GPU", f"driver {NO_DRIVER} 'GPU'"),
        (f"driver: {'a' * 64}", f"driver {NO_DRIVER} 'aaaa"),
        ("device: {type: gpu}", "device needs driver, the DRA driver whose devices it names"),
        ("driver: gpu.nvidia.com\n      device: {type: true}", "device.type must be text, not true"),
    ],
)
def test_a_driver_that_is_none_is_refused_by_file_field_and_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: str, words: str
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "clusters:\n  - name: east\n    islands: [{name: main, total_gpus: 8, healthy_gpus: 8}]\n"
        f"    quotas: []\n    kubernetes:\n      {fields}\n"
    )
    assert run(["plan", "--file", str(path)]) == 2
    line = 7 if "device.type" in words else 6
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"{path}, line {line}: clusters[0].kubernetes.{words}" in sentence
