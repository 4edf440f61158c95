"""The door over HTTP: what it imports, how it tells errors, and when it repeats a request."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from client.http_door import http_door
from client.http_exchange import AtSocket, AtUrl, FrontPlace, NotHeard, Reply
from client.problems import error_from, exit_code, problem
from models.errors import BY_NAME, BackstopError, BadFile, BadInput, BlastRadius, Refusal, Unavailable
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command
from tests.unit.cli_fakes import status as a_status
from tests.unit.loop_clock import LoopClock
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
KEPT_OUT = (
    *(
        "temporalio",
        "google",
        "grpc",
        "numpy",
        "scipy",
        "sqlalchemy",
        "sqlmodel",
        "alembic",
        "psycopg",
        "opentelemetry",
    ),
    *("httpx", "requests", "http.client", "jinja2", "matplotlib", "yaml", "icalendar", "cryptography", "joserfc"),
    *(
        "models.questions",
        "models.rollout.messages",
        "models.bringup",
        "cli.json_answers",
        "client.backstop",
        "client.workflow_calls",
    ),
)
"""What `status` over the socket has no use for; some of it takes longer to import than the command to run."""


def answers() -> dict[str, bytes]:
    """Return, by path, a front's answers to `status`."""
    status = a_status().model_dump_json(by_alias=True).encode()
    rows = json.dumps(
        [
            {
                **dict.fromkeys(("cluster", "stage", "wave", "owner"), "h100-worked"),
                "unbacked_gpus": 3,
                "started": "2026-01-31T12:00:00Z",
                "closed": None,
                "open": True,
                "stage": "planned",
                "wave": "busy",
                "health_at": "2026-01-31T12:00:00Z",
                "needs": "approve it",
            }
        ]
    ).encode()
    return {
        "/api/v1/overview": rows,
        "/api/v1/rollouts/h100-worked": status,
        "/api/v1/watch": b'{"name":"watch","ok":true,"text":"watching","remedy":""}',
        "/api/v1/unserved": b"false",
        "/api/v1/requests": b"[]",
        "/api/v1/rollouts/h100-worked/could-act": b'["user:tpm"]',
        "/api/v1/lost-rollouts": b"[]",
        "/api/v1/rollouts/h100-worked/health-at": b'"2026-01-31T12:00:00Z"',
    }


