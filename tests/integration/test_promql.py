"""The default queries of Prometheus, worked out by Prometheus itself: promtool plays series and a clock, no daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from activities.adapters.prometheus.prometheus import PrometheusConnection

PROMETHEUS = PrometheusConnection(url="http://127.0.0.1:9090")
KUBERNETES = PROMETHEUS.model_copy(update={"ready": "kubernetes"})
Series = dict[str, str]
"""Values by the minute, in promtool's short form, by series."""


def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        reason = "no promtool here: make packages"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return program


def of(name: str, node: str, gpu: int, more: str = "") -> str:
    return f'{name}{{cluster="east",island="x",Hostname="{node}",gpu="{gpu}"{more}}}'


def seen(*nodes: str) -> Series:
    """Eight GPUs of each node, seen for three days, without an XID."""
    series: Series = {}
    for node in nodes:
        series |= {of("DCGM_FI_DEV_GPU_TEMP", node, gpu): "45x4320" for gpu in range(8)}
        series |= {of("DCGM_FI_DEV_XID_ERRORS", node, gpu): "0x4320" for gpu in range(8)}
    return series


def ready(node: str, allocatable: int | None = 8) -> Series:
    """Return the series of a ready node, as kube-state-metrics has it."""
    series = {
        f'kube_node_status_condition{{node="{node}",condition="Ready",status="true"}}': "1x4320",
        f'kube_node_spec_unschedulable{{node="{node}"}}': "0x4320",
    }
    if allocatable is not None:
        series[f'kube_node_status_allocatable{{node="{node}",resource="nvidia_com_gpu"}}'] = f"{allocatable}x4320"
        series[f'kube_node_status_allocatable{{node="{node}",resource="cpu"}}'] = "2x4320"
    return series


