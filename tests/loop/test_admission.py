"""Admission at a real worker, with keys and an access file in force: the front's word is for who somebody is alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client

from client.backstop import Backstop
from client.connection import TemporalTarget
from models.access.access_file import AccessFile
from models.access_questions import ImportAccess
from models.cluster.fleet_file import Fleet
from models.cluster.import_outcome import ImportTerms
from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.errors import Refusal
from models.fleet.commands import FleetCommandRequest
from models.fleet.messages import FleetLaunch
from models.fleet.state import FLEET, Pace
from models.questions import OneRequest
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.state import QuotaAsk
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command, Stage
from models.status_questions import RequestsOf
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.world import PACE, World, cluster, eventually, fresh, team, worked_case, world_of

TPM, SRE, LEAD = "user:tpm", "user:sre", "user:research-lead"
BOTH = ["operator", "approver"]


def access(**more: Any) -> AccessFile:
    """Two admins; two operators who may approve as well; one who may approve alone."""
    people = [{"name": who.removeprefix("user:"), "machine": [who.removeprefix("user:")]} for who in (TPM, SRE, LEAD)]
    grants = [
        {"to": [TPM, SRE], "roles": ["admin", *BOTH]},
        {"to": [LEAD], "roles": ["approver"]},
        {"to": [TPM], "roles": ["member"], "teams": ["research"]},
    ]
    return AccessFile.model_validate({"people": people, "grants": grants, **more})


@pytest_asyncio.fixture(loop_scope="function")
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world with keys, and no access file yet."""
    async with world_of(temporal, sqlite_ledger_url, tmp_path, keys=(FRONT_KEY, public_keys)) as found:
        yield found


async def configured(world: World, file: AccessFile) -> None:
    await world.person(TPM).ask(ImportAccess(file=file))


async def launched(world: World, name: str, by: str = TPM, **more: Any) -> str:
    """A rollout with its plan; answers the plan's hash."""
    world.launched.add(name)
    launch = LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", actor=by, reason="r", **more)
    plan = (await world.person(by).launch(launch)).plan
    assert plan is not None
    return plan.hash


async def approves(world: World, name: str, who: str, plan: str) -> None:
    await world.person(who).command(name, Command.APPROVE, CommandRequest(actor=who, plan_hash=plan))


async def healthy(world: World, name: str, gpus: int, by: str = TPM) -> None:
    one = (Island(name="main", total_gpus=361, healthy_gpus=gpus),)
    await world.person(by).add_health([HealthSample(cluster=name, at=world.now(), islands=one)])


def commands(world: World, name: str) -> list[Any]:
    return world.sql.rows("SELECT command FROM warrants WHERE subject = ? ORDER BY admitted_at", f"{name}/1")


async def test_who_launched_it_does_not_approve_it(world: World) -> None:
    name = fresh("alone")
    await world.fleet(worked_case(name, soak_buffered="1h"))
    await configured(world, access())
    plan = await launched(world, name)
    with pytest.raises(
        Refusal, match=f"{TPM} launched the rollout: another approver has to approve \\({SRE}, {LEAD}\\)"
    ):
        await approves(world, name, TPM, plan)
    assert commands(world, name) == [("rollout.launch",)]
    await approves(world, name, LEAD, plan)
    await world.until(name, Stage.BUFFERED)


async def test_a_role_that_was_taken_away_since_the_fronts_look_admits_nothing(world: World) -> None:
    """The front signed while the role was there: what counts is the file as it is when it is admitted."""
    name = fresh("taken")
    await world.fleet(worked_case(name))
    await configured(world, access())
    plan = await launched(world, name)
    without = access(grants=[{"to": [TPM, SRE], "roles": ["admin", *BOTH]}, {"to": [LEAD], "roles": ["viewer"]}])
    proposed = await world.person(TPM).ask(ImportAccess(file=without))
    assert proposed.awaits
    confirmed = await world.person(SRE).ask(ImportAccess(confirm=proposed.hash))
    assert confirmed.in_force
    with pytest.raises(Refusal, match=f"{LEAD} may not approve in {name}: this needs the role approver there"):
        await approves(world, name, LEAD, plan)
    with pytest.raises(Refusal, match=f"{LEAD} may not pause in {name}: this needs the role operator there"):
        await world.person(LEAD).command(name, Command.PAUSE, CommandRequest(actor=LEAD, reason="r"))
    assert commands(world, name) == [("rollout.launch",)]
    await approves(world, name, SRE, plan)


