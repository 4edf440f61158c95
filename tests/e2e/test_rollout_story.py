"""Whole rollouts on a real Temporal server and a real ledger; the ledger's rows are read by plain SQL."""

from __future__ import annotations

from typing import Any

import pytest

from models.errors import Refusal
from models.rollout.stages import Command, Stage
from tests.e2e.world import TREE_CUT, World, fresh, on_postgresql, seen, tree, worked_case

LONG = "1h"


nightly = on_postgresql
NOTHING_TO_RETRY = "nothing to retry: the rollout is waiting at its first gate"


async def test_the_worked_case_goes_from_planned_to_closed(world_on_each: World) -> None:
    world, sql = world_on_each, world_on_each.sql
    name = fresh("worked")
    rollout = f"{name}/1"
    await world.fleet(worked_case(name, soak_buffered=LONG, soak_enforced=LONG))
    imported = sql.row("clusters", name=name)

    answer = await world.launch(name)

    assert answer.launched
    assert answer.plan is not None
    assert (answer.plan.haircut_gpus, answer.plan.phantom_gpus, answer.plan.to_flex_gpus) == (39, 26, 13)
    assert sql.gpus(name) == {"research": 345}
    assert sql.row("clusters", name=name) == imported | {"open_rollout": rollout}

    with pytest.raises(Refusal, match=f"the plan is {answer.plan.hash}, not 0123abcd"):
        await world.say(name, Command.APPROVE, actor="tia", plan_hash="0123abcd")
    with pytest.raises(Refusal, match="nothing to retry"):
        await world.say(name, Command.RETRY, actor="tia")
    assert sql.gpus(name) == {"research": 345}
    await world.approve(name)

    await world.until(name, Stage.BUFFERED)
    assert sql.gpus(name) == {"research": 306}
    assert sql.mode(name) == "soft"
    buffered = sql.row("clusters", name=name)
    assert buffered == imported | {
        "open_rollout": rollout,
        "last_counter": 2,
        "reserved_gpus": 39,
        "reserve_limit": 306,
        "reserved_by": rollout,
    }

    await world.say(name, Command.PROMOTE)  # a soak that ends by itself would end while this is looked at
    await world.until(name, Stage.ENFORCED)
    assert sql.gpus(name) == {"research": 306}
    assert sql.mode(name) == "hard"
    assert sql.row("clusters", name=name) == buffered | {"last_counter": 3}

    await world.say(name, Command.PROMOTE)
    status = await world.until(name, Stage.MONITORED)
    assert sql.gpus(name) == {"research": 306}
    assert sql.mode(name) == "hard"
    assert [(t.team, t.quota_gpus, t.backing_gpus, t.promise) for t in status.teams] == [("research", 306, 306, True)]
    await world.archived(name)
    monitored = sql.row("clusters", name=name)
    assert monitored == buffered | {
        "last_counter": 4,
        "completed_rollouts": 1,
        "follows_health": monitored["follows_health"],
        "flex_gpus": 13,  # 319 healthy, and 306 of them promised
        "flex_band_gpus": 8,
    }
    assert monitored["follows_health"]
    assert sql.effects(rollout) == ["reserve", "set_soft", "harden", "follow"]
    assert sql.receipt(rollout, 2)["before"] == {"research": 345}
    assert sql.receipt(rollout, 2)["after"] == {"research": 306}
    await seen_by_temporal(world, name)

    await world.say(name, Command.CLOSE)

    assert (await world.ended(name))["stage"] == "closed"
    assert sql.gpus(name) == {"research": 306}
    assert sql.row("clusters", name=name) == imported | {"completed_rollouts": 1}
    assert sql.row("rollouts", id=rollout)["stage"] == "closed"
    assert sql.effects(rollout) == ["reserve", "set_soft", "harden", "follow", "close"]
    assert sql.transitions(name) == ["buffered", "enforced", "monitored", "closed"]
    assert world.notices(name)[:4] == [(k, "research") for k in ("planned", "buffered", "enforced", "monitored")]
    assert sql.refusals(name) == [
        f"tia: approve refused: the plan is {answer.plan.hash}, not 0123abcd: look at the plan, then approve it",
        f"tia: retry refused: retry is not possible while {name} is planned: {NOTHING_TO_RETRY}",
    ]
    with pytest.raises(Refusal, match="has ended; launch a new one"):
        await world.say(name, Command.PAUSE)
    await told_by_history(world, name)
    assert sql.broken_links(name) == []


