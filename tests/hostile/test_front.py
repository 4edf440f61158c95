"""Rubbish for the front: each is one sentence and a status, nothing is passed on, and the next caller is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from temporalio.client import Client

from client.connection import TemporalTarget
from models.errors import Unavailable
from tests.tried import TRIED
from tests.unit.cli_fakes import status as a_status
from tests.waiting import PATIENCE
from web.callers import Callers
from web.front import Front
from web.limits import MOST_BYTES, Rate
from web.server import listening
from web.settings import FrontSettings
from web.temporal_connection import Doors

NOT_PASSED_ON = "nothing is passed on here"


@pytest.fixture
async def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """One whose Temporal is away: what would be passed on is Unavailable."""
    monkeypatch.setattr("web.peer.HEAD_SECONDS", PATIENCE)
    monkeypatch.setattr("web.server.IDLE_SECONDS", 1)

    async def nowhere() -> tuple[Client, TemporalTarget]:
        raise Unavailable(NOT_PASSED_ON)

    made = Front(Doors(nowhere), Callers(), rate=Rate(10_000, 10_000))
    async with listening(made, FrontSettings(tmp_path / "s"), {}):
        yield tmp_path / "s"


def at(socket: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(socket)), base_url="http://front/api/v1", timeout=60
    )


def one_sentence(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == answer.status_code
    assert document["exit_code"] in (1, 2, 3)
    assert "\n" not in document["detail"]
    assert 0 < len(document["detail"]) < 1500
    assert "Traceback" not in answer.text
    return str(document["detail"])


async def serves(socket: Path) -> None:
    """The next caller is answered."""
    async with at(socket) as http:
        assert (await http.get("/whoami")).status_code == 200


# --- bodies ---------------------------------------------------------------------------------------------

BODIES: list[tuple[bytes, int]] = [
    (b"{", 400),
    (b"\xff\xfe\x00", 400),
    (b"null", 422),
    (b"[]", 422),
    (b'"text"', 422),
    (b"{" * 100_000, 400),
    (b"[" * 100_000, 400),
    (b'{"a":' * 50_000, 400),
    (b'{"plan_hash": NaN}', 400),
    (b'{"plan_hash": 1e999}', 422),
    (b'{"plan_hash": ' + b"9" * 5000 + b"}", 400),
    (b'{"plan_hash": 7}', 422),
    (b'{"plan_hash": "' + b"x" * 100_000 + b'"}', 422),
    (b'{"reason": "\\u0000"}', 422),
    (b'{"reason": "\\ud800"}', 422),
    (b'{"nothing": 1}', 422),
    (b'{"plan_hash": "feed", "plan_hash": "beef"}', 422),
    (b'{"actor": {"$ne": null}, "reason": 3}', 422),
    (b'{"__proto__": {}, "constructor": 1}', 422),
]


@pytest.mark.parametrize("number", range(len(BODIES)))
async def test_a_body_that_is_none_is_refused(front: Path, number: int) -> None:
    body, status = BODIES[number]
    async with at(front) as http:
        answer = await http.post("/rollouts/h100/approve", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status, answer.text
        one_sentence(answer)
    await serves(front)
    TRIED["bodies thrown at the front"] += 1


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_body_that_says_it_is_something_else_is_not_read(front: Path, kind: str) -> None:
    async with at(front) as http:
        answer = await http.post("/rollouts/h100/pause", content=b'{"reason": "x"}', headers={"content-type": kind})
        assert answer.status_code == 415
        found = f"not {kind}" if kind else "and the request has none"
        assert answer.json()["detail"] == f"the Content-Type must be application/json, {found}"
        one_sentence(answer)


async def test_a_field_that_is_given_twice_is_named(front: Path) -> None:
    async with at(front) as http:
        headers = {"content-type": "application/json"}
        answer = await http.post("/rollouts/h100/pause", content=b'{"reason": "a", "reason": "b"}', headers=headers)
        assert (answer.status_code, answer.json()["exit_code"]) == (422, 2)
        assert one_sentence(answer) == "the body: reason is given twice in one object"


async def test_what_is_right_is_passed_on(front: Path) -> None:
    async with at(front) as http:
        answer = await http.post("/rollouts/h100/pause", json={"reason": "a SEV"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert one_sentence(answer) == NOT_PASSED_ON


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
async def test_a_huge_body_is_not_read_to_its_end(front: Path, told: bool) -> None:
    sent = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 4 * MOST_BYTES:
            sent += 65_536
            yield b"x" * 65_536

    headers = {"content-type": "application/json"} | ({"content-length": str(4 * MOST_BYTES)} if told else {})
    async with at(front) as http:
        try:
            answer = await http.post("/questions/add_health", content=parts(), headers=headers)
            assert answer.status_code == 413
        except (httpx.WriteError, httpx.ReadError):
            assert sent < 4 * MOST_BYTES
    await serves(front)


async def test_a_body_that_does_not_come_is_not_waited_for(front: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = (
        b"POST /api/v1/rollouts HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    with monkeypatch.context() as impatient:
        impatient.setattr("web.limits.BODY_SECONDS", 0.3)
        answer = await exchanged(front, head)
    assert answer.startswith(b"HTTP/1.1 408 ")
    await serves(front)


async def test_a_head_that_does_not_end_is_not_waited_for(front: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr("web.peer.HEAD_SECONDS", 0.3)
        assert await exchanged(front, b"GET /api/v1/whoami HTTP/1.1\r\nx: ") == b""
        assert await exchanged(front, b"") == b""
    await serves(front)


# --- heads and paths ------------------------------------------------------------------------------------


async def exchanged(socket: Path, data: bytes) -> bytes:
    """Send the data; return what comes back until the front closes the connection."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), PATIENCE)
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 1000 + b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 200,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /api/v1/whoami HTTP/1.1\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET /api/v1/whoami HTTP/1.1\r\n" + b"".join(b"h%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /api/v1/rollouts HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /api/v1/rollouts HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nxxxxxx",
        b"POST /api/v1/rollouts HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
