"""Calls that go wrong between a worker and a real quota system.

A fault waits for one effect of one cluster. What it does to the call is one of five things that a network
and a dying worker can do; the quota system behind it is the real one and knows nothing of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.ports.by_cluster import ByCluster
from activities.ports.quota_systems import QuotaPort
from models.cluster.readings import ForeignChange, QuotaReading
from models.errors import BackstopError, Refusal, Unavailable
from models.rollout.effects import Change, EffectKind, Receipt

Outcome = Receipt | BackstopError
Failure = Callable[[], Exception]


@dataclass
class Tally:
    """The cases that a test run has played, for its last line."""

    database: str
    effects: set[str] = field(default_factory=set)
    modes: set[str] = field(default_factory=set)
    cases: int = 0
    reached: int = 0
    lost: int = 0

    def take(self, effects: list[str], modes: list[str]) -> None:
        self.effects.update(effects)
        self.modes.update(modes)
        self.cases += len(effects)

    def __str__(self) -> str:
        return (
            f"effects x failure modes: {len(self.effects)} x {len(self.modes)} on {self.database}"
            f" = {self.cases} cases, {self.reached} faults reached, {self.lost} lost"
        )


class Way(StrEnum):
    NEVER_LANDED = "never landed"
    ANSWER_LOST = "answer lost"
    TWICE = "twice"
    AT_ONCE = "twice at once"
    LATE = "late"
    """The call is kept, as a worker keeps it that hangs before its write."""


def away() -> Exception:
    """Return an error after which the call is repeated, with the same fence."""
    return Unavailable("injected: no answer")


def refused() -> Exception:
    """Return an error after which the call is not repeated."""
    return Refusal("injected: not allowed")


def given_up() -> Exception:
    """Return the error that a workflow gets after the tenth failed attempt, without the three minutes before it."""
    return ApplicationError("injected: no answer, ten times", type="Unavailable", non_retryable=True)


class Fault:
    """A fault of the calls for one effect of one cluster.

    The first `times` calls meet it, all of them until it is mended (None). `beside`: a kept call is
    delivered by another thread at the moment when the cluster's next call is.
    """

    def __init__(self, way: Way, failure: Failure | None = None, times: int | None = 1, beside: bool = False) -> None:
        self.way = way
        self.failure = failure
        self.times = times
        self.beside = beside
        self.reached = 0
        self.kept: list[Change] = []
        self.answers: list[Outcome] = []
        """Of the deliveries that no workflow heard of."""

    def mend(self) -> None:
        self.times = self.reached

    @property
    def over(self) -> bool:
        return self.times is not None and self.reached >= self.times

    @property
    def landed(self) -> bool:
        """A call that met it got through after all, though the workflow never heard of it."""
        return any(isinstance(answer, Receipt) for answer in self.answers)

    def meet(self, change: Change, real: QuotaPort) -> Receipt:
        self.reached += 1
        match self.way:
            case Way.NEVER_LANDED:
                pass
            case Way.ANSWER_LOST:
                self.answers.append(real.apply(change))
            case Way.TWICE:
                self.answers.append(delivered(real, change))
                return real.apply(change)
            case Way.AT_ONCE:
                receipt, other = at_once(real, change, change)
                self.answers.append(other)
                return answered(receipt)
            case Way.LATE:
                self.kept.append(change)
        assert self.failure is not None
        raise self.failure()


class FaultyQuotas:
    """QuotaPort on a real one, with faults on its way."""

    def __init__(self, real: QuotaPort) -> None:
        self.real = real
        self._faults: dict[tuple[str, EffectKind], Fault] = {}
        self.rehearsals_silenced: dict[str, int] = {}
        self.bounds: dict[str, int] = {}
        """Of clusters whose quota system has a limit above all quotas, as a Slurm's root."""
        self.meanwhile: dict[tuple[str, EffectKind], Callable[[], object]] = {}
        """What others do right before an effect lands, once."""

    def inject(self, cluster: str, kind: EffectKind, fault: Fault) -> None:
        self._faults[cluster, kind] = fault

    def silence_rehearsals(self, cluster: str) -> None:
        """The first read of each effect that a shadow rollout rehearses gets no answer."""
        self.rehearsals_silenced[cluster] = 0

    def deliver(self, change: Change) -> Outcome:
        """A kept call gets through at last."""
        return delivered(self.real, change)

    def read(self, cluster: str) -> QuotaReading:
        if cluster in self.rehearsals_silenced:
            call = activity.info()
            if call.activity_type == "apply_effect" and call.attempt == 1:
                self.rehearsals_silenced[cluster] += 1
                raise away()
        return self._bounded(self.real.read(cluster))

    def look(self, cluster: str) -> QuotaReading:
        return self._bounded(self.real.look(cluster))

    def _bounded(self, reading: QuotaReading) -> QuotaReading:
        return reading.model_copy(update={"bound_gpus": self.bounds.get(reading.cluster)})

    def last_known(self, cluster: str) -> QuotaReading:
        return self.real.last_known(cluster)

    def readings(self, clusters: Sequence[str]) -> ByCluster[QuotaReading]:
        return self.real.readings(clusters)

    def barred_reason(self, cluster: str) -> str:
        return self.real.barred_reason(cluster)

    def versions(self, clusters: Sequence[str]) -> dict[str, str]:
        return self.real.versions(clusters)

    def changes(self, cluster: str, after: int) -> tuple[ForeignChange, ...]:
        return self.real.changes(cluster, after)

    def apply(self, change: Change) -> Receipt:
        self.meanwhile.pop((change.cluster, change.kind), lambda: None)()
        fault = self._faults.get((change.cluster, change.kind))
        if fault is not None and not fault.over:
            return fault.meet(change, self.real)
        for late in self._of(change.cluster):
            if late.beside and late.kept and not late.answers:
                answer, other = at_once(self.real, change, late.kept[0])
                late.answers.append(other)
                return answered(answer)
        receipt = self.real.apply(change)
        for late in self._of(change.cluster):
            if change in late.kept:  # right after the retry, before any later effect
                late.answers.append(self.deliver(change))
        return receipt

    def _of(self, cluster: str) -> list[Fault]:
        return [fault for (name, _), fault in self._faults.items() if name == cluster]


def delivered(real: QuotaPort, change: Change) -> Outcome:
    try:
        return real.apply(change)
    except BackstopError as error:
        return error


def at_once(real: QuotaPort, *changes: Change) -> tuple[Outcome, ...]:
    """Deliver the calls by a thread each, at the same time."""
    ready = threading.Barrier(len(changes))

    def deliver(change: Change) -> Outcome:
        ready.wait()
        return delivered(real, change)

    with ThreadPoolExecutor(len(changes)) as threads:
        return tuple(threads.map(deliver, changes))


def answered(outcome: Outcome) -> Receipt:
    if isinstance(outcome, BackstopError):
        raise outcome
    return outcome


class Faulty:
    """Puts faults between a worker that is about to be made and its quotas: `world_of(..., wrapped=Faulty())`."""

    quotas: FaultyQuotas

    def __call__(self, real: QuotaPort) -> FaultyQuotas:
        self.quotas = FaultyQuotas(real)
        return self.quotas
