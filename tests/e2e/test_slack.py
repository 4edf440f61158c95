"""Slack's buttons and slash command over a real front, worker and Temporal: what they do stands in the ledger, in the
name of the person whom the access file ties to the Slack user. tests/loop/test_slack.py has the other stories.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.adapters.notify import slack
from activities.notices.rendering import render
from models.notices import Notice
from tests.e2e.slack_world import ROLES, WORKSPACE, Site, file_of, labels, quoted, site_of, words
from tests.e2e.world import eventually
from tests.integration.notice_servers import Web, web_server

pytestmark = pytest.mark.e2e


@pytest.fixture
def web() -> Iterator[Web]:
    with web_server() as server:
        yield server


@pytest.fixture
def doors(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(slack.DOORS, "hook", f"http://127.0.0.1:{web.port}/services")


@pytest.fixture
async def site(temporal: Client, sqlite_ledger_url: str, tmp_path: Path, web: Web, doors: None) -> AsyncIterator[Site]:
    async with site_of(temporal, sqlite_ledger_url, tmp_path, web, file_of(slack_roles=ROLES)) as found:
        yield found


async def test_a_plan_is_approved_a_team_acknowledges_and_objects(site: Site) -> None:
    chat, name = site.chat, site.cluster
    escaped = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    plan = (await site.world.status(name)).plan_hash
    assert plan is not None
    status = await chat.type("U0SRE", f"status {quoted(name)}")
    assert "306" in words(status)
    assert escaped in words(status)
    assert "<!channel>" not in words(status)
    (asked,) = await chat.press("U0SRE", status, "Approve…")
    assert asked["response_type"] == "ephemeral"
    assert "approve" not in [command for _, command in site.commands()], "it only asks"
    (done,) = await chat.press("U0SRE", asked, f"Approve plan {plan}")
    assert words(done).startswith(f"{escaped}: plan {plan} is approved. Undo: backstop abort ")
    await site.given(*("user:sre", "approve"))
    assert site.proofs("approve") == [{"proof": "slack", "how": f"Slack workspace {WORKSPACE}"}]
    warrant = site.world.sql.rows("SELECT human FROM warrants WHERE command = ?", "rollout.approve")
    assert warrant == [("user:sre",)]

    await eventually(lambda: len(site.notices()) == 1, "the team is told")
    (notice,) = site.notices()
    assert labels(notice) == ["Acknowledge", "Object…", "Show me"]
    told = Notice.model_validate(_logged(site)["notice"])
    subject, body = render(told)
    assert words(notice).splitlines()[0] == subject.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert notice["attachments"][0]["text"] == body.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    (shown,) = await chat.press("U0RESEARCH", notice, "Acknowledge")
    assert shown["replace_original"] is True
    assert f"{escaped}: research has acknowledged, by user:research-lead at " in words(shown)
    assert shown["attachments"][0]["text"] == notice["attachments"][0]["text"]
    assert labels(shown) == ["Object…", "Show me"]
    await site.given(*("user:research-lead", "ack"))

    (why,) = await chat.press("U0RESEARCH", shown, "Object…")
    assert [block["type"] for block in why["blocks"]] == ["input", "actions", "section"]
    typed = {"backstop.reason": {"type": "plain_text_input", "value": "a run <!here> ends"}}
    replies = await chat.press("U0RESEARCH", why, "Object", state={"values": {"x": typed}})
    await eventually(lambda: "a run &lt;!here&gt; ends" in words(chat.answers()[-1]), "the channel is told")
    last = chat.answers()[-1]
    assert last["replace_original"] is True
    assert "has acknowledged, by user:research-lead" in words(last), "what was said before stays"
    assert "objection" in words(replies[0])
    await site.given(*("user:research-lead", "object"))
    (hold,) = (await site.world.status(name)).holds
    assert (hold.team, hold.actor, hold.reason) == ("research", "user:research-lead", "a run <!here> ends")


def _logged(site: Site) -> dict[str, Any]:
    lines = (site.world.home / "notices.jsonl").read_text().splitlines()
    return next(one for one in map(json.loads, lines) if one["notice"]["audience"] == "research")