async def test_what_is_no_request_ends_the_connection(
    front: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as impatient:  # of what may be the beginning of a head
        impatient.setattr("web.peer.HEAD_SECONDS", 1.0)
        answer = await exchanged(front, data)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:200]
    if answer:
        document = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert document["exit_code"] in (1, 2)
    await serves(front)
    TRIED["heads thrown at the front"] += 1


PATHS: list[tuple[str, str, int]] = [
    ("GET", "/", 404),
    ("GET", "/api/v1", 404),
    ("GET", "/api/v1/", 404),
    ("GET", "/api/v2/rollouts", 404),
    ("GET", "/api/v1//rollouts", 404),
    ("GET", "/api/v1/rollouts/", 404),
    ("GET", "/api/v1/../../etc/passwd", 404),
    ("GET", "/api/v1/rollouts/../../../etc/passwd", 404),
    ("GET", "/api/v1/%72ollouts", 503),
    ("GET", "/api/v1/rollouts/%2e%2e", 503),
    ("GET", "/api/v1/rollouts/a%2fb%2faudit", 503),
    ("GET", "/api/v1/rollouts/%ff", 422),
    ("GET", "/api/v1/rollouts/%00", 422),
    ("GET", "/api/v1/rollouts/a%0d%0ax:y", 422),
    ("GET", "/api/v1/rollouts/" + "x" * 200, 503),
    ("GET", "/api/v1/rollouts/" + "x" * 201, 422),
    ("GET", "/api/v1/rollouts/" + "x" * 1000, 422),
    ("GET", "/api/v1/bringups/" + "x" * 201, 422),
    ("GET", "/api/v1/rollouts/" + "x" * 10_000, 422),
    ("DELETE", "/api/v1/rollouts", 405),
    ("GET", "/api/v1/questions/flex", 405),
    ("HEAD", "/api/v1/rollouts", 405),
    ("OPTIONS", "/api/v1/rollouts", 405),
    ("TRACE", "/api/v1/rollouts", 405),
    ("BREW", "/api/v1/rollouts", 405),
    ("POST", "/api/v1/rollouts/h100/nonsense", 422),
    ("POST", "/api/v1/fleet/__class__", 422),
    ("POST", "/api/v1/questions/archive", 404),
    ("POST", "/api/v1/questions/nothing", 404),
    ("GET", "/api/v1/rollouts?limit=1&limit=2", 503),
    ("GET", "/api/v1/rollouts?%ff=1", 422),
    ("POST", "/api/v1/rollouts/h100/pause?reason=x", 422),
    ("POST", "/api/v1/rollouts/h100/pause?watch", 422),
    ("POST", "/api/v1/questions/flex?watch", 422),
    ("GET", "/api/v1/whoami/x", 404),
    ("POST", "/api/v1/whoami", 404),
    ("POST", "/api/v1/auth", 404),
]


@pytest.mark.parametrize(("verb", "path", "status"), PATHS)
async def test_a_path_leads_where_it_says_or_nowhere(front: Path, verb: str, path: str, status: int) -> None:
    data = f"{verb} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    answer = await exchanged(front, data.encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), answer[:300]
    if verb != "HEAD":
        document = json.loads(body)
        assert (document["status"], "\n" in document["detail"]) == (status, False)
        assert "etc/passwd" not in document["detail"]
    await serves(front)
    TRIED["paths thrown at the front"] += 1


@pytest.mark.parametrize("value", ["Basic cm9vdDo=", "Bearer", "Bearer " + "x" * 20_000, "Bearer a.b.c", "x" * 5000])
async def test_a_token_is_not_needed_and_not_read_at_the_socket(front: Path, value: str) -> None:
    async with at(front) as http:
        found = (await http.get("/whoami", headers={"authorization": value})).json()
        assert found["proof"] == "peer"


async def test_many_at_once_are_served_and_many_that_say_nothing_keep_nobody_out(front: Path) -> None:
    idle = [await asyncio.open_unix_connection(str(front)) for _ in range(200)]
    async with at(front) as http:
        found: list[Any] = await asyncio.gather(*(http.get("/whoami") for _ in range(100)))
    assert {one.status_code for one in found} == {200}
    for _, writer in idle:
        writer.close()


async def test_one_stream_too_many_is_refused_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = SimpleNamespace(status=AsyncMock(return_value=a_status()))
    monkeypatch.setattr(Doors, "door_of", AsyncMock(return_value=door))
    made = Front(Doors(AsyncMock()), Callers())
    async with (
        listening(made, FrontSettings(tmp_path / "t"), {}),
        at(tmp_path / "t") as http,
        AsyncExitStack() as open_,
    ):
        for _ in range(20):
            stream = await open_.enter_async_context(http.stream("GET", "/rollouts/h100?watch"))
            assert stream.status_code == 200
        answer = await http.get("/rollouts/h100?watch")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
        assert "follows 20 event streams already" in one_sentence(answer)
        made.stopping.set()


async def test_a_fault_of_ours_is_one_sentence_and_no_more(tmp_path: Path) -> None:
    made = Front(Doors(AsyncMock(side_effect=ZeroDivisionError("a secret of the inside"))), Callers())
    async with listening(made, FrontSettings(tmp_path / "t"), {}), at(tmp_path / "t") as http:
        answer = await http.get("/rollouts")
    assert answer.status_code == 500
    assert "a secret of the inside" not in answer.text
    assert "a bug in Backstop" in one_sentence(answer)
