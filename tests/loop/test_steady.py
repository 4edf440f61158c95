"""Monitored for good, with Temporal, a worker, the real watch and the ledger of either database."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest

from models.audit_chain import AuditEntry
from models.notices import Notice
from models.rollout.stages import Command, Stage
from models.rollout.status_models import RolloutStatus
from tests.e2e.console_world import Browser, console_of, somebody
from tests.e2e.world import World, cluster, eventually, fresh, on_postgresql, team, worked_case

ISLAND = "main"

nightly = on_postgresql


async def monitored(world: World, name: str, spec: dict[str, Any]) -> None:
    await world.fleet(spec)
    await world.start(name)
    await world.until(name, Stage.MONITORED)


def flex(world: World, name: str) -> int | None:
    """Return the flex that a scheduler reads."""
    found: int | None = world.sql.row("clusters", name=name)["flex_gpus"]
    return found


async def flexes(world: World, name: str, gpus: int) -> None:
    await eventually(lambda: flex(world, name) == gpus, f"a flex pool of {gpus}")


async def events(world: World, name: str) -> int:
    return (await world.status(name)).history_events


async def at_rest(world: World, name: str) -> int:
    """Events of the history, once none has been added for a second."""
    seen, found = -1, await events(world, name)
    while seen != found:
        await asyncio.sleep(1)
        seen, found = found, await events(world, name)
    return found


async def test_a_rollout_at_rest_keeps_nothing_in_memory_of_what_was_archived_and_sent(world: World) -> None:
    name = fresh("rests")
    await monitored(world, name, worked_case(name))
    await at_rest(world, name)
    assert len(world.sql.archive(name)) > 10
    gc.collect()
    kept = [o for o in gc.get_objects() if isinstance(o, AuditEntry | Notice) and o.cluster == name]
    assert [type(one).__name__ for one in kept] == []


async def test_flex_follows_health_and_no_quota_moves(world_on_each: World) -> None:
    world, name = world_on_each, fresh("flex")
    # A band of a node of 8. The clocks: what is more has to stand for half a second.
    await monitored(world, name, worked_case(name))
    quotas = world.sql.dump(name)
    generation = world.sql.row("clusters", name=name)["generation"]
    assert flex(world, name) == 13  # 319 - 306

    await world.healthy(name, main=(361, 318))
    await flexes(world, name, 12)
    await world.healthy(name, main=(361, 340))
    await flexes(world, name, 34)
    status = await world.until(name, lambda s: s.flex_published_gpus == 34)
    assert status.stage is Stage.MONITORED

    assert (world.sql.dump(name), world.sql.row("clusters", name=name)["generation"]) == (quotas, generation)
    await eventually(
        lambda: (
            [e["text"] for e in world.sql.archive(name) if e["text"].startswith("follow")][-2:]
            == ["follow: flex 13 -> 12", "follow: flex 12 -> 34"]
        ),
        "both moves in the archive",
    )
    assert world.sql.one("SELECT count(*) FROM moves WHERE cluster = ?", name) <= 1, "flex is no moved quota"
    await world.say(name, Command.CLOSE)
    await world.ended(name)
    assert flex(world, name) is None


async def test_what_is_more_inside_the_band_moves_no_flex(world_on_each: World) -> None:
    world, name = world_on_each, fresh("band")
    await monitored(world, name, worked_case(name))
    await world.healthy(name, main=(361, 318))
    await flexes(world, name, 12)
    await world.healthy(name, main=(361, 326))
    await asyncio.sleep(1.5)  # eight more are inside the band, however long they stand
    assert flex(world, name) == 12
    await world.healthy(name, main=(361, 340))
    await flexes(world, name, 34)


async def test_nothing_changes_and_the_history_does_not_grow(world: World) -> None:
    name = fresh("quiet")
    await monitored(world, name, worked_case(name))
    await world.until(name, lambda s: s.flex_published_gpus == 13)
    before = await at_rest(world, name)
    for healthy in (319, 325, 320, 327, 319):
        await world.healthy(name, main=(361, healthy))
        await asyncio.sleep(0.3)
    assert await events(world, name) == before
    assert flex(world, name) == 13


async def test_a_shortage_takes_all_flex_before_it_is_a_breach(world: World) -> None:
    name = fresh("none-left")
    await monitored(world, name, worked_case(name, breach_after="30s"))
    await world.healthy(name, main=(361, 300))
    await flexes(world, name, 0)
    assert (await world.status(name)).stage is Stage.MONITORED
    await world.say(name, Command.ROLLBACK)
    await world.until(name, Stage.ROLLED_BACK)
    row = world.sql.row("clusters", name=name)
    assert (bool(row["follows_health"]), row["flex_gpus"]) == (False, None)


# --- drift -----------------------------------------------------------------------------------------


def tools_name(world: World) -> str:
    if not world.sql.postgresql:
        return "somebody (SQLite knows no users)"
    world.sql.run("SET application_name = 'slurmctl'")
    return f"user {world.sql.one('SELECT session_user')} (slurmctl)"


def drifts(world: World, name: str) -> list[str]:
    return [e["text"] for e in world.sql.archive(name) if e["text"].startswith("drift: ")]


@pytest.mark.parametrize("policy", ["hold", "restore", "accept"])
async def test_drift_is_found_by_the_watch_and_says_who_changed_what(world_on_each: World, policy: str) -> None:
    """The safety poll is an hour away: what is found in seconds, the watch found in its next round."""
    world, name = world_on_each, fresh("drift")
    quotas = [team("a", 60), team("b", 40, busy=10)]
    await monitored(world, name, cluster(name, {ISLAND: (100, 100)}, quotas, on_drift=policy))
    who = tools_name(world)
    assert world.sql.gpus(name) == {"a": 60, "b": 25}

    world.sql.set("b", 20, name)
    await eventually(lambda: bool(drifts(world, name)), "the drift in the archive")
    (text,) = drifts(world, name)
    assert text.startswith(f"drift: b 25 -> 20, by {who} at ")

    if policy == "hold":
        (hold,) = (await world.until(name, lambda s: bool(s.holds))).holds
        assert hold.reason == text.replace("drift: ", "changed by others: ")
        await eventually(lambda: ("held", "tpm") in world.notices(name), "a notice to the owner")
        lines = (world.home / "notices.jsonl").read_text().splitlines()
        assert hold.reason in [json.loads(line)["notice"]["detail"] for line in lines]
        assert world.sql.gpus(name) == {"a": 60, "b": 20}
        await world.say(name, Command.RESOLVE, hold="drift", how="restore")
    wanted = {"a": 60, "b": 20 if policy == "accept" else 25}
    await eventually(lambda: world.sql.gpus(name) == wanted, f"{policy}: {wanted}")
    status = await world.until(name, lambda s: not s.holds and _values(s) == wanted)
    assert status.stage is Stage.MONITORED
    assert len(drifts(world, name)) == 1


@pytest.mark.parametrize("policy", ["hold", "restore", "accept"])
async def test_a_mode_that_others_set_is_drift_too(world_on_each: World, policy: str) -> None:
    world, name = world_on_each, fresh("mode")
    await monitored(world, name, worked_case(name, on_drift=policy))
    who = tools_name(world)
    world.sql.run("UPDATE quotas SET mode = 'soft' WHERE cluster = ?", name)
    await eventually(lambda: bool(drifts(world, name)), "the drift in the archive")
    assert drifts(world, name)[0].startswith(f"drift: research hard -> soft, by {who} at ")
    if policy == "hold":
        await world.until(name, lambda s: [h.id for h in s.holds] == ["drift"])
        await world.say(name, Command.RESOLVE, hold="drift", how="accept")
    await world.until(name, lambda s: not s.holds)
    wanted = "hard" if policy == "restore" else "soft"
    await eventually(lambda: world.sql.mode(name) == wanted, f"{policy}: {wanted}")
    assert world.sql.gpus(name) == {"research": 306}


def _values(status: RolloutStatus) -> dict[str, int]:
    return {t.team: t.quota_gpus for t in status.teams}


# --- long-run health ---------------------------------------------------------------------------------


async def reports(world: World, name: str, total: int, healthy: int, until: asyncio.Event) -> None:
    """A source that writes the same thing again and again, by plain SQL."""
    while not until.is_set():
        at = world.now()
        world.sql.run(
            "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)"
            " VALUES (?, 'main', ?, ?, ?, 'exporter')",
            name,
            at if world.sql.postgresql else f"{at:%Y-%m-%dT%H:%M:%S.%f}Z",
            total,
            healthy,
        )
        await asyncio.sleep(0.05)


def proposals(world: World, name: str) -> list[str]:
    return [e["text"] for e in world.sql.archive(name) if e["text"].startswith("proposed plan ")]


async def test_better_health_in_the_long_run_gives_back_what_was_cut(world_on_each: World) -> None:
    """No buffer: the ceiling is a node below healthy. The long run is two seconds, and looks come by the second."""
    world, name = world_on_each, fresh("long-run")
    quotas = [team("a", 60, busy=50), team("b", 40, busy=10)]
    spec = cluster(name, {ISLAND: (100, 90)}, quotas, buffer=0, safety_poll="0.7s", replan_window="2s", replan_gpus=3)
    await monitored(world, name, spec)
    sum_of = world.sql.gpus
    assert sum(sum_of(name).values()) == 82
    approved = (await world.status(name)).plan_hash

    # Better: what was cut comes back by itself, to a node below 100.
    done = asyncio.Event()
    source = asyncio.create_task(reports(world, name, 100, 100, done))
    await eventually(lambda: sum(sum_of(name).values()) == 92, "92 GPUs promised")
    done.set()
    await source
    await eventually(lambda: bool(proposals(world, name)), "the proposal in the archive")
    (better,) = proposals(world, name)
    assert better.endswith("; it is inside what was approved")
    assert world.sql.mode(name) == "hard"
    status = await world.until(name, lambda s: s.plan_hash != approved and s.plan_hash is not None)
    assert (status.stage, status.envelope_holds) == (Stage.MONITORED, True)
    assert world.sql.row("clusters", name=name)["reserve_limit"] == 92


async def test_a_proposal_outside_what_was_approved_waits_for_a_person(world: World) -> None:
    name = fresh("worse")
    quotas = [team("a", 60, busy=50), team("b", 40, busy=10)]
    spec = cluster(name, {ISLAND: (100, 100)}, quotas, buffer=0, safety_poll="0.7s", replan_window="2s", replan_gpus=3)
    await monitored(world, name, spec)
    before = world.sql.dump(name)
    assert sum(world.sql.gpus(name).values()) == 92

    done = asyncio.Event()
    source = asyncio.create_task(reports(world, name, 100, 93, done))
    status = await world.until(name, lambda s: s.proposal is not None)
    proposal = status.proposal
    assert proposal is not None
    assert (proposal.healthy_gpus, proposal.planned_gpus, proposal.inside) == (93, 100, False)
    assert proposal.plan_hash in status.needs
    await eventually(lambda: ("held", "tpm") in world.notices(name), "a notice to the owner")
    await asyncio.sleep(2)
    assert world.sql.dump(name) == before

    await world.say(name, Command.APPROVE, plan_hash=proposal.plan_hash)
    await eventually(lambda: sum(world.sql.gpus(name).values()) == 85, "85 GPUs promised")
    done.set()
    await source
    assert world.notices(name).count(("held", "tpm")) == 1
    status = await world.until(name, lambda s: s.plan_hash == proposal.plan_hash)
    assert status.stage is Stage.MONITORED
    receipts = world.sql.effects(f"{name}/1")
    assert [kind for kind in receipts if kind != "follow"][-2:] == ["reserve", "set_soft"]
    await world.say(name, Command.ROLLBACK)
    await world.until(name, Stage.ROLLED_BACK)
    assert world.sql.gpus(name) == {"a": 60, "b": 40}


async def test_a_declined_proposal_is_gone_and_nothing_was_written(world: World) -> None:
    name = fresh("declined")
    quotas = [team("a", 60, busy=50), team("b", 40, busy=10)]
    spec = cluster(name, {ISLAND: (100, 100)}, quotas, buffer=0, safety_poll="0.7s", replan_window="2s", replan_gpus=3)
    await monitored(world, name, spec)
    before = world.sql.dump(name)
    done = asyncio.Event()
    source = asyncio.create_task(reports(world, name, 100, 93, done))
    status = await world.until(name, lambda s: s.proposal is not None)
    assert status.proposal is not None
    form = f"/clusters/{name}/resolve"
    async with console_of(world) as place:
        browser = Browser(place, somebody("user:tpm"))
        async with browser.http:
            assert f"decline the proposed plan {status.proposal.plan_hash}" in (await browser.look(form)).words
            await browser.given(form, "decline it", hold="proposal", reason="the racks are being repaired")
    await asyncio.sleep(4)
    done.set()
    await source
    assert (await world.status(name)).proposal is None
    assert len(proposals(world, name)) == 1
    assert world.sql.dump(name) == before
