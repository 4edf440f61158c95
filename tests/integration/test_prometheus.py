"""Health from a real Prometheus, which scrapes a target that the test runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.adapters.prometheus.prometheus import PrometheusConnection, Prometheuses, ask
from activities.ports.clusters import HealthPort
from models.cluster.fleet_file import Fleet
from models.cluster.readings import HealthSample
from models.errors import Unavailable
from tests.integration.ledger.world import stage
from tests.ports import free_port

pytestmark = pytest.mark.nightly
GPUS = 8


class Target:
    """DCGM's exporter, in short: two clusters, `east` with islands x and y, `west` with none. One node is 8 GPUs."""

    def __init__(self) -> None:
        self.nodes = {"e1": ("east", "x"), "e2": ("east", "x"), "e3": ("east", "y"), "w1": ("west", "")}
        self.xids: dict[tuple[str, int], int] = {}
        self.silent: set[str] = set()
        self.ready = dict.fromkeys(self.nodes, 1)
        """As kube-state-metrics tells it."""
        target = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = target.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def text(self) -> str:
        lines = ["# TYPE DCGM_FI_DEV_GPU_TEMP gauge", "# TYPE DCGM_FI_DEV_XID_ERRORS gauge"]
        for node, (cluster, island) in self.nodes.items():
            for gpu in range(GPUS if node not in self.silent else 0):
                labels = f'cluster="{cluster}",island="{island}",Hostname="{node}",gpu="{gpu}"'
                lines.append(f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 45")
                lines.append(f"DCGM_FI_DEV_XID_ERRORS{{{labels}}} {self.xids.get((node, gpu), 0)}")
        for node, ready in self.ready.items():
            lines.append(f'kube_node_status_condition{{node="{node}",condition="Ready",status="true"}} {ready}')
        return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    made = Target()
    yield made
    made.server.shutdown()


@pytest.fixture(scope="module")
def url(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that scrapes the target each second. Where there is none, CI fails; a laptop skips."""
    program = shutil.which("prometheus")
    if program is None:
        reason = "no Prometheus here: make packages"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder: Path = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {
                "job_name": "dcgm",
                "honor_labels": True,
                "static_configs": [{"targets": [f"127.0.0.1:{target.server.server_port}"]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            until(lambda: bool(ask(PrometheusConnection(url=address), "DCGM_FI_DEV_GPU_TEMP").values), "it has scraped")
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def until(true: Callable[[], bool], what: str, seconds: float = 90) -> None:
    ends = time.monotonic() + seconds
    while True:
        with contextlib.suppress(Unavailable):
            if true():
                return
        assert time.monotonic() < ends, what
        time.sleep(0.1)


@pytest.fixture
def prometheuses(url: str, ledger_url: str) -> Iterator[Prometheuses]:
    """Yield the sources of a ledger with both clusters; our `west-1` is `west` in Prometheus."""
    clusters = [
        {
            "name": "east",
            "islands": [{"name": n, "total_gpus": t, "healthy_gpus": 0} for n, t in (("x", 16), ("y", 8))],
            "prometheus": {"connection": "here"},
        },
        {
            "name": "west-1",
            "islands": [{"name": "main", "total_gpus": 8, "healthy_gpus": 0}],
            "prometheus": {"connection": "here", "cluster": "west"},
        },
        {"name": "by-hand", "islands": [{"name": "main", "total_gpus": 4, "healthy_gpus": 3}]},
    ]
    Fleet.model_validate({"clusters": clusters})
    with Ledger(ledger_url) as ledger:
        stage(ledger, {"clusters": clusters}, "first")
        ledger.fleet.commit_import("first", 2, "tpm", ledger.now() - timedelta(minutes=5))
        yield Prometheuses(ledger, {"here": PrometheusConnection(url=url)}, timedelta(0))


@pytest.fixture
def health(prometheuses: Prometheuses) -> HealthPort:
    return prometheuses._ledger.health.feed_from(prometheuses.refresh_health)


def counts(sample: HealthSample) -> dict[str, tuple[int, int]]:
    return {i.name: (i.total_gpus, i.healthy_gpus) for i in sample.islands}


def test_many_clusters_are_read_at_once_each_by_its_label(health: HealthPort) -> None:
    found = health.read(["east", "west-1", "by-hand"])
    assert counts(found["east"]) == {"x": (16, 16), "y": (8, 8)}
    assert counts(found["west-1"]) == {"main": (8, 8)}
    assert counts(found["by-hand"]) == {"main": (4, 3)}, "the ledger's own"
    assert found["east"].at > found["by-hand"].at


def test_broken_hardware_is_not_healthy_and_a_job_s_fault_is_no_such_thing(health: HealthPort, target: Target) -> None:
    target.xids = {("e1", 0): 79, ("e1", 1): 48, ("e2", 0): 13, **{("e3", gpu): 95 for gpu in range(GPUS)}}
    try:
        until(lambda: counts(health.read(["east"])["east"]) == {"x": (16, 14), "y": (8, 0)}, "it shows")
    finally:
        target.xids = {}
    until(lambda: counts(health.read(["east"])["east"]) == {"x": (16, 16), "y": (8, 8)}, "and is over")


def test_a_node_that_is_not_seen_is_installed_and_not_healthy(health: HealthPort, target: Target) -> None:
    target.silent = {"e2"}
    try:
        until(lambda: counts(health.read(["east"])["east"])["x"] == (16, 8), "its GPUs are unknown")
    finally:
        target.silent = set()
    until(lambda: counts(health.read(["east"])["east"])["x"] == (16, 16), "it is seen again")


def test_a_node_that_kubernetes_calls_not_ready_is_not_healthy(
    health: HealthPort, prometheuses: Prometheuses, target: Target, url: str
) -> None:
    prometheuses._connections = {"here": PrometheusConnection(url=url, ready="kubernetes")}
    until(lambda: counts(health.read(["east"])["east"])["x"] == (16, 16), "all are ready")
    target.ready["e1"] = 0
    try:
        until(lambda: counts(health.read(["east"])["east"]) == {"x": (16, 8), "y": (8, 8)}, "it shows")
    finally:
        target.ready["e1"] = 1


def test_a_cluster_that_is_seen_no_more_has_no_new_sample_and_no_zero(
    health: HealthPort, prometheuses: Prometheuses, target: Target
) -> None:
    before = health.read(["west-1"])["west-1"]
    target.silent = {"w1"}
    try:
        until(lambda: not ask(prometheuses._connections["here"], 'DCGM_FI_DEV_GPU_TEMP{cluster="west"}').values, "gone")
        last = health.read(["west-1", "east"])
        until(lambda: health.read(["east"])["east"].at > last["east"].at, "the other one is seen on")
        again = health.read(["west-1", "east"])
        assert counts(again["west-1"]) == counts(before) == {"main": (8, 8)}
        assert again["west-1"].at == last["west-1"].at, "it grows old"
        assert again["east"].at > last["east"].at
    finally:
        target.silent = set()
    until(lambda: health.read(["west-1"])["west-1"].at > again["west-1"].at, "it is seen again")


def test_own_queries_and_labels(url: str) -> None:
    own = PrometheusConnection(
        url=url,
        cluster_label="Hostname",
        installed='count by (Hostname) (DCGM_FI_DEV_GPU_TEMP{cluster="west"})',
        healthy="vector(1)",
    )
    assert ask(own, own.queries.installed).values == {("w1", "main"): 8.0}
    ready = PrometheusConnection(url=url, ready='max by (Hostname) (DCGM_FI_DEV_GPU_TEMP{Hostname!="e1"})').queries
    assert ask(PrometheusConnection(url=url), ready.healthy).values["east", "x"] == 8


def test_what_goes_wrong_is_no_answer(url: str, tmp_path: Path) -> None:
    for connection, query, sentence in (
        (PrometheusConnection(url=url), "count(", "refused a query"),
        (PrometheusConnection(url=url), "1", "answered scalar"),
        (PrometheusConnection(url="http://127.0.0.1:1"), "up", "did not answer"),
        (PrometheusConnection(url="file:///etc/passwd"), "up", "begin with http:// or https://"),
        (PrometheusConnection(url=url, token_file=str(tmp_path / "none")), "up", "cannot be read"),
    ):
        with pytest.raises(Unavailable, match=sentence):
            ask(connection, query)
    assert urllib.request.urlopen(f"{url}/-/healthy").status == 200


def test_of_a_prometheus_that_does_not_answer_the_last_health_stands(
    health: HealthPort, prometheuses: Prometheuses
) -> None:
    known = health.read(["east"])["east"]
    for connections, said in (
        ({"here": PrometheusConnection(url="http://127.0.0.1:1")}, "did not answer"),
        ({}, "this worker has no Prometheus 'here'"),
    ):
        prometheuses._connections = connections
        found = health.read(["east"])["east"]
        assert (counts(found), found.at) == (counts(known), known.at)
        assert said in found.fault
