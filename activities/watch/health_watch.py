"""The shared watch: reads the health of all clusters of a source in one call, signals on edges.

A rollout is signalled when its shortage appears, changes or ends, when its health becomes stale or fresh again, and
(while it waits to start) when its healthy GPUs change. It is not signalled where all is well and it has just opened
with this, or has only come to another stage. Cost grows with events, not with clusters times time. The cursor, a short
hash of each cluster and its signalled state, travels in heartbeat details and from one call to the next, so a restarted
watch does not repeat itself; a lost one signals each rollout once, which costs a look and changes nothing. Several
watches may share the clusters of a source by a hash of their names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Coroutine, Mapping, Set
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities import metrics as meters
from activities.bad_rows import SENSELESS, fault_of
from activities.clock import Clock, utc_now
from activities.notices.sending_rounds import Rounds
from activities.ports.clusters import ClusterPorts
from activities.ports.watch import PushPort
from activities.requests.overdue_grants import Sweeper
from activities.watch.fingerprint import (
    Facts,
    Judged,
    backing_of,
    cursor_of,
    digest,
    facts_of,
    fingerprint,
    is_short,
    is_wrong,
    unpack_cursor,
)
from activities.watch.tallies import Tallier
from models.cluster.readings import HealthSample
from models.errors import BackstopError, Unavailable
from models.rollout.messages import HealthChanged
from models.temporal_names import HEALTH_SIGNAL, SOURCE, WatchInput, rollout_workflow_id

logger = logging.getLogger("backstop.watch")
_ROUND = timedelta(minutes=90)
"""How long one call of the activity watches before its workflow calls it again: each call adds a cursor to history."""
_BEAT_SECONDS = 1.0
"""The pause between heartbeats within a round.

A round is long if much has changed or the ledger is slow, and must not count as silence: it would be cancelled, started
again and cancelled again, and would never signal.
"""
_PUSH_SECONDS = 0.1
"""The pause between two looks for pushes.

After a look at pushed clusters, the pause is at least as long as that look took, so that a flood of pushes takes at
most half of the watch's time.
"""
_AGAIN_SECONDS = 6.0
"""The time after a push when its cluster is looked at once more.

A Prometheus or a Slurm is read every 5 s at most: just after such a reading, a push would find values from before it.
"""
_AT_ONCE = 16
"""The most signals under way at a time, so that a slow or refusing server sets the pace."""
_TELLING_SECONDS = 5.0
"""Seconds that a round signals at least if there are many signals; the rest waits for the next round."""
_TELL_AGAIN_SECONDS = 3600.0
"""How often a fault of a cluster under guard is signalled again.

