"""The front's HTTP protocol: it identifies the process at the other end of a socket, and limits the time of a request.

Over a Unix socket the kernel names the process at the other end (SO_PEERCRED), as of its connection. The request's
state has it, where nothing that a caller sends can reach; a caller over TCP has none.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import struct
from typing import Any, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from client.problems import MEDIA, own_problem

PEER = "peer"
"""The name of the user in a request's state."""
HEAD_SECONDS = 10.0
"""Most seconds from a request's first byte until its headers are complete."""
_CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    """The user at the other end, as the kernel names them."""

    uid: int
    user: str
    """The user's name; `uid-NUMBER` if the system has no name for the user."""


def peer_of(connection: socket.socket) -> Peer | None:
    """Return the user at the other end; None for a socket that is not this machine's."""
    if connection.family != socket.AF_UNIX:
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    return Peer(uid, user_name(uid))


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def own_user() -> Peer:
    """Return this process's user."""
    return Peer(os.getuid(), user_name(os.getuid()))


class Listening(H11Protocol):
    _impatient: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        peer = None if connection is None else _peer(connection)
        self.app_state = {**self.app_state, PEER: peer}
        self._hurry()

    def data_received(self, data: bytes) -> None:
        if self._impatient is None and self.conn.their_state is h11.IDLE:
            self._hurry()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._impatient is not None and self.conn.their_state is not h11.IDLE:
            self._impatient.cancel()
            self._impatient = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._impatient is not None:
            self._impatient.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP in one sentence, as everything else."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        detail = f"the front does not understand this HTTP request: {msg.rstrip('.').lower()}"
        document = own_problem("not-json", 400, "This is not an HTTP request.", detail, "none")
        self._refuse(400, document)

    def _refuse(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        headers = [
            (b"content-type", MEDIA.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _hurry(self) -> None:
        self._impatient = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _too_slow(self) -> None:
        """Refuse a request whose head does not end in time, or that never began."""
        self._impatient = None
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            return
        self.transport.close()


def _peer(connection: Any) -> Peer | None:
    try:
        return peer_of(connection)
    except (OSError, AttributeError):
        return None
