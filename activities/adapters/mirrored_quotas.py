"""Quotas of clusters that another system holds, beside the ledger that mirrors them: what Git and Kueue have in common.

Of other clusters it says and does what the ports behind it do.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar, cast

from activities.adapters.ledger.facade import Ledger
from activities.adapters.ledger.scheduler_mirror import MirroredCluster, differences, quotas_as_seen, wanted_gpus
from activities.adapters.source_threads import Faults, SourceThreads, sentence
from activities.ports.by_cluster import ByCluster
from activities.ports.quota_systems import QuotaPort, SchedulerPort
from models.cluster.fleet_file import ClusterInSlurm
from models.cluster.readings import ForeignChange, QuotaReading
from models.cluster.sources import QuotaSource, SlurmSource
from models.errors import Refusal, Unavailable
from models.questions import SchedulerCheck
from models.rollout.effects import Change, Receipt
from models.texts import some_of

TRIES = 20
"""Attempts at one effect or reading; each fails if somebody else changes the system meanwhile."""
_AT_ONCE = 8
"""The most clusters that are read at the same time."""


class SystemSight(Protocol):
    """A system's quotas, as they were read at one moment."""

    @property
    def gpus(self) -> Mapping[str, int]: ...

    @property
    def pending(self) -> Mapping[str, int]:
        """The quotas that we wrote and the ledger has not kept yet, by team."""


_Source = TypeVar("_Source")
_Sight = TypeVar("_Sight", bound=SystemSight)


