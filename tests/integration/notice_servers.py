"""Real servers on this machine that notices are sent to: HTTP and SMTP."""

from __future__ import annotations

import email
import email.message
import email.policy
import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from tests.ports import free_port


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Web:
    """A loopback HTTP server. `statuses`: what a path answers that begins so; others answer 200 and `text`.

    `answers`: is waited for before it answers. `trickles`: what it answers comes a byte at a time, and never ends;
    `trickled`: some of it has come.
    """

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    answers: threading.Event = field(default_factory=threading.Event)
    text: bytes = b"ok"
    trickles: bool = False
    trickled: threading.Event = field(default_factory=threading.Event)

    def posts(self, prefix: str = "/") -> list[Request]:
        return [request for request in self.requests if request.path.startswith(prefix)]


@contextmanager
def web_server() -> Iterator[Web]:
    site = Web()
    site.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            site.requests.append(Request(self.path, dict(self.headers.items()), body))
            site.answers.wait()
            status = next((s for prefix, s in site.statuses.items() if self.path.startswith(prefix)), 200)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/login")
            self.end_headers()
            with suppress(OSError):
                while site.trickles and not _gone(self.connection):
                    self.wfile.write(b".")
                    site.trickled.set()
                self.wfile.write(site.text)

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"please log in")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield site
    site.answers.set()
    server.shutdown()
    server.server_close()
    thread.join()


def _gone(connection: socket.socket) -> bool:
    """The other side has closed it; for a moment that is waited for, as whoever trickles is in no hurry."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(20))


@dataclass
class Mail:
    """A loopback SMTP server that wants a login."""

    port: int
    user: str
    password: str
    messages: list[tuple[list[str], email.message.EmailMessage]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    async def handle_RCPT(  # noqa: N802 - aiosmtpd looks for these names
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        if address in self.refused:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(message, email.message.EmailMessage)
        self.messages.append((envelope.rcpt_tos, message))
        return "250 OK"

    def to(self, address: str) -> list[email.message.EmailMessage]:
        return [message for recipients, message in self.messages if address in recipients]

    @property
    def url(self) -> str:
        return f"mailto://{self.user}:{self.password}@127.0.0.1:{self.port}?from=backstop@ops.example"


@contextmanager
def mail_server(user: str, password: str) -> Iterator[Mail]:
    server = Mail(port=free_port(), user=user, password=password)

    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        return AuthResult(success=data.login == user.encode() and data.password == password.encode())

    controller = Controller(
        server,
        hostname="127.0.0.1",
        port=server.port,
        authenticator=authenticate,
        auth_required=True,
        auth_require_tls=False,
        ready_timeout=60.0,
    )
    controller.start()
    yield server
    controller.stop()


@contextmanager
def trickling_server() -> Iterator[int]:
    """The port of a server that says a byte now and then, and never ends its line."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connection, _ = server.accept()
            with suppress(OSError), connection:
                while not _gone(connection):
                    connection.sendall(b"2")

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        thread.join(5)
