"""Slack's buttons and slash command: what they do stands in the ledger, in the name of the person whom the access file
ties to the Slack user, and what is refused leaves nothing there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from temporalio.client import Client

from activities.adapters.notify import slack
from activities.notices.rendering import render
from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.notices import Notice
from models.rollout.stages import Command
from tests.e2e.keys import FRONT_KEY
from tests.e2e.slack_world import ROLES, WORKSPACE, Site, file_of, labels, quoted, site_of, slack_front, words
from tests.e2e.world import eventually
from tests.integration.notice_servers import Web, web_server


@pytest.fixture
def web() -> Iterator[Web]:
    with web_server() as server:
        yield server


@pytest.fixture
def doors(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(slack.DOORS, "hook", f"http://127.0.0.1:{web.port}/services")


@pytest_asyncio.fixture(loop_scope="function")
async def site(temporal: Client, sqlite_ledger_url: str, tmp_path: Path, web: Web, doors: None) -> AsyncIterator[Site]:
    async with site_of(temporal, sqlite_ledger_url, tmp_path, web, file_of(slack_roles=ROLES)) as found:
        yield found


async def approved(site: Site) -> str:
    """Approve as user:sre in Slack; return the plan's hash."""
    plan = (await site.world.status(site.cluster)).plan_hash
    assert plan is not None
    status = await site.chat.type("U0SRE", f"status {quoted(site.cluster)}")
    (asked,) = await site.chat.press("U0SRE", status, "Approve…")
    (done,) = await site.chat.press("U0SRE", asked, f"Approve plan {plan}")
    assert f"plan {plan} is approved" in words(done), words(done)
    await site.given("user:sre", "approve")
    return plan


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


async def test_who_may_not_is_told_so_and_nothing_is_done(site: Site) -> None:
    chat, name = site.chat, site.cluster
    before = [e for e in site.commands() if e[1] != "launch"]
    status = await chat.type("U0TPM", f"status {quoted(name)}")
    (refused,) = await chat.press("U0TPM", status, "Approve…")
    assert "user:tpm may not approve in" in words(refused)
    assert "this needs the role approver" in words(refused)
    (unknown,) = await chat.press("U0NOBODY", status, "Approve…")
    assert f"the access file names nobody as U0NOBODY of Slack workspace {WORKSPACE}" in words(unknown)
    assert unknown["response_type"] == "ephemeral"
    elsewhere = await chat.type("U0SRE", f"status {quoted(name)}", workspace="T0OTHER")
    assert "the access file names nobody as U0SRE of Slack workspace T0OTHER" in words(elsewhere)
    viewer = await chat.type("U0HW", f"ack {quoted(name)} research")
    assert "user:hw-lead may not acknowledge" in words(viewer)
    assert "member" in words(viewer)
    assert [e for e in site.commands() if e[1] != "launch"] == before
    (asked,) = await chat.press("U0SRE", status, "Approve…")
    (other,) = await chat.press("U0RESEARCH", asked, labels(asked)[0])
    assert "this question was put to somebody else" in words(other)
    assert [e for e in site.commands() if e[1] != "launch"] == before
    assert site.world.sql.gpus(name) == {"research": 345}


async def test_a_plan_that_changed_meanwhile_is_not_approved(site: Site) -> None:
    chat, world, name = site.chat, site.world, site.cluster
    status = await chat.type("U0SRE", f"status {quoted(name)}")
    (asked,) = await chat.press("U0SRE", status, "Approve…")
    old = (await world.status(name)).plan_hash
    island = Island(name="main", total_gpus=361, healthy_gpus=300)
    sample = HealthSample(cluster=name, at=site.world.now(), islands=(island,))
    await world.person("user:tpm").add_health([sample])
    now = (await world.until(name, lambda s: s.plan_hash not in (None, old))).plan_hash
    (refused,) = await chat.press("U0SRE", asked, labels(asked)[0])
    assert f"the plan is {now}, not {old}: look at the plan, then approve it" in words(refused)
    (again,) = await chat.press("U0SRE", status, "Approve…")
    assert f"the plan is {now}, not {old}: look at the plan, then approve it" in words(again)
    assert (await world.status(name)).approved_by == ""
    assert "approve" not in [command for _, command in site.commands()]


