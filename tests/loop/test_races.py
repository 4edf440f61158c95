"""Races on a turned clock, each forced: as in tests/e2e/test_races.py, whose other scenes `make nightly` plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from models.errors import Refusal
from models.rollout.commands import CommandRequest
from models.rollout.effects import EffectKind
from models.rollout.messages import CommandAnswer
from models.rollout.stages import Command, Stage
from tests.e2e.test_races import BASELINE, CUT, LONG, UNCUT, Hooks, at, receipts, spoken, texts
from tests.e2e.world import World, world_of


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@pytest_asyncio.fixture(loop_scope="function")
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path, hooks: Hooks) -> AsyncIterator[World]:
    async with world_of(temporal, sqlite_ledger_url, tmp_path, touch=hooks.on) as found:
        yield found


async def test_an_approval_and_an_abort_end_in_the_abort(world: World, hooks: Hooks) -> None:
    async def approved_first() -> None:
        name = await at(world, Stage.PLANNED, "approve-abort")
        with hooks.effect(name, EffectKind.RESERVE) as effect:
            plan = (await world.status(name)).plan_hash or ""
            await world.say(name, Command.APPROVE, actor="ann", plan_hash=plan)
            await effect.here()
            answer = await world.say(name, Command.ABORT, actor="bob")
            assert answer.stage is Stage.ROLLING_BACK  # what is under way may land: its undo is owed
            effect.go()
        assert (await world.ended(name))["stage"] == "aborted"
        assert receipts(world, name) == ["reserve", "release"]
        assert spoken(world, name) == [("abort", False), ("approve", False)]
        assert world.sql.gpus(name) == BASELINE

    async def aborted_first() -> None:
        name = await at(world, Stage.PLANNED, "abort-approve")
        plan = (await world.status(name)).plan_hash or ""
        with hooks.hold("record.record", lambda r, *_: (r.rollout, r.stage) == (f"{name}/1", "aborted")):
            await world.say(name, Command.ABORT, actor="ann")
            with pytest.raises(Refusal, match="is aborted: the rollout has ended; launch a new one"):
                await world.say(name, Command.APPROVE, actor="bob", plan_hash=plan)
        assert (await world.ended(name))["stage"] == "aborted"
        assert receipts(world, name) == []
        assert spoken(world, name) == [("abort", False), ("approve", True)]
        assert world.sql.gpus(name) == BASELINE

    await asyncio.gather(approved_first(), aborted_first())


async def test_what_is_resolved_is_the_objection_that_was_read(world: World) -> None:
    async def scene(*order: str) -> list[tuple[str, str]]:
        name = await at(world, Stage.PLANNED, "objection", notice=LONG)
        await world.say(name, Command.OBJECT, actor="bea", team="b", reason="Friday")
        for what in order:
            if what == "object":
                await world.say(name, Command.OBJECT, actor="bob", team="b", reason="and Monday")
            else:
                await world.say(name, Command.RESOLVE, hold="objection-b")
        return [(h.actor, h.reason) for h in (await world.status(name)).holds]

    for standing in await asyncio.gather(scene("resolve", "object"), scene("object", "resolve")):
        assert standing == [("bob", "and Monday")]


async def test_a_quota_changed_during_a_rollback_is_left_alone(world: World, hooks: Hooks) -> None:
    async def scene(back: bool) -> None:
        name = await at(world, Stage.MONITORED, "rollback-drift")
        with hooks.effect(name, EffectKind.RESTORE) as effect:
            await world.say(name, Command.ROLLBACK)
            await effect.here()
            world.sql.set("b", 90, name)
            if back:
                world.sql.set("b", 106, name)
            effect.go()
        await world.until(name, Stage.ROLLED_BACK)
        await world.archived(name)
        conflict = "conflict: others changed b, which is 90, and not 106 as Backstop expected; Backstop leaves it alone"
        assert (conflict in texts(world, name)) is not back
        assert any("left as others changed them: b" in t for t in texts(world, name)) is not back
        assert world.sql.gpus(name) == (BASELINE if back else {"a": 200, "b": 90})
        assert receipts(world, name)[-2:] == UNCUT
        # Taken as given in the sums, once a look has seen it.
        await world.until(name, lambda s: s.assigned_gpus == (361 if back else 290))

    await asyncio.gather(scene(back=False), scene(back=True))


async def test_an_update_that_is_delivered_twice_acts_once(world: World, hooks: Hooks) -> None:
    name = await at(world, Stage.BUFFERED, "twice")
    promote = CommandRequest(actor="ann", reason="twice")

    async def delivered() -> CommandAnswer:
        answer: CommandAnswer = await world.handle(name).execute_update(
            Command.PROMOTE.value, promote, id="the-same", result_type=CommandAnswer
        )
        return answer

    with hooks.effect(name, EffectKind.HARDEN) as effect:
        first, second = await asyncio.gather(delivered(), delivered())
        await effect.here()
        assert await delivered() == first == second
        effect.go()
    await world.until(name, Stage.ENFORCED)
    assert await delivered() == first  # and not: promoted past the next gate, too
    await world.until(name, lambda s: "soak" in {c.name for c in s.waiting_for})
    await world.archived(name)
    assert spoken(world, name) == [("promote", False)]
    assert receipts(world, name) == [*CUT, "harden"]
