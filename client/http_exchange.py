"""Sends one HTTP request, over the front's socket on this machine or to its URL, and reads the answer.

The request over the socket is written by hand in a dozen lines: `http.client` takes longer to import than a request
takes. It asks the front to close after the answer, so that the end of the stream ends the answer.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from models.errors import BadInput, Unavailable

_PATH_BYTES = 100
"""The longest path of a socket that every system accepts."""
_NO_URL = "BACKSTOP_URL must be the front's address, such as https://backstop.example, not "
_MOST = 512 * 1024 * 1024
"""Most bytes of an answer: more than any real one has."""


class Reply(NamedTuple):
    """An HTTP answer. Header names are in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class FrontPlace(Protocol):
    def exchange(self, verb: str, target: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Reply:
        """Send a request. Errors: Unavailable in one sentence; NotHeard where the front may have taken it."""


class NotHeard(Unavailable):
    """The connection ended before the answer: the front may have done what was asked."""


class AtSocket:
    """A front on this machine, whose kernel says which user calls."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def answers(self) -> bool:
        """Return whether a front listens there and this user may connect."""
        try:
            self._connect(1.0).close()
        except OSError:
            return False
        return True

    def exchange(self, verb: str, target: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Reply:
        try:
            line = self._connect(seconds)
        except OSError as error:
            raise Unavailable(f"the front does not answer at {self.path} ({error.strerror}): is it running?") from None
        fields = {"host": "localhost", "connection": "close", "content-length": str(len(body)), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        try:
            with line:
                line.sendall(f"{verb} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
                return _parse(_all(line))
        except TimeoutError:
            raise Unavailable(f"the front has not answered within {seconds:.0f} s") from None
        except OSError as error:
            raise NotHeard(f"the front at {self.path} closed the connection: {error.strerror or error}") from None

    def _connect(self, seconds: float) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.settimeout(seconds)
            with address_of(self.path) as address:
                line.connect(address)
        except BaseException:
            line.close()
            raise
        return line


class address_of:  # noqa: N801 - used as a function
    """A context with the path as a socket's address; one that is too long is reached through its folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = -1

    def __enter__(self) -> str:
        text = str(self._path)
        if len(os.fsencode(text)) <= _PATH_BYTES:
            return text
        self._folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._folder}/{self._path.name}"

    def __exit__(self, *_: object) -> None:
        if self._folder >= 0:
            os.close(self._folder)


class AtUrl:
    """A front anywhere: over plain HTTP on this machine, over TLS elsewhere."""

    def __init__(self, url: str) -> None:
        """Parse the URL. Errors: BadInput if it is no address of a front, and for plain HTTP to another machine."""
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            raise BadInput(f"{_NO_URL}{url!r}") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise BadInput(f"{_NO_URL}{url!r}")
        if parts.scheme == "http" and self._host not in ("127.0.0.1", "::1", "localhost"):
            raise BadInput(f"BACKSTOP_URL is {url!r}: plain HTTP would show everybody your token; use https://")
        self._tls, self._base, self.url = parts.scheme == "https", parts.path.rstrip("/"), url.rstrip("/")

    def exchange(self, verb: str, target: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Reply:
        import http.client

        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        line = kind(self._host, self._port, timeout=seconds)
        try:
            line.connect()
        except OSError as error:
            line.close()
            raise Unavailable(f"the front does not answer at {self.url}: {error.strerror or error}") from None
        try:
            line.request(verb, self._base + target, body=body or None, headers=dict(headers))
            answer = line.getresponse()
            data = answer.read()
        except TimeoutError:
            raise Unavailable(f"the front has not answered within {seconds:.0f} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise NotHeard(f"the front at {self.url} closed the connection: {error}") from None
        finally:
            line.close()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, data)


def _all(line: socket.socket) -> bytes:
    parts, size = [], 0
    while part := line.recv(262_144):
        parts.append(part)
        size += len(part)
        if size > _MOST:
            raise NotHeard(f"the front's answer has more than {_MOST} bytes")
    return b"".join(parts)


def _parse(data: bytes) -> Reply:
    """Parse an HTTP answer. Errors: NotHeard for one that was cut short, or is not HTTP."""
    head, blank_line, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    length = headers.get("content-length", "")
    whole = length.isdigit() and len(body) == int(length)
    if not blank_line or len(words) < 2 or not words[1].isdigit() or not (whole or words[1] in ("204", "304")):
        raise NotHeard("the front closed the connection before its answer was complete")
    return Reply(int(words[1]), headers, body)