def assert_healthy(folder: Path, series: Series, at: str, gpus: int, prometheus: PrometheusConnection) -> None:
    """Check that so many GPUs are healthy at this time. Prometheus itself computes it."""
    samples = [{"labels": '{cluster="east", island="x"}', "value": gpus}]
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": prometheus.queries.healthy, "eval_time": at, "exp_samples": samples}],
    }
    path = folder / "case.yml"
    path.write_text(json.dumps({"rule_files": [], "tests": [case]}))
    done = subprocess.run([promtool(), "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]


XID = of("DCGM_FI_DEV_XID_ERRORS", "n1", 3)
BY_CODE = {
    of("DCGM_FI_DEV_XID_ERRORS", "n1", 3, ',err_code="0"'): "0x9 stale",
    of("DCGM_FI_DEV_XID_ERRORS", "n1", 3, ',err_code="48"'): "_x10 48 stale",
    of("DCGM_FI_DEV_XID_ERRORS", "n1", 3, ',err_code="63"'): "_x11 63x4000",
}


@pytest.mark.parametrize(
    ("values", "at", "gpus"),
    [
        ("0x9 62x9", "15m", 7),
        ("0x9 62 45x9", "15m", 7),  # a harmless one came of it
        ("0x9 62 45x2000", "1d5m", 7),
        ("0x9 62 45x2000", "1d15m", 8),  # forgotten a day later: docs/prometheus.md says so
        ("0x9 79x2000", "1d8h", 7),  # the last one is not forgotten
        ("0x9 79 31 13 43 45x9", "20m", 7),
        ("0x9 94 62x9", "15m", 7),  # the day's largest hides none that is there
        ("0x9 62 45x4 0x9", "18m", 8),  # the exporter has been started again
        ("0x9 45x9", "15m", 8),
        ("0x9 13 31 43 63 94 45x9", "20m", 8),
    ],
)
def test_a_harmless_xid_does_not_hide_one_of_broken_hardware(values: str, at: str, gpus: int, tmp_path: Path) -> None:
    assert_healthy(tmp_path, seen("n1") | {XID: values}, at, gpus, PROMETHEUS)


def test_an_xid_that_has_its_number_as_a_label_is_hidden_by_no_larger_one(tmp_path: Path) -> None:
    series = seen("n1")
    del series[XID]
    assert_healthy(tmp_path, series | BY_CODE, "20m", 7, PROMETHEUS)


def test_an_xid_between_two_scrapes_is_seen_where_the_exporter_counts_them(tmp_path: Path) -> None:
    hardware, harmless = (
        {of("DCGM_EXP_XID_ERRORS_COUNT", "n1", 3, f',xid="{number}",window_size_in_ms="300000"'): "0x9 1x4 0x90"}
        for number in (62, 45)
    )
    series = seen("n1") | {XID: "0x9 45x100"} | harmless
    assert_healthy(tmp_path, series, "1h", 8, PROMETHEUS)
    assert_healthy(tmp_path, series | hardware, "1h", 7, PROMETHEUS)


def test_an_island_without_a_healthy_gpu_has_none_and_not_no_answer(tmp_path: Path) -> None:
    broken = {of("DCGM_FI_DEV_XID_ERRORS", "n1", gpu): "95x60" for gpu in range(8)}
    assert_healthy(tmp_path, seen("n1") | broken, "30m", 0, PROMETHEUS)
    assert_healthy(tmp_path, seen("n1") | broken | ready("n1"), "30m", 0, KUBERNETES)


def taint(key: str, effect: str) -> Series:
    return {f'kube_node_spec_taint{{node="n2",key="{key}",value="x",effect="{effect}"}}': "1x60"}


@pytest.mark.parametrize(
    ("more", "gpus"),
    [
        ({}, 16),
        ({'kube_node_spec_unschedulable{node="n2"}': "1x60"}, 8),
        ({'kube_node_status_condition{node="n2",condition="Ready",status="true"}': "0x60"}, 8),
        (taint("node.kubernetes.io/unreachable", "NoExecute"), 8),
        (taint("node.kubernetes.io/unschedulable", "NoSchedule"), 8),
        (taint("ToBeDeletedByClusterAutoscaler", "NoSchedule"), 8),
        (taint("quarantine", "NoSchedule"), 8),
        (taint("quarantine", "PreferNoSchedule"), 16),
        (taint("nvidia.com/gpu", "NoSchedule"), 16),
        (taint("nvidia.com/gpu.extra", "NoSchedule"), 8),
        ({'kube_node_status_allocatable{node="n2",resource="nvidia_com_gpu"}': "6x60"}, 14),
        ({'kube_node_status_allocatable{node="n2",resource="nvidia_com_gpu"}': "0x60"}, 8),
        ({'kube_node_status_allocatable{node="n2",resource="nvidia_com_gpu"}': "80x60"}, 16),  # time-sliced
        ({of("DCGM_FI_DEV_XID_ERRORS", "n2", 0): "79x60"}, 15),
        # The device plugin has withdrawn the GPU that DCGM calls broken: it is missing once.
        (
            {
                of("DCGM_FI_DEV_XID_ERRORS", "n2", 0): "79x60",
                'kube_node_status_allocatable{node="n2",resource="nvidia_com_gpu"}': "7x60",
            },
            15,
        ),
    ],
)
def test_a_node_of_kubernetes_counts_as_far_as_a_job_could_be_placed_on_it(
    more: Series, gpus: int, tmp_path: Path
) -> None:
    assert_healthy(tmp_path, seen("n1", "n2") | ready("n1") | ready("n2") | more, "30m", gpus, KUBERNETES)


def test_taints_that_jobs_tolerate_are_a_setting_and_what_is_not_exported_bars_nothing(tmp_path: Path) -> None:
    series = seen("n1", "n2") | ready("n1", None) | ready("n2", None)
    assert_healthy(tmp_path, series, "30m", 16, KUBERNETES)
    tolerating = KUBERNETES.model_copy(update={"tolerated_taints": r"nvidia\.com/gpu|dedicated"})
    assert_healthy(tmp_path, series | taint("dedicated", "NoSchedule"), "30m", 16, tolerating)
    assert_healthy(tmp_path, series | taint("dedicated", "NoSchedule"), "30m", 8, KUBERNETES)
