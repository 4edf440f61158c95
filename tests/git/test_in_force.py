"""Git and an API server of one cluster: what people wrote, and what is in force."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from activities.adapters.kubernetes.api import KubernetesConnection
from activities.adapters.kubernetes.kubernetes import Kuberneteses
from activities.adapters.ledger.facade import Ledger
from tests.git.world import CLUSTER, QUEUE, Forge, spec, take, worker
from tests.kubernetes.conftest import pause_briefly
from tests.kubernetes.emulator import NODES, QUEUES, Cluster, node, running
from tests.waiting import PATIENCE, wait_until


class Site:
    """A cluster with its branch, its API server, and a turned clock."""

    def __init__(self, forge: Forge, ledger_url: str, server: Cluster, folder: Path) -> None:
        self.time = datetime(2026, 11, 26, 10, 0, tzinfo=UTC)
        self.ledger = Ledger(ledger_url, now=lambda: self.time)
        self.forge, self.server = forge, server
        forge.write({f"queues/{name}.yaml": QUEUE.format(name=name, gpus=n) for name, n in (("a", 24), ("b", 16))})
        cluster = spec(forge, path="queues", dialect="kueue", pointer=None)
        take(self.ledger, {**cluster, "kubernetes": {"connection": "here", "use": "off"}})
        self.git = worker(self.ledger, folder / "worker")
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(server.kubeconfig()))
        connection = KubernetesConnection(kubeconfig=str(kubeconfig), timeout=timedelta(seconds=50))
        self.adapter = Kuberneteses(
            *(self.ledger, {"here": connection}, timedelta(0), timedelta(0), timedelta(seconds=PATIENCE)),
            *(pause_briefly, self.git.last_read),
        )
        self._health = self.ledger.health.feed_from(self.adapter.refresh_health, self.adapter.refresh_use)
        server.put(NODES, node("n1"))
        for name in "ab":
            self.applies(name)

    def applies(self, name: str) -> None:
        """Argo CD or Flux applies the branch's file."""
        self.server.put(QUEUES, yaml.safe_load(self.forge.text(f"queues/{name}.yaml")))

    def note(self) -> str:
        """The words about the cluster's sources in its status, at the next round of the watch."""
        self.git.versions([CLUSTER])
        return self._health.read([CLUSTER])[CLUSTER].fault

    def generation(self) -> int:
        return self.git.read(CLUSTER).generation


@pytest.fixture
def server() -> Iterator[Cluster]:
    with running() as cluster:
        yield cluster


@pytest.fixture
def make(forge: Forge, sqlite_ledger_url: str, server: Cluster, tmp_path: Path) -> Iterator[Callable[[], Site]]:
    sites: list[Site] = []

    def site() -> Site:
        sites.append(Site(forge, sqlite_ledger_url, server, tmp_path))
        return sites[-1]

    yield site
    for each in sites:
        each.adapter.stop()


def seen(server: Cluster) -> bool:
    return any(what == "watch clusterqueues" for what, _ in server.emulator.asked)


def test_what_the_cluster_has_not_applied_yet_is_said_with_both_numbers_and_is_no_drift(
    make: Callable[[], Site],
) -> None:
    site = make()
    read = site.generation()
    assert site.note() == ""
    wait_until(lambda: site.note() == "" and seen(site.server), "the ClusterQueues are read")
    commit = site.forge.write({"queues/a.yaml": QUEUE.format(name="a", gpus=20)})
    note = (
        f"Kubernetes here: commit {commit[:8]} is not in force: a has 20 in Git and 24 in the cluster "
        "(seen since 2026-11-26 10:00:00Z)"
    )
    wait_until(lambda: site.note() == note, "the lag is said")
    changed = site.generation()
    assert changed == read + 1, "the commit is a change by others, and what the cluster has is none"
    site.time += timedelta(minutes=3)
    site.applies("b")  # the API server has just spoken
    wait_until(lambda: site.note() == note, "its beginning stays")
    site.applies("a")
    wait_until(lambda: site.note() == "", "once it is applied nothing is said")
    assert site.generation() == changed


def test_a_change_in_the_cluster_alone_is_said_and_no_drift(make: Callable[[], Site]) -> None:
    site = make()
    read = site.generation()
    wait_until(lambda: site.note() == "" and seen(site.server), "the ClusterQueues are read")
    site.server.put(QUEUES, yaml.safe_load(QUEUE.format(name="b", gpus=40)))
    wait_until(lambda: "b has 16 in Git and 40 in the cluster" in site.note(), "it is said")
    site.server.remove(QUEUES, "b")
    wait_until(lambda: "b has 16 in Git and no quota in the cluster" in site.note(), "it is said")
    assert (site.generation(), site.git.read(CLUSTER).values) == (read, {"a": 24, "b": 16})


def test_doctor_reports_a_lag_that_lasts(make: Callable[[], Site]) -> None:
    site = make()
    site.note()
    site.forge.write({"queues/a.yaml": QUEUE.format(name="a", gpus=20)})
    wait_until(lambda: "a has 20 in Git" in site.note(), "the lag is said")
    assert site.adapter.check() == {CLUSTER: ""}
    site.time += timedelta(minutes=11)
    site.applies("b")
    wait_until(lambda: "a has 20 in Git" in site.note(), "the lag goes on")
    assert "is not in force: a has 20 in Git and 24 in the cluster (seen since" in site.adapter.check()[CLUSTER]


def test_where_the_queues_may_not_be_read_nothing_is_said(make: Callable[[], Site], server: Cluster) -> None:
    server.on_loop(lambda emulator: emulator.refusals.update({"list clusterqueues": 403}))
    site = make()
    site.forge.write({"queues/a.yaml": QUEUE.format(name="a", gpus=20)})
    assert site.note() == ""
    assert site.adapter.check() == {CLUSTER: ""}


@pytest.mark.parametrize("nominal", ["20", 20, "12.5", {"gpus": 20}])
def test_a_queue_that_makes_no_sense_has_no_quota(make: Callable[[], Site], nominal: Any) -> None:
    site = make()
    wait_until(lambda: site.note() == "" and seen(site.server), "the ClusterQueues are read")
    raw = yaml.safe_load(QUEUE.format(name="a", gpus=20))
    raw["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = nominal
    site.server.put(QUEUES, raw)
    there = "20" if str(nominal) == "20" else "no quota"
    wait_until(lambda: f"a has 24 in Git and {there} in the cluster" in site.note(), "it is said")
