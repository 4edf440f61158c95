"""One request over HTTP that ends when it has to, however slowly the other side answers.

A socket's own time limit counts from byte to byte: a server that sends one now and then is never too slow for it. So
the connection is shut from outside when the time is over, be it at its head, its body or while it is being secured.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
import urllib.error
import urllib.request
from typing import Any, Self

from models.errors import Unavailable

_TOLD = 300


class _Cut:
    """Shuts what it holds when the time is over."""

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._held: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._shut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for held in self._held:
                held.close()
            self._held.clear()

    def holds(self, connected: socket.socket) -> None:
        with self._lock:
            # Its own descriptor: the connection's may be closed, and be another file by then.
            self._held.append(socket.socket(fileno=os.dup(connected.fileno())))
        if self.over:
            self._shut()

    def _shut(self) -> None:
        self.over = True
        with self._lock:
            for held in self._held:
                with contextlib.suppress(OSError):
                    held.shutdown(socket.SHUT_RDWR)


class _Plain(http.client.HTTPConnection):
    cut: _Cut

    def connect(self) -> None:
        super().connect()
        self.cut.holds(self.sock)


class _Secure(http.client.HTTPSConnection, _Plain):
    """Connected as the plain one is, then secured."""


class _Opener(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, cut: _Cut) -> None:
        urllib.request.HTTPSHandler.__init__(self)
        self._cut = cut

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._held(_Plain), req)

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._held(_Secure), req, context=self._context)  # type: ignore[attr-defined]

    def _held(self, kind: type[_Plain]) -> Any:
        def made(host: str, **options: Any) -> _Plain:
            connection = kind(host, **options)
            connection.cut = self._cut
            return connection

        return made


class _Straight(urllib.request.HTTPRedirectHandler):
    """Nowhere else: a redirect would take the token along."""

    def redirect_request(self, *_: Any) -> None:
        return None


def fetched(request: urllib.request.Request, seconds: float, most: int) -> bytes:
    """The whole answer, within so many seconds and of at most so many bytes. Errors: Unavailable."""
    where = request.full_url
    with _Cut(seconds) as cut:
        try:
            with urllib.request.build_opener(_Opener(cut), _Straight).open(request, timeout=seconds) as answer:
                body: bytes = answer.read(most + 1)
                left = answer.length or 0
        except urllib.error.HTTPError as error:
            raise Unavailable(f"{where} refused a query ({error.code}): {_reason(error)}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            late = " in full in time" if cut.over else f": {type(error).__name__} {error}"[:_TOLD]
            raise Unavailable(f"{where} did not answer{late}") from None
    if cut.over:
        raise Unavailable(f"{where} did not answer in full in time")
    if len(body) > most:
        raise Unavailable(f"{where} answered more than {most:,} bytes")
    if left:
        raise Unavailable(f"{where} did not answer in full: {left:,} bytes are missing")
    return body


def _reason(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return " ".join(error.read(_TOLD).decode(errors="replace").split())
    return "and did not say why"
