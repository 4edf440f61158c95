"""Objects as Kubernetes describes them, and the GPUs that they come to: each row by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from activities.adapters.kubernetes.in_force import queue_quotas
from activities.adapters.kubernetes.objects import (
    BadObject,
    HeldGpus,
    NodeGpus,
    islands_of,
    node_gpus,
    pod_gpus,
    queue_gpus,
    use_of,
)
from activities.adapters.ledger.facade import Ledger
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.sources import (
    GitDialect,
    GitSource,
    KubernetesSource,
    KubernetesUse,
    KueueSource,
    PrometheusSource,
    QuotaSource,
    SlurmSource,
    health_source_in,
    source_text,
)
from tests.git.world import take
from tests.kubernetes.emulator import node, pod, queue

SOURCE = KubernetesSource(tolerated_taints=("nvidia.com/gpu", "example.com/training"))


def taint(key: str, effect: str) -> dict[str, str]:
    return {"key": key, "effect": effect}


NODES = [
    ("ready", {}, 8, ""),
    ("not ready", {"ready": "False"}, 0, "its condition Ready is 'False'"),
    ("lost", {"ready": "Unknown"}, 0, "its condition Ready is 'Unknown'"),
    ("of a word that Kubernetes does not have", {"ready": "Perhaps"}, 0, "its condition Ready is 'Perhaps'"),
    ("cordoned", {"unschedulable": True}, 0, "it is cordoned"),
    ("being deleted", {"deleting": True}, 0, "it is being deleted"),
    ("tainted NoSchedule", {"taints": [taint("team", "NoSchedule")]}, 0, "it has the taint 'team'"),
    ("tainted NoExecute", {"taints": [taint("team", "NoExecute")]}, 0, "it has the taint 'team'"),
    ("tainted PreferNoSchedule", {"taints": [taint("team", "PreferNoSchedule")]}, 8, ""),
    ("with taints that are tolerated", {"taints": [taint(k, "NoSchedule") for k in SOURCE.tolerated_taints]}, 8, ""),
    ("with three GPUs at fault", {"allocatable": 5}, 5, ""),
    ("whose plugin is gone", {"allocatable": 0}, 0, ""),
    ("that offers more than it has", {"allocatable": 9}, 8, ""),
]


@pytest.mark.parametrize(("changes", "healthy", "why"), [row[1:] for row in NODES], ids=[row[0] for row in NODES])
def test_a_gpu_is_healthy_where_a_pod_could_be_placed(changes: dict[str, Any], healthy: int, why: str) -> None:
    assert node_gpus(node("n1", 8, **changes), SOURCE) == NodeGpus("main", 8, healthy, why)


def test_a_node_without_such_gpus_is_none() -> None:
    assert node_gpus(node("n1", None, ready="False"), SOURCE) is None
    assert node_gpus(node("n1", 0), SOURCE) is None
    assert node_gpus(node("n1", 8), SOURCE.but(resource="amd.com/gpu")) is None


def test_a_node_that_says_nothing_of_itself_is_not_ready() -> None:
    bare = {"metadata": {"name": "n1"}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}
    assert node_gpus(bare, SOURCE) == NodeGpus("main", 8, 0, "its condition Ready is missing")


@pytest.mark.parametrize(("text", "gpus"), [("8", 8), (8, 8), ("1k", 1000), ("2e1", 20), ("8.0", 8), ("0", 0)])
def test_a_quantity_is_read_in_every_spelling(text: str | int, gpus: int) -> None:
    raw = node("n1", 8)
    raw["status"]["capacity"]["nvidia.com/gpu"] = text
    raw["status"]["allocatable"]["nvidia.com/gpu"] = text
    seen = node_gpus(raw, SOURCE)
    assert (0 if seen is None else seen.healthy) == gpus


@pytest.mark.parametrize("value", ["-1", "0.5", "many", "", "1e9", "8Gi", "500m", True, None, 0.5, [8], {}, "9" * 5000])
@pytest.mark.parametrize("field", ["capacity", "allocatable"])
def test_a_quantity_that_is_no_number_of_gpus_is_refused_by_field(field: str, value: Any) -> None:
    raw = node("n1", 8)
    raw["status"][field]["nvidia.com/gpu"] = value
    with pytest.raises(BadObject, match=rf"status.{field}\['nvidia.com/gpu'\] is .*not a number of GPUs"):
        node_gpus(raw, SOURCE)


def test_islands_are_named_by_a_label_and_blocks_stand_on_wholly_healthy_nodes() -> None:
    source = KubernetesSource(island_label="block", islands={"b7": "east"})
    nodes = [
        node("n1", 8, labels={"block": "b7"}),
        node("n2", 8, labels={"block": "b7"}, allocatable=7),
        node("n3", 8, labels={"block": "b7"}, ready="False"),
        node("n4", 4, labels={"block": "b8"}),
        node("n5", 8),
    ]
    assert islands_of([seen for raw in nodes if (seen := node_gpus(raw, source)) is not None]) == (
        Island(name="b8", total_gpus=4, healthy_gpus=4, block_gpus=4),
        Island(name="east", total_gpus=24, healthy_gpus=15, block_gpus=8),
        Island(name="main", total_gpus=8, healthy_gpus=8, block_gpus=8),
    )


def container(gpus: int, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}, **more}


@pytest.mark.parametrize(
    ("init", "main", "gpus"),
    [
        ([], [container(2), container(1)], 3),
        ([container(4)], [container(2), container(1)], 4),
        ([container(1, restartPolicy="Always")], [container(2)], 3),
        ([container(1, restartPolicy="Always"), container(4)], [container(2)], 5),
        ([], [{"name": "c"}], 0),
    ],
    ids=["a sum", "an init container has more", "one that stays", "one that stays beside one", "none"],
)
def test_a_pod_holds_what_the_scheduler_sets_aside(init: list[Any], main: list[Any], gpus: int) -> None:
    raw = pod("p", "vision", 0)
    raw["spec"] |= {"initContainers": init, "containers": main}
    seen = pod_gpus(raw, SOURCE)
    assert (0 if seen is None else seen.gpus) == gpus


def test_a_pod_is_its_namespaces_or_its_labels_team() -> None:
    labelled = SOURCE.but(team_label="example.com/team", teams={"cv": "vision"})
    raw = pod("p", "shared", 2, labels={"example.com/team": "cv"})
    assert pod_gpus(raw, SOURCE) == HeldGpus("shared", 2, "n1")
    assert pod_gpus(raw, labelled) == HeldGpus("vision", 2, "n1")
    assert pod_gpus(pod("p", "shared", 2, None), labelled) == HeldGpus("", 2, "", waits=True)
    assert pod_gpus(pod("p", "shared", 2, phase="Succeeded"), SOURCE) is None
    assert pod_gpus(pod("p", "shared", 2, phase="Failed"), SOURCE) is None
    assert pod_gpus(pod("p", "shared", 2, phase="Unknown"), SOURCE) == HeldGpus("shared", 2, "n1")


def test_use_counts_teams_of_the_cluster_and_pods_on_its_nodes() -> None:
    at = datetime(2026, 11, 26, tzinfo=UTC)
    nodes = {"n1": NodeGpus("main", 8, 8)}
    held = [
        HeldGpus("vision", 4, "n1"),
        HeldGpus("vision", 8, "elsewhere"),
        HeldGpus("vision", 2, waits=True),
        HeldGpus("nobody", 1, "n1"),
    ]
    use = use_of(held, nodes, ["vision", "language"], at, SOURCE)
    assert [(u.team, u.scheduled_gpus, u.pending_gpus, u.idle_gpus) for u in use] == [
        ("language", 0, 0, 0),
        ("vision", 4, 2, 0),
    ]
    queues = use_of([HeldGpus("vision", 6)], nodes, ["vision", "language"], at, SOURCE.but(use=KubernetesUse.KUEUE))
    assert [(u.team, u.scheduled_gpus, u.pending_gpus) for u in queues] == [("vision", 6, None)]


def test_a_queue_holds_what_its_flavors_report() -> None:
    source = KubernetesSource(use=KubernetesUse.KUEUE)
    resources = [{"name": "nvidia.com/gpu", "total": "5", "borrowed": "1"}, {"name": "cpu", "total": "40"}]
    raw = {"metadata": {"name": "vision"}, "status": {"flavorsUsage": [{"name": "h100", "resources": resources}]}}
    assert queue_gpus(raw, source) == HeldGpus("vision", 5)
    assert queue_gpus(raw, source.but(flavors=("a100",))) == HeldGpus("vision", 0)


def test_the_ledger_keeps_the_source_and_tells_it_from_a_prometheus() -> None:
    sources = KubernetesSource(), KubernetesSource(nodes="a=b"), PrometheusSource(), PrometheusSource(cluster="x")
    for source in sources:
        text = source_text(source)
        assert text is not None
        assert health_source_in(text) == source
    assert source_text(None) is None


@pytest.mark.parametrize(
    "source",
    [
        KueueSource(),
        KueueSource(connection="east", queues="model=h100"),
        SlurmSource(),
        GitSource(repository="/srv/q.git", path="queues", dialect=GitDialect.KUEUE),
    ],
)
def test_the_ledger_gives_back_the_source_of_quotas_that_it_was_given(ledger: Ledger, source: QuotaSource) -> None:
    own = {"name": "h100", "islands": [{"name": "main", "total_gpus": 8, "healthy_gpus": 8}]}
    take(ledger, {**own, source.field: source.model_dump(mode="json", exclude_unset=True)})
    read, _ = ledger.fleet.clusters("", 1)[0]
    wanted = {"slurm": None, "git": None, "kueue": None, source.field: source}
    assert {"slurm": read.slurm, "git": read.git, "kueue": read.kueue} == wanted


@pytest.mark.parametrize(("written", "gpus"), [("1k", 1000), ("12k", 12_000), ("1000", 1000), (1000, 1000)])
def test_a_quota_in_force_is_read_as_kubernetes_writes_it(written: str | int, gpus: int) -> None:
    source = GitSource(repository="/srv/q.git", path="queues", dialect=GitDialect.KUEUE)
    assert queue_quotas(queue("a", written), source) == {"a": gpus}


def test_a_bad_quota_in_force_is_named_by_its_queue() -> None:
    source = GitSource(repository="/srv/quotas", path="queues", dialect=GitDialect.KUEUE)
    with pytest.raises(BadObject, match=r"^ClusterQueue a: a quota must be a whole number of GPUs, not '1.5'$"):
        queue_quotas(queue("a", "1.5"), source)


def test_one_system_holds_the_quotas_of_a_cluster() -> None:
    own = {"name": "h100", "islands": [{"name": "main", "total_gpus": 8, "healthy_gpus": 8}]}
    git = {"repository": "/srv/q.git", "path": "queues", "dialect": "kueue"}
    with pytest.raises(ValidationError) as error:
        ClusterSpec.model_validate({**own, "git": git, "kueue": {}})
    assert "cannot be given together with git: only one source can hold the quotas of cluster h100" in str(error.value)
