"""The watch gets on although a round takes longer than its heartbeat timeout."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities import watch
from activities.watch import WatchActivities
from models.capacity import Island
from models.effects import HealthSample, QuotaReading
from models.errors import Unavailable
from models.messages import WatchInput

CLUSTERS = [f"c{n:02d}" for n in range(12)]


class SlowTemporal:
    """Signals take their time. `told`: whom, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def get_workflow_handle(self, workflow_id: str) -> SlowHandle:
        return SlowHandle(self, workflow_id.removeprefix("rollout/"))


class SlowHandle:
    def __init__(self, temporal: SlowTemporal, cluster: str) -> None:
        self._temporal, self._cluster = temporal, cluster

    async def signal(self, name: str, edge: Any) -> None:
        await asyncio.sleep(0.05)
        self._temporal.told.append(self._cluster)


class SlowLedger:
    """Every port that the watch reads; one cluster's quotas take a while."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def open_clusters(self) -> dict[str, tuple[str, bool]]:
        return dict.fromkeys(CLUSTERS, ("planned", False))

    def windows(self, clusters: Sequence[str]) -> dict[str, tuple[Any, ...]]:
        return {}


class Quotas(SlowLedger):
    def versions(self, clusters: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(clusters, "1")

    def read(self, cluster: str) -> QuotaReading:
        time.sleep(self._seconds)
        return QuotaReading(cluster=cluster, generation=1, quotas=())


class Health(SlowLedger):
    def least(self, cluster: str, since: datetime, now: datetime) -> dict[str, int]:
        raise AssertionError("the watch does not ask for history")

    def usual(self, cluster: str, window: timedelta, now: datetime) -> dict[str, int]:
        raise AssertionError("the watch does not ask for history")

    def read(self, clusters: Sequence[str]) -> dict[str, HealthSample]:
        island = Island(name="main", total_gpus=8, healthy_gpus=8)
        return {c: HealthSample(cluster=c, at=datetime.now(UTC), islands=(island,)) for c in clusters}


def watching(temporal: SlowTemporal, ledger_seconds: float = 0.0, tallier: Any = None) -> WatchActivities:
    ledger: Any = SlowLedger()
    quotas: Any = Quotas(ledger_seconds)
    client: Any = temporal
    return WatchActivities(client, quotas, Health(), ledger, ledger, tallier)


@pytest.fixture(autouse=True)
def _beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_BEAT_SECONDS", 0.04)


async def test_a_round_that_is_cut_off_is_gone_on_with() -> None:
    """Each call ends after three signals; the next one goes by what the last heartbeat said."""
    temporal = SlowTemporal()
    cursor: dict[str, str] = {}
    for _ in range(len(CLUSTERS)):
        beats: list[dict[str, str]] = []
        env = ActivityEnvironment()
        env.on_heartbeat = lambda found, beats=beats: beats.append(dict(found))
        env.info = type(env.info)(**{**vars(env.info), "heartbeat_details": [cursor] if cursor else []})
        call = asyncio.create_task(env.run(watching(temporal).watch, WatchInput(interval_seconds=60)))
        reached = len(temporal.told) + 3
        while len(temporal.told) < min(reached, len(CLUSTERS)) or (reached > len(CLUSTERS) and len(beats) < 1):
            assert not call.done(), call.exception()
            await asyncio.sleep(0.005)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        cursor = beats[-1]
        if len(cursor) == len(CLUSTERS):
            break
    assert set(temporal.told) == set(CLUSTERS)
    assert len(temporal.told) <= 2 * len(CLUSTERS), "signals are repeated again and again"


async def test_slow_reading_is_not_silence() -> None:
    beats: list[Any] = []
    env = ActivityEnvironment()
    env.on_heartbeat = beats.append
    temporal = SlowTemporal()
    call = asyncio.create_task(env.run(watching(temporal, ledger_seconds=0.05).watch, WatchInput(interval_seconds=60)))
    while not temporal.told:
        assert not call.done(), call.exception()
        await asyncio.sleep(0.01)
    assert len(beats) >= len(CLUSTERS) // 2
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


# --- tallies ---------------------------------------------------------------------------------------------


class Tallying:
    """Goes on until told to stop; keeps what had been signalled when it was first asked."""

    def __init__(self, temporal: SlowTemporal, fails: Exception | None = None) -> None:
        self.goes, self.told_before = 0, -1
        self.free = threading.Event()
        self._temporal, self._fails = temporal, fails

    def go_on(self, now: datetime, every: timedelta) -> int:
        assert every == timedelta(minutes=5)
        self.goes += 1
        if self.told_before < 0:
            self.told_before = len(self._temporal.told)
        if self._fails is not None:
            raise self._fails
        assert self.free.wait(30)
        return 0


class Falling(Health):
    """Other health at each look, so that each look is an edge."""

    looks = 0

    def read(self, clusters: Sequence[str]) -> dict[str, HealthSample]:
        self.looks += 1
        island = Island(name="main", total_gpus=999, healthy_gpus=999 - self.looks)
        return {c: HealthSample(cluster=c, at=datetime.now(UTC), islands=(island,)) for c in clusters}


async def test_tallies_come_after_the_edges_and_hold_up_none() -> None:
    temporal = SlowTemporal()
    tallying = Tallying(temporal)
    watch_ = watching(temporal, tallier=tallying)
    watch_._health = Falling()
    call = asyncio.create_task(
        ActivityEnvironment().run(watch_.watch, WatchInput(interval_seconds=0.01, tally_seconds=300))
    )
    while len(temporal.told) < 3 * len(CLUSTERS):
        assert not call.done(), call.exception()
        await asyncio.sleep(0.01)
    assert tallying.told_before >= len(CLUSTERS)
    assert tallying.goes == 1, "one portion at a time"
    tallying.free.set()
    while tallying.goes < 2:
        assert not call.done(), call.exception()
        await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


@pytest.mark.parametrize("error", [Unavailable("the ledger is busy"), ZeroDivisionError("our own bug")])
async def test_the_watch_goes_on_whatever_is_wrong_with_the_tallies(error: Exception) -> None:
    temporal = SlowTemporal()
    tallying = Tallying(temporal, fails=error)
    request = WatchInput(interval_seconds=0.01, tally_seconds=300)
    call = asyncio.create_task(ActivityEnvironment().run(watching(temporal, tallier=tallying).watch, request))
    while tallying.goes < 3:
        assert not call.done(), call.exception()
        await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
