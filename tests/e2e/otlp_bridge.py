"""A collector's translation of metrics from OTLP to Prometheus, in short.

It follows the documented rules of that exporter (and of OpenTelemetry's specification, "Prometheus and OpenMetrics
compatibility"): names without dots, the unit behind them, `_total` behind counters; job and instance from the resource.
It is here since no registry holds the collector; it stands for the way, and proves nothing of the collector itself.
"""

from __future__ import annotations

import concurrent.futures
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

_UNITS = {"s": "seconds", "ms": "milliseconds", "By": "bytes"}


def prometheus_name(name: str, unit: str, *, counter: bool, gauge: bool) -> str:
    words = [word for word in re.split(r"[^a-zA-Z0-9]+", name) if word]
    unit = re.sub(r"\{.*?\}", "", unit)
    behind = "ratio" if unit == "1" and gauge else _UNITS.get(unit, "" if unit == "1" else unit)
    if behind and behind not in words:
        words.append(behind)
    if counter:
        words = [word for word in words if word != "total"] + ["total"]
    return "_".join(words)


@dataclass(frozen=True)
class Bridge:
    endpoint: str
    """For OTEL_EXPORTER_OTLP_ENDPOINT."""
    target: str
    """For Prometheus."""


class _Page(metrics_service_pb2_grpc.MetricsServiceServicer):
    """The last thing that was told of each series."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, str], dict[str, str]] = {}
        """Text by series, by process and metric."""

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        for of_resource in request.resource_metrics:
            resource = _labels(of_resource.resource.attributes)
            whose = {"job": resource.get("service_name", ""), "instance": resource.get("service_instance_id", "")}
            for scope in of_resource.scope_metrics:
                for metric in scope.metrics:
                    series = dict(_series(metric, whose))
                    with self._lock:
                        self._lines[whose["instance"], metric.name] = series
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def text(self) -> str:
        with self._lock:
            return "".join(line for series in self._lines.values() for line in series.values())


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        return trace_service_pb2.ExportTraceServiceResponse()


def _labels(attributes: Iterable[Any]) -> dict[str, str]:
    def text(value: Any) -> str:
        kind = value.WhichOneof("value")
        found = getattr(value, kind) if kind else ""
        return str(found).lower() if kind == "bool_value" else str(found)

    return {re.sub(r"[^a-zA-Z0-9_]", "_", a.key): text(a.value) for a in attributes}


def _series(metric: Any, whose: dict[str, str]) -> Iterator[tuple[str, str]]:
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    counter = kind == "sum" and data.is_monotonic
    name = prometheus_name(metric.name, metric.unit, counter=counter, gauge=kind == "gauge")
    for point in data.data_points:
        labels = {**_labels(point.attributes), **whose}
        if kind == "histogram":
            yield from _histogram(name, labels, point)
        else:
            yield _line(name, labels, getattr(point, point.WhichOneof("value")))


def _histogram(name: str, labels: dict[str, str], point: Any) -> Iterator[tuple[str, str]]:
    below = 0
    for bound, count in zip([*map(str, point.explicit_bounds), "+Inf"], point.bucket_counts, strict=True):
        below += count
        yield _line(f"{name}_bucket", {**labels, "le": bound}, below)
    yield _line(f"{name}_sum", labels, point.sum)
    yield _line(f"{name}_count", labels, point.count)


def _line(name: str, labels: dict[str, str], value: float) -> tuple[str, str]:
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    head = name + "{" + ",".join(f'{key}="{quoted(text)}"' for key, text in sorted(labels.items())) + "}"
    return head, f"{head} {value}\n"


@contextmanager
def bridge() -> Iterator[Bridge]:
    page = _Page()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    otlp = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(page, otlp)  # type: ignore[no-untyped-call]
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(), otlp)  # type: ignore[no-untyped-call]
    port = otlp.add_insecure_port("127.0.0.1:0")
    otlp.start()
    http = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield Bridge(f"http://127.0.0.1:{port}", f"127.0.0.1:{http.server_port}")
    finally:
        http.shutdown()
        otlp.stop(1).wait()
