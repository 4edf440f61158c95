"""Months in seconds: the real workflow, activities and ledger on a server that skips time.

Each workflow has its own virtual clock, which skips to its next timer only inside `Played.to`; outside it runs
at real speed. Two clocks must follow it. The exporter scrapes as the workflow looks: before each activity that
is called with a time, it writes the sample of that time into the ledger, and that time is the ledger's clock.
The shared watch lives in real time and, as an activity that never ends, would stop all skipping; here its part
is played by `Played.changed`, which sends the watch's own signal at an edge, and by the safety polls.

`python -m tests.e2e.skipping --days 365` plays a year with a breach a day, `--quiet` one without, and prints
what it cost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import temporalio.activity
import temporalio.client
import temporalio.worker
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import EventType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError
from temporalio.testing import TimeSkipper, TimeSkippingConfig, WorkflowEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Replayer

from activities.adapters.ledger.database import upgrade
from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from client.connection import NAMESPACE
from client.converter import data_converter
from models.rollout.commands import CommandRequest
from models.rollout.messages import (
    AimRequest,
    DraftRequest,
    EffectRequest,
    HealthChanged,
    ObserveRequest,
    OpenRequest,
    RolloutInput,
)
from models.rollout.stages import Command, Stage
from models.rollout.state import Post, Rollout
from models.temporal_names import HEALTH_SIGNAL, SEARCH_ATTRIBUTES
from tests.e2e.world import Sql, World, eventually, team
from tests.replaying import replays
from workers.embedded_temporal import RETENTION, temporal_binary
from workers.main import FAILURES, Workers, make_worker, sandbox
from workflows.cluster_rollout import ClusterRollout

_FAST = (
    "frontend.WorkflowTimeSkippingEnabled=true",
    "history.transferProcessorMaxPollRPS=1000",
    "history.timerProcessorMaxPollRPS=1000",
    'history.timerProcessorMaxTimeShift="1ms"',
    # A run that is a second old of real time would hold its successor back, and skipping leaps over that pause.
    'history.workflowIdReuseMinimalInterval="0s"',
)
_SKIPS = 10_000_000
"""The server's own default gives up after 200 skips in a row."""
_SKIPPING = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIME_SKIPPING_TRANSITIONED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED,
)
"""Events that only skipping leaves: no rollout has them where time takes its time."""

Islands = dict[str, tuple[int, int]]
"""(total, healthy) GPUs by island."""


