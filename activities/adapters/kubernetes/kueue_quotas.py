"""Quotas in ClusterQueues, written to the API server, beside the ledger that mirrors them (docs/adr/0121).

As in Git, an effect is written there first and then kept in the ledger: it is rehearsed in the ledger, applied queue by
queue at the versions whose quotas the ledger has, and kept once all queues have it. The annotations of a queue name our
last write to it, with its fence. So a queue that has moved on is read again and judged, a delayed write comes at an old
version and is refused, and what a worker wrote before it died is nobody's change: the next delivery goes on from there,
an undo writes it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from activities.adapters.kubernetes.api import QUEUES, ApiServer, Gone, Managed, Moved, NoSuchKind
from activities.adapters.kubernetes.clusterqueues import (
    FIELD,
    MANAGER,
    LiveQueue,
    applied_objects,
    object_with,
    queue_in,
    quotas_in,
)
from activities.adapters.kubernetes.kubernetes import Kuberneteses
from activities.adapters.ledger.facade import Ledger
from activities.adapters.ledger.scheduler_mirror import MirroredCluster, moves_to, teams_moved
from activities.adapters.mirrored_quotas import TRIES, MirroredQuotas
from activities.ports.quota_systems import QuotaPort, SchedulerPort
from activities.quota_files.yaml_text import WrittenNumber
from models.cluster.sources import KueueSource
from models.errors import Conflict, Drift, Refusal, Unavailable
from models.rollout.effects import Change, EffectKind, Fence, Receipt
from models.texts import some_of

_T = TypeVar("_T")
_VERSIONS = 10
"""Attempts at one queue while only its status changes; a busy queue's status changes each second."""
_INVERSES = (EffectKind.RESTORE, EffectKind.SOFTEN)
_NAMED = 5


