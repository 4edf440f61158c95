"""A team that wants a digest, with rollouts, watch and worker: clocks run from the digest, bad news does not wait."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from models.notice_digests import MailPace
from models.rollout.stages import Stage
from tests.e2e.world import eventually, fresh, worked_case, world_of
from tests.integration.notice_servers import web_server
from workers.main import Telling


@pytest.mark.nightly
async def test_the_audit_tells_each_notice_that_waited_once_as_it_went(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """Notices wait a moment for companions, so that rounds send them: the rollout's history never hears of it."""
    telling = Telling(MailPace(moment=timedelta(seconds=0.5), most=1_000), "")
    with web_server() as web:
        async with world_of(temporal, sqlite_ledger_url, tmp_path, telling=telling) as world:
            name = fresh("waits")
            hook = {"name": "research", "contacts": [f"webhook+http://127.0.0.1:{web.port}/"]}
            await world.fleet(worked_case(name), teams=[hook])
            await world.start(name)
            await world.until(name, Stage.MONITORED)
            waiting = "SELECT count(*) FROM notices n LEFT JOIN messages m ON m.key = n.message WHERE m.sent_at IS NULL"

            def posted() -> set[str]:
                return {key for (key,) in world.sql.rows("SELECT key FROM notices WHERE cluster = ?", name)}

            await eventually(lambda: any(key.endswith("/monitored") for key in posted()), "the last notice is posted")
            await eventually(lambda: world.sql.one(waiting) == 0, "all that was posted has been sent")
            sent = posted()
            assert {key.rpartition("/")[2] for key in sent} >= {"planned", "buffered", "enforced", "monitored"}
            records = [r for r in await world.tpm.audit(name) if r.kind == "notice"]
            told = [r.data["key"] for r in records if "Backstop notified " in r.text]
            assert sorted(told) == sorted(sent)
            assert not [r.text for r in records if "could not notify" in r.text or "has not notified" in r.text]
            waits = [r.data["key"] for r in records if "Backstop will notify " in r.text]
            assert len(waits) == len(set(waits)), "a notice that is asked after again is not told of again"
            assert set(waits) >= {key for key in sent if key.endswith(("/buffered", "/enforced"))}
