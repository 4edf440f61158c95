"""Effects on the quota system: one fenced call each."""

from __future__ import annotations

from temporalio import activity

from activities import metrics as meters
from activities.failures import translated
from activities.ports import QuotaPort, RegistryPort
from models.errors import BackstopError, Unavailable
from models.rollout.effects import Change, EffectKind, Receipt
from models.rollout.messages import EffectRequest


class QuotaActivities:
    def __init__(self, quotas: QuotaPort, registry: RegistryPort) -> None:
        self._quotas = quotas
        self._registry = registry

    @activity.defn(name="apply_effect", no_thread_cancel_exception=True)
    def apply_effect(self, request: EffectRequest) -> Receipt:
        """The effect has landed, or (in shadow) is known to have been possible.

        The blast radius is booked before the write, once per fence, and given back where the write is refused.
        Errors: those of QuotaPort.apply, and BlastRadius.
        """
        with translated():
            if request.shadow:
                return self._rehearsed(request)
            change = request.change
            if request.limit_gpus is not None and change.moved_gpus:
                self._registry.reserve_moves(
                    change.fence,
                    change.cluster,
                    change.moved_gpus,
                    request.limit_gpus,
                    request.at,
                    request.limit_day_gpus,
                )
            try:
                receipt = self._quotas.apply(change)
            except Unavailable:
                raise  # it may have landed
            except BackstopError:
                self._registry.give_back_moves(change.fence)
                raise
            if request.baseline is not None and not receipt.conflicts:
                self._registry.keep_baseline(change.fence.rollout, request.baseline)
            meters.effect(change.cluster, change.kind)
            return receipt

    def _rehearsed(self, request: EffectRequest) -> Receipt:
        """What the receipt would be; the quota system is only read."""
        change: Change = request.change
        reading = self._quotas.read(change.cluster)
        reserved = change.reserve.freed_gpus if change.reserve is not None else 0
        return Receipt(
            cluster=change.cluster,
            kind=change.kind,
            fence=change.fence,
            at=request.at,
            generation=reading.generation,
            before={w.team: w.expected_gpus for w in change.writes},
            after={w.team: w.gpus for w in change.writes},
            reserved_gpus=reserved if change.kind is EffectKind.RESERVE else 0,
            flex_gpus=change.flex_gpus,
            shadow=True,
        )
