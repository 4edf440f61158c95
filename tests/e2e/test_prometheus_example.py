"""deploy/otel, run: Prometheus's own tools on its files, and a real Prometheus that reads a real worker's numbers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.e2e.otlp_bridge import bridge, prometheus_name
from workers.demo import CLOCKS

ROOT = Path(__file__).parents[2]
OTEL = ROOT / "deploy" / "otel"
RULES = yaml.safe_load((OTEL / "alerts.yml").read_text())["groups"][0]["rules"]
NAMED = sorted({name for rule in RULES for name in re.findall(r"\bbackstop_\w+", rule["expr"])})
PATIENCE = 120
CLUSTER = "seen"
FLEET = {
    "policy": {**CLOCKS, "breach_after": "10m"},
    "clusters": [
        {
            "name": CLUSTER,
            "islands": [{"name": "main", "total_gpus": 361, "healthy_gpus": 319}],
            "quotas": [{"team": "research", "gpus": 345, "scheduled_gpus": 310}],
        }
    ],
}


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        reason = f"no {name} here: make packages"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


# --- the files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml")],
    ids=" ".join,
)
@pytest.mark.nightly
def test_prometheus_takes_the_files(words: tuple[str, ...]) -> None:
    done = subprocess.run([program("promtool"), *words], cwd=OTEL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_that_raises_it_and_one_that_does_not() -> None:
    cases = [
        (case["alertname"], bool(case["exp_alerts"]))
        for test in yaml.safe_load((OTEL / "alerts.test.yml").read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    assert {*cases} == {(rule["alert"], raised) for rule in RULES for raised in (True, False)}
    readme = (OTEL / "README.md").read_text()
    assert [rule["alert"] for rule in RULES if f"`{rule['alert']}`" not in readme] == []


def test_the_collector_leads_from_otlp_to_the_page_that_prometheus_reads() -> None:
    """The collector itself is not here to judge it: what can be held is that its parts fit together."""
    collector = yaml.safe_load((OTEL / "collector.yaml").read_text())
    pipelines = collector["service"]["pipelines"]
    assert pipelines["metrics"] == {"receivers": ["otlp"], "processors": ["batch"], "exporters": ["prometheus"]}
    assert set(pipelines) == {"metrics", "traces"}, "a worker sends both, and is refused what has no pipeline"
    for pipeline in pipelines.values():
        for kind, names in pipeline.items():
            assert set(names) <= set(collector[kind])
    scrape = yaml.safe_load((OTEL / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scrape["static_configs"] == [{"targets": [collector["exporters"]["prometheus"]["endpoint"]]}]
    assert scrape["honor_labels"]
    assert collector["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"] == "${env:OTLP_LISTEN:-127.0.0.1}:4317"


def test_the_compose_file_joins_the_first_one() -> None:
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (OTEL / "compose.yaml").read_text())
    compose = yaml.safe_load(text)
    packaged = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(packaged.read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [f"{e.json_path}: {e.message}" for e in validator.iter_errors(compose)] == []
    first = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    assert set(compose["services"]) & set(first) == {"worker"}
    for service in compose["services"].values():
        assert [p for p in service.get("ports", []) if not p.startswith("127.0.0.1:")] == []
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / "deploy" / source).is_file() or source in compose["volumes"], source


@pytest.mark.parametrize(
    ("metric", "unit", "more", "name"),
    [
        ("backstop.promised_gpus", "{gpu}", {"gauge": True}, "backstop_promised_gpus"),
        ("backstop.health_age", "s", {"gauge": True}, "backstop_health_age_seconds"),
        ("backstop.effects", "", {"counter": True}, "backstop_effects_total"),
        ("http.server.duration", "ms", {}, "http_server_duration_milliseconds"),
        ("process.cpu.utilization", "1", {"gauge": True}, "process_cpu_utilization_ratio"),
    ],
)
def test_the_bridge_names_as_the_collector_says_that_it_does(
    metric: str, unit: str, more: dict[str, bool], name: str
) -> None:
    assert prometheus_name(metric, unit, **{"counter": False, "gauge": False, **more}) == name


# --- a real Prometheus ------------------------------------------------------------------------------------


@contextmanager
def running(
    words: list[str], log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(words, env=environment, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@contextmanager
def prometheus(target: str, folder: Path) -> Iterator[str]:
    """Run Prometheus with the example's files, except for its target and its interval."""
    config = yaml.safe_load((OTEL / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    shutil.copy(OTEL / "alerts.yml", folder)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with running([*words, f"--web.listen-address={address}"], folder / "prometheus.log"):
        yield f"http://{address}"


def asked(url: str, path: str, **query: str) -> Any:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None  # it is only just starting


def values(url: str, query: str) -> list[float]:
    found = asked(url, "query", query=query)
    return [] if found is None else [float(each["value"][1]) for each in found["result"]]


def until(true: Callable[[], object], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends, what
        time.sleep(0.5)


def states(url: str) -> set[tuple[str, str]]:
    """Health and state of the alerts' rules."""
    return {(rule["health"], rule["state"]) for rule in asked(url, "rules")["groups"][0]["rules"]}


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_prometheus_has_every_metric_that_an_alert_names(tmp_path: Path) -> None:
    with bridge() as way, prometheus(way.target, tmp_path) as url:
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "OTEL_", "BACKSTOP_"))},
            "BACKSTOP_HOME": str(tmp_path / "home"),
            "BACKSTOP_PORT": "0",
            "BACKSTOP_UI_PORT": "0",
            "BACKSTOP_WATCH_INTERVAL": "1",
            "BACKSTOP_ACTOR": "tpm",
            "OTEL_EXPORTER_OTLP_ENDPOINT": way.endpoint,
        }

        def backstop(*words: str) -> str:
            command = [sys.executable, "-m", "cli.main", *words]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
            assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
            return done.stdout

        log = tmp_path / "up.log"
        with running([sys.executable, "-m", "workers.up"], log, environment) as up:
            until(lambda: up.poll() is not None or "ready" in log.read_text(), "backstop up")
            assert up.poll() is None, log.read_text()
            (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
            backstop("fleet", "import", str(tmp_path / "fleet.yaml"))
            backstop("launch", CLUSTER, "--owner", "tpm", "--reason", "pilot")
            backstop("approve", CLUSTER, "--plan", json.loads(backstop("status", CLUSTER, "--json"))["plan_hash"])
            monitored = f'backstop_stage{{cluster="{CLUSTER}",stage="monitored"}}'
            until(lambda: values(url, monitored) == [1], "it is monitored, says Prometheus")
            until(lambda: all(values(url, f"count({name})") for name in NAMED), f"all of {NAMED}")

            assert values(url, f'count(backstop_stage{{cluster="{CLUSTER}"}})') == [1], "one stage at a time"
            assert values(url, f'backstop_promised_gpus{{cluster="{CLUSTER}"}}') == [306]
            assert values(url, f'backstop_unbacked_gpus{{cluster="{CLUSTER}"}}') == [0]
            (age,) = values(url, f'backstop_health_age_seconds{{cluster="{CLUSTER}"}}')
            assert 0 < age < 600
            landed = values(url, f'sum(backstop_effects_total{{cluster="{CLUSTER}"}})')
            with closing(sqlite3.connect(tmp_path / "home" / "ledger.db")) as book:
                assert book.execute("SELECT count(*) FROM receipts").fetchone() == (landed[0],)
            assert values(url, 'count(count by (job, instance) ({__name__=~"(backstop|temporal)_.+"}))')[0] >= 1
            jobs = asked(url, "label/instance/values")
            assert f"{up.pid}@{socket.gethostname()}" in jobs, jobs

            rules = asked(url, "rules")["groups"][0]["rules"]
            assert [rule["name"] for rule in rules] == [rule["alert"] for rule in RULES]
            # One may have been pending while the cluster was on its way, as `at risk` is.
            until(lambda: states(url) == {("ok", "inactive")}, f"all alerts are quiet: {states(url)}")
            FLEET["clusters"][0]["islands"][0]["healthy_gpus"] = 280  # type: ignore[index]
            (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
            backstop("fleet", "import", str(tmp_path / "fleet.yaml"), "--yes")

            def pending() -> set[str]:
                found = asked(url, "rules")["groups"][0]["rules"]
                return {rule["name"] for rule in found if rule["state"] == "pending"}

            until(lambda: pending() == {"BackstopQuotaAtRisk"}, "the shortage is seen")
            assert values(url, f'backstop_unbacked_gpus{{cluster="{CLUSTER}"}}') == [26], "306 - 280"
