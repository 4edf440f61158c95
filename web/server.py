"""Listens for the front: at a socket of this machine, and over TCP where that is configured."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

from client.http_exchange import AtSocket, address_of
from client.places import front_file
from models.errors import Unavailable
from web.front import Front
from web.peer import Listening
from web.settings import OWN_MODE, SHARED_MODE, Address, FrontSettings

_GOODBYE_SECONDS = 5
_AT_ONCE = 1000
"""Most connections at the same time; a further one gets 503."""
IDLE_SECONDS = 15
"""Seconds after which an idle connection is closed."""


class _Server(uvicorn.Server):
    """A server that its starter stops, not a signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def listening(front: Front, settings: FrontSettings, temporal: Mapping[str, str]) -> AsyncIterator[list[str]]:
    """Serve the front until the context ends, then finish what is under way. Yields its addresses.

    `temporal`: the Temporal that it uses. Errors: Unavailable if another front listens, or the address is taken.
    """
    where: list[str] = []
    front.with_console, front.public_url = settings.listen is not None, settings.public_url
    servers: list[tuple[_Server, socket.socket]] = []
    with contextlib.ExitStack() as places:
        if settings.socket is not None:
            line = places.enter_context(_own_socket(settings.socket, settings.shared, temporal))
            servers.append((_server(front, settings, tls=False), line))
            where.append(str(settings.socket))
        if settings.listen is not None:
            line = places.enter_context(_bind(settings.listen))
            servers.append((_server(front, settings, tls=True), line))
            scheme = "https" if settings.tls_cert else "http"
            host = f"[{settings.listen.host}]" if ":" in settings.listen.host else settings.listen.host
            where.append(f"{scheme}://{host}:{line.getsockname()[1]}")
            front.console_at = settings.public_url or where[-1]
        running = [asyncio.create_task(server.serve(sockets=[line])) for server, line in servers]
        try:
            while not all(server.started for server, _ in servers):
                for task in running:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.02)
            yield where
        finally:
            front.stopping.set()
            for server, _ in servers:
                server.should_exit = True
            await asyncio.gather(*running, return_exceptions=True)
            if front.slack_desk is not None:
                await front.slack_desk.finish()


def _server(front: Front, settings: FrontSettings, *, tls: bool) -> _Server:
    return _Server(
        uvicorn.Config(
            front,
            http=Listening,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_AT_ONCE,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=_GOODBYE_SECONDS,
            h11_max_incomplete_event_size=65_536,
            ssl_certfile=settings.tls_cert if tls and settings.tls_cert else None,
            ssl_keyfile=settings.tls_key if tls and settings.tls_key else None,
        )
    )


@contextlib.contextmanager
def _own_socket(path: Path, shared: bool, temporal: Mapping[str, str]) -> Iterator[socket.socket]:
    """Yield a socket at which only this process listens; one that a dead front left is taken over.

    Errors: Unavailable if a front listens there, or another file is there.
    """
    if shared:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    else:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        raise Unavailable(f"{path} is not a socket: remove it, or set BACKSTOP_SOCKET to another path")
    if AtSocket(path).answers():
        raise Unavailable(f"another front already listens at {path}")
    path.unlink(missing_ok=True)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            with address_of(path) as address:
                line.bind(address)
        except OSError as error:
            raise Unavailable(f"the front cannot listen at {path}: {error.strerror or error}") from None
        finally:
            os.umask(before)
        path.chmod(SHARED_MODE if shared else OWN_MODE)
        line.listen(128)
        about = front_file(path)
        about.write_text(json.dumps(dict(temporal)))
        about.chmod(0o644 if shared else 0o600)
        own = path.lstat().st_ino
        yield line
        with contextlib.suppress(OSError):
            if path.lstat().st_ino == own:  # no other front has taken the place meanwhile
                path.unlink()
                about.unlink()
    finally:
        line.close()


@contextlib.contextmanager
def _bind(address: Address) -> Iterator[socket.socket]:
    """Yield a TCP socket. Errors: Unavailable."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    line = socket.socket(family, socket.SOCK_STREAM)
    try:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            line.bind((address.host, address.port))
        except OSError as error:
            if address.or_any and error.errno == errno.EADDRINUSE:
                line.bind((address.host, 0))
                line.listen(128)
                yield line
                return
            where = f"{address.host}:{address.port}"
            raise Unavailable(f"the front cannot listen at {where}: {error.strerror or error}") from None
        line.listen(128)
        yield line
    finally:
        line.close()