async def test_what_is_outside_what_was_approved_is_approved_from_the_owners_notice(site: Site) -> None:
    """The notice names the plan, and the button is for that one; the owner launched it, so another person presses."""
    chat, world, name = site.chat, site.world, site.cluster
    old = await approved(site)
    island = Island(name="main", total_gpus=361, healthy_gpus=300)
    sample = HealthSample(cluster=name, at=site.world.now(), islands=(island,))
    await world.person("user:tpm").add_health([sample])
    now = (await world.until(name, lambda s: s.plan_hash not in (None, old))).plan_hash
    assert now is not None
    await eventually(lambda: any("Approve…" in labels(one) for one in site.notices("tpm")), "the owner is told")
    notice = next(one for one in site.notices("tpm") if "Approve…" in labels(one))
    assert f"--plan {now}" in words(notice)
    (refused,) = await chat.press("U0TPM", notice, "Approve…")
    assert "user:tpm may not approve in" in words(refused)
    (asked,) = await chat.press("U0SRE", notice, "Approve…")
    assert now in words(asked)
    assert "292" in words(asked), "what the plan leaves: 300 healthy without a node of 8"
    await chat.press("U0SRE", asked, f"Approve plan {now}")
    await eventually(lambda: chat.answers()[-1].get("attachments") is not None, "the notice says so")
    shown = chat.answers()[-1]
    assert f"plan {now} is approved, by user:sre at " in words(shown)
    assert shown["attachments"][0]["text"] == notice["attachments"][0]["text"]
    assert labels(shown) == ["Show me"]
    await eventually(lambda: [c for _, c in site.commands()].count("approve") == 2, "both are archived")
    (again,) = await chat.press("U0SRE", notice, "Approve…")
    assert f"plan {now} is already approved, by user:sre" in words(again)
    payload = chat.pressed("U0SRE", asked, f"Approve plan {now}")
    payload["actions"][0]["value"] = "0" * 64 + payload["actions"][0]["value"][64:]
    body = urlencode({"payload": json.dumps(payload)}).encode()
    before = len(chat.answers())
    assert (await chat.sent("/slack/interactive", body)).status_code == 200
    await eventually(lambda: len(chat.answers()) > before, "it is answered")
    assert "this button is not from Backstop" in words(chat.answers()[-1])


async def test_what_was_taken_once_is_not_taken_again(site: Site) -> None:
    """The same bytes: here by their signature, at another front by the key under which Temporal knows the command."""
    chat, name = site.chat, site.cluster
    await approved(site)
    body, now = chat.typed("U0RESEARCH", f"object {quoted(name)} research once"), chat.now()
    first = await chat.told(await chat.sent("/slack/command", body, timestamp=now), len(chat.answers()))
    await site.given("user:research-lead", "object")
    again = await chat.sent("/slack/command", body, timestamp=now)
    assert (again.status_code, again.json()["detail"]) == (
        409,
        "this same request was handled before, so nothing is done again",
    )
    secrets = site.world.home / "elsewhere"
    secrets.mkdir()
    async with slack_front(site.world.client, chat.web, secrets, FRONT_KEY) as other:
        third = await other.told(await other.sent("/slack/command", body, timestamp=now), len(chat.answers()))
    assert words(third) == words(first)
    await chat.type("U0RESEARCH", f"ack {quoted(name)} research")
    await site.given("user:research-lead", "ack")  # what was taken before it is archived before it
    assert [command for _, command in site.commands()].count("object") == 1
    assert site.world.sql.rows("SELECT human FROM warrants WHERE command = ?", "rollout.object") == [
        ("user:research-lead",)
    ]


async def test_from_slack_people_have_no_more_roles_than_the_file_gives(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path, web: Web, doors: None
) -> None:
    """They speak for teams and read by default."""
    async with site_of(temporal, sqlite_ledger_url, tmp_path, web, file_of()) as site:
        status = await site.chat.type("U0SRE", f"status {quoted(site.cluster)}")
        (refused,) = await site.chat.press("U0SRE", status, "Approve…")
        assert "the access file does not let people use it from Slack (slack_roles)" in words(refused)
        assert "approve" not in [command for _, command in site.commands()]
        plan = (await site.world.status(site.cluster)).plan_hash
        assert plan is not None
        await site.world.say(site.cluster, Command.APPROVE, "user:sre", plan_hash=plan)
        done = await site.chat.type("U0RESEARCH", f"ack {quoted(site.cluster)} research")
        assert "research has acknowledged" in words(done)
        await site.given(*("user:research-lead", "ack"))


async def test_why_is_answered_in_the_words_of_the_page(site: Site) -> None:
    answer = await site.chat.type("U0RESEARCH", f"why research {quoted(site.cluster)}")
    assert answer["response_type"] == "ephemeral"
    (quota,) = site.world.sql.gpus(site.cluster).values()
    assert f"research has a quota of {quota} GPUs" in words(answer)
    assert "could start now" in words(answer)
    unknown = await site.chat.type("U0RESEARCH", "why nobody")
    assert words(unknown) == "Not possible: no cluster in the ledger has a quota of team 'nobody'."
    many = await site.chat.type("U0RESEARCH", "why research x much")
    assert "GPUS must be a whole number" in words(many)
    help_ = await site.chat.type("U0RESEARCH", "")
    assert "/backstop why TEAM" in words(help_)