A resting rollout, which looks only once a day, thus learns of the fault even if the first signal had no effect.
"""


class WatchActivities:
    def __init__(
        self,
        client: Client,
        ports: ClusterPorts,
        tallier: Tallier | None = None,
        sweeper: Sweeper | None = None,
        rounds: Rounds | None = None,
        pushes: PushPort | None = None,
        now: Clock = utc_now,
    ) -> None:
        """`tallier`: keeps the tallies beside; `sweeper`: overdue grants; `rounds`: due notices. None: nobody does.

        `pushes`: clusters that are to be looked at now.
        """
        self._now = now
        self._pushes = pushes
        self._again: dict[str, dict[str, float]] = {}
        """By watch and cluster, the time, on the loop's clock, at which a pushed cluster is looked at once more."""
        self._rounds = rounds
        self._sweeper = sweeper
        self._client = client
        self._ports = ports
        self._tallier = tallier
        self._beside: dict[str, asyncio.Task[None]] = {}
        """Tasks that run beside the looks, by name."""
        self._marks: dict[str, dict[str, Judged]] = {}
        """By watch, the marks of the last look; lost with the process, which costs one reading of every cluster."""
        self._turns: dict[str, str] = {}
        """By watch, the last cluster that was signalled; clusters without room in one round come first in the next."""
        self._insisted: dict[str, dict[str, float]] = {}
        """By watch and cluster, the time, on the loop's clock, at which a fault was last signalled.

        For a fault signalled before this process began, the time at which the process first saw it.
        """

    @activity.defn(name="watch")
    async def watch(self, request: WatchInput) -> str | None:
        """Watch for a while; return the cursor. (Earlier versions returned nothing.)"""
        if request.source != SOURCE:
            raise ApplicationError(f"this worker has no health source {request.source!r}", type=Unavailable.__name__)
        details = activity.info().heartbeat_details
        cursor = unpack_cursor(details[0] if details else request.cursor)
        ends = self._now() + _ROUND
        while self._now() < ends:
            try:
                cursor = await self._round(request, cursor)
            except BackstopError as error:
                activity.logger.warning("the watch could not look: %s", error.message)
            activity.heartbeat(cursor_of(cursor))
            if not request.shard:  # one of the shards works for all
                self._work_beside(request)
            cursor = await self._until_next(request, cursor)
        return cursor_of(cursor)

    async def _until_next(self, request: WatchInput, cursor: Set[bytes]) -> Set[bytes]:
        """Wait for the next round, and look at once at clusters that are pushed meanwhile. Errors: ApplicationError."""
        loop = asyncio.get_running_loop()
        ends, pause = loop.time() + request.interval_seconds, _PUSH_SECONDS
        while (left := ends - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    activity.wait_for_worker_shutdown(), left if self._pushes is None else min(left, pause)
                )
                raise _handover_error()
            began = loop.time()
            try:
                cursor = await self._look_at_pushed(request, cursor)
            except BackstopError as error:
                activity.logger.warning(
                    "the watch could not read the clusters whose changes were pushed: %s", error.message
                )
            pause = max(_PUSH_SECONDS, loop.time() - began)
        return cursor

    async def _look_at_pushed(self, request: WatchInput, cursor: Set[bytes]) -> Set[bytes]:
        """Look at pushed clusters. The push's own word on their health does not count: it is read, as in any round."""
        if self._pushes is None:
            return cursor
        mine = partial(_is_in_shard, request.shard, request.shards)
        pushed = await asyncio.to_thread(self._pushes.take, mine)
        now, again = asyncio.get_running_loop().time(), self._again.setdefault(request.watch_id, {})
        due = {cluster for cluster, at in again.items() if at <= now}
        for cluster in due:
            del again[cluster]
        for cluster in pushed:
            again.setdefault(cluster, now + _AGAIN_SECONDS)
        if not due and not pushed:
            return cursor
        cursor = await self._round(request, cursor, frozenset(due | pushed.keys()))
        activity.heartbeat(cursor_of(cursor))
        for at in pushed.values():
            meters.record_push(max(0.0, (self._now() - at).total_seconds()))
        return cursor

    def _work_beside(self, request: WatchInput) -> None:
        """Begin some work beside the next look: a ledger that is busy must not hold up an edge."""
        if self._tallier is not None:
            self._begin("tallies", partial(self._tally, self._tallier, timedelta(seconds=request.tally_seconds)))
        if self._sweeper is not None:
            self._begin("grants", partial(self._sweeper.go_on, self._now()))
        if self._rounds is not None:
            self._begin("notices", self._rounds.go_on)

    def _begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._beside.get(name)
        if task is None or task.done():
            self._beside[name] = asyncio.create_task(work())

    async def _tally(self, tallier: Tallier, every: timedelta) -> None:
        """Tally, and log every error: the watch goes on."""
        try:
            await asyncio.to_thread(tallier.go_on, self._now(), every)
        except BackstopError as error:
            activity.logger.warning("the watch could not tally: %s", error.message)
        except Exception:
            activity.logger.exception("the watch could not tally")

    async def _round(self, request: WatchInput, cursor: Set[bytes], only: Set[str] | None = None) -> Set[bytes]:
        """Look, and signal the edges. `only`: clusters to look at, the others as they were; None: all."""
        loop, began = asyncio.get_running_loop(), cursor_of(cursor)
        seen = await asyncio.to_thread(
            self._fingerprints, request, lambda: loop.call_soon_threadsafe(activity.heartbeat, began), only, cursor
        )
        marks, judged = {c: digest(c, mark) for c, mark in seen.items()}, self._marks[request.watch_id]
        told_marks = {mark for c, mark in marks.items() if mark in cursor or judged[c].is_known}
        last = self._turns.get(request.watch_id, "")
        again = self._list_due_again(request.watch_id, seen, loop.time()) if only is None else set()
        edges = sorted(
            (c for c in seen if marks[c] not in told_marks or c in again),
            key=lambda c: (not is_short(seen[c]), c <= last, c),
        )
        beats = asyncio.create_task(_beat(told_marks))
        try:
            ends = loop.time() + max(_TELLING_SECONDS, request.interval_seconds)
            waiting = iter(edges)

            async def tell() -> None:
                """Signal until a refusal ends this sender for the round: the fewer are left, the busier the server."""
                now = self._now()
                while loop.time() < ends and (cluster := next(waiting, None)) is not None:
                    self._turns[request.watch_id] = cluster
                    if not await self._signal(cluster, self._marks[request.watch_id][cluster].why, now):
                        return
                    told_marks.add(marks[cluster])
                    self._insisted.get(request.watch_id, {}).pop(cluster, None)

            await asyncio.gather(*(tell() for _ in edges[:_AT_ONCE]))
        finally:
            beats.cancel()
        return told_marks

    def _list_due_again(self, watch_id: str, seen: Mapping[str, str], now: float) -> set[str]:
        """Return the clusters with a fault whose last signal is so long ago."""
        earlier, judged = self._insisted.get(watch_id, {}), self._marks.get(watch_id, {})
        wrong = {c: earlier.get(c, now) for c in seen if judged[c].facts.guarded and is_wrong(seen[c], judged[c].facts)}
        self._insisted[watch_id] = wrong
        return {cluster for cluster, since in wrong.items() if now - since >= _TELL_AGAIN_SECONDS}

    def _fingerprints(
        self,
        request: WatchInput,
        alive: Callable[[], object],
        only: Set[str] | None = None,
        cursor: Set[bytes] = frozenset(),
    ) -> dict[str, str]:
        """Return a text for each open rollout of this watch that changes with what the rollout should learn.

        Five calls for all clusters; one more and the arithmetic for each whose facts have moved.
        """
        rollouts = self._ports.registry.open_clusters()
        mine, now = [c for c in sorted(rollouts) if _is_in_shard(request.shard, request.shards, c)], self._now()
        earlier = self._marks.get(request.watch_id, {})
        only = only if earlier else None  # nothing is known of the others yet
        names = mine if only is None else [c for c in mine if c in only]
        samples, windows = self._ports.health.read(names), self._ports.calendar.windows(names)
        versions, doubted = self._ports.quotas.versions(names), self._ports.doubts.doubted_clusters()
        marks = {} if only is None else {c: earlier[c] for c in mine if c in earlier}
        beat = time.monotonic()
        for cluster in names:
            stage, shadow = rollouts[cluster]
            guarded = stage.is_guarded and not shadow
            sample, declared = samples.get(cluster), windows.get(cluster, ())
            facts = facts_of(versions.get(cluster, ""), guarded, sample, declared, now, doubted.get(cluster, ""))
            facts = replace(facts, senseless=samples.senseless.get(cluster) or windows.senseless.get(cluster, ""))
            last = earlier.get(cluster)
            if last is not None and last.facts == facts:
                marks[cluster] = last
            elif (judged := self._judge(cluster, facts, last, cursor)) is not None:
                marks[cluster] = judged
            elif last is not None:
                marks[cluster] = last
            if time.monotonic() - beat >= _BEAT_SECONDS:
                alive()
                beat = time.monotonic()
        self._marks[request.watch_id] = marks
        if only is not None:
            return {cluster: judged.mark for cluster, judged in marks.items()}
        meters.record_watch(
            request.shard,
            request.interval_seconds,
            [_seen_rollout(c, rollouts[c][0], marks.get(c), samples.get(c), now) for c in names],
        )
        return {cluster: judged.mark for cluster, judged in marks.items()}

    def _judge(self, cluster: str, facts: Facts, last: Judged | None, cursor: Set[bytes]) -> Judged | None:
        """Return the cluster's fingerprint; None if its quotas cannot be read now, which affects no other cluster.

        A senseless cluster is news too: the rollout looks, and reports why it cannot.
        """
        if facts.senseless:
            return Judged(facts, facts.senseless)
        try:
            with self._ports.one_moment(cluster):
                reading = self._ports.quotas.last_known(cluster)  # `versions` has just asked the outside systems
                backing = backing_of(reading, facts.sample) if facts.guarded and facts.sample is not None else None
                unbacked = None if backing is None else backing.assigned_gpus - backing.backed_gpus
                mark = fingerprint(reading, facts, "" if last is None else last.mark, backing)
                signalled = facts.islands if last is None or last.mark != mark else last.signalled
                judged = Judged(facts, mark, unbacked, reading.generation, signalled)
                return judged._replace(is_known=self._is_known(cluster, judged, last, cursor))
        except Unavailable as error:
            logger.warning("the watch could not read %s: %s", cluster, error)
            return None
        except (BackstopError, *SENSELESS) as error:
            return Judged(facts, fault_of(cluster, "its quotas", error))
        except Exception as error:
            logger.exception("the watch could not judge %s", cluster)
            return Judged(facts, f"cluster {cluster} cannot be judged: {type(error).__name__}")

    def _is_known(self, cluster: str, judged: Judged, last: Judged | None, cursor: Set[bytes]) -> bool:
        """Return whether a signal would bring the rollout nothing: all is well, and it knows."""
        if last is not None:
            return judged.is_own_doing(last) and digest(cluster, last.mark) in cursor
        if digest(cluster, judged.mark) in cursor:
            return False  # it was signalled: nobody asks
        opened, now = self._ports.registry.open_rollout_of(cluster), self._now()
        if opened is None or not judged.is_just_seen_by(opened, now):
            return False
        # A window that has ended since then holds the rollout until it looks again.
        windows = self._ports.calendar.windows([cluster]).get(cluster, ())
        return not any(opened.opened_at <= window.ends <= now for window in windows)

    async def _signal(self, cluster: str, why: str, now: datetime) -> bool:
        handle = self._client.get_workflow_handle(rollout_workflow_id(cluster))
        try:
            await handle.signal(HEALTH_SIGNAL, HealthChanged(cluster=cluster, at=now, why=why[:200]))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                activity.logger.warning("could not signal %s: %s", cluster, error)
                return False
        return True


async def _beat(told_marks: Set[bytes]) -> None:
    while True:
        await asyncio.sleep(_BEAT_SECONDS)
        activity.heartbeat(cursor_of(told_marks))


def shard_of(cluster: str, shards: int) -> int:
    """Return the cluster's shard, the same on every machine, whatever other clusters there are."""
    return zlib.crc32(cluster.encode()) % shards


def _is_in_shard(shard: int, shards: int, cluster: str) -> bool:
    return shard_of(cluster, shards) == shard


def _handover_error() -> ApplicationError:
    """Make the error that ends the call so that its retry, on another worker, goes on from the cursor in the heartbeat.

    Without it a stopping worker waits in vain for the watch until its grace is over.
    """
    return ApplicationError(
        "this worker is stopping: another one watches", type="Unavailable", category=ApplicationErrorCategory.BENIGN
    )


def _seen_rollout(
    cluster: str, stage: str, judged: Judged | None, sample: HealthSample | None, now: datetime
) -> meters.SeenRollout:
    age = None if sample is None else (now - sample.at).total_seconds()
    return meters.SeenRollout(cluster, stage, None if judged is None else judged.unbacked_gpus, age)
