"""One trace from the terminal to the activities, and metrics, seen by a real OTLP receiver."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

FLEET = """
clusters:
  - name: traced
    islands: [{name: main, total_gpus: 361, healthy_gpus: 319}]
    quotas: [{team: research, gpus: 345, scheduled_gpus: 310}]
"""


class Receiver(trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps what it is sent: span names by trace, and metric names."""

    def __init__(self) -> None:
        self.spans: dict[bytes, set[str]] = {}
        self.metrics: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name; both services share it
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.spans.setdefault(span.trace_id, set()).add(span.name)
            return trace_service_pb2.ExportTraceServiceResponse()
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics |= {metric.name for metric in scope.metrics}
        return metrics_service_pb2.ExportMetricsServiceResponse()


@pytest.fixture
def receiver() -> Iterator[tuple[Receiver, str]]:
    found = Receiver()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(found, server)  # type: ignore[no-untyped-call]
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(found, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield found, f"http://127.0.0.1:{port}"
    server.stop(1).wait()


def wait_until(so: Any, seconds: float, what: str) -> None:
    ends = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < ends, f"{what} did not happen within {seconds} s"
        time.sleep(0.1)


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_a_command_is_one_trace_down_to_its_activity_and_numbers_reach_the_collector(
    receiver: tuple[Receiver, str], tmp_path: Path
) -> None:
    found, endpoint = receiver
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "OTEL_", "BACKSTOP_"))},
        "BACKSTOP_HOME": str(tmp_path),
        "BACKSTOP_PORT": "0",
        "BACKSTOP_UI_PORT": "0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }
    log = tmp_path / "up.log"
    with log.open("wb") as out:
        up = subprocess.Popen([sys.executable, "-m", "workers.up"], env=environment, stdout=out, stderr=out)
    try:
        wait_until(lambda: "ready" in log.read_text() or up.poll() is not None, 60, "backstop up")
        assert up.poll() is None, log.read_text()

        def backstop(*words: str) -> None:
            subprocess.run([sys.executable, "-m", "cli.main", *words], env=environment, check=True, timeout=60)

        (tmp_path / "fleet.yaml").write_text(FLEET)
        backstop("fleet", "import", str(tmp_path / "fleet.yaml"))
        backstop("launch", "traced", "--owner", "tpm", "--reason", "trace")
        backstop("abort", "traced", "--reason", "seen enough", "--yes")

        def ended() -> bool:  # its own span is of its end, which the abort does not wait for
            return any("RunWorkflow:ClusterRollout" in names for names in [*found.spans.values()])

        wait_until(ended, 30, "the end of the rollout")
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0, log.read_text()

    launch = next((names for names in found.spans.values() if "backstop launch" in names), set())
    assert {"RunWorkflow:ClusterRollout", "RunActivity:open_rollout", "RunActivity:draft_plan"} <= launch
    abort = next((names for names in found.spans.values() if "backstop abort" in names), set())
    assert any(name.startswith("HandleUpdate") for name in abort)
    assert {"backstop.promised_gpus", "backstop.healthy_gpus", "backstop.phantom_gpus"} <= found.metrics
    assert any(name.startswith("temporal_") for name in found.metrics), "Temporal's own metrics come along"
