"""The shared watch: reads the health of all clusters of a source in one call, signals on edges.

A rollout is signalled when its shortage appears, changes or ends, when its health becomes stale or
fresh again, and (while it waits to start) when its healthy GPUs change. Cost grows with events, not with
clusters times time. The cursor travels in heartbeat details, so a restarted watch does not repeat itself;
a lost one signals each rollout once, which costs a look and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.clusters import islands_for
from activities.ports import CalendarPort, HealthPort, QuotaPort, RegistryPort
from models.backing import back
from models.effects import HealthSample, QuotaReading
from models.errors import BackstopError
from models.fleet import Window
from models.guard import active
from models.messages import HEALTH_SIGNAL, HealthChanged, WatchInput, rollout_workflow_id
from models.snapshot import Snapshot
from models.stages import Stage

_STALE = timedelta(minutes=30)
_ROUND = timedelta(minutes=30)
"""How long one call of the activity watches before its workflow calls it again."""
_BEAT_SECONDS = 1.0
"""A round that is long, because much has changed or the ledger is slow, must not count as silence: it would be
cancelled, begun anew and cancelled again, and nobody would ever be told."""


class WatchActivities:
    def __init__(
        self,
        client: Client,
        quotas: QuotaPort,
        health: HealthPort,
        calendar: CalendarPort,
        registry: RegistryPort,
    ) -> None:
        self._client = client
        self._quotas = quotas
        self._health = health
        self._calendar = calendar
        self._registry = registry

    @activity.defn(name="watch")
    async def watch(self, request: WatchInput) -> None:
        """Watches for a while; every edge has been signalled."""
        details = activity.info().heartbeat_details
        cursor: dict[str, str] = dict(details[0]) if details and isinstance(details[0], dict) else {}
        ends = datetime.now(UTC) + _ROUND
        while datetime.now(UTC) < ends:
            try:
                cursor = await self._round(cursor)
            except BackstopError as error:
                activity.logger.warning("the watch could not look: %s", error.message)
            activity.heartbeat(cursor)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(activity.wait_for_worker_shutdown(), request.interval_seconds)
                raise _handed_over()

    async def _round(self, cursor: Mapping[str, str]) -> dict[str, str]:
        loop, began = asyncio.get_running_loop(), dict(cursor)
        seen = await asyncio.to_thread(self._fingerprints, lambda: loop.call_soon_threadsafe(activity.heartbeat, began))
        told, now, beat = {c: mark for c, mark in cursor.items() if c in seen}, datetime.now(UTC), loop.time()
        for cluster, mark in seen.items():
            if told.get(cluster) == mark:
                continue
            told.pop(cluster, None)
            if await self._signal(cluster, mark, now):
                told[cluster] = mark
            if loop.time() - beat >= _BEAT_SECONDS:
                activity.heartbeat(dict(told))
                beat = loop.time()
        return told

    def _fingerprints(self, alive: Callable[[], object]) -> dict[str, str]:
        """What each open rollout would want to know, as one comparable text."""
        rollouts = self._registry.open_clusters()
        samples = self._health.read(sorted(rollouts))
        marks, beat = {}, time.monotonic()
        for cluster, (stage, shadow) in sorted(rollouts.items()):
            marks[cluster] = self._mark(cluster, Stage(stage).guarded and not shadow, samples.get(cluster))
            if time.monotonic() - beat >= _BEAT_SECONDS:
                alive()
                beat = time.monotonic()
        return marks

    def _mark(self, cluster: str, guarded: bool, sample: HealthSample | None) -> str:
        reading, windows = self._quotas.read(cluster), self._calendar.windows(cluster)
        return fingerprint(reading, sample, windows, guarded, datetime.now(UTC))

    async def _signal(self, cluster: str, mark: str, now: datetime) -> bool:
        handle = self._client.get_workflow_handle(rollout_workflow_id(cluster))
        try:
            await handle.signal(HEALTH_SIGNAL, HealthChanged(cluster=cluster, at=now, why=mark[:200]))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                activity.logger.warning("could not signal %s: %s", cluster, error)
                return False
        return True


def _handed_over() -> ApplicationError:
    """Ends the call so that its retry, on another worker, goes on from the cursor in the heartbeat.

    Without it a stopping worker waits in vain for the watch until its grace is over.
    """
    return ApplicationError(
        "this worker is stopping: another one watches", type="Unavailable", category=ApplicationErrorCategory.BENIGN
    )


def fingerprint(
    reading: QuotaReading,
    sample: HealthSample | None,
    windows: tuple[Window, ...],
    guarded: bool,
    now: datetime,
) -> str:
    """Equal as long as a rollout has nothing new to know."""
    if sample is None:
        return "no health"
    parts = [f"generation {reading.generation}", "stale" if now - sample.at >= _STALE else "fresh"]
    parts += [f"{w.kind} {w.reason}" for w in active(windows, now)]
    if guarded:
        parts.append(_shortage(reading, sample))
    else:
        parts += [f"{i.name} {i.healthy_gpus}/{i.total_gpus}" for i in sample.islands]
    return "; ".join(parts)


def _shortage(reading: QuotaReading, sample: HealthSample) -> str:
    quotas = tuple(p.as_quota() for p in reading.quotas)
    found = back(Snapshot(cluster=reading.cluster, islands=islands_for(quotas, sample), quotas=quotas))
    if found.is_backed:
        return "backed"
    return "short " + ", ".join(f"{team} {gpus}" for team, gpus in found.shortage.items())