class Exporter(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """The health source, on the clock of the workflow that looks."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self._script: list[tuple[datetime, Islands | None]] = []
        self.cluster = ""
        self.now = datetime.now(UTC)
        self.away: tuple[str, ...] = ()
        """Activities whose calls find no ledger."""
        self.missed = Counter[str]()

    def ledger_clock(self) -> datetime:
        return self.now

    def from_then_on(self, at: datetime, islands: Islands | None) -> None:
        """Set the hardware from `at` on; None: the exporter is silent."""
        self._script.append((at, islands))
        self._script.sort(key=lambda known: known[0])

    def scrape(self, at: datetime) -> None:
        self.now = max(self.now, at)
        known = [islands for since, islands in self._script if since <= at]
        if not known or known[-1] is None:
            return
        for name, (total, healthy) in known[-1].items():
            self._sql.run(
                "INSERT OR REPLACE INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source) "
                "VALUES (?, ?, ?, ?, ?, 'exporter')",
                *(self.cluster, name, at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), total, healthy),
            )

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Scraping(next, self)


class _Scraping(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, exporter: Exporter) -> None:
        super().__init__(next)
        self._exporter = exporter

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        name = temporalio.activity.info().activity_type
        if name in self._exporter.away:
            self._exporter.missed[name] += 1
            raise ApplicationError("the ledger's database did not answer", type="Unavailable")
        match input.args[0] if input.args else None:
            case OpenRequest() | DraftRequest() | ObserveRequest() | AimRequest() | EffectRequest() as request:
                self._exporter.scrape(request.at)
            case _:
                pass
        return await super().execute_activity(input)


@dataclass
class Run:
    """One run of a rollout, by its history. `events` and `size` (bytes) leave out what only skipping adds."""

    events: int = 0
    size: int = 0
    skipping: int = 0
    carried: Rollout | None = None
    """The state that it began with."""
    carried_bytes: int = 0
    continued: bool = False
    said: list[str] = field(default_factory=list)
    """Reasons of the commands that it accepted."""
    signalled: list[str] = field(default_factory=list)


class Played(World):
    """One cluster's story on virtual time. Hours are counted from `began`."""

    def __init__(
        self,
        client: Client,
        skipper: TimeSkipper,
        sql: Sql,
        home: Path,
        exporter: Exporter,
        hire: Callable[[], Workers],
    ) -> None:
        super().__init__(client, sql, home, shaky=True)
        self._skipper = skipper
        self._hire = hire
        self._worker: Workers | None = None
        self._working: asyncio.Task[None] | None = None
        self.exporter = exporter
        self.began = datetime.now(UTC)
        self.name = ""
        self.said: list[str] = []
        """Reasons of acknowledged commands."""
        self.signalled: list[str] = []

    def start_worker(self) -> None:
        self._worker = self._hire()
        self._working = asyncio.create_task(self._worker.run())

    async def stop_worker(self) -> None:
        """Stop the worker: nobody serves the task queue."""
        if self._worker is not None and self._working is not None:
            self._worker.stop()
            await self._working
        self._worker = self._working = None

    def at(self, hours: float) -> datetime:
        return self.began + timedelta(hours=hours)

    def hours(self, at: datetime | str) -> float:
        moment = datetime.fromisoformat(at) if isinstance(at, str) else at
        return (moment - self.began) / timedelta(hours=1)

    async def opened(self, cluster: dict[str, Any], islands: Islands, teams: Sequence[dict[str, Any]] = ()) -> None:
        """The cluster stands in the ledger and its rollout waits for approval."""
        self.name = self.exporter.cluster = cluster["name"]
        await self.fleet(cluster, teams=teams)
        self.exporter.from_then_on(self.began, islands)
        await self.launch(self.name)

    async def workflow_now(self) -> datetime:
        """The workflow's clock."""
        return await self._skipper.get_current_time(self.handle(self.name))

    async def to(self, hours: float) -> None:
        """The workflow's clock has come to that hour, and everything on the way has happened."""
        left = self.at(hours) - await self.workflow_now()
        if left > timedelta(0):
            reached = await asyncio.wait_for(self._skipper.fast_forward(self.handle(self.name), left), 300)
            assert reached, f"{self.name} ended before hour {hours:g}"

    async def changed(self, hours: float, islands: Islands | None, *, told: bool = True) -> None:
        """The hardware changes at that hour; `told`: the watch's signal comes at once, else a look unasked finds it."""
        self.exporter.from_then_on(self.at(hours), islands)
        await self.to(hours)
        if told:
            await self.signal(f"edge at {hours:g} h")

    async def signal(self, why: str) -> None:
        edge = HealthChanged(cluster=self.name, at=datetime.now(UTC), why=why)
        await self.handle(self.name).signal(HEALTH_SIGNAL, edge)
        self.signalled.append(why)

    async def acks(self, reason: str) -> None:
        await self.say(self.name, Command.ACK, actor="lead", team="research", reason=reason)
        self.said.append(reason)

    def transitions(self) -> list[tuple[str, float]]:
        """(stage, hour) of every change of stage, as the archive has it."""
        rows = self.sql.archive(self.name)
        return [(e["data"]["after"], self.hours(e["at"])) for e in rows if e["kind"] == "transition"]

    def texts(self, kind: str) -> list[str]:
        return [e["text"] for e in self.sql.archive(self.name) if e["kind"] == kind]

    def audited(self) -> list[str]:
        """Reasons of the acknowledgements that the archive has."""
        return [e["reason"] for e in self.sql.archive(self.name) if e["data"].get("command") == "ack"]

    async def archives_all(self) -> None:
        """Every acknowledged command is archived. Fails with what lacks and what the rollout has under way."""
        try:
            await eventually(lambda: sorted(self.said) == sorted(self.audited()), "every command in the archive")
        except AssertionError as error:
            given, archived = Counter(self.said), Counter(self.audited())
            lacks, beyond = sorted((given - archived).elements()), sorted((archived - given).elements())
            handle = self.handle(self.name)
            under_way = (await handle.describe()).raw_description.pending_activities
            state = await handle.query("state", result_type=Rollout)
            last = [EventType.Name(event.event_type) for event in (await handle.fetch_history()).events[-12:]]
            raise AssertionError(f"{error}; {lacks=}; {beyond=}; {under_way=}; {state.post=}; {last=}") from error

    async def runs(self, *, replay: bool = True) -> list[Run]:
        """Every run of the rollout, the first one first; each also replays."""
        found: list[Run] = []
        run_id: str | None = None
        while run_id != "":
            handle = self.client.get_workflow_handle(self.handle(self.name).id, run_id=run_id)
            history = await handle.fetch_history()
            if replay:
                await replays(_replayer, history)
            found.append(await _run_of(history))
            run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        return found[::-1]


def _replayer() -> Replayer:
    return Replayer(
        workflows=[ClusterRollout],
        workflow_runner=sandbox(),
        workflow_failure_exception_types=FAILURES,
        data_converter=data_converter,
    )


async def _run_of(history: temporalio.client.WorkflowHistory) -> Run:
    run = Run()
    decode = data_converter.decode
    for event in history.events:
        if event.event_type in _SKIPPING:
            run.skipping += 1
            continue
        run.events += 1
        run.size += event.ByteSize()
        if event.HasField("workflow_execution_started_event_attributes"):
            payloads = event.workflow_execution_started_event_attributes.input.payloads
            (start,) = await decode(payloads, [RolloutInput])
            run.carried, run.carried_bytes = start.state, sum(len(p.data) for p in payloads)
        elif event.HasField("workflow_execution_update_accepted_event_attributes"):
            accepted = event.workflow_execution_update_accepted_event_attributes.accepted_request
            if accepted.input.name == Command.ACK.value:
                (request,) = await decode(accepted.input.args.payloads, [CommandRequest])
                run.said.append(request.reason)
        elif event.HasField("workflow_execution_signaled_event_attributes"):
            signaled = event.workflow_execution_signaled_event_attributes
            (edge,) = await decode(signaled.input.payloads, [HealthChanged])
            run.signalled.append(edge.why)
        run.continued |= event.HasField("workflow_execution_continued_as_new_event_attributes")
    return run


@asynccontextmanager
async def playing(ledger_url: str, home: Path, *settings: str) -> AsyncIterator[Played]:
    """A server that skips, a worker with the ledger behind it, nobody's rollout yet. `settings` of the server."""
    extra = [word for setting in (*_FAST, *settings) for word in ("--dynamic-config-value", setting)]
    kinds = {"Keyword": SearchAttributeKey.for_keyword, "Int": SearchAttributeKey.for_int}
    environment = await WorkflowEnvironment.start_time_skipping_v2(
        namespace=NAMESPACE,
        data_converter=data_converter,
        search_attributes=[kinds[kind](name) for name, kind in SEARCH_ATTRIBUTES.items()],
        dev_server_existing_path=str(temporal_binary()),
        dev_server_log_level="error",
        dev_server_extra_args=extra,
        dev_server_startup_timeout=timedelta(seconds=60),
    )
    sql = Sql(ledger_url)
    exporter = Exporter(sql)
    with contextlib.closing(sql), Ledger(ledger_url, exporter.ledger_clock) as ledger, ThreadPoolExecutor(16) as pool:
        async with environment:
            # A plain client starts what runs at real speed; only `fast_forward` skips.
            client = await Client.connect(
                environment.client.service_client.config.target_host,
                namespace=NAMESPACE,
                data_converter=data_converter,
                interceptors=[exporter],
            )
            await _keep_histories(client)
            skipper = TimeSkipper(client, config=TimeSkippingConfig(max_session_skip_count=_SKIPS))
            notify = Notifier(home / "notices.jsonl", exporter.ledger_clock, None)
            played = Played(client, skipper, sql, home, exporter, lambda: make_worker(client, ledger, notify, pool))
            played.start_worker()
            try:
                yield played
            finally:
                await played.stop_worker()


async def _keep_histories(client: Client) -> None:
    """Continued runs stay readable: the server would forget them a day after their, virtual, end."""
    ttl = Duration()
    ttl.FromTimedelta(RETENTION)
    config = NamespaceConfig(workflow_execution_retention_ttl=ttl)
    await client.workflow_service.update_namespace(UpdateNamespaceRequest(namespace=NAMESPACE, config=config))


# --- a year ----------------------------------------------------------------------------------

CYCLE: dict[str, Any] = {
    "notice": "1h",
    "soak_buffered": "2h",
    "soak_enforced": "4h",
    "recover_after": "6h",
    "breach_after": "10m",
    "clear_after": "30m",
    "attempts": 3,
}
"""What fits a breach, its recovery and the next attempt into one day: a drop at 06:00 that ends at 08:00 leads
to the next attempt at 14:00 and to monitored at 20:00 (an hour later each where the first signal is lost). Other
settings are the defaults, the looks unasked among them: one a day at rest, else each hour. `attempts` is never spent:
monitored begins it again.
"""
GOOD: Islands = {"main": (361, 319)}
BAD: Islands = {"main": (361, 300)}
SETUP = ["reserve", "set_soft", "harden", "follow"]
ANSWER = ["unfollow", "soften", "restore", "release"]
"""The effects of one attempt, and of the rollback from it."""
SUGGESTED = 4096
"""The server's own default."""
A_DAY = 700
"""More events than a day with a breach has."""
AT_ONCE = 8
"""The server takes ten updates of one workflow at once."""


def daily_case(name: str) -> dict[str, Any]:
    """docs/design.md, "A worked case", on clocks that allow a breach a day."""
    return {
        "name": name,
        "gpus_per_node": 8,
        "islands": [{"name": "main", "total_gpus": 361, "healthy_gpus": 319}],
        "policy": CYCLE,
        "quotas": [team("research", 345, busy=310)],
    }


@dataclass
class Year:
    """The figures of a played year. Events and bytes are without those of skipping itself."""

    days: int
    breaches: int
    runs: list[Run]
    wall_seconds: float

    @property
    def events_a_day(self) -> float:
        return sum(r.events for r in self.runs) / self.days

    @property
    def bytes_a_day(self) -> float:
        return sum(r.size for r in self.runs) / self.days

    def __str__(self) -> str:
        carried = [r.carried_bytes for r in self.runs[1:]]
        return (
            f"days {self.days}, breaches {self.breaches}, events/day {self.events_a_day:.0f}, "
            f"bytes/day {self.bytes_a_day:.0f}, max events in a run {max(r.events for r in self.runs)}, "
            f"max bytes in a run {max(r.size for r in self.runs)}, runs {len(self.runs)}, carried bytes "
            f"{f'{carried[0]} first, {carried[-1]} last, {max(carried)} most' if carried else 'none'}, commands "
            f"{sum(len(r.said) for r in self.runs)}, signals {sum(len(r.signalled) for r in self.runs)}, "
            f"wall seconds {self.wall_seconds:.0f}"
        )


async def monitored(played: Played) -> None:
    """The rollout is monitored, at the latest at hour 8."""
    await played.opened(daily_case("years"), GOOD)
    await played.approve(played.name)
    await played.to(8)
    await played.until(played.name, Stage.MONITORED)


async def play(played: Played, days: int, *, breaches: bool, suggested: int, says: Callable[[str], None]) -> Year:
    """Days 1 to `days` with a breach each, or without. Around each new run, bursts of commands and signals.

    `suggested`: from how many events on the server suggests to continue as new.
    """
    started = time.monotonic()
    await monitored(played)
    nearly_full = 0
    for day in range(1, days + 1):
        if breaches:
            await _breach(played, 24 * day, told=day % 2 == 0)
        await played.to(24 * day + 22)
        status = await played.status(played.name)
        assert status.stage is Stage.MONITORED, f"day {day}: {status.model_dump_json(indent=1)}"
        assert played.sql.gpus(played.name) == {"research": 306}
        # Every other run ends in a burst; the others end where they would by themselves.
        nearly_full += status.history_events > suggested - A_DAY
        if status.history_events > suggested - A_DAY and nearly_full % 2:
            await _burst(played, status.runs)
        if day % 10 == 0:
            says(f"day {day}: run {status.runs}, {time.monotonic() - started:.0f} s")
    await played.to(24 * (days + 1))
    status = await played.status(played.name)
    await played.archives_all()
    runs = await played.runs()
    assert len(runs) == status.runs
    return Year(days, days if breaches else 0, runs, time.monotonic() - started)


async def _breach(played: Played, base: int, *, told: bool) -> None:
    await played.changed(base + 6, BAD, told=told)
    if not told:  # the signal was lost: what is wrong the watch tells again each hour
        await played.to(base + 7)
        await played.signal(f"told again at {base + 7} h")
    await played.changed(base + 8, GOOD, told=told)
    await played.to(base + 12)
    assert (await played.status(played.name)).stage is Stage.ROLLED_BACK
    assert played.sql.gpus(played.name) == {"research": 300}


async def _burst(played: Played, run: int) -> None:
    """Everybody talks until the rollout continues as new, and a little longer."""
    more = 2
    while more:
        number = len(played.said)
        await asyncio.gather(
            *(played.acks(f"ack {number + n}") for n in range(AT_ONCE)),
            *(played.signal(f"burst {number + n}") for n in range(AT_ONCE)),
        )
        more -= (await played.status(played.name)).runs > run
        assert number < 100_000, "no new run comes"


MOST_LATER = 400
"""Events that a run may add once the server has suggested to continue as new."""
MOST_BYTES = 5 * 2**20
"""No run has more. With 4,496 events that is an eleventh of 51,200 events and a tenth of 50 MiB, where a run ends
for good: the server suggests at 4,096 events or 4 MiB."""


def check(played: Played, year: Year, *, suggested: int) -> None:
    """Check by plain SQL and the histories that nothing was dropped, nothing happened twice, and nothing grew."""
    sql, runs = played.sql, year.runs
    assert sql.effects("years/1") == SETUP + (ANSWER + SETUP) * year.breaches
    found = [text for text in played.texts("guard") if text.startswith("breach:")]
    assert found == ["breach: research lacks 6 GPUs"] * year.breaches
    stages = [stage for stage, _ in played.transitions()]
    first, again = ["buffered", "enforced", "monitored"], ["rolling_back", "rolled_back", "planned"]
    assert stages == first + (again + first) * year.breaches
    for at, day in zip([h for s, h in played.transitions() if s == "rolling_back"], range(1, 10_000), strict=False):
        late = 0 if day % 2 == 0 else 1
        assert 24 * day + 6 + 1 / 6 <= at <= 24 * day + 6 + 1 / 6 + late + 0.1, f"day {day} breached at hour {at}"

    assert len(set(played.said)) == len(played.said)
    assert sorted(played.audited()) == sorted(played.said)
    assert sorted(reason for run in runs for reason in run.said) == sorted(played.said)
    assert sorted(why for run in runs for why in run.signalled) == sorted(played.signalled)
    assert sql.broken_links(played.name) == []
    assert [run.continued for run in runs] == [True] * (len(runs) - 1) + [False]

    events, size = max(r.events for r in runs), max(r.size for r in runs)
    assert events <= suggested + MOST_LATER, f"{events} events in one run"
    assert size <= MOST_BYTES, f"{size} bytes in one run"
    states = [run.carried for run in runs if run.carried is not None]
    for state in states:
        # What came while it waited for its next run: two events each at least, however long a busy machine took.
        assert len(state.post.outbox) <= MOST_LATER // 2, [e.text for e in state.post.outbox]
        assert len(state.post.mail) <= 10
        assert len(state.holds) == 0
    sizes = [len(state.but(post=Post()).model_dump_json()) for state in states]
    half = len(sizes) // 2
    if half:
        # What counts (fences, serials) may gain digits; the rest differs by stage alone.
        assert max(sizes[half:]) <= max(sizes[:half]) + 1_500 < 10_000, sizes
    assert sql.one("SELECT count(*) FROM rollouts") == 1
    assert sql.one("SELECT count(*) FROM moves") <= year.breaches + 1


async def main(days: int, breaches: bool, suggested: int | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        url = f"sqlite:///{home / 'ledger.db'}"
        upgrade(url)
        settings = [] if suggested is None else [f"limit.historyCount.suggestContinueAsNew={suggested}"]
        async with playing(url, home, *settings) as played:
            year = await play(played, days, breaches=breaches, suggested=suggested or SUGGESTED, says=print)
            print(year, flush=True)
            check(played, year, suggested=suggested or SUGGESTED)
            tables = ("receipts", "moves", "audit", "health_samples", "rollouts")
            rows = {table: played.sql.one(f"SELECT count(*) FROM {table}") for table in tables}
            print("rows:", ", ".join(f"{table} {count}" for table, count in rows.items()), flush=True)
            print("all checks passed", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="play a year of one rollout")
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--quiet", action="store_true", help="no breach: looks unasked alone")
    parser.add_argument("--suggest", type=int, help="continue as new from this many events on")
    chosen = parser.parse_args()
    asyncio.run(main(chosen.days, not chosen.quiet, chosen.suggest))
    os._exit(0)  # the SDK's threads may abort a process that ends with a long poll cancelled
