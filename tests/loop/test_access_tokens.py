"""The powers of a viewer's or a team's token through a front: to read, and to speak for that team; nothing else."""

from __future__ import annotations

import asyncio
import getpass
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from models.access.access_file import AccessFile
from models.access.roles import Role
from models.access.tokens import TOKEN_PREFIX, TokenScope, token_hash
from models.access_questions import ImportAccess, MakeToken
from models.rollout.stages import Stage
from tests.e2e.front_world import doors_of, front_of, http_to
from tests.e2e.keys import FRONT_KEY
from tests.e2e.world import World, cluster, eventually, fresh, seen, team
from web.callers import OwnTokens
from web.ledger_rights import LedgerRights
from web.settings import Address

ME = f"user:{getpass.getuser()}"
ROLLOUT = ("approve", "pause", "resume", "promote", "abort", "rollback", "close", "retry", "resolve", "ack", "object")
FLEET = ("approve", "pause", "resume", "promote", "abort", "skip", "move", "pace")
BRINGUP = ("check-in", "hold", "release", "retry", "skip", "stop", "revalidate", "cancel", "retire")


def changes(name: str, plan: str) -> list[tuple[str, dict[str, Any]]]:
    """Return every change that a person can make, each as a person with the right would make it."""
    why = {"reason": "a try"}
    rollout = {**why, "plan_hash": plan, "team": "research", "hold": "paused"}
    ask = {"request": "r-1", "cluster": name, "team": "research", "gpus": 1, "actor": "x", **why}
    return [
        *((f"/rollouts/{name}/{command}", rollout) for command in ROLLOUT),
        *((f"/fleet/{command}", {**why, "plan_hash": plan, "clusters": [name]}) for command in FLEET),
        *((f"/bringups/{name}/{command}", why) for command in BRINGUP),
        ("/rollouts", {"cluster": name, "rollout": f"{name}/2", "owner": "x", **why}),
        ("/fleet", {"fleet": "all", "owner": "x", **why}),
        ("/requests", ask),
        (f"/lost-bringups/{name}/give-up", why),
        ("/builds/b1/use", {}),
        ("/questions/remove_cluster", {"cluster": name, **why}),
        ("/questions/rename_cluster", {"cluster": name, "name": f"{name}-x", **why}),
        ("/questions/detach", {"cluster": name, **why}),
        ("/questions/confirm_source", {"source": "dcgm", **why}),
        ("/questions/revoke_token", {"name": "viewer", **why}),
    ]


@asynccontextmanager
async def speaking(world: World, role: Role, **bounds: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client with this token, at a front with rights."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    grants = [{"to": [ME], "roles": ["admin"]}, {"to": ["service:eye"], "roles": [role.value], **bounds}]
    file = {"services": [{"name": "eye", "owner": ME}], "grants": grants}
    admin = world.person(ME)
    await admin.ask(ImportAccess(file=AccessFile.model_validate(file)))
    scope = TokenScope(roles=(role,))
    await admin.ask(MakeToken(name="eye", hash=token_hash(token), owner="service:eye", scope=scope, days=1))
    rights = LedgerRights(doors_of(world.client, FRONT_KEY))
    address = Address("127.0.0.1", 0)
    more: dict[str, Any] = {"tokens": (OwnTokens(rights),), "key": FRONT_KEY, "rights": rights}
    async with front_of(world.client, None, listen=address, **more) as (_, where):
        headers = {"authorization": f"Bearer {token}"}
        async with http_to(world.client, f"{where[0]}/api/v1", headers=headers) as http:
            yield http


async def planned(world: World) -> tuple[str, str]:
    name = fresh("guarded")
    quotas = [team("research", 60), team("evals", 30)]
    await world.fleet(cluster(name, {"main": (100, 80)}, quotas, notice="1h", soak_buffered="1h", soak_enforced="1h"))
    await world.launch(name)
    plan = (await world.until(name, Stage.PLANNED)).plan_hash or ""
    launched = ("launch", False)

    def archived() -> list[tuple[str, bool]]:
        return [(e["data"].get("command", ""), e["refused"]) for e in world.sql.archive(name)]

    await eventually(lambda: launched in archived(), "the launch is archived")
    return name, plan


async def test_a_viewer_reads_and_changes_nothing(ticketed: World) -> None:
    name, plan = await planned(ticketed)
    async with speaking(ticketed, Role.VIEWER) as http:
        before, archived = ticketed.sql.dump(name), len(ticketed.sql.archive(name))
        for path in (f"/rollouts/{name}", "/rollouts", "/overview", f"/rollouts/{name}/ahead", "/requests"):
            assert (await http.get(path)).status_code == 200, path
        for path, body in changes(name, plan):
            answer = await http.post(path, json=body)
            nothing_there = path.startswith(("/bringups/", "/lost-bringups/")) and answer.status_code == 409
            assert answer.status_code == 403 or nothing_there, (path, answer.text)
            said = answer.json()["detail"]
            assert said.startswith("service:eye may not ") or nothing_there, (path, said)
        forged = await http.post(f"/rollouts/{name}/pause", json={"reason": "x", "ticket": "a.b.c", "actor": ME})
        assert forged.status_code in (400, 403, 422), "a ticket is the front's to give"
    assert ticketed.sql.dump(name) == before
    later = ticketed.sql.archive(name)[archived:]
    assert [e for e in later if not e["refused"] and e["kind"] == "command"] == []
    assert (await ticketed.status(name)).stage is Stage.PLANNED
    assert {e["actor"] for e in later if e["refused"]} <= {"service:eye"}


async def test_a_teams_token_speaks_for_that_team_alone_and_fills_nothing(ticketed: World) -> None:
    name, plan = await planned(ticketed)
    async with speaking(ticketed, Role.MEMBER, teams=["research"]) as http:
        for command, why, verb in (("ack", "", "acknowledge"), ("object", "a deadline", "object")):
            theirs = await http.post(f"/rollouts/{name}/{command}", json={"team": "research", "reason": why})
            assert theirs.status_code == 200, theirs.text
            others = await http.post(f"/rollouts/{name}/{command}", json={"team": "evals", "reason": why})
            assert others.status_code == 403, others.text
            assert others.json()["detail"].startswith(f"service:eye may not {verb} for team evals in {name}")
        for path, body in changes(name, plan):
            if not path.endswith(("/ack", "/object", "/requests", "/resolve")):
                assert (await http.post(path, json=body)).status_code in (403, 409), path

        async def state_size() -> int:
            return len(repr(await ticketed.handle(name).query("state", result_type=dict)))

        size = await state_size()
        words = [{"team": "research", "reason": f"{number} " + "x" * 450} for number in range(30)]
        answers = await asyncio.gather(*(http.post(f"/rollouts/{name}/object", json=each) for each in words))
        assert {a.status_code for a in answers} <= {200, 409, 429}
    # Entries stay in the state until they are archived, which they wait for together.
    await seen(state_size, lambda grown: grown - size < 30 * 450, "an objection takes the place of the one before")
    holds = [h for h in (await ticketed.status(name)).holds if h.id.startswith("objection")]
    assert [h.actor for h in holds] == ["service:eye"]
