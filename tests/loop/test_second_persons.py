"""Two persons, through a front with a key and a worker: what waits is started by the second, and alone is told.

The provider is made up: a token names who comes in. What was done is read by plain SQL, from the notices' log and from
Temporal.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.service import RPCError

from activities.adapters.runners.outside_checks import OutsideChecks
from activities.adapters.runners.run_directory import Here
from activities.adapters.runners.runners import Runners
from activities.adapters.runners.settings import Allowed, RunnerSettings
from cli.main import run
from client.backstop import Backstop
from client.emergency import acts_alone
from client.weekly_report import weekly
from models.access.access_file import provider_name
from models.access.principals import Principal, Proof
from models.access.signing import verify_ticket
from models.access.tickets import arguments_hash
from models.access_questions import ImportAccess
from models.bringup.messages import BringupStart
from models.cluster.fleet_file import Fleet
from models.cluster.import_outcome import ImportTerms
from models.countersign_questions import SeenEmergency, UnseenEmergencies, WaitingNow, WaitingOne
from models.errors import AwaitsSecond, Refusal
from models.fleet.commands import FleetCommandRequest
from models.fleet.messages import FleetLaunch
from models.import_questions import StageImport
from models.requests.state import QuotaAsk, RequestStage
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command, Stage
from models.temporal_names import FLEET_ID, bringup_workflow_id
from tests.e2e.front_world import doors_of, http_to, listening_at, through_url
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.world import World, cluster, eventually, fresh, team, worked_case, world_of
from tests.unit.access_world import ISSUER, access, grant
from tests.unit.bringup_world import entry, recipe
from views.report import markdown
from web.callers import Callers
from web.front import Front
from web.ledger_rights import LedgerRights
from web.settings import Address, FrontSettings
from workers.bringups import BringupParts

FILE = access(
    grant("user:sre", "operator"),
    grant("user:hw-lead", "approver"),
    grant("user:research-lead", "operator", "approver", "member"),
)
STILL = {"soak_buffered": "1h", "soak_enforced": "1h", "notice": "1h"}


class Provider:
    """web.callers.Tokens of a made-up provider: the token is the subject."""

    async def principal(self, token: str) -> Principal | None:
        return Principal(name=provider_name(ISSUER, token), human=token, proof=Proof.OIDC, how=ISSUER)


class Front2:
    def __init__(self, world: World, url: str) -> None:
        self.world, self.url = world, url

    def door(self, name: str) -> Backstop:
        return through_url(self.url, lambda: f"sub-{name}")

    async def typed(self, name: str, *words: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
        monkeypatch.setenv("BACKSTOP_URL", self.url)
        monkeypatch.setenv("BACKSTOP_TOKEN", f"sub-{name}")
        out, err = io.StringIO(), io.StringIO()

        def type_it() -> int:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                return run(list(words))

        code = await asyncio.to_thread(type_it)
        return code, out.getvalue(), err.getvalue()


@pytest_asyncio.fixture(loop_scope="function")
async def ticketed(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world with keys and bring-ups, where nothing may run on the host."""
    allowed = Allowed(RunnerSettings())
    parts = BringupParts(Runners(allowed, tmp_path / "runs", Here()), OutsideChecks(allowed, None))
    keys = (FRONT_KEY, public_keys)
    async with world_of(temporal, sqlite_ledger_url, tmp_path, keys=keys, bringups=parts) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="function")
async def front(ticketed: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Front2]:
    monkeypatch.delenv("BACKSTOP_ACTOR", raising=False)
    await ticketed.person("user:tpm").ask(ImportAccess(file=FILE))
    doors = doors_of(ticketed.client, FRONT_KEY)
    made = Front(doors, Callers((Provider(),)), rights=LedgerRights(doors))
    async with listening_at(ticketed.client, made, FrontSettings(socket=None, listen=Address("127.0.0.1", 0))) as (
        url,
    ):
        yield Front2(ticketed, url)


