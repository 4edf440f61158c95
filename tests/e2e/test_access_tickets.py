"""A rollout where keys are configured: every command has its ticket, every effect what it stands on."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from temporalio.client import Client

from client.backstop import Backstop
from client.connection import TemporalTarget
from client.front_signer import FrontSigner
from models.access.principals import Principal, Proof
from models.bringup.commands import BringupOrder
from models.bringup.entry import BringupEntry
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunPhase
from models.bringup.stages import BringupCommand, BringupStage
from models.cluster.island import Island
from models.errors import Refusal
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.state import QuotaAsk
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from tests.e2e.bringup_site import BARE, Story, worker_of
from tests.e2e.faults import Fault, Faulty, Way, refused
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.test_bringup_fleet import InLedger
from tests.e2e.world import CLOCKS, Sql, World, eventually, fresh, on_postgresql, worked_case, world_of
from tests.unit.bringup_world import ENTRY

nightly = on_postgresql
ROOMY = {"name": "main", "total_gpus": 500, "healthy_gpus": 480}


def proofs(ticketed: World, rollout: str) -> list[tuple[str, str, str]]:
    rows = ticketed.sql.rows(
        "SELECT kind, outcome, ground FROM effect_proofs WHERE rollout = ? ORDER BY counter", rollout
    )
    return [(kind, outcome, ground) for kind, outcome, ground in rows if kind != "follow"]


async def all_proven(sql: Sql, *words: str) -> None:
    """Each row that tells of a warrant's own command by its own giver is proven, these words among them.

    By plain SQL, and without a look at what else the row says.
    """

    def told() -> list[tuple[str, str]]:
        given = {n: json.loads(p)["name"] for n, p in sql.rows("SELECT nonce, principal FROM warrants")}
        rows = [json.loads(entry) for (entry,) in sql.rows("SELECT entry FROM audit ORDER BY cluster, seq")]
        named = [(row, given.get(row["data"].get("warrant", ""))) for row in rows if row["kind"] == "command"]
        theirs = [row for row, by in named if by is not None and by == row["actor"]]
        return [(row["data"].get("command", row["text"]), row["data"]["proof"]["proof"]) for row in theirs]

    def those_that_are_told() -> set[str]:
        return {word for want in words for word, _ in told() if word.endswith(want)}

    await eventually(lambda: len(those_that_are_told()) >= len(words), f"{words} in the archive")
    assert [row for row in told() if row[1] != "peer"] == []


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


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
async def test_a_lost_rollout_is_adopted_and_its_baseline_comes_back(ticketed: World) -> None:
    name = fresh("adopted")
    await ticketed.fleet(worked_case(name))
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    await ticketed.handle(name).terminate("lost")
    await ticketed.start(name, f"{name}/2", adopt=True)
    await ticketed.until(name, Stage.MONITORED)
    assert ticketed.sql.gpus(name) == {"research": 306}
    await ticketed.say(name, Command.ABORT, "sre")
    assert (await ticketed.ended(name))["stage"] == "aborted"
    assert ticketed.sql.gpus(name) == {"research": 345}


async def changed_by_others(ticketed: World, what: str) -> str:
    """A monitored rollout that is held, as somebody else has set its quota to 300."""
    name = fresh(what)
    await ticketed.fleet(worked_case(name, owners=["sre"]))
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    ticketed.sql.set("research", 300, name)
    await ticketed.until(name, lambda s: any(h.id == "drift" for h in s.holds))
    return name


async def test_drift_is_restored_by_the_last_receipts(ticketed: World) -> None:
    name = await changed_by_others(ticketed, "drifted")
    await ticketed.say(name, Command.RESOLVE, "sre", hold="drift", how="restore")
    await eventually(lambda: ticketed.sql.gpus(name) == {"research": 306}, "our value again")
    assert proofs(ticketed, f"{name}/1")[-1] == ("set_soft", "called", "restored")


@pytest.mark.nightly
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
    await ticketed.say_fleet("abort", "tpm", undo=True)
    for name in (a, b):
        await eventually(lambda n=name: ticketed.sql.gpus(n) == {"research": 345}, f"{name} is back")  # type: ignore[misc]
    await all_proven(ticketed.sql, "launch", "approve", "pace", "abort")
    of_members = ('SELECT count(*) FROM audit WHERE cluster IN (?, ?) AND entry LIKE \'%"proof":"peer"%\'', a, b)
    await eventually(lambda: ticketed.sql.rows(*of_members) == [(6,)], "imported, launched and aborted, each proven")


@pytest.mark.nightly
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
@pytest.mark.nightly
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


@pytest.mark.nightly
async def test_a_bring_up_fills_the_fleet_by_its_entry_and_goes_by_its_retirement(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """What machines do of it stands on the two tickets: of the entry, and of the retirement."""
    site = InLedger()
    site.islands = (Island(name="main", total_gpus=56, healthy_gpus=56),)
    site.ends["nodes"] = RunPhase.SUCCEEDED
    made_by = ClusterRecipe.model_validate(BARE)
    quotas = [{"team": "a", "gpus": 30}, {"team": "b", "gpus": 24}]
    said = {"recipe": "bare", "quotas": quotas, "owed_until": "2036-06-01T00:00:00Z", "policy": CLOCKS}
    story = Story(temporal, site, BringupEntry.model_validate({**ENTRY, **said, "cluster": fresh("feed")}), made_by)
    name = story.start.entry.cluster
    sre = FrontSigner(FRONT_KEY, Principal(name="sre", human="sre", proof=Proof.PEER))
    with contextlib.closing(Sql(sqlite_ledger_url)) as sql:
        async with worker_of(temporal, sqlite_ledger_url, tmp_path, site, "h1", keys=public_keys):
            assert "it has no ticket" in (await story.begin()).reason
            story.start = sre(story.start, "bringup.add", story.id)
            assert (await story.begin()).begun
            await story.until(lambda s: s.stage is BringupStage.IN_PRODUCTION)
            assert sql.gpus(name) == {"a": 26, "b": 21}
            site.islands = (Island(name="main", total_gpus=64, healthy_gpus=64),)
            await eventually(lambda: sql.gpus(name) == {"a": 30, "b": 24}, "what is owed is granted")
            target = TemporalTarget(options={}, embedded=True)
            door = Backstop(temporal, "sre", target, sre)
            await door.bringup_command(name, BringupCommand.RETIRE, BringupOrder(actor="sre", reason="over"))
            await eventually(lambda: not sql.rows("SELECT 1 FROM clusters WHERE name = ?", name), "it is out", 90)
        machines = sql.rows("SELECT DISTINCT command FROM warrants WHERE inherits IS NOT NULL ORDER BY command")
        assert machines == [("rollout.approve",), ("rollout.close",), ("rollout.launch",)]
        await all_proven(sql, "retire", "launch", "approve", "close")


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
