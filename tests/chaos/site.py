"""An installation made of real processes, and everything that can happen to it.

PostgreSQL behind a proxy, the embedded Temporal server on fixed ports, workers as an operator runs them; who
dies by himself is started again, as a service manager would. Once Temporal's database is deleted (moved aside: the
judge reads it), and the server begins empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg.rows import dict_row
from temporalio.client import Client
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig

from activities.adapters.ledger.database import upgrade
from activities.adapters.ledger.facade import Ledger
from client.backstop import Backstop
from client.connection import NAMESPACE, TemporalTarget
from client.converter import data_converter
from tests.chaos.outcome import WITNESS, Row
from tests.chaos.proxy import OnCommit, Proxy, Trap
from tests.chaos.repository import Repository
from tests.postgres_server import started
from workers.embedded_temporal import EmbeddedTemporal

T = TypeVar("T")
_SQLSTATES = ("40001", "40P01", "53300", "57P03", "XX000")
_SPEAKS_OF = ("TMPRL1100", "ondeterminis", "does not handle this event", "Failed activation")


@contextmanager
def postgresql() -> Iterator[Path]:
    """A PostgreSQL server of our own; the directory of its socket."""
    directory = Path(tempfile.mkdtemp(prefix="backstop-pg-"))  # a socket's path must be short
    try:
        server = started(directory)
        try:
            with psycopg.connect(str(server.get_uri()), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET fsync = off")
                connection.execute("SELECT pg_reload_conf()")
                connection.execute("CREATE DATABASE ledger")
            yield directory
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Free now, and so low that nobody is given them by chance while their owner is away."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = random.randrange(20_000, 30_000)
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


class Site:
    """The installation. Times of faults and deaths are kept for the judge."""

    def __init__(self, home: Path, sockets: Path, workers: int, watch_seconds: float) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.faults: list[Row] = []
        self.killed: list[str] = []
        self.deleted: dict[str, str] = {}
        """When Temporal's database was deleted, and when an empty server answered."""
        self.ended_by_themselves = 0
        self.repository: Repository | None = None
        """Where it holds the clusters' quotas."""
        self._sockets = sockets
        self._watch_seconds = watch_seconds
        ledger_port, port, ui_port = free_ports(3)
        self.proxy = Proxy(ledger_port, str(sockets / ".s.PGSQL.5432"))
        self.temporal = EmbeddedTemporal(home / "temporal", port, ui_port)
        self._workers: list[asyncio.subprocess.Process | None] = [None] * workers
        self._logs = 0
        self._client: Client | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._server_lock = asyncio.Lock()

    # --- its life -------------------------------------------------------------------------------

    async def start(self) -> None:
        upgrade(f"postgresql://postgres@/ledger?host={self._sockets}")
        self.sql("SELECT 1")
        with self._connection() as connection:
            connection.execute(WITNESS)
        await self.proxy.start()
        await self.temporal.start()
        quiet = Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="error")))  # it would tell each retry
        self._client = await Client.connect(
            self.temporal.address, namespace=NAMESPACE, data_converter=data_converter, runtime=quiet
        )
        await asyncio.gather(*(self._start_worker(n) for n in range(len(self._workers))))
        await self._serving()
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        living = [w for w in self._workers if w is not None and w.returncode is None]
        for worker in living:
            worker.send_signal(signal.SIGCONT)
            worker.send_signal(signal.SIGINT)
        for worker in living:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(worker.wait(), 20)
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
        await self.temporal.stop()
        await self.proxy.stop()

    async def _start_worker(self, number: int) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "BACKSTOP_", "OTEL_"))}
        where = f"postgresql://postgres@127.0.0.1:{self.proxy.port}/ledger?sslmode=disable&gssencmode=disable"
        ours = {
            "BACKSTOP_HOME": str(self.home),
            "BACKSTOP_LEDGER_URL": where,
            "BACKSTOP_WATCH_INTERVAL": str(self._watch_seconds),
            "BACKSTOP_GIT_TIMEOUT": "5s",
            "BACKSTOP_CONTACT_NETWORKS": "127.0.0.0/8",  # where the webhook that drips is
            "TEMPORAL_ADDRESS": self.temporal.address,
            "TEMPORAL_NAMESPACE": NAMESPACE,
        }
        self._logs += 1
        with (self.home / f"worker-{self._logs:03d}.log").open("wb") as log:
            self._workers[number] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "workers.main"),
                env=inherited | ours,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _serving(self) -> None:
        """The first workers have said so."""
        async with asyncio.timeout(60):
            logs = sorted(self.home.glob("worker-*.log"))
            while not all("serving" in log.read_text() for log in logs):
                await asyncio.sleep(0.1)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(1)
            for number, worker in enumerate(self._workers):
                if worker is not None and worker.returncode is not None:
                    if worker.returncode != -signal.SIGKILL:
                        self.ended_by_themselves += 1
                    await self._start_worker(number)

    # --- doors ----------------------------------------------------------------------------------

    @property
    def before(self) -> Path:
        """Return the path of Temporal's database as it was before it was deleted."""
        return self.home / "temporal-before"

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def person(self, name: str) -> Backstop:
        options = {"target_host": self.temporal.address, "namespace": NAMESPACE}
        return Backstop(self.client, name, TemporalTarget(options=options, embedded=True))

    def _connection(self) -> psycopg.Connection[Row]:
        """Past the proxy, as another tool's."""
        where = f"host={self._sockets} user=postgres dbname=ledger application_name=chaos"
        return psycopg.Connection[Row].connect(where, autocommit=True, row_factory=dict_row)

    def stage_import(self, import_id: str, part: int, payload: bytes) -> None:
        """Write the part straight into the ledger, because it has contacts' secrets."""
        with Ledger(f"postgresql://postgres@/ledger?host={self._sockets}") as ledger:
            ledger.fleet.stage_import(import_id, part, payload)

    def sql(self, statement: str, *parameters: Any) -> list[Row]:
        with self._connection() as connection:
            answer = connection.execute(statement, parameters)
            return answer.fetchall() if answer.description else []

    async def asked(self, statement: str, *parameters: Any) -> list[Row]:
        """The same without holding up the proxy, which shares our loop."""
        return await self._patiently(lambda: self.sql(statement, *parameters))

    async def inside(self, work: Callable[[psycopg.Connection[Row]], T]) -> T:
        """Done in one transaction of its own, in a thread."""

        def run() -> T:
            with self._connection() as connection, connection.transaction():
                return work(connection)

        return await self._patiently(run)

    async def _patiently(self, work: Callable[[], T]) -> T:
        """Work in a thread; try again for some seconds if `schema_away` may have hidden a table."""
        for _ in range(40):
            try:
                return await asyncio.to_thread(work)
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
                await asyncio.sleep(0.2)
        return await asyncio.to_thread(work)

    def nondeterminism(self) -> list[str]:
        """Return the lines about nondeterminism in the workers' logs."""
        lines = [line for log in sorted(self.home.glob("worker-*.log")) for line in log.read_text().splitlines()]
        return [line[:500] for line in lines if any(word in line for word in _SPEAKS_OF)]

    # --- faults ---------------------------------------------------------------------------------

    async def worker_killed(self, rng: random.Random) -> None:
        """SIGKILL; another one takes its place in a second or two."""
        living = [w for w in self._workers if w is not None and w.returncode is None]
        if living:
            self.killed.append(_now())
            victim = rng.choice(living)
            victim.kill()
            await victim.wait()
            await asyncio.sleep(8)  # the next one has to start

    async def worker_frozen(self, rng: random.Random) -> None:
        """A zombie: it misses its heartbeats, others do its work, and then it goes on where it was."""
        living = [w for w in self._workers if w is not None and w.returncode is None]
        if living:
            victim = rng.choice(living)
            victim.send_signal(signal.SIGSTOP)
            await asyncio.sleep(rng.uniform(3, 20))
            with contextlib.suppress(ProcessLookupError):
                victim.send_signal(signal.SIGCONT)

    async def server_killed(self, rng: random.Random) -> None:
        """kill -9, and started again on its files."""
        async with self._server_lock:
            os.kill(self.temporal.pid, signal.SIGKILL)
            await self.temporal.wait()
            await asyncio.sleep(rng.uniform(0, 2))
            await self.temporal.start()

    async def database_deleted(self, rng: random.Random) -> None:
        """kill -9, its files are gone, and an empty server begins on the same ports."""
        async with self._server_lock:
            at = _now()
            os.kill(self.temporal.pid, signal.SIGKILL)
            await self.temporal.wait()
            await self.temporal.stop()  # lets go of the directory
            self.temporal.directory.rename(self.before)
            await asyncio.sleep(rng.uniform(0, 2))
            await self.temporal.start()
            self.deleted = {"at": at, "until": _now()}

    async def ledger_cut(self, rng: random.Random) -> None:
        """Every connection drops, and new ones are refused for seconds."""
        await self.proxy.stop()
        await asyncio.sleep(rng.uniform(1, 6))
        await self.proxy.start()

    async def sessions_ended(self, rng: random.Random) -> None:
        """The database itself ends what the workers have open."""
        theirs = "application_name <> 'chaos' AND backend_start < now() - interval '1 s'"  # ours have no name at first
        await self.asked(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {theirs}")

    async def ledger_slow(self, rng: random.Random) -> None:
        self.proxy.delay(rng.uniform(0.1, 1.0))
        await asyncio.sleep(rng.uniform(2, 6))
        self.proxy.delay(0)

    async def ledger_errors(self, rng: random.Random) -> None:
        """The next statements are refused with an error that passes."""
        self.proxy.give_errors(rng.choice(_SQLSTATES), rng.randint(1, 4))

    async def schema_away(self, rng: random.Random) -> None:
        """A table or a column is not there for seconds, as where somebody migrates by hand."""
        what = rng.choice(
            (("quotas", ""), ("receipts", ""), ("health_samples", ""), ("rollouts", "needs"), ("audit", ""))
        )
        away = f"RENAME TO {what[0]}_away" if not what[1] else f"RENAME COLUMN {what[1]} TO {what[1]}_away"
        back = f"RENAME TO {what[0]}" if not what[1] else f"RENAME COLUMN {what[1]}_away TO {what[1]}"

        def renamed(connection: psycopg.Connection[Row]) -> None:
            connection.execute("SET LOCAL lock_timeout = '3s'")
            connection.execute(f"ALTER TABLE {what[0]} {away}")

        try:
            await self.inside(renamed)
        except psycopg.errors.LockNotAvailable:
            return
        await asyncio.sleep(rng.uniform(0.5, 4))
        await asyncio.to_thread(self.sql, f"ALTER TABLE {what[0] if what[1] else what[0] + '_away'} {back}")

    async def commit_trapped(self, rng: random.Random) -> None:
        """Something happens to the next COMMIT of an effect, a command's record or the like."""
        table = rng.choices(("receipts", "audit", "rollouts", "moves"), (6, 2, 1, 1))[0]
        kind = rng.choices(list(OnCommit), (4, 3, 2))[0]
        self.proxy.set_trap(Trap(kind, table, rng.uniform(0.2, 4)))

    async def suffers(self, kind: str, rng: random.Random) -> None:
        """The fault comes and goes; its time is noted."""
        noted: Row = {"kind": kind, "at": _now(), "until": _now()}
        self.faults.append(noted)
        fault: Callable[[random.Random], Any] = getattr(self if hasattr(self, kind) else self.repository, kind)
        try:
            await fault(rng)
        finally:
            noted["until"] = _now()

    async def made_well(self) -> None:
        """No fault is left; a last fault may still have been under way."""
        self.proxy.mend()
        for worker in self._workers:
            if worker is not None and worker.returncode is None:
                worker.send_signal(signal.SIGCONT)


FAULTS = {
    "commit_trapped": 10,
    "worker_killed": 4,
    "worker_frozen": 2,
    "server_killed": 2,
    "ledger_cut": 3,
    "sessions_ended": 3,
    "ledger_slow": 3,
    "ledger_errors": 4,
    "schema_away": 2,
}
"""How often each comes, relative to the others."""
ONCE = "database_deleted"
"""The fault that comes once, if at all."""


def _now() -> str:
    return datetime.now(UTC).isoformat()


@asynccontextmanager
async def site(home: Path, workers: int, watch_seconds: float) -> AsyncIterator[Site]:
    with postgresql() as sockets:
        found = Site(home, sockets, workers, watch_seconds)
        try:
            await found.start()
            yield found
        finally:
            await found.stop()
