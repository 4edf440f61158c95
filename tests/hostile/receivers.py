"""HTTP servers on this machine that behave badly: each is a function of the connection that it got."""

from __future__ import annotations

import gzip
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LISTED, INSIDE = "127.0.0.2", "127.0.0.1"
"""Where contacts may lead in these tests, and where they may not."""
Behaviour = Callable[[socket.socket], None]
OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def receiver(behaviour: Behaviour, host: str = LISTED, until: threading.Event | None = None) -> Iterator[int]:
    """The port of a server that treats every connection so; from `until` on it hangs up on all of them."""
    over = until or threading.Event()
    with socket.create_server((host, 0)) as server:

        def serve(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                threading.Thread(target=hang_up, args=(connection,), daemon=True).start()
                behaviour(connection)

        def hang_up(connection: socket.socket) -> None:
            over.wait()
            with suppress(OSError):  # it may be closed by now
                connection.shutdown(socket.SHUT_RDWR)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            over.set()


def read(connection: socket.socket) -> bytes:
    """One request with its body."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = got.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
    while len(body) < size:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def _gone(connection: socket.socket, milliseconds: int | None = None) -> bool:
    """One side has closed it; unread bytes are left alone. None: it is waited for."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(milliseconds))


def _drip(connection: socket.socket) -> None:
    while not _gone(connection, 100):
        connection.sendall(b"x")


def drips(connection: socket.socket) -> None:
    """A byte now and then, and never the end of a line."""
    read(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    _drip(connection)


def drips_its_body(connection: socket.socket) -> None:
    read(connection)
    connection.sendall(OK + b"Content-Length: 1000000\r\n\r\n")
    _drip(connection)


def never_reads(connection: socket.socket) -> None:
    _gone(connection)


def never_answers(connection: socket.socket) -> None:
    read(connection)
    _gone(connection)


def closes(connection: socket.socket) -> None:
    return


def closes_halfway(connection: socket.socket) -> None:
    read(connection)
    connection.sendall(b"HTTP/1.1 20")


def is_no_http(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def endless_headers(connection: socket.socket) -> None:
    read(connection)
    connection.sendall(OK)
    while True:
        connection.sendall(b"X-More: " + b"y" * 8000 + b"\r\n")


def endless_answer(connection: socket.socket) -> None:
    read(connection)
    connection.sendall(OK + b"\r\n")
    while True:
        connection.sendall(b"z" * 65536)


def ten_megabytes(connection: socket.socket) -> None:
    read(connection)
    connection.sendall(OK + b"Content-Length: 10485760\r\n\r\n" + b"z" * 10_485_760)


def a_bomb(connection: socket.socket) -> None:
    """Ten megabytes, packed into ten kilobytes."""
    read(connection)
    packed = gzip.compress(bytes(10_485_760))
    connection.sendall(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed)


def says_no(connection: socket.socket) -> None:
    read(connection)
    connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")


def redirects_to(port: int) -> Behaviour:
    """Inside."""

    def behave(connection: socket.socket) -> None:
        read(connection)
        place = f"http://{INSIDE}:{port}/admin".encode()
        connection.sendall(b"HTTP/1.1 307 Moved\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n")

    return behave


def takes(got: list[bytes], then: Callable[[], object] = lambda: None) -> Behaviour:
    """A good one: what came in is in the list. `then`: done before it answers."""

    def behave(connection: socket.socket) -> None:
        got.append(read(connection))
        then()
        connection.sendall(OK + b"Content-Length: 2\r\n\r\nok")

    return behave