async def test_who_changed_a_quota_since_does_not_approve(world: World) -> None:
    name = fresh("changed")
    given = worked_case(name, soak_buffered="1h")
    await world.fleet(given)
    await configured(world, access())
    given["quotas"][0]["gpus"] = 346
    await world.person(SRE).take_fleet(Fleet.model_validate({"clusters": [given]}), ImportTerms(), world.stage)
    assert world.sql.gpus(name) == {"research": 346}
    plan = await launched(world, name)
    changed = (
        f"{SRE} changed policy or quotas since the last approved plan: another approver has to approve \\({LEAD}\\)"
    )
    with pytest.raises(Refusal, match=changed):
        await approves(world, name, SRE, plan)
    await approves(world, name, LEAD, plan)
    await world.until(name, Stage.BUFFERED)


async def test_what_somebody_changed_by_plain_sql_is_for_any_approver(world: World) -> None:
    name = fresh("sql")
    await world.fleet(worked_case(name))
    await configured(world, access())
    world.sql.set("research", 344, name)
    plan = await launched(world, name)
    await approves(world, name, SRE, plan)


async def test_what_the_old_list_let_through_is_refused(world: World) -> None:
    """Each command had been admitted with any front's signature, whoever gave it."""
    name = fresh("grid")
    await world.fleet(worked_case(name))
    await configured(world, access())
    with pytest.raises(Refusal, match=r"user:nobody may not launch a rollout in .*: this needs the role operator"):
        await world.person("user:nobody").launch(
            LaunchRequest(cluster=name, rollout=f"{name}/0", owner="tpm", actor="user:nobody", reason="r")
        )
    with pytest.raises(Refusal, match="user:nobody may not import health: this needs the role admin"):
        await healthy(world, name, 319, "user:nobody")
    ask = QuotaAsk(request=fresh("r"), team="research", cluster=name, gpus=8, actor=TPM, reason="r")
    with pytest.raises(Refusal, match="user:sre may not ask for quota for team research"):
        await world.person(SRE).request(ask.but(actor=SRE))
    world.asked.add(ask.request)
    if (await world.person(TPM).request(ask)).stage == "asked":
        for command in (RequestCommand.APPROVE, RequestCommand.DECLINE):
            with pytest.raises(Refusal, match=f"{TPM} made the request: another approver has to {command}"):
                await world.person(TPM).decide_request(ask.request, command, RequestOrder(actor=TPM, reason="r"))
    await launched(world, name)
    await world.handle(name).terminate(reason="lost")
    again = LaunchRequest(cluster=name, rollout=f"{name}/2", owner="tpm", actor=TPM, reason="r", adopt=True)
    with pytest.raises(Refusal, match=f"{TPM} launched the rollout: another approver has to adopt a rollout"):
        await world.person(TPM).launch(again)
    assert world.sql.rows("SELECT id FROM rollouts WHERE id = ?", f"{name}/2") == []
    assert (await world.person(SRE).launch(again.but(actor=SRE))).launched


