"""The watch gets on although a round takes long, and neither floods a server nor repeats itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from activities.clock import Clock, utc_now
from activities.ports.by_cluster import ByCluster
from activities.ports.clusters import ClusterPorts
from activities.ports.registry import OpenRollout
from activities.watch import health_watch
from activities.watch.fingerprint import cursor_of, digest, unpack_cursor
from activities.watch.health_watch import WatchActivities, shard_of
from client.converter import data_converter
from models.cluster.island import Island
from models.cluster.readings import HealthSample, Present, QuotaReading
from models.cluster.snapshot import Snapshot
from models.cluster.windows import Window, WindowKind
from models.errors import BadInput, Unavailable
from models.rollout.stages import Stage
from models.temporal_names import WatchInput, watch_parts
from tests.unit.loop_clock import LoopClock
from tests.waiting import PATIENCE, eventually
from workers.settings import load_settings

pytestmark = pytest.mark.slow  # takes seconds: `make quick` leaves it to `make test`

CLUSTERS = [f"c{n:02d}" for n in range(12)]


class SlowTemporal:
    """Signals take their time. `told`: whom, in order; `refuses`: whose signals fail; `most`: under way at once.

    `lets`: how many more signals get through now, the others being held; None: all of them. `signalled`: called
    whenever one did.
    """

    def __init__(self, refuses: Sequence[str] = (), lets: asyncio.Semaphore | None = None) -> None:
        self.told: list[str] = []
        self.tried: list[str] = []
        self.lets = lets
        self.signalled: Callable[[], object] = lambda: None
        self.refuses = set(refuses)
        self.under_way = self.most = 0

    def get_workflow_handle(self, workflow_id: str) -> SlowHandle:
        return SlowHandle(self, workflow_id.removeprefix("rollout/"))


class SlowHandle:
    def __init__(self, temporal: SlowTemporal, cluster: str) -> None:
        self._temporal, self._cluster = temporal, cluster

    async def signal(self, name: str, edge: Any) -> None:
        temporal = self._temporal
        temporal.tried.append(self._cluster)
        temporal.under_way += 1
        temporal.most = max(temporal.most, temporal.under_way)
        await asyncio.sleep(0)  # the others begin theirs
        if temporal.lets is not None:
            await temporal.lets.acquire()
        temporal.under_way -= 1
        if self._cluster in temporal.refuses:
            raise RPCError("too busy", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
        temporal.told.append(self._cluster)
        temporal.signalled()


class Ledger:
    """Every port that the watch reads."""

    def __init__(self, clusters: Sequence[str] = CLUSTERS) -> None:
        self._clusters = clusters

    def open_clusters(self) -> ByCluster[tuple[Stage, bool]]:
        return ByCluster(dict.fromkeys(self._clusters, (Stage.MONITORED, False)))

    def open_rollout_of(self, cluster: str) -> None:
        return None

    def windows(self, clusters: Sequence[str]) -> ByCluster[tuple[Any, ...]]:
        return ByCluster()

    def doubted_clusters(self) -> dict[str, str]:
        return {}


class Quotas(Ledger):
    """`reading`: called whenever one cluster's quotas are read."""

    reads = 0

    def __init__(self, reading: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._reading = reading

    def versions(self, clusters: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(clusters, "1")

    def last_known(self, cluster: str) -> QuotaReading:
        self._reading()
        Quotas.reads += 1
        return QuotaReading(cluster=cluster, generation=1, quotas=(Present(team="a", gpus=8),))


class Health(Ledger):
    """`failed`: clusters that lack a GPU; `reads`: how often they were looked at."""

    failed: frozenset[str] = frozenset()
    reads = 0

    def least_healthy(self, cluster: str, since: datetime, now: datetime) -> dict[str, int]:
        raise AssertionError("the watch does not ask for history")

    def usual_healthy(self, cluster: str, window: timedelta, now: datetime) -> dict[str, int]:
        raise AssertionError("the watch does not ask for history")

    def history(self, cluster: str, since: datetime, now: datetime) -> dict[str, Any]:
        raise AssertionError("the watch does not ask for history")

    def histories(self, clusters: Sequence[str], since: datetime, now: datetime) -> dict[str, dict[str, Any]]:
        raise AssertionError("the watch does not ask for history")

    def read(self, clusters: Sequence[str]) -> ByCluster[HealthSample]:
        self.reads += 1

        def islands(cluster: str) -> tuple[Island]:
            return (Island(name="main", total_gpus=8, healthy_gpus=8 - (cluster in self.failed)),)

        return ByCluster({c: HealthSample(cluster=c, at=datetime.now(UTC), islands=islands(c)) for c in clusters})


def watching(
    temporal: SlowTemporal,
    reading: Callable[[], object] = lambda: None,
    clusters: Sequence[str] = CLUSTERS,
    health: Health | None = None,
    tallier: Any = None,
    pushes: Any = None,
    now: Clock = utc_now,
) -> WatchActivities:
    ledger: Any = Ledger(clusters)
    quotas: Any = Quotas(reading)
    client: Any = temporal
    ports = ClusterPorts(quotas, health or Health(), ledger, ledger, ledger, ledger, ledger)
    return WatchActivities(client, ports, tallier, pushes=pushes, now=now)


@pytest.fixture(autouse=True)
def _beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Often; and however slow the machine is, a round has room for all that there is to tell."""
    monkeypatch.setattr(health_watch, "_BEAT_SECONDS", 0.04)
    monkeypatch.setattr(health_watch, "_TELLING_SECONDS", 3600.0)


async def meanwhile(call: asyncio.Task[Any], true: Callable[[], bool], what: str) -> None:
    """Wait until the condition is true while the call goes on."""

    def so() -> bool:
        assert not call.done(), call.exception()
        return true()

    await eventually(so, what)


async def ended(call: asyncio.Task[Any]) -> None:
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def test_a_round_that_is_cut_off_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call ends after three signals; the next one continues from the last heartbeat."""
    monkeypatch.setattr(health_watch, "_AT_ONCE", 1)
    cursor, told = "", list[str]()
    for calls in range(1, len(CLUSTERS) // 3 + 1):
        temporal = SlowTemporal(lets=asyncio.Semaphore(3))
        beats: list[str] = []
        env = ActivityEnvironment()
        env.on_heartbeat = beats.append
        env.info = type(env.info)(**{**vars(env.info), "heartbeat_details": [cursor] if cursor else []})
        call = asyncio.create_task(env.run(watching(temporal).watch, WatchInput(interval_seconds=60)))
        await meanwhile(call, lambda t=temporal: len(t.told) == 3, "three signals are through")  # type: ignore[misc]
        said = f"it says of {3 * calls} that they are told"
        await meanwhile(call, lambda b=beats, n=calls: bool(b) and len(unpack_cursor(b[-1])) == 3 * n, said)  # type: ignore[misc]
        await ended(call)
        cursor = beats[-1]
        told += temporal.told
    assert sorted(told) == CLUSTERS, "signals are lost, or repeated"


async def test_slow_reading_is_not_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def reading() -> None:
        nonlocal now
        now += 0.05  # longer than it may be silent

    monkeypatch.setattr(health_watch, "time", SimpleNamespace(monotonic=lambda: now))
    beats: list[Any] = []
    env = ActivityEnvironment()
    env.on_heartbeat = beats.append
    temporal = SlowTemporal(lets=asyncio.Semaphore(0))
    call = asyncio.create_task(env.run(watching(temporal, reading).watch, WatchInput(interval_seconds=60)))
    await meanwhile(call, lambda: bool(temporal.tried), "all are read")
    assert len(beats) >= len(CLUSTERS)
    await ended(call)


async def test_what_is_wrong_is_told_again_and_again_and_what_is_well_once(loop_clock: LoopClock) -> None:
    """A rollout at rest looks once a day by itself: a signal that came to nothing must not be the only one."""
    temporal, health = SlowTemporal(), Health()
    health.failed = frozenset({"c03", "c07"})
    call = asyncio.create_task(
        ActivityEnvironment().run(watching(temporal, health=health).watch, WatchInput(interval_seconds=0.05))
    )

    async def told(cluster: str, times: int) -> None:
        await meanwhile(call, lambda: temporal.told.count(cluster) >= times, f"{cluster} is told {times} times")

    async def rounds() -> None:
        """Two of them begin and end."""
        seen = health.reads
        await meanwhile(call, lambda: health.reads > seen + 2, "it looks again and again")

    again = health_watch._TELL_AGAIN_SECONDS
    for times in (1, 2, 3):
        await told("c03", times)
        await told("c07", times)
        await rounds()
        loop_clock.forward(0.8 * again)
        await rounds()
        assert temporal.told.count("c03") == temporal.told.count("c07") == times, "told more often than that"
        if times < 3:
            loop_clock.forward(0.3 * again)
    temporal.refuses = {"c07"}
    before = temporal.told.count("c07")
    tried = temporal.tried.count("c07")
    loop_clock.forward(0.3 * again)
    await told("c03", 4)
    refused = f"refused, c07 is tried again with the next round, after {tried} times"
    await meanwhile(call, lambda: temporal.tried.count("c07") >= tried + 2, refused)
    assert temporal.told.count("c07") == before
    temporal.refuses, health.failed = set(), frozenset({"c07"})
    await told("c03", temporal.told.count("c03") + 1)  # that it is well again
    well = temporal.told.count("c03")
    for times in (1, 2, 3):
        await told("c07", before + times)
        await rounds()
        loop_clock.forward(1.1 * again)
    await rounds()
    assert temporal.told.count("c03") == well
    assert {
        cluster: temporal.told.count(cluster) for cluster in CLUSTERS if cluster not in ("c03", "c07")
    } == dict.fromkeys([c for c in CLUSTERS if c not in ("c03", "c07")], 1)
    await ended(call)


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
        assert self.free.wait(PATIENCE)
        return 0


class Unsteady(Health):
    """Another shortage at each look, so that each look is an edge."""

    looks = 0

    def read(self, clusters: Sequence[str]) -> ByCluster[HealthSample]:
        self.looks += 1
        island = Island(name="main", total_gpus=8, healthy_gpus=6 + self.looks % 2)
        return ByCluster({c: HealthSample(cluster=c, at=datetime.now(UTC), islands=(island,)) for c in clusters})


async def test_tallies_come_after_the_edges_and_hold_up_none() -> None:
    temporal = SlowTemporal()
    tallying = Tallying(temporal)
    watch_ = watching(temporal, tallier=tallying, health=Unsteady())
    call = asyncio.create_task(
        ActivityEnvironment().run(watch_.watch, WatchInput(interval_seconds=0.01, tally_seconds=300))
    )
    await meanwhile(call, lambda: len(temporal.told) >= 3 * len(CLUSTERS), "three rounds are told")
    assert tallying.told_before >= len(CLUSTERS)
    assert tallying.goes == 1, "one portion at a time"
    tallying.free.set()
    await meanwhile(call, lambda: tallying.goes >= 2, "the next portion is begun")
    await ended(call)


@pytest.mark.parametrize("error", [Unavailable("the ledger is busy"), ZeroDivisionError("our own bug")])
async def test_the_watch_goes_on_whatever_is_wrong_with_the_tallies(error: Exception) -> None:
    temporal = SlowTemporal()
    tallying = Tallying(temporal, fails=error)
    request = WatchInput(interval_seconds=0.01, tally_seconds=300)
    call = asyncio.create_task(ActivityEnvironment().run(watching(temporal, tallier=tallying).watch, request))
    await meanwhile(call, lambda: tallying.goes >= 3, "it tallies again and again")
    await ended(call)


class Calls:
    """Calls of one watch, each ended once it has beaten a few times."""

    def __init__(self, watching: WatchActivities, **request: Any) -> None:
        self._watching = watching
        self._request = request
        self.cursor = ""

    async def rounds(self, reached: Callable[[], bool]) -> None:
        """Rounds follow each other at once until it is so; what the last heartbeat said is the cursor."""
        beats: list[str] = []
        env = ActivityEnvironment()
        env.on_heartbeat = beats.append
        asked = WatchInput(interval_seconds=0.01, cursor=self.cursor, **self._request)
        call = asyncio.create_task(env.run(self._watching.watch, asked))
        await meanwhile(call, lambda: reached() and bool(beats), "so far it gets")
        seen = len(beats)
        await meanwhile(call, lambda: len(beats) >= seen + 3, "it beats a few times more")
        self.cursor = beats[-1]
        await ended(call)


MANY = [f"c{n:05d}" for n in range(10_000)]


async def test_an_edge_of_all_clusters_is_told_a_few_at_a_time_and_once() -> None:
    temporal = SlowTemporal()
    calls = Calls(watching(temporal, clusters=MANY[:400]))
    await calls.rounds(lambda: len(temporal.told) >= 400)
    assert sorted(temporal.told) == MANY[:400]
    assert temporal.most == health_watch._AT_ONCE


async def test_what_finds_no_room_in_a_round_is_told_in_the_next(
    monkeypatch: pytest.MonkeyPatch, loop_clock: LoopClock
) -> None:
    """New shortages do not wait until all earlier ones have been reported."""
    monkeypatch.setattr(health_watch, "_TELLING_SECONDS", 10.0)
    monkeypatch.setattr(health_watch, "_AT_ONCE", 4)
    temporal, health = SlowTemporal(), Health()

    def signalled() -> None:
        loop_clock.forward(1.0)
        if len(temporal.told) == 8:
            health.failed = frozenset({MANY[199]})

    temporal.signalled = signalled
    everything = watching(temporal, clusters=MANY[:200], health=health)
    env = ActivityEnvironment()
    call = asyncio.create_task(env.run(everything.watch, WatchInput(interval_seconds=0.01)))
    await meanwhile(call, lambda: set(temporal.told) == set(MANY[:200]), "all are told")
    await ended(call)
    assert temporal.tried.index(MANY[199]) < 150
    assert sorted(temporal.told) == MANY[:200]


async def test_what_lacks_hardware_is_told_first() -> None:
    health = Health()
    health.failed = frozenset(MANY[80:90])
    temporal = SlowTemporal()
    await Calls(watching(temporal, clusters=MANY[:100], health=health)).rounds(lambda: len(temporal.told) >= 100)
    assert set(temporal.tried[:10]) == set(MANY[80:90])


async def test_a_server_that_refuses_is_left_alone_until_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "_BEAT_SECONDS", 3600.0)  # it beats at the end of the round
    temporal = SlowTemporal(refuses=MANY[:100])
    rounds = watching(temporal, clusters=MANY[:100])
    env = ActivityEnvironment()
    beats: list[str] = []
    env.on_heartbeat = beats.append
    call = asyncio.create_task(env.run(rounds.watch, WatchInput(interval_seconds=3600)))
    await meanwhile(call, lambda: bool(beats), "the round ends")
    await ended(call)
    assert len(temporal.tried) == health_watch._AT_ONCE
    assert [unpack_cursor(beat) for beat in beats] == [set()]


async def test_rollouts_that_cannot_be_signalled_keep_nobody_else_from_it() -> None:
    """More of them than senders, and the first by name: the others have their turn in the next rounds."""
    temporal = SlowTemporal(refuses=MANY[:40])
    await Calls(watching(temporal, clusters=MANY[:100])).rounds(lambda: len(temporal.told) >= 60)
    assert sorted(temporal.told) == MANY[40:100]


async def test_a_call_goes_on_from_the_cursor_of_the_call_before() -> None:
    temporal = SlowTemporal()
    calls = Calls(watching(temporal))
    await calls.rounds(lambda: len(temporal.told) >= len(CLUSTERS))
    health = Health()
    health.failed = frozenset({CLUSTERS[3]})
    later = Calls(watching(temporal, health=health))  # another process
    later.cursor = calls.cursor
    temporal.told.clear()
    await later.rounds(lambda: bool(temporal.told))
    assert temporal.told == [CLUSTERS[3]]


async def test_a_call_that_returns_answers_with_its_cursor() -> None:
    temporal, now = SlowTemporal(), datetime.now(UTC)

    def signalled() -> None:
        nonlocal now
        if len(temporal.told) == len(CLUSTERS):
            now += 2 * health_watch._ROUND

    temporal.signalled = signalled
    watch = watching(temporal, now=lambda: now).watch
    answer = await ActivityEnvironment().run(watch, WatchInput(interval_seconds=0.01))
    assert len(unpack_cursor(answer)) == len(CLUSTERS)


async def test_shards_share_the_clusters_among_them() -> None:
    temporal = SlowTemporal()
    together = watching(temporal, clusters=MANY[:200])  # one process may watch several shards
    parts = []
    for shard in range(3):
        temporal.told.clear()
        wanted = [c for c in MANY[:200] if shard_of(c, 3) == shard]

        def all_told(most: int = len(wanted)) -> bool:
            return len(temporal.told) >= most

        await Calls(together, shard=shard, shards=3).rounds(all_told)
        assert sorted(temporal.told) == wanted
        parts += wanted
    assert sorted(parts) == MANY[:200]
    reads = Quotas.reads
    await Calls(together, shard=0, shards=3).rounds(lambda: True)
    assert Quotas.reads == reads, "what one shard knows of its clusters, another has forgotten"
    assert max(sum(shard_of(c, 4) == n for c in MANY) for n in range(4)) < 1.2 * len(MANY) / 4


async def test_a_source_that_this_worker_does_not_know_is_refused() -> None:
    with pytest.raises(ApplicationError, match="this worker has no health source 'exporter'"):
        await ActivityEnvironment().run(watching(SlowTemporal()).watch, WatchInput(source="exporter"))


def test_the_cursor_of_10_000_clusters_is_small_and_is_read_again() -> None:
    told = {digest(c, f"generation 12345; fresh; short {'team, ' * 50}") for c in MANY}
    assert len(told) == len(MANY)
    cursor = cursor_of(told)
    assert len(cursor) <= 80_000
    assert unpack_cursor(cursor) == told
    asked = WatchInput(cursor=cursor)
    (payload,) = data_converter.payload_converter.to_payloads([asked])
    assert data_converter.payload_converter.from_payloads([payload], [WatchInput]) == [asked]


def test_the_cursor_of_an_earlier_version_is_understood_and_nonsense_is_none() -> None:
    assert unpack_cursor({"a": "backed", "b": "no health"}) == {digest("a", "backed"), digest("b", "no health")}
    assert unpack_cursor("") == unpack_cursor("not base64!") == unpack_cursor(None) == set()


def test_the_ids_of_watches() -> None:
    assert WatchInput().watch_id == "health-watch/ledger"
    assert WatchInput(shard=1, shards=2).watch_id == "health-watch/ledger/1-of-2"
    assert watch_parts("health-watch/ledger/1-of-2") == ["health-watch/ledger/0-of-2", "health-watch/ledger/1-of-2"]
    assert watch_parts("health-watch/ledger") == ["health-watch/ledger"]


@pytest.mark.parametrize("shards", ["0", "-1", "two", "1.5", "101", "²"])
def test_a_number_of_shards_that_is_none_is_refused(shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTOP_WATCH_SHARDS", shards)
    with pytest.raises(BadInput, match="BACKSTOP_WATCH_SHARDS must be a whole number from 1 to 100, not"):
        load_settings()
    monkeypatch.setenv("BACKSTOP_WATCH_SHARDS", "4")
    assert load_settings().watch_shards == 4


class Pushes:
    """Clusters that wait to be looked at. `takes`: how often they were asked for."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.takes = 0

    def take(self, mine: Callable[[str], bool]) -> dict[str, datetime]:
        taken = self.waiting[:]
        del self.waiting[: len(taken)]  # in a thread: what is pushed meanwhile stays
        self.takes += 1
        return dict.fromkeys(filter(mine, taken), datetime.now(UTC))


class LateHealth(Health):
    """Its source has something new, of two clusters, only after the first look at the one that was pushed."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[list[str]] = []

    def read(self, clusters: Sequence[str]) -> ByCluster[HealthSample]:
        samples = super().read(clusters)
        self.looks.append([*clusters])
        if [*clusters] == CLUSTERS[:1]:
            self.failed = frozenset(CLUSTERS[:2])
        return samples


async def test_a_pushed_cluster_is_looked_at_at_once_and_once_more_and_no_other_is(
    monkeypatch: pytest.MonkeyPatch, loop_clock: LoopClock
) -> None:
    """Once more, as a source that is polled itself may have had nothing new to say the first time."""
    monkeypatch.setattr(health_watch, "_PUSH_SECONDS", 0.01)
    monkeypatch.setattr(health_watch, "_AGAIN_SECONDS", 600.0)
    temporal, health, pushes, env = SlowTemporal(), LateHealth(), Pushes(), ActivityEnvironment()
    watch = watching(temporal, health=health, pushes=pushes)
    call = asyncio.create_task(env.run(watch.watch, WatchInput(interval_seconds=3600)))

    async def told(count: int) -> None:
        await meanwhile(call, lambda: len(temporal.told) >= count, f"{count} are told")

    async def asked() -> None:
        """Twice more, whether anything was pushed: what the time before led to is done."""
        seen = pushes.takes
        await meanwhile(call, lambda: pushes.takes > seen + 2, "it asks for what was pushed")

    await told(len(CLUSTERS))
    pushes.waiting += [CLUSTERS[0]] * 100  # nothing is new yet: the first look finds nothing
    for _ in range(2):
        await asked()
        assert health.looks[1:] == [CLUSTERS[:1]]
        assert len(temporal.told) == len(CLUSTERS)
        loop_clock.forward(300.0)
    await told(len(CLUSTERS) + 1)
    loop_clock.forward(900.0)
    await asked()
    assert temporal.told[len(CLUSTERS) :] == [CLUSTERS[0]]
    assert health.looks[1:] == [CLUSTERS[:1]] * 2
    pushes.waiting += [CLUSTERS[1], "no-such"]
    await told(len(CLUSTERS) + 2)
    assert temporal.told[len(CLUSTERS) :] == [*CLUSTERS[:2]]
    await ended(call)


class Rollouts(Ledger):
    """The rollout of `c00`: its stage, and what it read as it opened `ago` seconds ago."""

    def __init__(self, stage: Stage = Stage.PLANNED) -> None:
        super().__init__(["c00"])
        self.stage, self.ago = stage, 1.0
        self.read: dict[str, Any] = {"healthy": 8, "generation": 1, "adopted_from": "", "sampled": True}

    def open_clusters(self) -> ByCluster[tuple[Stage, bool]]:
        return ByCluster({"c00": (self.stage, False)})

    def open_rollout_of(self, cluster: str) -> Any:
        at = datetime.now(UTC) - timedelta(seconds=self.ago)
        baseline = Snapshot(
            cluster=cluster,
            quotas=(),
            islands=(Island(name="main", total_gpus=8, healthy_gpus=self.read["healthy"]),),
            generation=self.read["generation"],
            health_at=at if self.read["sampled"] else None,
        )
        return OpenRollout(
            rollout="r",
            cluster=cluster,
            owner="ana",
            opened_at=at,
            baseline=baseline,
            adopted_from=self.read["adopted_from"],
        )


class OneCluster:
    """The watch of `c00`, round by round, and how many signals each sent."""

    def __init__(self, stage: Stage = Stage.PLANNED) -> None:
        self.rollouts, self.health, self.temporal, self.quotas = Rollouts(stage), Health(), SlowTemporal(), Quotas()
        ledger: Any = self.rollouts
        quotas: Any = self.quotas
        client: Any = self.temporal
        self._watch = WatchActivities(client, ClusterPorts(quotas, self.health, *[ledger] * 5))
        self._cursor: Any = frozenset[bytes]()

    async def signals(self, **changes: Any) -> int:
        self.rollouts.stage = changes.pop("stage", self.rollouts.stage)
        self.health.failed = frozenset(["c00"] if changes.pop("failed", bool(self.health.failed)) else [])
        self.rollouts.ago = changes.pop("ago", self.rollouts.ago)
        self.quotas.__dict__.update(changes)
        before = len(self.temporal.tried)
        self._cursor = await ActivityEnvironment().run(
            self._watch._round, WatchInput(interval_seconds=60), self._cursor
        )
        return len(self.temporal.tried) - before


@pytest.mark.parametrize("stage", [Stage.PLANNED, Stage.BUFFERED])
async def test_a_rollout_that_has_just_read_all_this_is_not_signalled(stage: Stage) -> None:
    one = OneCluster(stage)
    assert await one.signals() == 0
    assert await one.signals() == 0


@pytest.mark.parametrize(
    "read", [{"healthy": 7}, {"generation": 2}, {"adopted_from": "before"}, {"sampled": False}], ids=lambda r: str(*r)
)
async def test_a_rollout_that_opened_with_something_else_is_signalled_once(read: dict[str, Any]) -> None:
    one = OneCluster()
    one.rollouts.read |= read
    assert await one.signals() == 1
    assert await one.signals() == 0


async def test_a_rollout_that_opened_some_time_ago_is_signalled_once() -> None:
    one = OneCluster()
    assert await one.signals(ago=61) == 1
    assert await one.signals() == 0


@pytest.mark.parametrize(("ended_ago", "signals"), [(0.5, 1), (5, 0)])
async def test_a_rollout_is_signalled_once_about_a_window_that_has_ended_since_it_opened(
    ended_ago: float, signals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opened two seconds ago, while the window held it; or the window had ended before."""
    one, now = OneCluster(), datetime.now(UTC)
    starts, ends = now - timedelta(hours=1), now - timedelta(seconds=ended_ago)
    window = Window(kind=WindowKind.SEV, starts=starts, ends=ends, reason="fabric")
    monkeypatch.setattr(Rollouts, "windows", lambda *_: ByCluster({"c00": (window,)}))
    assert await one.signals(ago=2) == signals
    assert await one.signals() == 0


async def test_a_new_stage_alone_is_no_signal_and_hardware_that_changes_with_it_is_one() -> None:
    one = OneCluster()
    assert await one.signals() == 0
    assert await one.signals(stage=Stage.BUFFERED) == 0
    assert await one.signals(failed=True) == 1, "short"
    assert await one.signals(stage=Stage.ROLLED_BACK) == 0
    assert await one.signals(failed=False) == 1
    assert await one.signals(stage=Stage.BUFFERED) == 0
    assert await one.signals(stage=Stage.ROLLED_BACK, failed=True) == 1


async def test_a_new_stage_is_signalled_if_the_signal_before_came_to_nothing() -> None:
    one = OneCluster()
    assert await one.signals() == 0
    one.temporal.refuses = {"c00"}
    assert await one.signals(failed=True) == 1
    one.temporal.refuses = set()
    assert await one.signals(stage=Stage.BUFFERED, failed=True) == 1
