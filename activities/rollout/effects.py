"""Effects on the quota system: one fenced call each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from temporalio import activity

from activities import metrics as meters
from activities.clock import Clock, utc_now
from activities.failures import translate_errors
from activities.ports.clusters import ClusterPorts
from activities.rollout.evidence import EvidenceRoom, MayMove, Standing
from models.audit_chain import BACKSTOP, AuditEntry, AuditKind
from models.errors import AwaitsMerge, BackstopError, BlastRadius, Conflict, Drift, Refusal, Unavailable
from models.rollout.effects import Change, EffectKind, Receipt
from models.rollout.messages import EffectRequest


class QuotaActivities:
    """Applies effects. `evidence`: set if keys are configured. Without required tickets the request is trusted."""

    def __init__(self, ports: ClusterPorts, evidence: EvidenceRoom | None = None, now: Clock = utc_now) -> None:
        self._ports = ports
        self._evidence = evidence
        self._now = now

    @activity.defn(name="apply_effect", no_thread_cancel_exception=True)
    def apply_effect(self, request: EffectRequest) -> Receipt:
        """Apply the effect or, in shadow, find it possible.

        The blast radius is booked before the write, once per fence, and given back if the write is refused. Errors:
        those of QuotaPort.apply, and BlastRadius; Refusal if nothing in the ledger allows it.
        """
        with translate_errors(), self._ports.one_moment(request.change.cluster):
            if request.shadow:
                return self._rehearse(request)
            if self._evidence is not None and self._evidence.warrants.is_required:
                return self._apply_proven(request, self._evidence)
            change = request.change
            if request.baseline is not None and change.refits:  # accepted values, kept before we write beside them
                self._ports.registry.keep_baseline(change.fence, request.baseline)
            receipt = self._write(change, MayMove(request.limit_gpus, request.limit_day_gpus), request.at)
            if request.baseline is not None and not receipt.conflicts:
                self._ports.registry.keep_baseline(change.fence, request.baseline)
            meters.record_effect(change.cluster, change.kind)
            return receipt

    def _write(self, change: Change, limits: MayMove, at: datetime) -> Receipt:
        if limits.hour_gpus is not None and change.moved_gpus:
            self._ports.registry.reserve_moves(
                change.fence, change.cluster, change.moved_gpus, limits.hour_gpus, at, limits.day_gpus
            )
        try:
            return self._ports.quotas.apply(change)
        except Unavailable:
            raise  # it may have landed
        except BackstopError:
            self._ports.registry.give_back_moves(change.fence)
            raise

    # --- with evidence ------------------------------------------------------------------------------

    def _apply_proven(self, request: EffectRequest, evidence: EvidenceRoom) -> Receipt:
        """Keep the justification before the write: an answer that is lost leaves a trace."""
        change = request.change
        before = evidence.repeated_proof(change)
        if before is not None:
            receipt = self._ports.quotas.apply(change)  # its stored receipt
            self._extend_baseline(change, before.after, receipt)
            return receipt
        try:
            standing = evidence.find_standing(request)
        except Refusal as error:
            self._tell_of_refused(change, error)
            raise
        evidence.note(change, standing.proof, "called")
        receipt = self._apply_standing(change, standing, evidence)
        self._extend_baseline(change, standing.proof.after, receipt)
        meters.record_effect(change.cluster, change.kind)
        return receipt

    def _apply_standing(self, change: Change, standing: Standing, evidence: EvidenceRoom) -> Receipt:
        if standing.proof.baseline is not None:  # the quotas as an approved plan found them
            self._ports.registry.keep_baseline(change.fence, standing.proof.baseline)
        try:
            return self._write(change, standing.limits, self._now())
        except Unavailable:
            raise
        except (Drift, BlastRadius, Conflict, AwaitsMerge):
            evidence.note(change, standing.proof, "refused")
            raise
        except BackstopError:
            evidence.note(change, standing.proof, "failed")
            raise

    def _extend_baseline(self, change: Change, after: Mapping[str, int] | None, receipt: Receipt) -> None:
        """Add a grant to the baseline, which an undo restores."""
        opened = self._ports.registry.open_rollout_of(change.cluster)
        if after is None or receipt.conflicts or opened is None or opened.rollout != change.fence.rollout:
            return
        self._ports.registry.keep_baseline(change.fence, opened.baseline.with_values(dict(after)))

    def _tell_of_refused(self, change: Change, error: Refusal) -> None:
        fence = change.fence
        entry = AuditEntry(
            key=f"unproven/{fence.rollout}/{fence.counter}/{change.kind}"[:200],
            cluster=change.cluster,
            rollout=fence.rollout,
            at=self._now(),
            kind=AuditKind.EFFECT,
            actor=BACKSTOP,
            text=f"refused: {error.message}",
            refused=True,
            data={"effect": change.kind.value, "fence": fence.counter},
        )
        self._ports.registry.archive([entry])

    def _rehearse(self, request: EffectRequest) -> Receipt:
        """Return the receipt that the effect would have; the quota system is only read."""
        change: Change = request.change
        reading = self._ports.quotas.read(change.cluster)
        reserved = change.reserve.freed_gpus if change.reserve is not None else 0
        return Receipt(
            cluster=change.cluster,
            kind=change.kind,
            fence=change.fence,
            at=request.at,
            generation=reading.generation,
            before={write.team: write.expected_gpus for write in change.writes},
            after={w.team: w.gpus for w in change.writes},
            reserved_gpus=reserved if change.kind is EffectKind.RESERVE else 0,
            flex_gpus=change.flex_gpus,
            shadow=True,
        )