async def fleet_of_two(front: Front2, document: dict[str, Any]) -> None:
    """Import a fleet with a policy of its own, which takes two admins."""
    with pytest.raises(AwaitsSecond) as waits:
        await front.door("tpm").import_fleet(Fleet.model_validate({"clusters": [document]}))
    done = await front.door("sre-lead").countersign(waits.value.digits)
    assert done.command == "desk.take_fleet"


@contextmanager
def alone() -> Iterator[None]:
    before = acts_alone.set(True)
    try:
        yield
    finally:
        acts_alone.reset(before)


async def runs(world: World, workflow: str) -> bool:
    try:
        await world.client.get_workflow_handle(workflow).describe()
    except RPCError:
        return False
    return True


async def test_the_first_waits_and_the_second_starts_it(front: Front2, monkeypatch: pytest.MonkeyPatch) -> None:
    world, name = front.world, fresh("new")
    start = BringupStart(entry=entry(cluster=name), recipe=recipe(), actor="whoever", reason="the order of May")
    with pytest.raises(AwaitsSecond) as waits:
        await front.door("sre").bring_up(start)
    digits = waits.value.digits
    assert waits.value.message.startswith(
        f"the command to begin a bring-up in {name} waits for a second person until 20"
    )
    assert "Z: it has to be countersigned by" in waits.value.message
    assert "user:hw-lead, user:research-lead" in waits.value.message
    assert waits.value.message.endswith(f", with `backstop countersign give {digits}`")
    assert not await runs(world, bringup_workflow_id(name))
    assert world.sql.rows("SELECT * FROM bringups WHERE cluster = ?", name) == []
    assert world.sql.rows("SELECT given_by, second, ended FROM waiting_commands") == [("user:sre", "", "")]
    with pytest.raises(AwaitsSecond):
        await front.door("sre").bring_up(start)  # the same again is the same
    assert world.sql.one("SELECT count(*) FROM waiting_commands") == 1

    code, out, _ = await front.typed("hw-lead", "countersign", "list", monkeypatch=monkeypatch)
    assert (code, digits in out, name in out, "user:sre" in out) == (0, True, True, True)
    for who in ("sre", "tpm"):
        code, _, err = await front.typed(who, "countersign", "give", digits, "--yes", monkeypatch=monkeypatch)
        assert (code, "approver" in err) == (3, True), err
    assert not await runs(world, bringup_workflow_id(name))
    code, out, err = await front.typed("hw-lead", "countersign", "give", digits, "--yes", monkeypatch=monkeypatch)
    assert code == 0, err
    assert out.startswith(f"Given by user:sre, countersigned by user:hw-lead: {name} is entered; its stage is planned.")
    assert await runs(world, bringup_workflow_id(name))
    assert world.sql.rows("SELECT given_by, second, ended FROM waiting_commands") == [
        ("user:sre", "user:hw-lead", "given")
    ]

    row = world.sql.row("warrants", command="bringup.add", subject=f"bringup/{name}")
    outer = verify_ticket(row["ticket"], public_keys())
    inner = verify_ticket(outer.second, public_keys())
    assert (outer.principal.name, inner.principal.name) == ("user:hw-lead", "user:sre")
    assert (inner.command, inner.workflow) == (outer.command, outer.workflow)
    given = start.but(actor="user:sre")
    assert inner.args == arguments_hash(given), "what the first signed is what the first gave"
    assert outer.args == arguments_hash(given.but(actor="user:hw-lead"))
    texts = [f"{e['actor']}: {e['text']}" for e in world.sql.archive(name)]
    both = f"user:hw-lead: countersigned the command of user:sre to begin a bring-up in {name}"
    assert both in texts
    assert any(text.startswith("user:sre: a command to begin") for text in texts)

    code, _, err = await front.typed("research-lead", "countersign", "give", digits, "--yes", monkeypatch=monkeypatch)
    assert (code, "user:hw-lead has already countersigned" in err) == (3, True)
    code, _, err = await front.typed("hw-lead", "countersign", "give", "rubbish", "--yes", monkeypatch=monkeypatch)
    assert (code, "HASH must be 16 to 64 of the digits" in err) == (2, True)
    code, _, err = await front.typed("hw-lead", "countersign", "give", "0" * 16, "--yes", monkeypatch=monkeypatch)
    assert (code, "no command with the hash" in err) == (3, True)

    code, _, err = await front.typed("sre", "bringup", "hold", name, "--reason", "no rack", monkeypatch=monkeypatch)
    assert (code, err) == (0, "")
    _, out, _ = await front.typed("hw-lead", "bringup", "status", name, monkeypatch=monkeypatch)
    assert "could act user:sre, user:research-lead" in _lines(out)
    await world.client.get_workflow_handle(bringup_workflow_id(name)).terminate(reason="the story is over")


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


