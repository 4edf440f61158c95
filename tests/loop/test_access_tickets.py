"""A rollout where keys are configured: every command has its ticket, every effect what it stands on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from temporalio.client import Client

from models.errors import Refusal
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.state import QuotaAsk
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from tests.e2e.faults import Fault, Faulty, Way, refused
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.test_access_tickets import ROOMY, all_proven, changed_by_others, proofs
from tests.e2e.world import World, eventually, fresh, on_postgresql, worked_case, world_of

nightly = on_postgresql


async def test_a_rollout_goes_its_way_from_launch_to_close(ticketed: World) -> None:
    name = fresh("ticketed")
    await ticketed.fleet(worked_case(name))
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    assert ticketed.sql.gpus(name) == {"research": 306}
    assert proofs(ticketed, f"{name}/1") == [
        ("reserve", "called", "plan"),
        ("set_soft", "called", "plan"),
        ("harden", "called", "plan"),
    ]
    await ticketed.say(name, Command.CLOSE)
    assert (await ticketed.ended(name))["stage"] == "closed"
    assert proofs(ticketed, f"{name}/1")[-1] == ("close", "called", "ticket")
    words = ticketed.sql.rows("SELECT command, human FROM warrants WHERE subject = ? ORDER BY admitted_at", f"{name}/1")
    assert words == [("rollout.launch", "tpm"), ("rollout.approve", "sre"), ("rollout.close", "tpm")]
    await all_proven(ticketed.sql, "launch", "approve", "close")


async def test_a_breach_is_answered_and_the_next_attempt_stands_on_the_same_approval(ticketed_on_each: World) -> None:
    ticketed = ticketed_on_each
    name = fresh("breached")
    await ticketed.fleet(worked_case(name))
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    await ticketed.healthy(name, main=(361, 290))
    await ticketed.until(name, lambda s: s.failures == 1)
    await ticketed.until(name, Stage.ROLLED_BACK)
    assert ticketed.sql.gpus(name) == {"research": 290}
    grounds = [ground for _, _, ground in proofs(ticketed, f"{name}/1")]
    assert grounds[-4:] == ["breach"] * 4 or grounds[-3:] == ["breach"] * 3
    await ticketed.healthy(name, main=(361, 340))
    await ticketed.until(name, lambda s: s.attempt == 2 and s.stage is Stage.MONITORED)


async def test_an_abort_brings_the_baseline_back(ticketed: World) -> None:
    name = fresh("aborted")
    await ticketed.fleet(worked_case(name, soak_buffered="1h"))
    await ticketed.start(name)
    await ticketed.until(name, Stage.BUFFERED)
    await ticketed.say(name, Command.ABORT, "sre")
    assert (await ticketed.ended(name))["stage"] == "aborted"
    assert ticketed.sql.gpus(name) == {"research": 345}
    assert proofs(ticketed, f"{name}/1")[-2:] == [("restore", "called", "ordered"), ("release", "called", "ordered")]
    voided = ticketed.sql.rows("SELECT command FROM warrants WHERE subject = ? AND voided_at IS NOT NULL", f"{name}/1")
    assert voided == [("rollout.approve",)]


async def test_after_a_rollback_the_next_plan_is_approved_anew(ticketed: World) -> None:
    name = fresh("again")
    await ticketed.fleet(worked_case(name))
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    await ticketed.say(name, Command.ROLLBACK, "sre")
    await ticketed.until(name, Stage.ROLLED_BACK)
    assert ticketed.sql.gpus(name) == {"research": 345}
    await ticketed.say(name, Command.RETRY)
    await ticketed.until(
        name, lambda s: (s.stage is Stage.PLANNED and "an approval" in s.needs) or "approve" in s.needs
    )
    await ticketed.approve(name)
    await ticketed.until(name, Stage.MONITORED)
    assert ticketed.sql.gpus(name) == {"research": 306}


async def test_a_lost_rollout_is_adopted_and_its_baseline_comes_back(ticketed: World) -> None:
    name = fresh("adopted")
    await ticketed.fleet(worked_case(name))
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    await ticketed.handle(name).terminate(reason="lost")
    await ticketed.start(name, f"{name}/2", adopt=True)
    await ticketed.until(name, Stage.MONITORED)
    assert ticketed.sql.gpus(name) == {"research": 306}
    await ticketed.say(name, Command.ABORT, "sre")
    assert (await ticketed.ended(name))["stage"] == "aborted"
    assert ticketed.sql.gpus(name) == {"research": 345}


async def test_drift_is_restored_by_the_last_receipts(ticketed: World) -> None:
    name = await changed_by_others(ticketed, "drifted")
    await ticketed.say(name, Command.RESOLVE, "sre", hold="drift", how="restore")
    await eventually(lambda: ticketed.sql.gpus(name) == {"research": 306}, "our value again")
    assert proofs(ticketed, f"{name}/1")[-1] == ("set_soft", "called", "restored")


async def test_what_others_changed_and_a_person_accepted_is_left_by_an_undo(ticketed: World) -> None:
    name = await changed_by_others(ticketed, "accepted")
    await ticketed.say(name, Command.RESOLVE, "sre", hold="drift", how="accept")
    await ticketed.say(name, Command.ABORT, "sre")
    assert (await ticketed.ended(name))["stage"] == "aborted"
    assert ticketed.sql.gpus(name) == {"research": 300}


async def test_a_fleets_approval_is_its_members_and_its_abort_undoes_them(ticketed: World) -> None:
    a, b = fresh("member"), fresh("member")
    still = {"soak_buffered": "1h"}  # else the fleet rollout may be over before anybody paces or aborts it
    await ticketed.fleet(worked_case(a, **still), worked_case(b, **still))
    await ticketed.start_fleet(fresh("fleet"))
    for name in (a, b):
        await eventually(lambda n=name: ticketed.sql.gpus(n) == {"research": 306}, f"{name} is cut")  # type: ignore[misc]
    rollouts = [id_ for (id_,) in ticketed.sql.rows("SELECT id FROM rollouts")]
    for rollout in rollouts:
        words = ticketed.sql.rows("SELECT command, inherits IS NOT NULL FROM warrants WHERE subject = ?", rollout)
        assert sorted(words) == [("rollout.approve", 1), ("rollout.launch", 1)]
    await ticketed.say_fleet("pace", "tpm", pace={"parallel": 4})
    await ticketed.say_fleet("abort", "sre", undo=True)
    for name in (a, b):
        await eventually(lambda n=name: ticketed.sql.gpus(n) == {"research": 345}, f"{name} is back")  # type: ignore[misc]
    await all_proven(ticketed.sql, "launch", "approve", "pace", "abort")
    of_members = ('SELECT count(*) FROM audit WHERE cluster IN (?, ?) AND entry LIKE \'%"proof":"peer"%\'', a, b)
    await eventually(lambda: ticketed.sql.rows(*of_members) == [(6,)], "imported, launched and aborted, each proven")
    rows = ticketed.sql.rows("SELECT entry FROM audit WHERE cluster IN (?, ?) ORDER BY entry", a, b)
    aborts = [entry for (row,) in rows if (entry := json.loads(row))["data"].get("command") == "abort"]
    assert [(entry["actor"], entry["text"]) for entry in aborts] == 2 * [("sre", "abort by sre")]


async def test_a_grant_through_a_rollout_and_alone(ticketed_on_each: World) -> None:
    ticketed = ticketed_on_each
    name = fresh("granted")
    await ticketed.fleet(worked_case(name, owners=["sre"]) | {"islands": [ROOMY]})
    first = await ticketed.person("tpm").request(
        ask := QuotaAsk(request=fresh("r"), team="research", cluster=name, gpus=8, actor="tpm", reason="x")
    )
    ticketed.asked.add(ask.request)
    assert first.stage == "asked"
    order = RequestOrder(actor="sre", reason="there is room")
    with pytest.raises(Refusal, match=f"tpm does not own {name}: ask sre"):
        await ticketed.person("tpm").decide_request(ask.request, RequestCommand.APPROVE, order.but(actor="tpm"))
    await ticketed.person("sre").decide_request(ask.request, RequestCommand.APPROVE, order)
    await eventually(lambda: ticketed.sql.gpus(name) == {"research": 353}, "the grant")
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    stood = ticketed.sql.gpus(name)["research"]
    more = QuotaAsk(request=fresh("r"), team="research", cluster=name, gpus=8, actor="tpm", reason="x")
    ticketed.asked.add(more.request)
    await ticketed.person("tpm").request(more)
    await ticketed.person("sre").decide_request(more.request, RequestCommand.APPROVE, order)
    await eventually(lambda: ticketed.sql.gpus(name) == {"research": stood + 8}, "the grant through the rollout")
    await ticketed.say(name, Command.ABORT, "sre")
    assert (await ticketed.ended(name))["stage"] == "aborted"
    assert ticketed.sql.gpus(name) == {"research": 361}
    await all_proven(ticketed.sql, "asked for", "approved", "launch", "approve", "abort")


@pytest.mark.parametrize("way", [Way.NEVER_LANDED, Way.ANSWER_LOST])
@pytest.mark.parametrize("kind", [EffectKind.SET_SOFT, EffectKind.HARDEN])
async def test_what_failed_is_undone_without_anybodys_word(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path, kind: EffectKind, way: Way
) -> None:
    faulty = Faulty()
    async with world_of(temporal, sqlite_ledger_url, tmp_path, faulty, keys=(FRONT_KEY, public_keys)) as world:
        name = fresh("failing")
        await world.fleet(worked_case(name))
        faulty.quotas.inject(name, kind, Fault(way, refused, times=None))
        await world.start(name)
        await world.until(name, Stage.ROLLED_BACK)
        assert world.sql.gpus(name) == {"research": 345}
        assert {ground for effect, _, ground in proofs(world, f"{name}/1") if effect in ("restore", "release")} == {
            "failed"
        }


async def test_what_others_added_is_backstops_own_on_the_ticket_of_who_accepted_it(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """Beside a limit above all quotas, which follows what is accepted; an undo leaves that, and nobody else's word."""
    faulty, name = Faulty(), fresh("accepted")
    async with world_of(temporal, sqlite_ledger_url, tmp_path, faulty, keys=(FRONT_KEY, public_keys)) as world:
        faulty.quotas.bounds[name] = 306
        await world.fleet(worked_case(name))
        await world.start(name)
        await world.until(name, Stage.MONITORED)
        world.sql.set("research", 300, name)
        world.sql.run("INSERT INTO quotas (cluster, team, gpus, mode) VALUES (?, 'z', 6, 'hard')", name)
        at = f"{world.now():%Y-%m-%dT%H:%M:%S.%fZ}"
        world.sql.run("UPDATE quota_changes SET at = ? WHERE cluster = ?", at, name)  # not by the database's own clock
        await world.until(name, lambda status: len(status.holds) == 1 and "z absent" in status.holds[0].reason)
        assert world.sql.row("quotas", cluster=name, team="z")["written_gpus"] is None
        await world.say(name, Command.RESOLVE, hold="drift", how="accept")
        await world.until(name, lambda _: world.sql.row("quotas", cluster=name, team="z")["written_gpus"] == 6)
        kinds = [(kind, ground) for kind, _, ground in proofs(world, f"{name}/1")]
        assert kinds[3:] == [("set_soft", "accepted")]
        (asked,) = world.sql.rows("SELECT nonce FROM warrants WHERE command = 'rollout.resolve'")
        (stood,) = world.sql.rows("SELECT stood_on FROM effect_proofs WHERE ground = 'accepted'")
        assert asked[0] in stood[0]
        kept = json.loads(world.sql.row("rollouts", id=f"{name}/1")["baseline"])["quotas"]
        assert {quota["team"]: quota["gpus"] for quota in kept} == {"research": 300, "z": 6}
        await world.say(name, Command.ABORT)
        await world.ended(name)
        assert world.sql.gpus(name) == {"research": 300, "z": 6}
