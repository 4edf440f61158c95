"""OpenTelemetry: one provider for traces, one for metrics, and Temporal's own metrics to the same place."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
from temporalio.client import Plugin
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin, create_tracer_provider
from temporalio.runtime import OpenTelemetryConfig, Runtime, TelemetryConfig

TRACE = "BACKSTOP_TRACE"
"""`console`: spans go to the error stream (the CLI's --trace)."""


@contextmanager
def spoken(command: str) -> Iterator[tuple[tuple[Plugin, ...], Runtime | None]]:
    """A root span around one command of a person, where tracing is asked for; it is flushed at the end."""
    plugins, runtime, flush = from_environment("backstop-cli")
    try:
        if not plugins:
            yield plugins, runtime
            return
        with trace.get_tracer("backstop").start_as_current_span(f"backstop {command}"):
            yield plugins, runtime
    finally:
        flush()


def from_environment(service: str) -> tuple[tuple[Plugin, ...], Runtime | None, Callable[[], None]]:
    """`set_up` by OTEL_EXPORTER_OTLP_ENDPOINT and BACKSTOP_TRACE."""
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None
    return set_up(service, endpoint, os.environ.get(TRACE, "") == "console")


def set_up(
    service: str, otlp_endpoint: str | None, to_console: bool
) -> tuple[tuple[Plugin, ...], Runtime | None, Callable[[], None]]:
    """Client plugins, the Temporal runtime and a function that flushes; nothing where nothing is configured.

    `otlp_endpoint`: an OTLP gRPC endpoint such as http://127.0.0.1:4317.
    """
    if otlp_endpoint is None and not to_console:
        return (), None, lambda: None
    # A workflow that is evicted closes its spans from another task; OpenTelemetry calls that a failure.
    logging.getLogger("opentelemetry.context").setLevel(logging.CRITICAL)
    logging.getLogger("opentelemetry.sdk.trace.export").setLevel(logging.ERROR)
    resource = Resource.create({"service.name": service})
    tracers = create_tracer_provider(resource=resource)
    flushes: list[Callable[[], object]] = [tracers.force_flush]
    runtime = None
    if to_console:
        tracers.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))
    if otlp_endpoint is not None:
        insecure = not otlp_endpoint.startswith("https://")
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=otlp_endpoint, insecure=insecure)))
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=otlp_endpoint, insecure=insecure), export_interval_millis=10_000
        )
        meters = MeterProvider(metric_readers=[reader], resource=resource)
        metrics.set_meter_provider(meters)
        flushes.append(meters.force_flush)
        runtime = Runtime(telemetry=TelemetryConfig(metrics=OpenTelemetryConfig(url=otlp_endpoint)))
    trace.set_tracer_provider(tracers)

    def flush() -> None:
        for one in flushes:
            one()

    return (OpenTelemetryPlugin(add_temporal_spans=True),), runtime, flush
