"""A bring-up's cluster in the fleet, on a turned clock: it comes in by itself, is given up, and its rollout closed.

tests/e2e/test_bringup_fleet.py has the whole way in and out, for `make nightly`.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.rollout.rollout_client import TemporalRollouts
from client.backstop import Backstop
from client.connection import TemporalTarget
from models.bringup.commands import BringupOrder
from models.bringup.entry import BringupEntry
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunPhase
from models.bringup.stages import BringupCommand, BringupStage
from models.cluster.island import Island
from models.errors import Refusal
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command, Stage
from tests.e2e.bringup_site import BARE, Story, worker_of
from tests.e2e.test_bringup_fleet import InLedger
from tests.e2e.world import Sql, World, eventually, fresh, worked_case
from tests.unit.bringup_world import ENTRY


async def test_a_bring_up_fills_the_board_and_the_fleet_by_itself(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    site = InLedger()
    site.islands = (Island(name="main", total_gpus=56, healthy_gpus=56),)
    made_by = ClusterRecipe.model_validate(BARE)
    site.ends["nodes"] = RunPhase.SUCCEEDED
    quotas = [{"team": "a", "gpus": 30}, {"team": "b", "gpus": 24}]
    said = {"cluster": fresh("board"), "recipe": "bare", "quotas": quotas, "owed_until": "2036-06-01T00:00:00Z"}
    story = Story(temporal, site, BringupEntry.model_validate({**ENTRY, **said}), made_by)
    name = story.start.entry.cluster
    with contextlib.closing(Sql(sqlite_ledger_url)) as sql:
        async with worker_of(temporal, sqlite_ledger_url, tmp_path, site, "h1"):
            story.answer = await story.begin()
            assert story.answer.begun
            await story.until(lambda s: s.stage is BringupStage.IN_PRODUCTION)
            assert sql.gpus(name) == {"a": 26, "b": 21}
            site.islands = (Island(name="main", total_gpus=64, healthy_gpus=64),)
            await eventually(lambda: sql.gpus(name) == {"a": 30, "b": 24}, "what is owed is granted")
            done = await story.until(lambda s: s.production is not None and not s.production.owed)
            assert done.production is not None
            assert done.production.granted == {"a": 30, "b": 24}
            board = "SELECT stage, board FROM bringups WHERE cluster = ?"
            await eventually(lambda: '"owed":{}' in sql.rows(board, name)[0][1], "the board has it")
            assert sql.rows(board, name)[0][0] == "in_production"
            keys = [e["key"].rpartition("/")[2] for e in sql.archive(name)]
            assert {"handed-over", "1", "000001"} <= set(keys)
            assert sql.broken_links(name) == []
            await given_up(temporal, story, sql)


async def given_up(temporal: Client, story: Story, sql: Sql) -> None:
    """A bring-up that Temporal runs cannot be given up; a lost one can, once, and then another entry may begin."""
    name = story.start.entry.cluster
    tpm = Backstop(temporal, "tpm", TemporalTarget(options={}, embedded=True))
    runs = f"Temporal still runs the bring-up of {name}: end it with `backstop bringup cancel {name}`, which tears down"
    with pytest.raises(Refusal, match=runs):
        await tpm.give_up_bringup(name, "lost")
    await temporal.get_workflow_handle(story.id).terminate(reason="it is lost")
    with pytest.raises(Refusal, match=f"{name} is open in the ledger .*nobody drives it; add {name} again"):
        await tpm.bringup_command(name, BringupCommand.HOLD, BringupOrder(actor="tpm", reason="it is lost"))
    assert (await tpm.give_up_bringup(name, "lost")).stage is BringupStage.CANCELLED
    assert sql.archive(name)[-1]["text"] == (
        "bring-up 1 is given up while in_production: nothing that it made was torn down"
    )
    assert sql.rows("SELECT ended_at IS NOT NULL FROM bringups WHERE cluster = ?", name) == [(1,)]
    with pytest.raises(Refusal, match=f"the ledger has no open bring-up of {name}"):
        await tpm.give_up_bringup(name, "lost")


async def test_a_rollout_that_is_about_to_end_is_closed_already(world: World) -> None:
    """The ledger is locked, so that its last words do not land: whoever closes it once more is not refused."""
    name = fresh("closing")
    await world.fleet(worked_case(name))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    rollouts = TemporalRollouts(world.client, asyncio.get_running_loop())
    word = CommandRequest(actor="tpm", reason="it is retired")
    world.sql.run("BEGIN IMMEDIATE")
    try:
        assert await asyncio.to_thread(rollouts.command, name, Command.CLOSE, word) == ""
        assert await asyncio.to_thread(rollouts.command, name, Command.CLOSE, word) == ""
    finally:
        world.sql.run("ROLLBACK")
    await world.ended(name)
