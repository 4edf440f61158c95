"""OpenTelemetry: one provider for traces, one for metrics, and Temporal's own metrics to the same place.

Its packages are imported only where they are configured. A command exports its spans in the background and never waits
for a collector that is away: it tries the connection beside the command, and limits the time of the last export. A
worker logs once that its collector is away, and once that it is back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from temporalio.client import Plugin
    from temporalio.runtime import Runtime

TRACE = "BACKSTOP_TRACE"
"""The variable whose value `console` sends spans to standard error, as --trace does."""
_CONNECT_SECONDS, _GOODBYE_SECONDS = 0.2, 1.0
"""The longest that a command waits for a collector: to accept a connection, and to take the traces."""
_WORKER_SECONDS = 5.0
_EXPORTER_LOGS = ("opentelemetry.exporter", "opentelemetry.sdk.metrics", "opentelemetry.sdk.trace.export")

logger = logging.getLogger("backstop.telemetry")
Flush = Callable[[], object]
_T = TypeVar("_T")


@contextmanager
def trace_command(command: str) -> Iterator[tuple[tuple[Plugin, ...], Runtime | None]]:
    """Open a root span around one command of a person, where traces are on, and flush it at the end."""
    endpoint, to_console = _read_environment()
    if endpoint is None and not to_console:
        yield (), None
        return
    listens = _Listens(endpoint) if endpoint is not None else None
    plugin, flush = _traces("backstop-cli", endpoint, to_console, _Outage(endpoint or "", quiet=True))
    from opentelemetry import trace

    try:
        with trace.get_tracer("backstop").start_as_current_span(f"backstop {command}"):
            yield (plugin,), None
    finally:
        if listens is None or listens.listens_within(_CONNECT_SECONDS):
            run_within(_GOODBYE_SECONDS, flush)


def of_worker(service: str) -> tuple[tuple[Plugin, ...], Runtime | None, Flush]:
    """Return client plugins, the Temporal runtime and a function that flushes, by OTEL_EXPORTER_OTLP_ENDPOINT (OTLP
    over gRPC, such as http://127.0.0.1:4317) and BACKSTOP_TRACE; none of them where neither is configured."""
    endpoint, to_console = _read_environment()
    if endpoint is None and not to_console:
        return (), None, lambda: None
    outage = _Outage(endpoint or "")
    plugin, flush_traces = _traces(service, endpoint, to_console, outage)
    if endpoint is None:
        return (plugin,), None, flush_traces
    runtime, flush_metrics = _metrics(service, endpoint, outage)

    def flush() -> None:
        run_within(_WORKER_SECONDS, flush_traces)
        run_within(_WORKER_SECONDS, flush_metrics)

    return (plugin,), runtime, flush


def is_traced() -> bool:
    """Return whether this process exports spans."""
    return any(_read_environment())


def _read_environment() -> tuple[str | None, bool]:
    return os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None, os.environ.get(TRACE, "") == "console"


def run_within(seconds: float, do: Flush) -> None:
    """Wait so many seconds for the work, which then goes on in the background. Its errors are ignored."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            do()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(seconds)


class _Listens:
    """Tries in the background whether anybody accepts connections at the endpoint."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
        self._place = (parts.hostname or "", parts.port or 443)
        self._so = False
        self._thread = threading.Thread(target=self._try, daemon=True)
        self._thread.start()

    def _try(self) -> None:
        with contextlib.suppress(OSError, ValueError), socket.create_connection(self._place, timeout=30):
            self._so = True

    def listens_within(self, seconds: float) -> bool:
        """Return whether the endpoint has accepted a connection, after so many seconds at most."""
        self._thread.join(seconds)
        return self._so


class _Outage:
    """Logs once when a collector goes away and once when it comes back, not with each batch."""

    def __init__(self, endpoint: str, *, quiet: bool = False) -> None:
        self._endpoint, self._quiet = endpoint, quiet
        self._away = False
        self._lock = threading.Lock()

    def note_result(self, result: _T) -> _T:
        """Note an export's result (both kinds name it SUCCESS or FAILURE) and return it."""
        failed = getattr(result, "name", "") != "SUCCESS"
        with self._lock:
            changed, self._away = failed != self._away, failed
        if changed and not self._quiet and failed:
            logger.warning("the OTLP collector at %s accepts no data: traces and metrics are dropped", self._endpoint)
        elif changed and not self._quiet:
            logger.warning("the OTLP collector at %s accepts traces and metrics again", self._endpoint)
        return result


def _traces(service: str, endpoint: str | None, to_console: bool, outage: _Outage) -> tuple[Plugin, Flush]:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
    from temporalio.contrib.opentelemetry import OpenTelemetryPlugin, create_tracer_provider

    # A workflow that is evicted closes its spans from another task; OpenTelemetry calls that a failure.
    logging.getLogger("opentelemetry.context").setLevel(logging.CRITICAL)
    for name in _EXPORTER_LOGS:  # `_Outage` tells what they would tell with each batch
        logging.getLogger(name).setLevel(logging.CRITICAL)
    tracers = create_tracer_provider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    if to_console:
        tracers.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))
    if endpoint is not None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        class Spans(OTLPSpanExporter):
            def export(self, spans: Any) -> Any:
                return outage.note_result(super().export(spans))

        tracers.add_span_processor(BatchSpanProcessor(Spans(endpoint=endpoint, insecure=_is_insecure(endpoint))))
    trace.set_tracer_provider(tracers)
    return OpenTelemetryPlugin(add_temporal_spans=True), tracers.force_flush


def _metrics(service: str, endpoint: str, outage: _Outage) -> tuple[Runtime, Flush]:
    from opentelemetry import metrics
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from temporalio.runtime import OpenTelemetryConfig, Runtime, TelemetryConfig

    class Metrics(OTLPMetricExporter):
        def export(self, *given: Any, **more: Any) -> Any:
            return outage.note_result(super().export(*given, **more))

    exporter = Metrics(endpoint=endpoint, insecure=_is_insecure(endpoint))
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=10_000)
    # Numbers of two workers must not be taken for two tellings of one.
    instance = {"service.instance.id": f"{os.getpid()}@{socket.gethostname()}"}
    resource = Resource.create({"service.name": service, **instance})
    meters = MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(meters)
    runtime = Runtime(telemetry=TelemetryConfig(metrics=OpenTelemetryConfig(url=endpoint), global_tags=instance))
    return runtime, meters.force_flush


def _is_insecure(endpoint: str) -> bool:
    return not endpoint.startswith("https://")
