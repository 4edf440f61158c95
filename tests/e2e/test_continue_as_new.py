"""A rollout that is monitored for years continues as new, and nobody notices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models.errors import Refusal
from models.rollout.stages import Command, Stage
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.late_admission import refused_late
from tests.e2e.world import World, connected, eventually, fresh, worked_case, world_of
from workers.embedded_temporal import EmbeddedTemporal

EVENTS = 150
"""The server suggests to continue as new from here on; its own default is 4096."""


@pytest.fixture
async def forgetful_world(sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    limit = f"limit.historyCount.suggestContinueAsNew={EVENTS}"
    async with (
        EmbeddedTemporal(tmp_path / "temporal", None, None, dynamic_config=[limit]) as server,
        world_of(await connected(server.address), sqlite_ledger_url, tmp_path) as world,
    ):
        yield world


@pytest.mark.nightly
async def test_commands_and_signals_around_a_new_run_are_not_lost(forgetful_world: World) -> None:
    world, sql = forgetful_world, forgetful_world.sql
    name = fresh("years")
    await world.fleet(worked_case(name, breach_after="0.5s", attempts=50))
    await world.start(name)
    await world.until(name, Stage.MONITORED)

    async def chatter(person: int) -> list[str]:
        """Acknowledges again and again, each time with another reason."""
        said = []
        for number in range(25):
            said.append(f"{person}-{number}")
            await world.say(name, Command.ACK, actor=f"p{person}", team="research", reason=said[-1])
        return said

    said = await asyncio.gather(*(chatter(person) for person in range(4)))

    status = await world.status(name)
    assert status.runs > 2
    assert status.history_events < EVENTS + 50
    await world.say(name, Command.PAUSE)
    await eventually(lambda: "pause by tpm" in [e["text"] for e in sql.archive(name)], "the archive of all commands")
    archive = sql.archive(name)
    by_person = [[e["reason"] for e in archive if e["actor"] == f"p{person}"] for person in range(4)]
    assert by_person == said
    commands = [(r.actor, r.reason) for r in await world.tpm.audit(name) if r.kind == "command"]
    assert commands[2:-1] == [(e["actor"], e["reason"]) for e in archive if e["actor"][0] == "p"]

    # Hardware comes and goes; each time the signal finds the rollout, whatever its run.
    await world.say(name, Command.RESUME)
    attempts = 1
    while (await world.status(name)).runs < status.runs + 2:
        await world.healthy(name, main=(361, 300))
        await world.until(name, Stage.ROLLED_BACK)
        assert sql.gpus(name) == {"research": 300}
        await world.healthy(name, main=(361, 319))
        await world.until(name, Stage.MONITORED)
        assert sql.gpus(name) == {"research": 306}
        attempts += 1
    assert (await world.status(name)).attempt == attempts
    once = ["reserve", "set_soft", "harden", "follow", "unfollow", "soften", "restore", "release"]
    assert sql.effects(f"{name}/1") == (once * attempts)[:-4]
    effects = [r.data["fence"] for r in await world.tpm.audit(name) if r.kind == "effect"]
    assert effects == list(range(1, len(effects) + 1))

    await world.say(name, Command.CLOSE)
    assert (await world.ended(name))["stage"] == "closed"
    assert sql.broken_links(name) == []


@pytest.mark.nightly
async def test_391_long_objections_in_seconds_wedge_no_rollout(forgetful_world: World) -> None:
    """They once made a state that no next run could begin with: no guard and no command came after."""
    world, sql = forgetful_world, forgetful_world.sql
    name = fresh("angry")
    await world.fleet(worked_case(name, breach_after="0.5s"))
    await world.launch(name)

    async def objects(person: int) -> list[str]:
        taken = []
        for number in range(17):
            with contextlib.suppress(Refusal):
                actor = f"p{person}-{number % 3}"
                await world.say(name, Command.OBJECT, actor=actor, team="research", reason=f"{number} " + "no! " * 499)
                taken.append(actor)
        return taken

    taken = {actor for actors in await asyncio.gather(*map(objects, range(23))) for actor in actors}
    status = await world.status(name)
    assert status.runs > 2
    assert len(taken) == 5, "others are refused while five persons of the team object"
    assert {h.actor for h in status.holds} == taken
    for hold in status.holds:
        await world.say(name, Command.RESOLVE, hold=hold.id, reason="agreed")
    await world.approve(name)
    await world.until(name, Stage.MONITORED)
    await world.healthy(name, main=(361, 300))
    await world.until(name, Stage.ROLLED_BACK)
    assert sql.gpus(name) == {"research": 300}
    await world.say(name, Command.ABORT)
    await world.ended(name)
    assert sql.broken_links(name) == []


@pytest.mark.nightly
async def test_a_command_that_is_refused_late_does_not_keep_a_rollout_from_its_next_run_and_its_archive(
    sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """Nothing changes when it is refused, and nothing else is due for a day."""
    few = 60
    limit = f"limit.historyCount.suggestContinueAsNew={few}"
    async with (
        EmbeddedTemporal(tmp_path / "temporal", None, None, dynamic_config=[limit]) as server,
        world_of(await connected(server.address), sqlite_ledger_url, tmp_path, keys=(FRONT_KEY, public_keys)) as world,
    ):
        name = fresh("late")
        await world.fleet(worked_case(name, soak_enforced="5s", safety_poll="1d"))
        runs = await refused_late(world, name, few)
        await world.until(name, lambda status: status.runs > runs)
        await world.archived(name)
        assert ("transition", "monitored") in [(e["kind"], e["data"].get("after")) for e in world.sql.archive(name)]
        await world.say(name, Command.CLOSE)
        await world.ended(name)