async def test_what_waits_for_a_person_names_who_could_act_and_not_who_began_it(
    front: Front2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout, a fleet rollout and a request of one who could approve them, had somebody else begun them."""
    world, name, roomy = front.world, fresh("waits"), fresh("roomy")
    await fleet_of_two(front, worked_case(name, **STILL))
    await fleet_of_two(
        front, cluster(roomy, {"main": (400, 400)}, [team("research", 100)], owners=["capacity"], **STILL)
    )
    world.launched.add(name)
    world.fleet_launched = True
    door = front.door("research-lead")
    code, _, err = await front.typed("research-lead", "launch", name, "--reason", "x", monkeypatch=monkeypatch)
    assert (code, err) == (0, "")
    assert world.sql.row("rollouts", cluster=name)["owner"] == "research-lead", "and not who this machine says it is"
    await door.launch_fleet(FleetLaunch(fleet=f"fleet/{name}", owner="tpm", actor="x", pilots=(name,)))
    asked = QuotaAsk(request=f"q-{name}", team="research", cluster=roomy, gpus=20, actor="x")
    assert (await door.request(asked)).stage is RequestStage.ASKED

    async def shown(who: str, *words: str) -> list[str]:
        code, out, err = await front.typed(who, *words, monkeypatch=monkeypatch)
        assert (code, err) == (0, "")
        return _lines(out)

    for who in ("hw-lead", "research-lead"):
        assert "could act user:hw-lead" in await shown(who, "status", name)
        assert "could act user:hw-lead" in await shown(who, "fleet", "status")
        approve = f"backstop request approve {asked.request} --reason '...'"
        assert f"user:hw-lead could approve it: {approve}" in await shown(who, "request", "show", asked.request)
    headers = {"authorization": "Bearer sub-hw-lead", "content-type": "application/json"}
    async with http_to(front.world.client, f"{front.url}/api/v1", headers=headers) as http:
        assert (await http.get(f"/rollouts/{name}/could-act")).json() == ["user:hw-lead"]
        needs = {"needs": "backstop fleet approve --plan feed"}
        assert (await http.post("/who-could", json=needs)).json() == ["user:hw-lead"]
        overview = {row["cluster"]: row for row in (await http.get("/overview")).json()}
        assert overview[name]["could"] == ["user:hw-lead"], "lists say it too"
        waiting = (await http.post("/questions/requests", json={})).json()
        assert [one["could"] for one in waiting if one["ask"]["request"] == asked.request] == [["user:hw-lead"]]
    assert any(line.endswith("user:hw-lead") for line in await shown("hw-lead", "request", "list"))
    assert any(line.endswith("user:hw-lead") for line in await shown("hw-lead", "status"))


async def test_where_roles_decide_a_request_needs_no_owner_in_the_policy(
    front: Front2, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, name = front.world, fresh("ownerless")
    await fleet_of_two(front, cluster(name, {"main": (400, 400)}, [team("research", 100)]))
    asked = QuotaAsk(request=f"q-{name}", team="research", cluster=name, gpus=20, actor="x")
    assert (await front.door("research-lead").request(asked)).said == "waits for an approver to approve it"
    words = ("request", "approve", asked.request, "--reason", "there is room")
    code, _, err = await front.typed("hw-lead", *words, monkeypatch=monkeypatch)
    assert (code, err) == (0, "")
    await eventually(lambda: world.sql.gpus(name) == {"research": 120}, "the grant")


async def test_a_change_of_policy_takes_two_admins_and_the_rest_of_a_file_one(
    front: Front2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, name, file = front.world, fresh("terms"), tmp_path / "fleet.json"
    case = worked_case(name)
    case.pop("policy", None)

    def written(policy: dict[str, Any] | None = None, own: dict[str, Any] | None = None, gpus: int = 345) -> str:
        cluster = {**case, **({"policy": own} if own else {})}
        cluster["quotas"] = [{**cluster["quotas"][0], "gpus": gpus}]
        file.write_text(json.dumps({**({"policy": policy} if policy else {}), "clusters": [cluster]}))
        return str(file)

    def stands() -> tuple[Any, ...]:
        (policy,) = world.sql.rows("SELECT policy FROM fleet") or [("{}",)]
        own = [json.loads(text) for (text,) in world.sql.rows("SELECT policy FROM clusters WHERE name = ?", name)]
        return json.loads(policy[0]), own, world.sql.gpus(name)

    async def imported(who: str, path: str) -> tuple[int, str, str]:
        return await front.typed(who, "fleet", "import", path, monkeypatch=monkeypatch)

    assert (await imported("tpm", written()))[0] == 0, "without a policy one admin is enough"
    before = stands()
    assert before[2] == {"research": 345}
    code, _, err = await imported("tpm", written({"buffer": 0.2}, gpus=344))
    assert (
        code,
        re.search(
            r"to change the policy waits for a second person until \S+ \S+Z: it has to be countersigned by",
            err,
        )
        is not None,
    ) == (
        3,
        True,
    ), err
    assert stands() == before, "nothing of the file goes in before the second has given it"
    digits = err.rpartition("`backstop countersign give ")[2][:16]

    code, out, err = await front.typed("sre-lead", "countersign", "give", digits, monkeypatch=monkeypatch)
    assert code == 2, "without a terminal nobody is asked, and nothing is done"
    assert out.startswith("To change the policy, given by user:tpm")
    assert "0.2" in out, "the whole command is shown"
    assert "There is no terminal to ask on, so nothing was changed" in err
    code, out, _ = await front.typed("sre-lead", "countersign", "give", digits, "--json", monkeypatch=monkeypatch)
    assert (code, out) == (2, ""), "nothing stands beside JSON"
    code, out, err = await front.typed("tpm", "countersign", "give", digits, "--yes", monkeypatch=monkeypatch)
    assert (code, "another admin has to countersign" in err) == (3, True), err
    code, out, err = await front.typed("hw-lead", "countersign", "give", digits, "--yes", monkeypatch=monkeypatch)
    assert (code, "needs the role admin" in err) == (3, True), err
    (shown,) = [await front.door("sre-lead").ask(WaitingOne(hash=digits))]
    assert any("buffer" in text and "0.2" in text for text in shown.changes), shown.changes
    assert any("345 -> 344" in text for text in shown.changes)
    assert stands() == before

    code, out, err = await front.typed("sre-lead", "countersign", "give", digits, "--yes", monkeypatch=monkeypatch)
    assert code == 0, err
    assert out.startswith("Given by user:tpm, countersigned by user:sre-lead: ")
    assert stands()[0] == {**before[0], "buffer": "0.2"}
    assert stands()[2] == {"research": 344}
    signed = "SELECT ticket FROM warrants WHERE command = 'desk.take_fleet' AND principal LIKE ?"
    ((ticket,),) = world.sql.rows(signed, "%sre-lead%")
    outer = verify_ticket(ticket, public_keys())
    assert verify_ticket(outer.second, public_keys()).principal.name == "user:tpm"
    assert (await imported("sre-lead", written({"buffer": 0.2}, gpus=343)))[0] == 0, "the policy is as it stands"

    code, _, err = await imported("sre-lead", written(own={"buffer": 0}, gpus=343))
    assert (code, "waits for a second person" in err) == (3, True), "of one cluster as of the fleet"
    case["name"] = fresh("lax")
    code, _, err = await imported("sre-lead", written(own={"buffer": 0}))
    assert (code, "waits for a second person" in err) == (3, True), "a new cluster that brings its own"
    assert world.sql.rows("SELECT name FROM clusters WHERE name = ?", case["name"]) == []


async def test_another_access_file_takes_two_admins_by_the_front(
    front: Front2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way docs/access.md shows: one admin imports it, another one confirms it by its hash."""
    world, file = front.world, tmp_path / "access.json"
    wider = access(grant("user:sre", "operator"), grant("user:hw-lead", "approver", "operator"))
    file.write_text(wider.model_dump_json(by_alias=True, exclude_unset=True))

    async def typed(who: str, *words: str) -> tuple[int, str, str]:
        return await front.typed(who, "access", "import", *words, monkeypatch=monkeypatch)

    def versions() -> list[tuple[Any, ...]]:
        return world.sql.rows("SELECT version, how FROM access_files WHERE version > 0 ORDER BY version")

    code, _, err = await typed("sre", str(file), "--reason", "more for hw-lead")
    assert (code, "user:sre may not change roles" in err) == (3, True), err
    code, out, err = await typed("tpm", str(file), "--reason", "more for hw-lead")
    assert (code, "another admin (user:sre-lead) must confirm it before" in out) == (3, True), (out, err)
    digits = out.rpartition("--confirm ")[2].strip("`\n .")[:16]
    assert versions() == [(1, "first")], "the file in force stays in force"
    for who, why in (("tpm", "another admin has to countersign"), ("hw-lead", "may not change roles")):
        code, _, err = await typed(who, "--confirm", digits)
        assert (code, why in err) == (3, True), err
    assert versions() == [(1, "first")]
    code, _, err = await typed("sre-lead", "--confirm", digits)
    assert (code, err) == (0, "")
    assert versions() == [(1, "first"), (2, "countersigned")]


async def test_what_two_admins_gave_is_what_goes_in(front: Front2) -> None:
    """The parts are anybody's who is an admin: what the second has seen is bound by its hash."""
    world, name = front.world, fresh("swapped")
    case = worked_case(name)
    case.pop("policy", None)

    def fleet(buffer: float) -> Fleet:
        return Fleet.model_validate({"policy": {"buffer": buffer}, "clusters": [case]})

    with pytest.raises(AwaitsSecond) as waits:
        await front.door("tpm").take_fleet(fleet(0.2), ImportTerms())
    one = await front.door("sre-lead").ask(WaitingOne(hash=waits.value.digits))
    staged = one.message["arguments"]["import_id"]
    other = base64.b64encode(zlib.compress(fleet(0.0).model_dump_json(exclude_unset=True, by_alias=True).encode()))
    await front.door("tpm").ask(StageImport(import_id=staged, part=0), other.decode())
    shown = await front.door("sre-lead").ask(WaitingOne(hash=waits.value.digits))
    assert shown.changes[0] == "the import would now change policies differently from when the command was given"
    with pytest.raises(Refusal, match="the import would now change policies differently from what was countersigned"):
        await front.door("sre-lead").countersign(waits.value.digits)
    assert world.sql.rows("SELECT name FROM clusters WHERE name = ?", name) == []


async def test_over_http_it_is_a_refusal_that_says_when_it_ends(front: Front2) -> None:
    start = BringupStart(entry=entry(cluster=fresh("new")), recipe=recipe(), actor="whoever")
    headers = {"authorization": "Bearer sub-sre", "content-type": "application/json"}
    async with http_to(front.world.client, f"{front.url}/api/v1", headers=headers) as http:
        answer = await http.post("/bringups", content=start.model_dump_json(by_alias=True))
        said = answer.json()
        assert (answer.status_code, said["exit_code"], said["type"]) == (409, 3, "urn:backstop:problem:AwaitsSecond")
        until = datetime.fromisoformat(said["until"])
        assert timedelta(hours=23) < until - front.world.now() < timedelta(hours=25)
        rubbish = await http.post("/waiting/%00%00/countersign")
        assert rubbish.status_code in (403, 404, 422)
        for inner in ("keep_waiting", "turn_waiting", "tell_emergency"):
            assert (await http.post(f"/questions/{inner}", json={})).status_code == 404
    (waits,) = await front.door("sre").ask(WaitingNow())
    assert waits.hash.startswith(said["hash"])


async def test_a_fleet_abort_with_undo_takes_two(front: Front2) -> None:
    world, name = front.world, fresh("abort")
    await fleet_of_two(front, worked_case(name, **STILL))
    world.fleet_launched = True
    await front.door("sre").launch_fleet(FleetLaunch(fleet=f"fleet/{name}", owner="tpm", actor="x", pilots=(name,)))
    request = FleetCommandRequest(actor="x", reason="wrong order", undo=True)
    with pytest.raises(AwaitsSecond, match="to abort the fleet rollout with undo waits") as waits:
        await front.door("sre").fleet_command("abort", request)
    assert (await front.door("sre").fleet_status()).stage == "planned"
    done = await front.door("hw-lead").countersign(waits.value.digits)
    assert (done.by, done.second, done.command) == ("user:sre", "user:hw-lead", "fleet.abort")
    row = world.sql.row("warrants", command="fleet.abort", subject=f"fleet/{name}")
    assert verify_ticket(verify_ticket(row["ticket"], public_keys()).second, public_keys()).principal.name == "user:sre"
    texts = [e["text"] for e in world.sql.archive("(fleet)")]
    assert "countersigned the command of user:sre to abort the fleet rollout with undo" in texts


async def test_a_command_that_would_be_refused_anyhow_asks_no_second_person(
    front: Front2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, there, new = front.world, fresh("there"), fresh("new")

    async def typed(*words: str) -> tuple[int, str]:
        code, _, err = await front.typed("sre", *words, "--reason", "x", monkeypatch=monkeypatch)
        return code, " ".join(err.split())

    def waiting() -> list[tuple[Any, ...]]:
        return world.sql.rows("SELECT command FROM waiting_commands WHERE command <> 'desk.take_fleet'")

    none = "backstop: there is no fleet rollout: launch one with `backstop launch --fleet`"
    assert await typed("fleet", "abort", "--yes") == (3, none)
    assert await typed("fleet", "abort", "--undo", "--yes") == (3, none)
    refused = [e["text"] for e in world.sql.archive("(fleet)") if e["refused"]]
    assert refused == [f"abort refused: {none.removeprefix('backstop: ')}"] * 2, "the audit has both"

    await fleet_of_two(front, worked_case(there, **STILL))
    world.fleet_launched = True
    await front.door("sre").launch_fleet(FleetLaunch(fleet=f"fleet/{there}", owner="tpm", actor="x", pilots=(there,)))
    await front.door("sre").fleet_command("abort", FleetCommandRequest(actor="x", reason="wrong order"))
    await world.client.get_workflow_handle(FLEET_ID).result()
    code, err = await typed("fleet", "abort", "--undo", "--yes")
    assert (code, "the fleet rollout has ended" in err) == (3, True), err

    with pytest.raises(Refusal, match=f"{there} is already in the fleet") as known:
        await front.door("sre").bring_up(BringupStart(entry=entry(cluster=there), recipe=recipe(), actor="x"))
    assert not isinstance(known.value, AwaitsSecond)
    assert waiting() == []
    start = BringupStart(entry=entry(cluster=new), recipe=recipe(), actor="x")
    with pytest.raises(AwaitsSecond) as waits:
        await front.door("sre").bring_up(start)
    await front.door("hw-lead").countersign(waits.value.digits)
    for again in (start, start.but(entry=entry(cluster=new, owner="another"))):
        with pytest.raises(Refusal, match=f"{new} is already being brought up") as begun:
            await front.door("sre").bring_up(again)
        assert not isinstance(begun.value, AwaitsSecond)
    assert waiting() == [("bringup.add",)], "the one that was countersigned"
    await world.client.get_workflow_handle(bringup_workflow_id(new)).terminate(reason="the story is over")


async def test_alone_in_an_emergency_is_told_until_another_admin_has_looked(front: Front2) -> None:
    world, name = front.world, fresh("alone")
    await fleet_of_two(front, worked_case(name, **STILL))
    door = front.door("research-lead")
    world.launched.add(name)
    plan = (await door.launch(LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", reason="x"))).plan
    assert plan is not None
    approve = CommandRequest(actor="x", reason="the SEV cannot wait", plan_hash=plan.hash)
    with pytest.raises(Refusal, match="user:research-lead launched the rollout: another approver has to approve"):
        await door.command(name, Command.APPROVE, approve)
    with alone(), pytest.raises(Refusal, match="user:sre may not approve"):
        await front.door("sre").command(name, Command.APPROVE, approve)
    with alone(), pytest.raises(Refusal, match="an emergency needs a reason"):
        await door.command(name, Command.APPROVE, approve.but(reason=""))
    assert world.sql.rows("SELECT * FROM emergencies") == []

    async def report() -> str:
        now = front.world.now()
        return markdown(
            await weekly(front.door("hw-lead"), now - timedelta(days=7), now, [now], timedelta(days=1), live=False)
        )

    with alone(), pytest.raises(Refusal, match=f"the plan is {plan.hash}, not feed"):
        await door.command(name, Command.APPROVE, approve.but(plan_hash="feed"))
    assert "Emergency" not in await report(), "nothing was done alone"
    texts = [e["text"] for e in world.sql.archive(name)]
    assert f"nothing was done in emergency 1: the command to approve in {name} was refused" in texts

    with alone():
        await door.command(name, Command.APPROVE, approve)
    await world.until(name, Stage.PLANNED)
    assert world.sql.rows("SELECT number, given_by, reason, seen_by, seen_reason FROM emergencies") == [
        (1, "user:research-lead", "the SEV cannot wait", "", "its command was refused"),
        (2, "user:research-lead", "the SEV cannot wait", "", ""),
    ]
    row = world.sql.row("warrants", command="rollout.approve", subject=f"{name}/1")
    assert verify_ticket(row["ticket"], public_keys()).emergency
    log = world.home / "notices.jsonl"

    def told() -> set[str]:
        whole = log.read_text().rpartition("\n")[0]  # the last line may be under way
        lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        return {str(line) for line in lines if "emergency" in json.dumps(line)}

    await eventually(lambda: log.exists() and len(told()) >= 2, "both admins are told")
    assert all(f"audience': '{admin}'" in "".join(told()) for admin in ("tpm", "sre-lead"))

    head = (await report()).split("\n\n")[1]
    assert head.startswith("- **Emergency**: user:research-lead acted alone in an emergency")
    (unseen,) = await front.door("tpm").ask(UnseenEmergencies())
    row = world.sql.row("emergencies", seen_reason="")
    assert (unseen.number, unseen.by, unseen.what) == (row["number"], row["given_by"], row["what"])
    with pytest.raises(Refusal, match="may not look at an emergency"):
        await door.ask(SeenEmergency(number=2, reason="I did it"))
    await front.door("tpm").ask(SeenEmergency(number=2, reason="it was right"))
    assert "Emergency" not in await report()
    assert await front.door("tpm").ask(UnseenEmergencies()) == ()
    assert world.sql.rows("SELECT seen_by FROM emergencies ORDER BY number") == [("",), ("user:tpm",)]


async def test_without_a_front_nobody_acts_alone(
    front: Front2, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BACKSTOP_SOCKET", str(tmp_path / "nobody"))
    monkeypatch.delenv("BACKSTOP_URL", raising=False)
    err = io.StringIO()

    def type_it() -> int:
        with contextlib.redirect_stderr(err):
            return run(["promote", "nowhere", "--reason", "x", "--emergency"])

    assert await asyncio.to_thread(type_it) == 2
    assert "--emergency needs a front" in err.getvalue()
    assert not acts_alone.get()