class MirroredQuotas(ABC, Generic[_Source, _Sight]):
    """QuotaPort and SchedulerPort but for writing. `every`: how old a reading may be."""

    system: ClassVar[str]
    """The name of the system in checks."""
    what: ClassVar[str]
    """The name of the system's readings in faults."""

    def __init__(self, ledger: Ledger, others: QuotaPort, schedulers: SchedulerPort, every: timedelta) -> None:
        self._ledger, self._book = ledger, ledger.schedulers
        self._others, self._schedulers, self._every = others, schedulers, every
        self._done: dict[str, float] = {}
        self._faults = Faults(ledger.now)
        self._threads = SourceThreads(partial(self._faults.note_fault, self.what))

    @abstractmethod
    def _sources(self, clusters: Sequence[str] | None = None) -> Mapping[str, _Source]:
        """Return the sources of those of these clusters (or of all) whose quotas the system holds."""

    @abstractmethod
    def _look_at_system(self, cluster: str, source: _Source) -> _Sight:
        """Read the system. Errors: Unavailable, Refusal."""

    @abstractmethod
    def _actors(self, sight: _Sight, source: _Source, teams: Sequence[str]) -> dict[str, str]:
        """Return who changed each of these quotas."""

    @abstractmethod
    def _barred_reason(self, cluster: str, source: _Source, sight: _Sight) -> str:
        """Say what bars a write; empty: nothing."""

    def _source(self, cluster: str) -> _Source | None:
        return self._sources([cluster]).get(cluster)

    def _sync(self, cluster: str, source: _Source) -> _Sight:
        """Bring the ledger to the system's values; what others changed there is a change by others."""
        for _ in range(TRIES):
            seen = self._book.mirrored_cluster(cluster)
            sight = self._look_at_system(cluster, source)
            held = quotas_as_seen(sight.gpus, sight.pending, seen)
            foreign, landed = differences(seen, held)
            if not foreign and not landed and all(team in seen.limits for team in held):
                return sight
            if self._book.take(cluster, seen, held, foreign, landed, self._actors(sight, source, foreign)):
                return sight
        raise Unavailable(f"the quotas of {cluster} change faster than Backstop can read them")

    # --- QuotaPort ------------------------------------------------------------------------------

    def read(self, cluster: str) -> QuotaReading:
        return self._read_of(cluster, self._source(cluster))

    def _read_of(self, cluster: str, source: _Source | None) -> QuotaReading:
        if source is not None:
            self._sync(cluster, source)
        return self._others.read(cluster)

    def look(self, cluster: str) -> QuotaReading:
        return self._look_of(cluster, self._source(cluster))

    def _look_of(self, cluster: str, source: _Source | None) -> QuotaReading:
        if source is None:
            return self._others.look(cluster)
        unread = self._threads.read({cluster: partial(self._sync, cluster, source)}).get(cluster, "")
        return self._others.last_known(cluster).but(unread=unread)

    def last_known(self, cluster: str) -> QuotaReading:
        return self._others.last_known(cluster)

    def readings(self, clusters: Sequence[str]) -> ByCluster[QuotaReading]:
        return self._readings_of(clusters, self._sources(clusters))

    def _readings_of(self, clusters: Sequence[str], sources: Mapping[str, _Source]) -> ByCluster[QuotaReading]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = dict(zip(sources, pool.map(self._why_unread, sources, sources.values()), strict=True))
        wrong = {cluster: why for cluster, why in answers.items() if why}
        readings = self._others.readings([name for name in clusters if name not in wrong])
        readings.senseless |= wrong
        return readings

    def _why_unread(self, cluster: str, source: _Source) -> str:
        try:
            self._sync(cluster, source)
        except (Refusal, Unavailable) as error:  # a silent one must not cost the others their answer
            return error.message
        return ""

    def barred_reason(self, cluster: str) -> str:
        source = self._source(cluster)
        if source is None:
            return self._others.barred_reason(cluster)
        return self._barred_reason(cluster, source, self._sync(cluster, source))

    def versions(self, clusters: Sequence[str]) -> dict[str, str]:
        return self._versions_of(clusters, self._sources(clusters))

    def _versions_of(self, clusters: Sequence[str], sources: Mapping[str, _Source]) -> dict[str, str]:
        now = time.monotonic()
        due = [c for c in sources if now - self._done.get(c, -1e9) >= self._every.total_seconds()]
        self._done |= dict.fromkeys(due, now)
        self._threads.read({cluster: partial(self._sync, cluster, sources[cluster]) for cluster in due})
        return dict(self._others.versions(clusters))

    def changes(self, cluster: str, after: int) -> tuple[ForeignChange, ...]:
        return self._others.changes(cluster, after)

    def _rehearse_begun(self, change: Change, sight: _Sight) -> MirroredCluster:
        """Rehearse an effect that the system has, wholly or in part. Errors: as SchedulerBook.rehearse_begun."""
        theirs = self.changes(change.cluster, change.expected_generation or 0)
        return self._book.rehearse_begun(change, sight.gpus, theirs)

    def _keep_effect(self, sight: _Sight, after: MirroredCluster, change: Change) -> Receipt:
        """Keep the effect in the ledger, with the system's present values as last seen."""
        receipt = self._others.apply(change)
        before = {team: limit.gpus for team, limit in after.limits.items()}
        moved = {t: gpus for t, gpus in wanted_gpus(after).items() if t in sight.gpus and gpus != before.get(t)}
        self._book.note(change.cluster, moved, ours=True)
        return receipt

    # --- SchedulerPort --------------------------------------------------------------------------

    def _limits_back(
        self, cluster: str, sight: _Sight, *, restore: bool
    ) -> tuple[dict[str, tuple[int | None, int | None]], dict[str, int]]:
        """Return the present and first value of each limit that is to be given back, and the quotas to write for it.

        Errors: Refusal while a rollout is open.
        """
        standing = self._book.mirrored_cluster(cluster)
        if standing.rollout is not None:
            raise Refusal(f"rollout {standing.rollout} is open in {cluster}: close or abort it first")
        limits = standing.limits.items() if restore else ()
        back = {n: (limit.gpus, limit.first) for n, limit in limits if limit.ours and limit.gpus != limit.first}
        return back, {team: first for team, (_, first) in back.items() if first is not None and team in sight.gpus}

    def describe(self, cluster: str, source: SlurmSource) -> ClusterInSlurm:
        return self._schedulers.describe(cluster, source)

    def quotas_at(self, cluster: str, source: QuotaSource) -> dict[str, int]:
        if source.field != self.system:
            return self._schedulers.quotas_at(cluster, source)
        return dict(self._look_at_system(cluster, cast("_Source", source)).gpus)

    def check(self) -> dict[str, SchedulerCheck]:
        sources = self._sources()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            checks = dict(zip(sources, pool.map(self._check_one, sources, sources.values()), strict=True))
        return {**self._schedulers.check(), **checks}

    def _check_one(self, cluster: str, source: _Source) -> SchedulerCheck:
        try:
            sight = self._sync(cluster, source)
            barred, standing = self._barred_reason(cluster, source, sight), self._book.mirrored_cluster(cluster)
        except Exception as error:  # one that cannot be checked must not stop the checks of others
            return SchedulerCheck(system=self.system, wrong=sentence(error))
        wanted = wanted_gpus(standing)
        astray = sorted(team for team, gpus in sight.gpus.items() if wanted.get(team) != gpus)
        text = f"quotas that differ from what Backstop wants: {some_of(astray)}" if astray else ""
        return SchedulerCheck(system=self.system, wrong=text, barred=barred)
