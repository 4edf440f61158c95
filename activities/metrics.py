"""Metrics: the numbers a dashboard shows. Recorded in activities, never in workflows (replay).

The watch alone reports present states (a rollout's stage, a cluster's shortage), which it sees again in each round. It
moves between workers, so a worker exports what it saw for some rounds only: else old states of weeks ago would stand
beside the present ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions
from opentelemetry.metrics import Observation as Measured

from models.cluster.readings import Observation
from models.rollout.effects import EffectKind

_meter = metrics.get_meter("backstop")
_promised = _meter.create_gauge("backstop.promised_gpus", unit="{gpu}", description="Assigned quota by cluster")
_backing = _meter.create_gauge("backstop.backing_gpus", unit="{gpu}", description="Healthy GPUs behind quota")
_healthy = _meter.create_gauge("backstop.healthy_gpus", unit="{gpu}", description="GPUs fit to run a job, busy or not")
_flex = _meter.create_gauge("backstop.flex_gpus", unit="{gpu}", description="Surplus and unused quota")
_phantom = _meter.create_gauge(
    "backstop.phantom_gpus", unit="{gpu}", description="GPUs promised without a healthy GPU behind them"
)
buffer = _meter.create_gauge(
    "backstop.buffer_gpus", unit="{gpu}", description="GPUs kept out of quotas for hardware failures"
)
transitions = _meter.create_counter("backstop.transitions", description="Stage changes")
rollbacks = _meter.create_counter("backstop.rollbacks", description="Rollbacks begun, by reason")
_effects = _meter.create_counter("backstop.effects", description="Effects that landed")
requests = _meter.create_counter("backstop.requests", description="Requests for more quota, by outcome")
_messages = _meter.create_counter("backstop.messages", description="Messages that were sent to people")
_together = _meter.create_counter("backstop.notices_together", description="Notices sent in a message with others")
held_back = _meter.create_counter("backstop.notices_held_back", description="Notices that waited, by reason")
reaction = _meter.create_histogram(
    "backstop.breach_to_rollback", unit="s", description="Time from a breach to the lowered quotas"
)
_rounds = _meter.create_counter(
    "backstop.watch_rounds", description="Rounds in which the watch could read health and quotas"
)
_pushes = _meter.create_histogram(
    "backstop.push_to_look", unit="s", description="Time from a push of a cluster's health until the watch has read it"
)
seal_age = _meter.create_gauge("backstop.seal_age", unit="s", description="Time since the archive was last sealed")
_ROUNDS_KEPT, _LEAST_SECONDS = 4, 60.0
_ARCHIVE_SECONDS = 180.0
"""Seconds for which a delay is shown, longer than the time between two tries of a failing archive write."""


class _Seen:
    """A gauge of the last number seen of each cluster."""

    def __init__(self, name: str, unit: str, description: str) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, float, dict[str, str]]] = {}
        _meter.create_observable_gauge(name, [self._measure], unit, description)

    def see(self, cluster: str, value: float | None, seconds: float, **more: str) -> None:
        """Export the value for that long, in place of the former one; None: export none."""
        with self._lock:
            if value is None:
                self._seen.pop(cluster, None)
            else:
                self._seen[cluster] = value, time.monotonic() + seconds, more

    def _measure(self, _: CallbackOptions) -> list[Measured]:
        now = time.monotonic()
        with self._lock:
            self._seen = {cluster: seen for cluster, seen in self._seen.items() if seen[1] > now}
            return [Measured(value, {"cluster": cluster, **more}) for cluster, (value, _, more) in self._seen.items()]


_stage = _Seen("backstop.stage", "", "1 for the stage of a cluster's open rollout")
_unbacked = _Seen(
    "backstop.unbacked_gpus", "{gpu}", "GPUs that a guarded rollout promises without a healthy GPU behind them"
)
_health_age = _Seen("backstop.health_age", "s", "Time since the last health sample of a cluster with an open rollout")
_archive_delay = _Seen("backstop.archive_delay", "s", "Age of the oldest entry that is not archived yet; 0: none")


class SeenRollout(NamedTuple):
    """An open rollout as a round of the watch saw it; None: not known, or (unbacked) not guarded."""

    cluster: str
    stage: str
    unbacked_gpus: int | None
    health_age_seconds: float | None


def record_watch(shard: int, interval_seconds: float, seen: Iterable[SeenRollout]) -> None:
    """Record a round of the watch in which it could look."""
    _rounds.add(1, {"shard": str(shard)})
    seconds = max(_LEAST_SECONDS, _ROUNDS_KEPT * interval_seconds)
    for each in seen:
        _stage.see(each.cluster, 1, seconds, stage=each.stage)
        _unbacked.see(each.cluster, each.unbacked_gpus, seconds)
        _health_age.see(each.cluster, each.health_age_seconds, seconds)


def record_push(seconds: float) -> None:
    """Record that the watch has looked at a cluster so long after it was asked to."""
    _pushes.record(seconds)


def record_archive_age(cluster: str, oldest_seconds: float) -> None:
    """Record the age of the oldest entry that is on its way into the archive; 0: all have arrived."""
    _archive_delay.see(cluster, max(0.0, oldest_seconds), _ARCHIVE_SECONDS)


def record_message(notices: int) -> None:
    _messages.add(1)
    if notices > 1:
        _together.add(notices)


def record_cluster(seen: Observation) -> None:
    """Record the capacity numbers of one look."""
    at, now = {"cluster": seen.cluster}, seen.now
    _promised.set(now.assigned_gpus, at)
    _backing.set(now.backed_gpus, at)
    _flex.set(now.flex_gpus, at)
    _phantom.set(now.phantom_gpus, at)
    if seen.health is not None:
        _healthy.set(seen.health.healthy_gpus, at)


def record_effect(cluster: str, kind: EffectKind) -> None:
    _effects.add(1, {"cluster": cluster, "effect": kind.value})
