"""Metrics: the numbers a dashboard shows. Recorded in activities, never in workflows (replay)."""

from __future__ import annotations

from opentelemetry import metrics

from models.cluster.derived_buffer import Derived
from models.cluster.readings import Observation
from models.digests import Lane
from models.requests.state import RequestStage
from models.rollout.effects import EffectKind

_meter = metrics.get_meter("backstop")
_promised = _meter.create_gauge("backstop.promised_gpus", unit="{gpu}", description="Assigned quota by cluster")
_backing = _meter.create_gauge("backstop.backing_gpus", unit="{gpu}", description="Healthy GPUs behind quota")
_healthy = _meter.create_gauge("backstop.healthy_gpus", unit="{gpu}", description="GPUs a job could be placed on")
_flex = _meter.create_gauge("backstop.flex_gpus", unit="{gpu}", description="Surplus and unused quota")
_phantom = _meter.create_gauge("backstop.phantom_gpus", unit="{gpu}", description="Promised without a healthy GPU")
_buffer = _meter.create_gauge("backstop.buffer_gpus", unit="{gpu}", description="Unpromised as health history asks")
_stage = _meter.create_gauge("backstop.stage", description="1 for the stage a cluster's rollout is in")
_transitions = _meter.create_counter("backstop.transitions", description="Stage changes")
_rollbacks = _meter.create_counter("backstop.rollbacks", description="Rollbacks begun, by reason")
_effects = _meter.create_counter("backstop.effects", description="Effects that landed")
_requests = _meter.create_counter("backstop.requests", description="Requests for more quota, by what became of them")
_messages = _meter.create_counter("backstop.messages", description="Messages that were sent to people")
_together = _meter.create_counter("backstop.notices_together", description="Notices sent in a message with others")
_held_back = _meter.create_counter("backstop.notices_held_back", description="Notices that waited, by why")
_reaction = _meter.create_histogram(
    "backstop.breach_to_rollback", unit="s", description="From the breach to the quota restored"
)


def request(cluster: str, stage: RequestStage) -> None:
    _requests.add(1, {"cluster": cluster, "stage": stage.value})


def message(notices: int) -> None:
    _messages.add(1)
    if notices > 1:
        _together.add(notices)


def held_back(lane: Lane) -> None:
    _held_back.add(1, {"lane": lane.value})


def cluster_gauges(seen: Observation) -> None:
    """The capacity numbers of one look."""
    at, now = {"cluster": seen.cluster}, seen.now
    _promised.set(now.assigned_gpus, at)
    _backing.set(now.backed_gpus, at)
    _flex.set(now.flex_gpus, at)
    _phantom.set(max(0, now.assigned_gpus - now.backed_gpus), at)
    if seen.health is not None:
        _healthy.set(seen.health.healthy_gpus, at)


def buffer(cluster: str, derived: Derived) -> None:
    _buffer.set(derived.needed, {"cluster": cluster})


def transition(cluster: str, before: str, after: str) -> None:
    _stage.set(0, {"cluster": cluster, "stage": before})
    _stage.set(1, {"cluster": cluster, "stage": after})
    _transitions.add(1, {"cluster": cluster, "from": before, "to": after})


def rollback(cluster: str, why: str) -> None:
    _rollbacks.add(1, {"cluster": cluster, "why": why})


def breach_answered(cluster: str, seconds: float) -> None:
    _reaction.record(seconds, {"cluster": cluster})


def effect(cluster: str, kind: EffectKind) -> None:
    _effects.add(1, {"cluster": cluster, "effect": kind.value})