@contextmanager
def a_front(path: Path, said: Callable[[str], bytes]) -> Iterator[None]:
    """Run a front at a socket, with one answer for each request."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.bind(str(path))
        line.listen(20)

        def serve() -> None:
            while True:
                try:
                    one, _ = line.accept()
                except OSError:
                    return
                with one:
                    data = one.recv(65536)
                    if data:
                        one.sendall(said(data.split(b" ")[1].decode()))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            line.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def http(body: bytes, status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "words", [["status"], ["status", "h100-worked"], ["status", "--json"], ["status", "-o", "name"]], ids=" ".join
)
def test_status_over_the_socket_imports_nothing_that_it_does_not_need(words: list[str], tmp_path: Path) -> None:
    found = answers()
    code = (
        "import os, sys; from cli.main import run; code = run(sys.argv[1:]); sys.stdout.flush();"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BACKSTOP", "TEMPORAL", "XDG", "OTEL"))}
    environment = {**kept, "BACKSTOP_HOME": str(tmp_path), "HOME": str(tmp_path)}
    with a_front(tmp_path / "front.sock", lambda path: http(found.get(path.partition("?")[0], b"null"))):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "h100-worked" in done.stdout
    modules = done.stderr.split()
    assert "client.http_door" in modules
    assert [name for name in KEPT_OUT if name in modules] == []


# --- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*BY_NAME.values(), BadFile], ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_it_was(kind: type[BackstopError]) -> None:
    at = datetime(2026, 1, 31, tzinfo=UTC)
    error: BackstopError = BadFile(["one", "two"], 3) if kind is BadFile else kind("it is so")
    error = BlastRadius("it is so", at) if kind is BlastRadius else error
    status, document = problem(error, "r1")
    again = error_from(status, json.dumps(document).encode())
    assert (type(again), again.message) == (type(error), error.message)
    assert (
        exit_code(again)
        == document["exit_code"]
        == {"BadInput": 2, "BadFile": 2}.get(kind.__name__, 3 if issubclass(kind, Refusal) else 1)
    )
    assert getattr(again, "until", None) == getattr(error, "until", None)
    assert (getattr(again, "sentences", ())[:2]) == (getattr(error, "sentences", ())[:2])


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"type": 3}', b"[" * 5000, b'{"detail": "x"}'])
def test_what_is_no_front_of_ours_is_told_as_such(body: bytes) -> None:
    failure = error_from(502, body)
    assert isinstance(failure, Unavailable)
    assert "not a front of Backstop" in failure.message


# --- what comes over the line ---------------------------------------------------------------------------


class Place:
    """Answers one after the other."""

    def __init__(self, *replies: Reply | BackstopError) -> None:
        self._replies = list(replies)
        self.headers: list[Mapping[str, str]] = []

    def exchange(self, verb: str, target: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Reply:
        self.headers.append(headers)
        reply = self._replies.pop(0)
        if isinstance(reply, BackstopError):
            raise reply
        return reply


async def test_a_command_whose_answer_was_lost_is_given_again_under_the_same_key() -> None:
    place = Place(NotHeard("it hung up"), Reply(200, {}, b'"old"'))
    assert await http_door(place).use_build("new") == "old"
    first, second = (headers["idempotency-key"] for headers in place.headers)
    assert first == second


async def test_it_is_given_twice_at_most() -> None:
    with pytest.raises(Unavailable, match="it hung up"):
        await http_door(Place(NotHeard("it hung up"), NotHeard("it hung up"))).use_build("new")


async def test_whoever_asks_too_often_waits_as_the_front_says() -> None:
    place = Place(Reply(429, {"retry-after": "0"}, b"{}"), Reply(200, {"backstop-worker-heard": "1"}, b"false"))
    door = http_door(place)
    assert await door.unserved() is False
    assert door.heard.is_set()


@pytest.mark.parametrize(
    "data",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", b"SSH-2.0\r\n\r\n", b"\0" * 300, b"HTTP/1.1 200 OK"],
)
async def test_an_answer_that_was_cut_short_is_none(data: bytes, tmp_path: Path) -> None:
    with (
        a_front(tmp_path / "s", lambda _: data),
        pytest.raises(Unavailable, match="closed the connection before its answer was complete"),
    ):
        await asyncio.wait_for(http_door(AtSocket(tmp_path / "s")).unserved(), PATIENCE)


async def test_a_socket_deep_in_folders_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    folder = os.open(deep, os.O_RDONLY)
    try:
        with a_front(Path(f"/proc/self/fd/{folder}/front.sock"), lambda _: http(b"true")):
            assert AtSocket(deep / "front.sock").answers()
            assert await http_door(AtSocket(deep / "front.sock")).unserved() is True
    finally:
        os.close(folder)


@pytest.mark.parametrize("url", ["ftp://x", "http://example.com", "https://", "http://[::1", "x", "http://10.0.0.1:80"])
def test_an_address_that_is_none_is_one_sentence(url: str) -> None:
    with pytest.raises(BadInput, match="BACKSTOP_URL"):
        AtUrl(url)


class Slow:
    """A front that has what was given, and does not answer."""

    def __init__(self) -> None:
        self.came, self.over = threading.Event(), threading.Event()

    def exchange(self, verb: str, path: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Reply:
        self.came.set()
        self.over.wait(PATIENCE)
        raise NotHeard("the front is gone")


@pytest.mark.parametrize("changes", [True, False], ids=["a-command", "a-question"])
async def test_who_waits_for_the_front_or_is_interrupted_reads_why(changes: bool, loop_clock: LoopClock) -> None:
    place, notes = Slow(), list[str]()
    door = http_door(cast("FrontPlace", place))
    door.note = notes.append
    request = CommandRequest(actor="tpm", reason="x")
    asking = asyncio.ensure_future(door.command("a", Command.PAUSE, request) if changes else door.status("a"))
    try:
        await eventually(place.came.is_set, "the front has it")
        loop_clock.forward(2)
        await eventually(lambda: bool(notes), "who waits reads it")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    finally:
        place.over.set()
    goes_on = (
        "The front has the command, and withdraws it if no worker takes it up within half a minute; "
        "`backstop audit` shows the outcome."
    )
    late = "The front has not answered yet."
    assert notes == ([f"{late} {goes_on}", f"Interrupted: {goes_on}"] if changes else [late])
