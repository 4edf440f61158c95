"""The question of a check, and its answer. Both sides of the port build on these values."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from models.base import (
    FRACTION_ANSWERED,
    Count,
    Duration,
    GpuCount,
    Model,
    Name,
    Text,
    Time,
    exact_fraction,
    fraction_text,
)
from models.cluster.island import Island
from models.cluster.sources import KubernetesSource, PrometheusSource, SlurmSource
from models.texts import brief, gpus_text


def _part(value: Any) -> Fraction:
    number = Fraction(value[:100]) if isinstance(value, str) and "/" in value else exact_fraction(value)
    if not 0 < number <= 1:
        raise ValueError(f"must be above 0 and at most 1, not {brief(value)}")
    return number


EnoughOf = Annotated[
    Fraction,
    BeforeValidator(_part),
    PlainSerializer(fraction_text, return_type=str),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, mode="validation"),
    FRACTION_ANSWERED,
]
"""An exact number in (0, 1]: the share of the whole that is enough."""


class Colour(StrEnum):
    GREEN = "green"
    RED = "red"
    UNKNOWN = "unknown"


class CheckKind(StrEnum):
    COMMAND = "command"
    """`run`: exit 0 is green, a time-out unknown, anything else red."""
    HTTP = "http"
    """GET `url`: 2xx is green, no answer unknown, anything else red."""
    PROMQL = "promql"
    """`query` at the Prometheus `connection`: its one number lies within `at_least` and `at_most`."""
    HEALTHY = "healthy"
    """Healthy GPUs are at least `share` of the installed ones, by the cluster's health source."""
    CONTIGUOUS = "contiguous"
    """One island holds a block of `gpus` on wholly healthy nodes, by the cluster's health source."""
    SUPPLY = "supply"
    """`run` prints, or `url` returns, a JSON object of numbers: each is at least the amount in `needs`."""
    CAPACITY = "capacity"
    """At least `gpus` are installed, by the health source, or by what `run` prints or `url` returns: {"islands":
    [{"name": ..., "total_gpus": ..., "healthy_gpus": ...}]}. The answer has these islands.
    """


class CheckOrder(Model):
    """A question to the world, with everything filled in and nothing secret. Its kind decides which fields it needs."""

    cluster: Name
    name: Text = Field(min_length=1, max_length=200)
    kind: CheckKind
    run: tuple[str, ...] = ()
    url: str = ""
    query: str = ""
    connection: Name = "local"
    """promql: a name in the worker's file of Prometheus servers."""
    at_least: float | None = None
    at_most: float | None = None
    share: EnoughOf | None = None
    gpus: GpuCount = 0
    needs: dict[str, Count] = Field(default_factory=dict)
    slurm: SlurmSource | None = None
    prometheus: PrometheusSource | None = None
    kubernetes: KubernetesSource | None = None
    """healthy, contiguous, capacity ask `slurm`, else `prometheus`, else `kubernetes`, else the ledger's samples."""
    islands: tuple[Island, ...] = ()
    """The islands as entered. A capacity check takes them if the ledger has no sample of the cluster."""
    limit: Duration = timedelta(seconds=60)


class CheckAnswer(Model):
    """The world's answer. `number`: the measured value, in the unit of the check; None: nothing was measured."""

    colour: Colour
    said: str
    number: float | None = None
    at: Time
    islands: tuple[Island, ...] = ()
    """capacity: the islands that the source reported."""


def capacity_answer(order: CheckOrder, islands: tuple[Island, ...], at: datetime) -> CheckAnswer:
    """Compare the GPUs installed in these islands with the order, whoever counted them."""
    installed = sum(island.total_gpus for island in islands)
    colour = Colour.GREEN if installed >= order.gpus else Colour.RED
    sentence = f"{gpus_text(installed)} installed, {order.gpus} required"
    return CheckAnswer(colour=colour, said=sentence, number=float(installed), at=at, islands=islands)
