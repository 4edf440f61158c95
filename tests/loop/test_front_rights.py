"""Rights at the front: who somebody is by the access file, and what is refused, by the desk of a worker."""

from __future__ import annotations

import getpass
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from temporalio.client import Client

from models.access.access_file import AccessFile
from models.access.tokens import TOKEN_PREFIX, token_hash
from models.access_questions import ImportAccess
from models.rollout.stages import Command, Stage
from tests.e2e.front_world import doors_of, front_of, http_to
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.world import World, fresh, team, worked_case, world_of
from tests.e2e.world import cluster as a_cluster
from tests.loop.fronts import AT_SOCKET
from web import ledger_rights as rights
from web.callers import OwnTokens
from web.ledger_rights import LedgerRights
from web.settings import Address

ME = getpass.getuser()
ASKS_ALWAYS = -1.0
"""Seconds for which a front would keep what it has read."""
STILL = {"soak_buffered": "1h", "soak_enforced": "1h", "notice": "1h"}


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the access file at each request, instead of once a second."""
    monkeypatch.setattr(rights, "_ANEW_SECONDS", ASKS_ALWAYS)
    monkeypatch.setattr(rights, "_KEPT_SECONDS", ASKS_ALWAYS)


@pytest_asyncio.fixture(loop_scope="function")
async def front(world: World, tmp_path: Path) -> AsyncIterator[tuple[Path, str]]:
    """Yield a front at a socket, and at an address for callers with tokens."""
    by_file = LedgerRights(doors_of(world.client))
    tokens = (OwnTokens(by_file),)
    listen, socket = Address("127.0.0.1", 0), tmp_path / "s"
    async with front_of(world.client, socket, listen=listen, tokens=tokens, rights=by_file) as (_, where):
        yield socket, where[1]


def at(world: World, socket: Path) -> httpx.AsyncClient:
    return http_to(world.client, f"{AT_SOCKET}/api/v1", socket)


async def test_without_a_file_the_fronts_own_user_does_everything(world: World, front: tuple[Path, str]) -> None:
    name = fresh("free")
    await world.fleet(worked_case(name, **STILL))
    await world.launch(name)
    await world.until(name, Stage.PLANNED)
    async with at(world, front[0]) as http:
        assert (await http.post(f"/rollouts/{name}/pause", json={"reason": "a SEV"})).status_code == 200


async def test_the_file_says_who_somebody_is_and_what_they_may(world: World, front: tuple[Path, str]) -> None:
    socket, url = front
    name, other = fresh("mine"), fresh("theirs")
    await world.fleet(worked_case(name, **STILL), worked_case(other, **STILL))
    for cluster in (name, other):
        await world.launch(cluster)
        await world.until(cluster, Stage.PLANNED)
    file = AccessFile.model_validate(
        {
            "people": [{"name": "sre", "machine": [ME]}],
            "services": [{"name": "ci", "owner": "user:sre"}],
            "grants": [
                {"to": ["user:sre"], "roles": ["operator"], "clusters": [name]},
                {"to": ["user:sre"], "roles": ["admin"]},
                {"to": ["service:ci"], "roles": ["viewer"]},
                {"to": ["user:tpm", "user:research-lead"], "roles": ["approver"]},
            ],
        }
    )
    async with at(world, socket) as http:
        first = await http.post("/questions/import_access", json={"file": file.model_dump(mode="json", by_alias=True)})
        assert first.status_code == 409, "user:NAME is no admin of it"
    await world.person("user:sre").ask(ImportAccess(file=file))
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    async with at(world, socket) as http:
        await http.post("/questions/calendar", json={"since": "2026-01-01T00:00:00Z"})
        made = await http.post(
            "/questions/make_token",
            json={
                "name": "ci-1",
                "hash": token_hash(token),
                "owner": "service:ci",
                "scope": {"roles": ["viewer"]},
                "days": 1,
            },
        )
        paused = await http.post(f"/rollouts/{name}/pause", json={"reason": "a SEV"})
        assert paused.status_code == 200, paused.text
        assert (await http.get("/whoami")).json()["name"] == "user:sre"
        refused = await http.post(f"/rollouts/{other}/pause", json={"reason": "a SEV"})
        assert (refused.status_code, refused.json()["exit_code"]) == (403, 3)
        assert refused.json()["detail"].startswith(f"user:sre may not pause in {other}")
        plan = (await world.status(name)).plan_hash
        approve = await http.post(f"/rollouts/{name}/approve", json={"plan_hash": plan})
        assert approve.status_code == 403
        assert f"user:sre may not approve in {name}: this needs the role approver there" in approve.json()["detail"]
    assert made.status_code in (200, 409), made.text
    if made.status_code == 200:
        async with http_to(world.client, f"{url}/api/v1", headers={"authorization": f"Bearer {token}"}) as http:
            assert (await http.get("/whoami")).json()["name"] == "service:ci"
            assert (await http.get(f"/rollouts/{name}")).status_code == 200
            assert (await http.post(f"/rollouts/{name}/pause", json={"reason": "x"})).status_code == 403


async def test_a_member_takes_the_own_teams_objection_back(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """`backstop resolve` names only the hold. Nobody else's objection can be resolved so."""
    async with world_of(temporal, sqlite_ledger_url, tmp_path, keys=(FRONT_KEY, public_keys)) as world:
        by_file = LedgerRights(doors_of(world.client, FRONT_KEY))
        socket = tmp_path / "s"
        async with front_of(world.client, socket, key=FRONT_KEY, rights=by_file):
            await _withdrawn(world, socket)


async def _withdrawn(world: World, socket: Path) -> None:
    name = fresh("objecting")
    await world.fleet(a_cluster(name, {"main": (361, 361)}, [team("research", 200), team("research-2", 161)], **STILL))
    await world.launch(name)
    await world.until(name, Stage.PLANNED)
    file = AccessFile.model_validate(
        {
            "people": [{"name": "lead", "machine": [ME]}],
            "grants": [
                {"to": ["user:tpm", "user:sre"], "roles": ["admin", "approver"]},
                {"to": ["user:other", "user:else"], "roles": ["member"], "teams": ["*"]},
                {"to": ["user:lead"], "roles": ["member"], "teams": ["research"]},
            ],
        }
    )
    await world.person("user:sre").ask(ImportAccess(file=file))
    await world.say(name, Command.OBJECT, actor="user:other", team="research-2")
    await world.say(name, Command.OBJECT, actor="user:else", team="research")
    async with at(world, socket) as http:
        said = {"team": "research", "reason": "a deadline"}
        assert (await http.post(f"/rollouts/{name}/object", json=said)).status_code == 200
        standing = {hold.id: hold.team for hold in (await world.status(name)).holds}
        assert sorted(standing.values(), key=str) == ["research", "research", "research-2"], standing
        theirs = next(hold for hold, whose in standing.items() if whose == "research-2")
        refused = await http.post(f"/rollouts/{name}/resolve", json={"hold": theirs, "reason": "it is moved"})
        assert (refused.status_code, refused.json()["exit_code"]) == (403, 3), theirs
        assert "this needs the role approver there" in refused.json()["detail"]
        lied = {"hold": theirs, "team": "research", "reason": "it is moved"}
        assert (await http.post(f"/rollouts/{name}/resolve", json=lied)).status_code in (403, 409)
        for hold in (hold for hold, whose in standing.items() if whose == "research"):
            answer = await http.post(f"/rollouts/{name}/resolve", json={"hold": hold, "reason": "it is moved"})
            assert answer.status_code == 200, answer.text
    assert {hold.team for hold in (await world.status(name)).holds} == {"research-2"}
