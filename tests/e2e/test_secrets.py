"""A contact's token stands in the ledger's contacts and nowhere else: in no history, archive, log or answer."""

from __future__ import annotations

import base64
import binascii
import logging
import re
import sqlite3
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client

from client.compression import Zlib
from models.errors import Refusal
from models.import_questions import StageImport
from models.questions import AllTeams, FactsOf
from models.requests.commands import RequestCommand
from models.requests.state import RequestStage
from tests.e2e.world import World, eventually, fresh
from tests.encrypted import payloads_in
from tests.integration.notice_servers import web_server
from tests.loop.test_requests import ask, roomy, say, until

TOKEN = "ToKeN4nobodyToSee"
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{24,}={0,2}")


def inside(data: bytes, depth: int = 4) -> Iterator[bytes]:
    """The bytes, and what is packed in them: Base64, zlib."""
    yield data
    if depth:
        for packed in _BASE64.findall(data):
            try:
                yield from inside(base64.b64decode(packed, validate=True), depth - 1)
            except binascii.Error:
                continue
        try:
            yield from inside(zlib.decompress(data), depth - 1)
        except zlib.error:
            return


async def histories_with(client: Client, secret: str) -> set[str]:
    """Workflows in whose histories it stands, packed or not."""
    found = set()
    async for run in client.list_workflows():
        history = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        for event in history.events:
            unpacked = await Zlib().decode(list(payloads_in(event)))
            raw = [event.SerializeToString(), *(p.SerializeToString() for p in unpacked), *(p.data for p in unpacked)]
            if any(secret.encode() in each for data in raw for each in inside(data)):
                found.add(run.id)
    return found


def rows_with(ledger_url: str, secret: str) -> set[str]:
    """Tables of the ledger in which it stands."""
    with sqlite3.connect(ledger_url.removeprefix("sqlite:///")) as book:
        tables = [name for (name,) in book.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {t for t in tables if any(secret in repr(row) for row in book.execute(f"SELECT * FROM {t}"))}


@pytest.mark.nightly
async def test_a_token_stands_in_the_ledgers_contacts_and_nowhere_else(
    world: World, sqlite_ledger_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    name = fresh("secret")
    with web_server() as web:
        web.statuses["/no"] = 503
        hooks = [f"webhook+http://127.0.0.1:{web.port}/{path}/{TOKEN}" for path in ("yes", "no")]
        teams = [{"name": "research", "contacts": [*hooks, f"slack://T/{TOKEN}", f"nonsense {TOKEN}", "log"]}]
        await world.fleet(roomy(name), teams=teams)
        lent = await ask(world, name, 5, until=datetime.now(UTC) + timedelta(days=1))
        await say(world, lent, RequestCommand.APPROVE)
        await until(world, lent, RequestStage.GRANTED)
        await eventually(lambda: bool(web.posts("/yes") and web.posts("/no")), "both webhooks are asked")
        facts = await world.tpm.ask(FactsOf(cluster=name))
        everybody = await world.tpm.ask(AllTeams())
        await world.start(name, shadow=True)
        told = await world.tpm.doctor()
    masked = ("webhook+http://***", "webhook+http://***", "slack://***", "***", "log")
    assert facts.contacts["research"] == masked
    assert [team.contacts for team in everybody if team.name == "research"] == [masked]
    assert await histories_with(world.client, TOKEN) == set()
    assert await histories_with(world.client, "research"), "or this test would find nothing at all"
    assert rows_with(sqlite_ledger_url, TOKEN) == {"contacts"}
    assert TOKEN not in (world.home / "notices.jsonl").read_text() + repr(told) + caplog.text


@pytest.mark.nightly
async def test_without_a_way_to_the_ledger_nothing_travels(world: World) -> None:
    name, world.stage = fresh("secret"), None
    with pytest.raises(Refusal, match="contacts of research contain secrets, which may not pass through Temporal"):
        await world.fleet(roomy(name), teams=[{"name": "research", "contacts": [f"slack://T/B/{TOKEN}"]}])
    await world.fleet(roomy(name), teams=[{"name": "research", "contacts": ["a@team.example", "log", "named:x"]}])
    world.stage = lambda *part: None
    with pytest.raises(Refusal, match="the workers use another ledger than this machine"):
        await world.fleet(roomy(name), teams=[{"name": "research", "contacts": [f"slack://T/B/{TOKEN}"]}])
    assert await histories_with(world.client, TOKEN) == set()


@pytest.mark.nightly
async def test_a_secret_that_travels_is_found(world: World) -> None:
    """Without this the tests above would prove nothing: a part of a fleet, sent as by earlier builds, is found."""
    secret = "AnOtHeRtOkEn4Travel"
    part = base64.b64encode(zlib.compress(f'{{"teams":[{{"contacts":["slack://T/B/{secret}"]}}]}}'.encode()))
    await world.tpm.ask(StageImport(import_id="by-hand", part=0), part.decode())
    (found,) = await histories_with(world.client, secret)
    assert found.startswith("desk/stage_import/")
