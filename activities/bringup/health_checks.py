"""Answers the checks of a bring-up that Backstop's own sources of health can answer, and passes on all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from activities.clock import Clock, utc_now
from activities.ports.bringup import CheckPort
from activities.ports.clusters import HealthPort
from models.bringup.checks import CheckAnswer, CheckKind, CheckOrder, Colour, capacity_answer
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.sources import KubernetesSource, PrometheusSource, SlurmSource
from models.errors import BackstopError
from models.texts import gpus_text

_OWN = (CheckKind.HEALTHY, CheckKind.CONTIGUOUS, CheckKind.CAPACITY)


@dataclass(eq=False)
class OwnHealth:
    """Checks by the cluster's own sources, which answer for now. `health`: the ledger's samples, without a source."""

    slurm: Callable[[str, SlurmSource], ClusterSpec]
    prometheus: Callable[[str, PrometheusSource], tuple[Island, ...]]
    kubernetes: Callable[[str, KubernetesSource], tuple[Island, ...]]
    health: HealthPort
    others: CheckPort
    now: Clock = utc_now

    def check(self, order: CheckOrder) -> CheckAnswer:
        if order.kind not in _OWN or order.run or order.url:
            return self.others.check(order)
        now = self.now()
        try:
            islands = self._islands(order)
        except BackstopError as error:
            return CheckAnswer(colour=Colour.UNKNOWN, said=error.message, at=now)
        return _judge(order, islands, now)

    def _islands(self, order: CheckOrder) -> tuple[Island, ...]:
        """Return the present islands; for a cluster without a source the ordered ones (for capacity only)."""
        if order.slurm is not None:
            return self.slurm(order.cluster, order.slurm).islands
        if order.prometheus is not None:
            return self.prometheus(order.cluster, order.prometheus)
        if order.kubernetes is not None:
            return self.kubernetes(order.cluster, order.kubernetes)
        samples = self.health.read([order.cluster])
        if order.cluster in samples:
            return samples[order.cluster].islands
        return order.islands if order.kind is CheckKind.CAPACITY else ()


def _judge(order: CheckOrder, islands: tuple[Island, ...], now: datetime) -> CheckAnswer:
    def answer(colour: Colour, sentence: str, number: float | None = None) -> CheckAnswer:
        return CheckAnswer(colour=colour, said=sentence, number=number, at=now)

    if not islands:
        return answer(Colour.UNKNOWN, f"the health of {order.cluster} is unknown: no source reports it")
    match order.kind:
        case CheckKind.CAPACITY:
            return capacity_answer(order, islands, now)
        case CheckKind.HEALTHY:
            assert order.share is not None
            there, well = (sum(getattr(i, field) for i in islands) for field in ("total_gpus", "healthy_gpus"))
            share = 0.0 if there == 0 else well / there
            needed = f"{float(order.share) * 100:.4g} % required"
            sentence = f"{well} of {gpus_text(there)} healthy ({share * 100:.3g} %); {needed}"
            return answer(_colour_of(well >= order.share * there > 0), sentence, share)
        case _:
            rooms = {i.name: i.healthy_gpus if i.block_gpus is None else i.block_gpus for i in islands}
            largest = max(rooms, key=lambda name: (rooms[name], name))
            sentence = f"the largest block has {gpus_text(rooms[largest])}, in {largest}; {order.gpus} required"
            return answer(_colour_of(rooms[largest] >= order.gpus), sentence, rooms[largest])


def _colour_of(enough: bool) -> Colour:
    return Colour.GREEN if enough else Colour.RED
