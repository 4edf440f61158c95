"""A team that wants a digest, with rollouts, watch and worker: clocks run from the digest, bad news does not wait."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client

from models.notice_digests import MailPace
from models.rollout.stages import Command, Stage
from tests.e2e.world import cluster, eventually, fresh, team, world_of
from tests.integration.notice_servers import web_server
from tests.loop.turned_loop import EPOCH
from workers.main import Telling

NOTICE = timedelta(seconds=20)


def roomy(name: str) -> dict[str, Any]:
    quotas = [team("research", 345, busy=310)]
    return cluster(name, {"main": (361, 361)}, quotas, notice=f"{NOTICE.total_seconds():g}s", soak_buffered="0.3s")


async def test_a_digest_starts_the_notice_period_and_a_rollback_does_not_wait_for_it(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """Three clusters are approved some seconds before the hour of digests; later hardware goes in one of them."""
    names = [fresh("digest") for _ in range(3)]
    hour = EPOCH + timedelta(seconds=14)
    telling = Telling(MailPace(digest_at=hour.time()), "https://front.example/")
    with web_server() as web:
        hook = {"name": "research", "contacts": [f"webhook+http://127.0.0.1:{web.port}/"], "notify": "digest"}
        async with world_of(temporal, sqlite_ledger_url, tmp_path, telling=telling) as world:
            await world.fleet(*(roomy(name) for name in names), teams=[hook])
            await asyncio.gather(*(world.start(name) for name in names))
            await eventually(lambda: world.sql.one("SELECT count(*) FROM notices") == 3, "all wait for the hour")
            assert (world.now() < hour, web.requests) == (True, [])
            while not (waits := (await world.state(names[0]))["post"]["waiting"]):
                await asyncio.sleep(0.1)
            assert {datetime.fromisoformat(at) for at in waits.values()} == {hour}
            waiting = f"Backstop notifies research at {hour:%Y-%m-%d %H:%M:%SZ}; the notice period starts then"
            assert waiting in (await world.status(names[0])).model_dump_json()
            await eventually(lambda: bool(web.requests), "the digest has come")
            for name in names:
                await world.until(name, Stage.MONITORED)
            ((digest),) = web.requests
            assert digest.json["notice"]["kind"] == "digest"
            assert {n["cluster"] for n in digest.json["notice"]["facts"]["notices"]} == set(names)
            assert "In the browser: https://front.example/" in digest.json["message"]
            (sent_at,) = {datetime.fromisoformat(at) for (at,) in world.sql.rows("SELECT sent_at FROM messages")}
            assert sent_at >= hour
            for name in names:
                first = world.sql.one("SELECT min(at) FROM receipts WHERE cluster = ?", name)
                assert datetime.fromisoformat(first) - sent_at >= NOTICE, "the team has known of it for so long"
            await world.healthy(names[0], main=(361, 295))
            await world.until(names[0], Stage.ROLLED_BACK)
            await eventually(lambda: any("rolled back" in r.json["title"] for r in web.requests), "told at once")
            told = [n for r in web.requests[1:] for n in r.json["notice"]["facts"].get("notices", [r.json["notice"]])]
            assert {n["cluster"] for n in told} == {names[0]}, "news of the others waits for the next day"
            assert world.sql.one("SELECT count(*) FROM notices WHERE message IS NULL") > 0
            said = "\n".join(json.loads(entry)["text"] for (entry,) in world.sql.rows("SELECT entry FROM audit"))
            assert "Backstop will notify research at " in said
            await world.say(names[0], Command.CLOSE)
