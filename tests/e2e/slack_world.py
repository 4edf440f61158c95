"""Slack as its documents have it: a workspace that signs what it sends, keeps messages, and takes answers.

Written from docs.slack.dev and not from our code: the signature is made here by the definition of HMAC (RFC 2104), and
a press carries what stands in the message, whoever posted that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx
from temporalio.client import Client

from activities.clock import Clock
from client.front_signer import SigningKey
from client.slack_secret import SigningSecret
from models.access.access_file import AccessFile
from models.access_questions import ImportAccess
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Stage
from tests.e2e.front_world import doors_of, http_to, listening_at
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.world import World, fresh, worked_case, world_of
from tests.integration.notice_servers import Web
from tests.unit.access_world import ADMINS, grant
from tests.waiting import eventually
from web.callers import Callers
from web.front import Front
from web.ledger_rights import LedgerRights
from web.settings import Address, FrontSettings
from web.slack.endpoint import SlackTerms

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
WORKSPACE = "T0001TEAM"
PAGE = "https://backstop.example"


def slack_signature(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 by its definition, of what Slack's document says is signed."""
    key = secret.encode().ljust(64, b"\0")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in key) + b"v0:" + timestamp.encode() + b":" + body).digest()
    return "v0=" + hashlib.sha256(bytes(b ^ 0x5C for b in key) + inner).hexdigest()