async def test_an_open_breaker_lets_one_undo_the_fleet_rollout(world: World) -> None:
    a, b = fresh("broken"), fresh("broken")
    slow = {"soak_buffered": "1h", "soak_enforced": "1h"}  # both are on their way until the end
    await world.fleet(worked_case(a, **slow), worked_case(b, **slow))
    await configured(world, access())
    world.fleet_launched = True
    pace = Pace.model_validate({**PACE, "max_failed": 0.0, "breaker_clusters": 1})
    launch = FleetLaunch(fleet=fresh("fleet"), owner="tpm", actor=TPM, reason="r", pace=pace)
    plan = await world.person(TPM).launch_fleet(launch)
    world.launched |= {a, b}

    async def say(command: Any, who: str, **fields: Any) -> None:
        order = FleetCommandRequest(actor=who, **{"reason": "r", **fields})
        await world.person(who).fleet_command(command, order)

    with pytest.raises(Refusal, match=f"{TPM} launched the rollout: another approver has to approve"):
        await say("approve", TPM, plan_hash=plan.hash)
    await say("approve", LEAD, plan_hash=plan.hash)
    for name in (a, b):
        await eventually(lambda n=name: world.sql.gpus(n) == {"research": 306}, f"{name} is cut")  # type: ignore[misc]
    with pytest.raises(Refusal, match="it has to be countersigned by an approver, except while the breaker is open"):
        await say("abort", TPM, undo=True)
    with pytest.raises(Refusal, match=f"{TPM} launched the rollout: another approver has to change the pace"):
        await say("pace", TPM, pace={"parallel": 2})
    await healthy(world, a, 290)
    await eventually(
        lambda: any(e["data"].get("hold") == "breaker" for e in world.sql.archive(FLEET)), "the breaker in the archive"
    )
    await say("abort", TPM, undo=True)
    await eventually(lambda: world.sql.gpus(b) == {"research": 345}, "the baseline again")


async def test_an_emergency_that_no_front_told_of_is_told_as_it_is_admitted(world: World) -> None:
    """A caller with a front's key can stay silent about it: the ticket says `emergency`, and that is all."""
    name = fresh("emergency")
    await world.fleet(worked_case(name, soak_buffered="1h"))
    await configured(world, access())
    plan = await launched(world, name)
    signer = world.signer(TPM, emergency=True)
    assert signer is not None
    options = {"target_host": world.client.service_client.config.target_host, "namespace": world.client.namespace}
    door = Backstop(world.client, TPM, TemporalTarget(options=options, embedded=True), signer, world.now)
    await door.command(name, Command.APPROVE, CommandRequest(actor=TPM, plan_hash=plan, reason="nobody else is awake"))
    assert world.sql.rows("SELECT number, given_by, what, reason, seen_by FROM emergencies") == [
        (1, TPM, f"approve in {name}", "nobody else is awake", "")
    ]
    (row,) = (e for e in world.sql.archive(name) if "acted alone in an emergency" in e["text"])
    assert (row["actor"], row["reason"], row["data"]["proof"]["proof"]) == (TPM, "nobody else is awake", "peer")
    told = {audience for kind, audience in world.notices(name) if kind == "emergency"}
    assert told == {"tpm", "sre"}, "every admin, as the access file names them"
    await world.until(name, Stage.BUFFERED)


async def test_before_access_is_configured_nothing_is_asked_but_the_signature(world: World) -> None:
    name = fresh("before")
    await world.fleet(worked_case(name, soak_buffered="1h"))
    plan = await launched(world, name)
    await approves(world, name, TPM, plan)
    await world.until(name, Stage.BUFFERED)
    assert [command for (command,) in commands(world, name)] == ["rollout.launch", "rollout.approve"]


async def test_a_request_made_before_the_first_access_file_says_that_an_approver_decides(world: World) -> None:
    name = fresh("before")
    await world.fleet(cluster(name, {"main": (100, 100)}, [team("research", 40)], owners=["capacity"]))
    ask = QuotaAsk(request=fresh("r"), team="research", cluster=name, gpus=8, actor=TPM, reason="r")
    world.asked.add(ask.request)
    assert (await world.person(TPM).request(ask)).said == "waits for capacity to approve it"
    await configured(world, access())
    (listed,) = await world.person(TPM).ask(RequestsOf(cluster=name))
    one = await world.person(TPM).ask(OneRequest(request=ask.request))
    assert listed.said == one.said == "waits for an approver to approve it"
    order = RequestOrder(actor=LEAD, reason="agreed")
    assert (await world.person(LEAD).decide_request(ask.request, RequestCommand.APPROVE, order)).decided_by == LEAD
