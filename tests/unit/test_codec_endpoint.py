"""Temporal's codec protocol, over HTTP as its UI and CLI speak it."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from temporalio.api.common.v1 import Payload
from temporalio.client import Client

from client.connection import TemporalTarget
from client.converter import data_converter
from client.encryption import Encrypted
from client.operations import Operation
from client.payload_keys import KeyRing
from models.access.decision import Denied
from models.access.principals import Principal
from models.errors import Unavailable
from models.import_questions import StageImport
from models.questions import DeskRequest, OneRequest
from tests.encrypted import ring_of
from tests.hostile import Rubbish, table, threw
from web.callers import Callers
from web.codec import CodecEndpoint
from web.front import Codec, Front
from web.rights import Everybody, Judged
from web.server import listening
from web.settings import FrontSettings
from web.temporal_connection import Doors

UI = "https://temporal.example"


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return ring_of(tmp_path)


async def viewers(request: Request) -> tuple[int, str] | None:
    return None if request.headers.get("authorization") == "Bearer viewer" else (401, "who are you")


def asked(ring: KeyRing, path: str, body: Any = None, method: str = "POST", **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(CodecEndpoint(Encrypted(ring), viewers, "backstop", [UI]))
        async with httpx.AsyncClient(transport=transport, base_url="https://front") as client:
            sent = {"authorization": "Bearer viewer", **{k.replace("_", "-"): v for k, v in headers.items()}}
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await client.request(method, path, content=content, headers=sent)

    return asyncio.run(ask())


def as_json(payload: Payload) -> dict[str, Any]:
    """Return the payload as Protobuf's JSON has it, written by hand."""
    metadata = {name: base64.b64encode(value).decode() for name, value in payload.metadata.items()}
    return {"metadata": metadata, "data": base64.b64encode(payload.data).decode()}


def hidden_and_plain(ring: KeyRing) -> list[Payload]:
    async def made() -> list[Payload]:
        plain = await data_converter.encode(["NobodyShallReadThis", "in clear", "z" * 100_000])
        hidden = await Encrypted(ring, "rollout/a").encode([plain[0], plain[2]])
        return [hidden[0], plain[1], hidden[1]]

    return asyncio.run(made())


def test_viewers_see_what_is_encrypted_compressed_or_plain(ring: KeyRing) -> None:
    body = {"payloads": [as_json(payload) for payload in hidden_and_plain(ring)]}
    for path in ("/decode", "/codec/decode", "/backstop/decode"):
        answer = asked(ring, path, body, x_namespace="backstop", origin=UI)
        assert answer.status_code == 200
        found = [base64.b64decode(payload["data"]) for payload in answer.json()["payloads"]]
        assert found == [b'"NobodyShallReadThis"', b'"in clear"', b'"' + b"z" * 100_000 + b'"']
        assert answer.headers["access-control-allow-origin"] == UI
        assert answer.headers["cache-control"] == "no-store"


def test_what_an_import_brings_is_shown_to_nobody(ring: KeyRing) -> None:
    """Viewers may read all but contacts, and a person who may import has the file."""
    part = base64.b64encode(zlib.compress(b"teams: [{contacts: [NobodyShallReadThis]}]")).decode()
    given = {"import_id": "i-1", "part": 0}
    brought = DeskRequest(kind=StageImport.kind, actor="tpm", arguments=given, payload=part)
    beside = DeskRequest(kind=OneRequest.kind, actor="tpm", arguments={"request": "r-1"})

    async def made() -> list[Payload]:
        return await Encrypted(ring, "desk/a").encode(await data_converter.encode([brought, beside]))

    sent = {"payloads": [as_json(payload) for payload in asyncio.run(made())]}
    found = asked(ring, "/decode", sent).json()["payloads"]
    assert found[0] == sent["payloads"][0]
    assert json.loads(base64.b64decode(found[1]["data"]))["arguments"] == {"request": "r-1"}
    assert part.encode() not in asked(ring, "/decode", sent).content