class _Sight(NamedTuple):
    """The state of a cluster's queues at one version of the API server."""

    queues: Mapping[str, LiveQueue]
    places: Mapping[str, WrittenNumber]
    pending: Mapping[str, int]
    """The quotas that we wrote and that are not in the ledger yet, by team."""

    @property
    def gpus(self) -> dict[str, int]:
        return {team: place.gpus for team, place in self.places.items()}

    def find_foreign(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of these queues whose quotas another field manager has."""
        return tuple(name for name in sorted(names) if self.queues[name].managers)


class KueueQuotas(MirroredQuotas[KueueSource, _Sight]):
    """QuotaPort and SchedulerPort: those of other clusters, and for clusters that Kueue holds of Kueue and the ledger.

    `every`: how old a reading may be.
    """

    system, what = "kueue", "quotas in Kueue"

    def __init__(
        self,
        ledger: Ledger,
        others: QuotaPort,
        schedulers: SchedulerPort,
        kuberneteses: Kuberneteses,
        every: timedelta = timedelta(seconds=5),
    ) -> None:
        super().__init__(ledger, others, schedulers, every)
        self._kuberneteses = kuberneteses
        self._servers: dict[tuple[str, str], tuple[ApiServer, asyncio.Lock]] = {}

    def _barred_reason(self, cluster: str, source: KueueSource, sight: _Sight) -> str:
        """Say what bars a write: another manager, or what a write of the present values as a rehearsal meets."""
        names = {place.path for place in sight.places.values()}
        if managed := sight.find_foreign(names):
            return _managed_text({name: sight.queues[name].managers for name in managed})
        for queue in [sight.queues[name] for name in sorted(names)][:1]:
            same = object_with(queue, queue.text, queue.notes)
            try:
                self._ask(cluster, source, partial(_rehearse_one, raw=same))
            except Refusal as refusal:
                return refusal.message
            except (Moved, Managed):
                return ""  # it may write, and the next look says what has changed
        return ""

    def apply(self, change: Change) -> Receipt:
        source = self._source(change.cluster)
        if source is None:
            return self._others.apply(change)
        with self._book.lock_cluster(change.cluster):
            for _ in range(TRIES):
                sight = self._sync(change.cluster, source)
                begun = self._is_begun(sight, change)
                after = self._rehearse_begun(change, sight) if begun else self._book.rehearse(change)
                moves = moves_to(after, sight.gpus)
                names = {sight.places[team].path for team in moves} | self._find_unfenced(sight, after, change)
                if not names:
                    return self._keep_effect(sight, after, change.but(expected_generation=None) if begun else change)
                if self._write(source, sight, change, moves, names, begun=begun):
                    return self._keep_effect(sight, after, change.but(expected_generation=None))
        raise Unavailable(f"the ClusterQueues of {change.cluster} change faster than Backstop can write them")

    def _is_begun(self, sight: _Sight, change: Change) -> bool:
        """Return whether some queue has this very effect already. Errors: Conflict if one has a newer one."""
        begun, fence = False, change.fence
        for queue in sight.queues.values():
            ours = queue.ours
            if ours is not None and ours.rollout == fence.rollout:
                if ours.counter > fence.counter:
                    raise Conflict(
                        f"effect {fence.counter} of {fence.rollout} came too late and was not written: "
                        f"ClusterQueue {queue.name} already has a later one, effect {ours.counter}"
                    )
                begun = begun or ours.counter == fence.counter
        return begun

    def _find_unfenced(self, sight: _Sight, after: MirroredCluster, change: Change) -> set[str]:
        """Return the queues that a delayed worker might still write, although the effect undoes that.

        A write moves their version and so keeps it out, unless our last write to them undid, too.
        """
        if change.kind not in _INVERSES:
            return set()
        names = {sight.places[team].path for team in teams_moved(change, after) if team in sight.places}
        return {name for name in names if not _undoes(sight.queues[name], change.fence)}

    def _write(
        self,
        source: KueueSource,
        sight: _Sight,
        change: Change,
        moves: Mapping[str, int],
        names: set[str],
        *,
        begun: bool,
    ) -> bool:
        """Apply the quotas and the fence to these queues; return False if one has moved on.

        Errors: Refusal, also if another manager has a queue; Drift instead if it has changed quotas and nothing of a
        forward effect was written. An undo leaves out a queue that others have, and writes the rest first.
        """
        queues = {name: sight.queues[name] for name in names}
        why = self._book.order_of(change.cluster, change.fence.rollout)
        try:
            objects = applied_objects(queues, sight.places, moves, change, why)
        except ValueError as error:
            raise Refusal(str(error)) from None
        taken = dict[str, tuple[str, ...]]()
        undoes = change.kind in _INVERSES
        # Those of others come first: then a forward effect that they bar has written nothing.
        for name in sorted(names, key=lambda name: (not queues[name].managers, name)):
            self._book.renew(change.cluster)
            try:
                if not self._ask(change.cluster, source, partial(_apply_one, queue=queues[name], raw=objects[name])):
                    return False
                begun = True
            except Managed as managed:
                taken[name] = managed.managers
                if not undoes:
                    break
        if taken:
            text = _managed_text(taken)
            before = self._book.mirrored_cluster(change.cluster).generation
            self._sync(change.cluster, source)
            if begun or undoes or self._book.mirrored_cluster(change.cluster).generation == before:
                raise Refusal(text)
            raise Drift(text)
        return True

    def detach(self, cluster: str, *, restore: bool, look: bool = False) -> dict[str, tuple[int | None, int | None]]:
        source = self._source(cluster)
        if source is None:
            return self._schedulers.detach(cluster, restore=restore, look=look)
        with self._book.lock_cluster(cluster):
            for _ in range(TRIES):
                sight = self._sync(cluster, source)
                back, gpus = self._limits_back(cluster, sight, restore=restore)
                names = {sight.places[team].path for team in gpus}
                last = Change(cluster=cluster, kind=EffectKind.RESTORE, fence=Fence(rollout="detach", counter=1))
                if look or self._write(source, sight, last, gpus, names, begun=False):
                    if not look:
                        self._book.detach(cluster)
                    return back
        raise Unavailable(f"the ClusterQueues of {cluster} change faster than Backstop can write them")

    # --- reading --------------------------------------------------------------------------------

    def _sources(self, clusters: Sequence[str] | None = None) -> Mapping[str, KueueSource]:
        return self._book.kueue_sources(clusters)

    def _ask(self, cluster: str, source: KueueSource, work: Callable[[ApiServer], Awaitable[_T]]) -> _T:
        """Do the work with the cluster's API server, one piece of work at a time, and return its result."""
        key = (cluster, source.connection)
        if key not in self._servers:
            self._servers[key] = self._kuberneteses.server(source.connection), asyncio.Lock()
        server, turn = self._servers[key]

        async def in_turn() -> _T:
            async with turn:
                return await work(server)

        return self._kuberneteses.on_loop(in_turn())

    def _look_at_system(self, cluster: str, source: KueueSource) -> _Sight:
        try:
            raws = self._ask(cluster, source, partial(_list_all, selector=source.queues))
            queues = {queue.name: queue for queue in map(queue_in, raws)}
            places = quotas_in(queues, source.resource)
        except ValueError as error:
            raise Unavailable(f"Kubernetes {source.connection}: {error}") from None
        except Unavailable as error:
            raise Unavailable(f"Kubernetes {source.connection}: {error.message}") from None
        awaited = dict[Fence, bool]()
        pending = dict[str, int]()
        for team, place in places.items():
            ours = queues[place.path].ours
            if ours is not None and ours.gpus.get(team) == place.gpus:
                fence = Fence(rollout=ours.rollout, counter=ours.counter)
                if fence not in awaited:
                    awaited[fence] = self._book.awaits(cluster, fence)
                if awaited[fence]:
                    pending[team] = place.gpus
        return _Sight(queues, places, pending)

    def _actors(self, sight: _Sight, _: KueueSource, teams: Sequence[str]) -> dict[str, str]:
        """Return who changed each of these quotas: the last field manager. Nobody says who deletes a queue."""
        actors = dict[str, str]()
        for team in teams:
            place = sight.places.get(team)
            managers = () if place is None else sight.queues[place.path].managers
            actors[team] = f"{managers[0] if managers else 'somebody'}, in Kubernetes"
        return actors


async def _list_all(server: ApiServer, selector: str | None) -> list[Any]:
    raws = list[Any]()
    try:
        async with aclosing(server.pages(QUEUES, selector)) as pages:
            async for page in pages:
                raws += page.items
    except Gone:
        raise Unavailable("its ClusterQueues changed while they were listed") from None
    return raws


async def _rehearse_one(server: ApiServer, raw: dict[str, Any]) -> None:
    await server.apply(QUEUES, raw, MANAGER, dry_run=True)


async def _apply_one(server: ApiServer, queue: LiveQueue, raw: dict[str, Any]) -> bool:
    """Apply this to the queue; return False if it has moved on, but for its status. Errors: as ApiServer.apply."""
    for _ in range(_VERSIONS):
        try:
            await server.apply(QUEUES, raw, MANAGER)
            return True
        except Moved:
            try:
                now = queue_in(await server.get(QUEUES, queue.name))
            except (NoSuchKind, ValueError):
                return False
            if not now.is_as(queue):
                return False
            raw["metadata"]["resourceVersion"] = now.version
    raise Unavailable(f"others change ClusterQueue {queue.name} faster than Backstop can write it")


def _undoes(queue: LiveQueue, fence: Fence) -> bool:
    ours = queue.ours
    return ours is not None and ours.rollout == fence.rollout and ours.kind in _INVERSES


def _managed_text(queues: Mapping[str, Sequence[str]]) -> str:
    managers = sorted({manager for managers in queues.values() for manager in managers})
    many = "ClusterQueue" if len(queues) == 1 else "ClusterQueues"
    return (
        f"{some_of(managers, _NAMED)} {'manages' if len(managers) == 1 else 'manage'} {FIELD} of {many} "
        f"{some_of(sorted(queues), _NAMED)}, and Backstop takes no field from another manager: hand the "
        "field over to Backstop (docs/kubernetes.md)"
    )
