"""The network between workers and PostgreSQL, which fails on demand.

It understands just enough of the wire protocol to fail where failing hurts: it knows which tables a transaction
has written and where its COMMIT is. So a COMMIT can be carried out and its answer lost, land long after its
sender has given up, or never arrive. Product code is unchanged: it sees a network.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

_WRITES = re.compile(rb'(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+"?(\w+)', re.IGNORECASE)
_HEAD = struct.Struct("!cI")


class OnCommit(StrEnum):
    """The faults that may happen to a COMMIT."""

    ANSWER_LOST = "answer lost after commit"
    LATE = "commit lands after its caller gave up"
    NEVER = "commit never arrives"


@dataclass
class Trap:
    """Springs once, at the next COMMIT of a transaction that wrote to `table`."""

    kind: OnCommit
    table: str
    seconds: float = 0.0


@dataclass(eq=False)
class _Link:
    """One connection, with what its transaction has done so far."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    prepared: dict[bytes, bytes] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    status: bytes = b"I"
    deaf: bool = False
    """The server's answers go nowhere; the link ends with the next one to a COMMIT."""
    committed: asyncio.Event = field(default_factory=asyncio.Event)

    def cut(self) -> None:
        for side in (self.client, self.server):
            side.transport.abort()


class Proxy:
    """Listens on `port` and passes everything on to PostgreSQL's socket."""

    def __init__(self, port: int, socket_path: str) -> None:
        self.port = port
        self.sprung: Counter[str] = Counter()
        """Traps that have sprung, by kind and table."""
        self.errors_given = 0
        self._socket_path = socket_path
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._traps: list[Trap] = []
        self._errors: list[str] = []
        self._delay = 0.0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Refuses and drops everything, as an unplugged cable does."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in list(self._links):
            link.cut()
        await asyncio.sleep(0)

    def set_trap(self, trap: Trap) -> None:
        self._traps.append(trap)

    def give_errors(self, sqlstate: str, count: int) -> None:
        """The next statements are answered with this error and never reach the database."""
        self._errors += [sqlstate] * count

    def delay(self, seconds: float) -> None:
        """Delay each answer by this long."""
        self._delay = seconds

    def mend(self) -> None:
        """Cancel all faults that have not happened yet."""
        self._delay = 0.0
        self._traps.clear()
        self._errors.clear()

    # --- passing on -----------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_unix_connection(self._socket_path)
        except OSError:
            client.transport.abort()
            return
        link = _Link(client, server)
        self._links.add(link)
        try:
            head = await reader.readexactly(4)
            server.write(head + await reader.readexactly(struct.unpack("!I", head)[0] - 4))
            both = [self._until_closed(self._asks, reader, link), self._until_closed(self._answers, answers, link)]
            await asyncio.gather(*both)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._links.discard(link)
            link.cut()

    @staticmethod
    async def _until_closed(
        pump: Callable[[asyncio.StreamReader, _Link], Awaitable[None]], reader: asyncio.StreamReader, link: _Link
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await pump(reader, link)
        if not link.deaf:  # a deaf link ends when its COMMIT is done
            link.cut()

    async def _asks(self, reader: asyncio.StreamReader, link: _Link) -> None:
        group: list[bytes] = []
        texts: list[bytes] = []
        while True:
            kind, whole = await _message(reader)
            group.append(whole)
            if (text := _text(kind, whole[5:], link.prepared)) is not None:
                texts.append(text)
            if kind not in (b"S", b"Q", b"X"):
                continue
            if await self._pass(link, b"".join(group), b";".join(texts)):
                return
            group, texts = [], []

    async def _pass(self, link: _Link, group: bytes, text: bytes) -> bool:
        """One request, up to where its answer is waited for. True when the link is done with."""
        if text and self._errors:
            self._answer_with_error(link, self._errors.pop())
            return False
        if not text.upper().startswith(b"COMMIT"):
            if text.upper().startswith((b"ROLLBACK", b"BEGIN")):
                link.written.clear()
            link.written |= {name.decode() for name in _WRITES.findall(text)}
            link.server.write(group)
            await link.server.drain()
            return False
        trap = next((t for t in self._traps if t.table in link.written), None)
        link.written.clear()
        if trap is None:
            link.server.write(group)
            return False
        self._traps.remove(trap)
        self.sprung[f"{trap.kind} ({trap.table})"] += 1
        if trap.kind is OnCommit.NEVER:
            link.cut()
            return True
        link.deaf = True
        if trap.kind is OnCommit.LATE:
            link.client.transport.abort()
            await asyncio.sleep(trap.seconds)
        link.server.write(group)
        await link.server.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(link.committed.wait(), 30)
        link.cut()
        return True

    async def _answers(self, reader: asyncio.StreamReader, link: _Link) -> None:
        while True:
            kind, whole = await _message(reader)
            if kind == b"Z":
                link.status = whole[5:6]
            if link.deaf:
                if kind == b"C" and whole[5:].startswith(b"COMMIT"):
                    link.committed.set()
                continue
            if self._delay and kind == b"Z":
                await asyncio.sleep(self._delay)
            link.client.write(whole)

    def _answer_with_error(self, link: _Link, sqlstate: str) -> None:
        self.errors_given += 1
        body = f"SERROR\0VERROR\0C{sqlstate}\0Mchaos\0\0".encode()
        # In a transaction it counts as failed from now on: the client's ROLLBACK ends the server's, too.
        status = b"I" if link.status == b"I" else b"E"
        link.client.write(_HEAD.pack(b"E", len(body) + 4) + body + _HEAD.pack(b"Z", 5) + status)


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """(type, the whole message)."""
    head = await reader.readexactly(5)
    kind, length = _HEAD.unpack(head)
    return kind, head + await reader.readexactly(length - 4)


def _text(kind: bytes, body: bytes, prepared: dict[bytes, bytes]) -> bytes | None:
    """The statement that a message runs; a prepared one by its name."""
    match kind:
        case b"Q":
            return body.rstrip(b"\0")
        case b"P":
            name, text, *_ = body.split(b"\0", 2)
            prepared[name] = text
            return None
        case b"B":
            _, name, *_ = body.split(b"\0", 2)
            return prepared.get(name, b"?")
        case _:
            return None
