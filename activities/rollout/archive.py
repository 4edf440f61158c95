"""Archives what happens, in the ledger, as it happens."""

from __future__ import annotations

from temporalio import activity

from activities import metrics as meters
from activities.clock import Clock, utc_now
from activities.failures import translate_errors
from activities.ports.registry import RolloutsPort
from models.audit_chain import AuditEntry, AuditKind
from models.rollout.messages import RecordRequest


class ArchiveActivities:
    def __init__(self, rollouts: RolloutsPort, now: Clock = utc_now) -> None:
        self._now = now
        self._rollouts = rollouts

    @activity.defn(name="record", no_thread_cancel_exception=True)
    def record(self, request: RecordRequest) -> None:
        """Archive the entries, once per key, and show the stage in the registry."""
        with translate_errors():
            # Measured before: entries that do not get through are late, and are tried again.
            for entry in request.entries[:1]:
                meters.record_archive_age(entry.cluster, (self._now() - entry.at).total_seconds())
            self._rollouts.record(request)
            for entry in request.entries:
                _measure(entry)
            for entry in request.entries[:1]:
                meters.record_archive_age(entry.cluster, 0)


def _measure(entry: AuditEntry) -> None:
    if entry.kind is not AuditKind.TRANSITION:
        return
    after = str(entry.data.get("after"))
    of = {"cluster": entry.cluster}
    meters.transitions.add(1, {**of, "from": str(entry.data.get("before")), "to": after})
    if after == "rolling_back":
        meters.rollbacks.add(1, {**of, "why": "breach" if entry.actor == "guard" else "undo"})
    if isinstance(seconds := entry.data.get("breach_seconds"), int | float):
        meters.reaction.record(float(seconds), of)