@dataclass
class Workspace:
    """One Slack workspace with the app in it. `web`: where webhooks and answers arrive."""

    url: str
    web: Web
    http: httpx.AsyncClient
    clock: Clock
    presses: Iterator[int] = field(default_factory=lambda: iter(range(1, 10_000)))

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.web.port}"

    def now(self) -> str:
        """X-Slack-Request-Timestamp of what is sent now."""
        return str(int(self.clock().timestamp()))

    def reply_at(self) -> str:
        return f"{self.origin}/actions/{WORKSPACE}/{next(self.presses)}/x"

    async def sent(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        """Signed and sent now, unless the headers say otherwise (underscores for hyphens)."""
        now = headers.pop("timestamp", self.now())
        signature = headers.pop("signature", slack_signature(SECRET, now, body))
        found = {
            "content-type": "application/x-www-form-urlencoded",
            "x-slack-request-timestamp": now,
            "x-slack-signature": signature,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return await self.http.post(path, content=body, headers=found)

    def pressed(self, user: str, message: dict[str, Any], label: str, **more: Any) -> dict[str, Any]:
        """A block_actions payload for the button with this label."""
        (button,) = [one for one in elements(message) if one["text"]["text"] == label]
        shown = {} if message.get("response_type") == "ephemeral" else {"message": kept(message)}
        action = {"type": "button", "block_id": "b", "action_ts": "1", **button}
        return {
            "type": "block_actions",
            "team": {"id": WORKSPACE, "domain": "example"},
            "user": {"id": user, "username": "whoever", "team_id": WORKSPACE},
            "api_app_id": "A0001APP",
            "token": "deprecated",
            "container": {"type": "message"},
            "trigger_id": "1.2.3",
            "response_url": self.reply_at(),
            "actions": [action],
            **shown,
            **more,
        }

    async def press(self, user: str, message: dict[str, Any], label: str, **more: Any) -> list[dict[str, Any]]:
        """Press a button; return what Slack was told because of it, in order, once something was."""
        payload = self.pressed(user, message, label, **more)
        before = len(self.web.posts("/actions"))
        answer = await self.sent("/slack/interactive", urlencode({"payload": json.dumps(payload)}).encode())
        assert (answer.status_code, answer.content) == (200, b""), answer.text
        await eventually(lambda: len(self.web.posts("/actions")) > before, "it is answered")
        return self.answers()[before:]

    def answers(self) -> list[dict[str, Any]]:
        """Return all that Slack was told at its own addresses, the oldest first."""
        return [post.json for post in self.web.posts("/actions")]

    def typed(self, user: str, text: str, workspace: str = WORKSPACE) -> bytes:
        """The form of a slash command."""
        fields = {"token": "deprecated", "team_id": workspace, "team_domain": "example", "channel_id": "C1"}
        fields |= {"user_id": user, "user_name": "whoever", "command": "/backstop", "text": text}
        return urlencode({**fields, "response_url": self.reply_at(), "trigger_id": "1.2"}).encode()

    async def type(self, user: str, text: str, workspace: str = WORKSPACE) -> dict[str, Any]:
        """Type a slash command; return the answer."""
        before = len(self.web.posts("/actions"))
        return await self.told(await self.sent("/slack/command", self.typed(user, text, workspace)), before)

    async def told(self, answer: httpx.Response, before: int) -> dict[str, Any]:
        """Return the answer to a slash command, at once or later. `before`: how many answers had come in other ways."""
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        assert found["response_type"] == "ephemeral"
        if words(found) == "Looking…":
            await eventually(lambda: len(self.web.posts("/actions")) > before, "it is answered")
            found = self.web.posts("/actions")[before].json
        return found


def kept(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message as Slack hands it back: with numbers and a fallback of its own."""
    attachments = [{"id": n, "fallback": "[no preview]", **one} for n, one in enumerate(message["attachments"], 1)]
    return {"type": "message", "ts": "1700000000.1", "bot_id": "B1", **message, "attachments": attachments}


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    beside = [block for one in message.get("attachments", ()) for block in one.get("blocks", ())]
    return [*message.get("blocks", ()), *beside]


def elements(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for block in blocks(message) if block["type"] == "actions" for one in block["elements"]]


def labels(message: dict[str, Any]) -> list[str]:
    return [one["text"]["text"] for one in elements(message)]


def words(message: dict[str, Any]) -> str:
    """Return the message's text, as it is sent."""
    texts = [block["text"]["text"] for block in blocks(message) if block["type"] == "section"]
    beside = [f"{one['title']}\n{one['text']}" for one in message.get("attachments", ()) if "text" in one]
    return "\n".join([*beside, *texts])


@asynccontextmanager
async def slack_front(client: Client, web: Web, secrets: Path, key: SigningKey | None) -> AsyncIterator[Workspace]:
    """A front that takes what Slack sends, with its signing secret in a file."""
    (secrets / "slack-signing").write_text(f"{SECRET}\n")
    doors = doors_of(client, key)
    terms = SlackTerms(SigningSecret("slack-signing", secrets), (f"http://127.0.0.1:{web.port}",), PAGE)
    front = Front(doors, Callers(), rights=LedgerRights(doors), slack=terms)
    settings = FrontSettings(socket=None, listen=Address("127.0.0.1", 0))
    async with listening_at(client, front, settings) as (url,), http_to(client, url) as http:
        yield Workspace(url, web, http, doors.now)


STILL = {"soak_buffered": "1h", "soak_enforced": "1h", "notice": "1h"}
IDS = {"tpm": "U0TPM", "sre": "U0SRE", "research-lead": "U0RESEARCH", "hw-lead": "U0HW"}
HOOKS = {"research": "ToKeN", "tpm": "OwNeR"}
ROLES = ["viewer", "member", "approver"]


def file_of(**more: Any) -> AccessFile:
    people = [
        {"name": name, "machine": [name], "slack": [{"workspace": WORKSPACE, "user": user}]}
        for name, user in IDS.items()
    ]
    grants = [
        ADMINS,
        grant("user:tpm", "operator"),
        grant("user:sre", "approver"),
        {"to": ["user:research-lead"], "roles": ["member", "viewer"], "teams": ["research"]},
        {"to": ["user:research-lead", "user:hw-lead"], "roles": ["viewer"]},
    ]
    return AccessFile.model_validate({"people": people, "grants": grants, **more})


class Site(NamedTuple):
    world: World
    chat: Workspace
    cluster: str

    def notices(self, who: str = "research") -> list[dict[str, Any]]:
        """Return the messages to the webhook of a team, or of the owner, the oldest first."""
        return [post.json for post in self.chat.web.posts(f"/services/T1AAA/B1BBB/{HOOKS[who]}")]

    def commands(self) -> list[tuple[str, str]]:
        """Return the rollout's commands and who gave them, by plain SQL."""
        rows = [e for e in self.world.sql.archive(self.cluster) if e["kind"] == "command" and e["rollout"]]
        return [(e["actor"], e["data"]["command"]) for e in rows if not e["refused"]]

    async def given(self, actor: str, command: str) -> None:
        """Wait until this is the last command: the archive is written a moment later."""
        await eventually(lambda: self.commands()[-1:] == [(actor, command)], f"{command} of {actor} is archived")

    def proofs(self, command: str) -> list[dict[str, str]]:
        return [e["data"]["proof"] for e in self.world.sql.archive(self.cluster) if e["data"].get("command") == command]


@asynccontextmanager
async def site_of(temporal: Client, ledger_url: str, home: Path, web: Web, file: AccessFile) -> AsyncIterator[Site]:
    """A rollout that user:tpm launched, and that nobody approved; the team is told in Slack."""

    def with_buttons(_: Any, notify: Any) -> None:
        notify._buttons, notify._named = True, {who: f"slack://T1AAA/B1BBB/{hook}" for who, hook in HOOKS.items()}

    async with world_of(temporal, ledger_url, home, touch=with_buttons, keys=(FRONT_KEY, public_keys)) as world:
        name = fresh("h100 & <!channel>")
        told = [{"name": who, "contacts": [f"named:{who}"]} for who in HOOKS]
        await world.fleet(worked_case(name, **STILL), teams=told, by="user:tpm")
        world.launched.add(name)
        await world.person("user:tpm").launch(LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", reason="x"))
        await world.until(name, Stage.PLANNED)
        await world.person("user:tpm").ask(ImportAccess(file=file))
        secrets = home / "secrets"
        secrets.mkdir()
        async with slack_front(temporal, web, secrets, FRONT_KEY) as chat:
            yield Site(world, chat, name)


def quoted(name: str) -> str:
    return f'"{name}"'