def test_nobody_else_sees_anything(ring: KeyRing) -> None:
    body = {"payloads": [as_json(payload) for payload in hidden_and_plain(ring)]}
    assert asked(ring, "/decode", body, authorization="Bearer another").status_code == 401
    elsewhere = asked(ring, "/decode", body, origin="https://evil.example")
    assert elsewhere.status_code == 403
    assert "access-control-allow-origin" not in elsewhere.headers
    assert asked(ring, "/decode", body, x_namespace="another").status_code == 400
    assert asked(ring, "/decode", body, method="GET").status_code == 405
    assert asked(ring, "/elsewhere", body).status_code == 404


def test_nothing_is_encrypted_for_others(ring: KeyRing) -> None:
    """Otherwise a caller could speak to workers as somebody with the keys."""
    answer = asked(ring, "/encode", {"payloads": [{"metadata": {}, "data": ""}]})
    assert (answer.status_code, answer.json()["detail"]) == (
        403,
        "this address only decrypts: give commands with `backstop`",
    )


def test_the_ui_s_page_may_ask_whether_it_may(ring: KeyRing) -> None:
    answer = asked(ring, "/decode", method="OPTIONS", origin=UI, authorization="")
    assert answer.status_code == 204
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "x-namespace" in answer.headers["access-control-allow-headers"]


@table(
    [
        Rubbish("nothing", b""),
        Rubbish("no JSON", b"{"),
        Rubbish("bytes", b"\xff\x00"),
        Rubbish("a list", b"[]"),
        Rubbish("payloads that are none", b'{"payloads": 7}'),
        Rubbish("deep", b'{"payloads": ' + b"[" * 50_000),
    ]
)
def test_rubbish_is_one_sentence(rubbish: Rubbish, ring: KeyRing) -> None:
    answer = asked(ring, "/decode", rubbish.value)
    assert (answer.status_code, "JSON document with payloads" in answer.json()["detail"]) == (400, True)
    threw("the codec's endpoint")


def test_a_payload_that_our_keys_do_not_open_comes_back_as_it_is(ring: KeyRing, tmp_path: Path) -> None:
    other = ring_of(tmp_path, name="other.json")
    sent = {"payloads": [as_json(payload) for payload in hidden_and_plain(other)]}
    assert asked(ring, "/decode", sent).json()["payloads"][0] == sent["payloads"][0]


class NobodyReads:
    """Rights that let nobody read."""

    two_person = False

    async def is_in_force(self) -> bool:
        return True

    async def principal_for(self, principal: Principal, operation: Operation | None) -> Principal:
        return principal

    async def judge(
        self, principal: Principal, operation: Operation, command: str, found: Mapping[str, Any], **_: bool
    ) -> Judged:
        return Judged(Denied(reason=f"{principal.name} may not {command}: a viewer may"))


async def test_a_front_shows_it_to_who_may_read(ring: KeyRing, tmp_path: Path) -> None:
    """At the socket the kernel says who asks; the rights say what they may."""

    async def nowhere() -> tuple[Client, TemporalTarget]:
        raise Unavailable("nothing is passed on here")

    (plain,) = await data_converter.encode(["NobodyShallReadThis"])
    (hidden,) = await Encrypted(ring, "rollout/a").encode([plain])
    for rights, status in ((Everybody(), 200), (NobodyReads(), 403)):
        front = Front(Doors(nowhere), Callers(), rights=rights, codec=Codec(Encrypted(ring)))
        async with listening(front, FrontSettings(tmp_path / "s"), {}):
            transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "s"))
            async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
                answer = await client.post("/codec/decode", json={"payloads": [as_json(hidden)]})
                assert answer.status_code == status
                assert ("read.audit: a viewer may" in answer.text) == (status == 403)
                assert (await client.post("/codec/encode", json={"payloads": []})).status_code == 403
        unknown = httpx.ASGITransport(front)
        async with httpx.AsyncClient(transport=unknown, base_url="http://front") as client:
            assert (await client.post("/codec/decode", json={"payloads": [as_json(hidden)]})).status_code == 401