async def seen_by_temporal(world: World, name: str) -> None:
    """`temporal workflow list` is useful by itself."""

    async def found(query: str) -> list[dict[str, Any]]:
        return [
            {pair.key.name: pair.value for pair in run.typed_search_attributes if pair.key.name.startswith("Backstop")}
            async for run in world.client.list_workflows(query)
        ]

    attributes = {
        "BackstopCluster": name,
        "BackstopStage": "monitored",
        "BackstopWave": "busy",
        "BackstopOwner": "tpm",
        "BackstopUnbacked": 0,
    }
    query = f"BackstopStage = 'monitored' AND BackstopCluster = '{name}'"
    assert await seen(lambda: found(query), bool, "it lags a little behind") == [attributes]
    assert await found(
        f"BackstopWave = 'busy' AND BackstopUnbacked = 0 AND BackstopOwner = 'tpm' AND BackstopCluster = '{name}'"
    ) == [attributes]
    (summary,) = [s for s in await world.tpm.rollouts() if s.cluster == name]
    assert (summary.stage, summary.wave, summary.owner, summary.open) == ("monitored", "busy", "tpm", True)


async def told_by_history(world: World, name: str) -> None:
    """`backstop audit`: from workflow history alone."""
    records = await world.tpm.audit(name)
    commands = [(r.actor, r.text, r.reason) for r in records if r.kind == "command"]
    assert commands == [
        ("tpm", "launched by tpm", "a story"),
        ("tpm", "approve by tpm", "as the story goes"),
        *[("tpm", "promote by tpm", "as the story goes")] * 2,
        ("tpm", "close by tpm", "as the story goes"),
    ]
    effects = [r for r in records if r.kind == "effect"]
    assert [r.data["fence"] for r in effects] == [1, 2, 3, 4, 5]
    assert [r.text for r in effects] == [
        "reserve: the freed capacity is reserved: no quota can be raised into it",
        "set_soft: research 345 -> 306",
        "harden: the limits are hard",
        "follow: flex pool 13",
        "close: the reservation ends, the quotas stay",
    ]
    for record in effects:
        assert record.data["receipt"] == world.sql.receipt(f"{name}/1", record.data["fence"])
    assert [r.data["after"] for r in records if r.kind == "transition"] == world.sql.transitions(name)
    assert [r.at for r in records] == sorted(r.at for r in records)


@pytest.mark.nightly
async def test_temporal_s_own_cancel_undoes_first(world: World) -> None:
    sql = world.sql
    name = fresh("cancel")
    await world.fleet(tree(name, soak_buffered=LONG))
    baseline, book = sql.quotas(name), sql.row("clusters", name=name)
    await world.start(name)
    await world.until(name, Stage.BUFFERED)
    assert sql.gpus(name) == TREE_CUT

    await world.handle(name).cancel()

    assert (await world.ended(name))["stage"] == "aborted"
    assert sql.quotas(name) == baseline
    assert sql.row("clusters", name=name) == book
    assert [r.text for r in await world.tpm.audit(name) if r.text.startswith("cancel")] == [
        "cancelled through Temporal"
    ]
    for strange in ("o'neil", 'a"b', "a\\", "x' OR WorkflowType != '", "%", "\N{FIRE}" * 200):
        with pytest.raises(Refusal, match="there is no rollout of"):
            await world.tpm.audit(strange)
    assert [e["actor"] for e in sql.archive(name) if e["text"].startswith("abort")] == ["temporal"]


@pytest.mark.nightly
async def test_shadow_goes_all_the_way_and_writes_no_quota(world: World) -> None:
    sql = world.sql
    name = fresh("shadow")
    await world.fleet(worked_case(name))
    rows, book = sql.dump(name), sql.row("clusters", name=name)

    def untouched() -> bool:
        found = sql.row("clusters", name=name)
        return sql.dump(name) == rows and found == book | {"open_rollout": found["open_rollout"]}

    await world.start(name, shadow=True)
    status = await world.until(name, Stage.MONITORED)
    assert [(t.quota_gpus, t.would_gpus, t.promise) for t in status.teams] == [(345, 306, False)]
    await world.healthy(name, main=(361, 300))
    await world.until(name, Stage.ROLLED_BACK)
    await world.healthy(name, main=(361, 319))
    assert (await world.until(name, Stage.MONITORED)).attempt == 2
    await world.archived(name)
    assert untouched()
    await world.say(name, Command.ABORT)

    assert (await world.ended(name))["stage"] == "aborted"
    assert untouched()
    assert sql.effects(f"{name}/1") == []
    assert sql.rows("SELECT * FROM moves WHERE cluster = ?", name) == []
    shadows = [r for r in await world.tpm.audit(name) if r.kind == "effect"]
    pools = [r.text for r in shadows if r.text.startswith("follow")]
    assert pools == [f"follow: flex {change} (shadow)" for change in ("pool 13", "13 -> 0", "pool 13")]
    assert len(shadows) == 17
    assert all(r.data["receipt"]["shadow"] for r in shadows)
