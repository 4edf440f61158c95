"""A bring-up's cluster in the fleet, with real rollouts: what is owed is granted through one, another takes it out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from temporalio.client import Client

from activities.adapters.ledger.facade import Ledger
from activities.bringup.handover import FleetBringups
from activities.rollout.cluster_calls import ClusterActivities
from activities.rollout.rollout_client import TemporalRollouts
from client.backstop import Backstop
from client.connection import TemporalTarget
from models.bringup.commands import BringupOrder
from models.bringup.entry import BringupEntry
from models.bringup.messages import BringupStart, HandOverRequest, WindDownRequest, WoundDown
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunPhase
from models.bringup.stages import BringupCommand, BringupStage
from models.cluster.island import Island
from models.errors import Refusal, Unavailable
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command, Stage
from tests.e2e.bringup_site import BARE, Site, Story, worker_of
from tests.e2e.world import CLOCKS, Sql, World, eventually, fresh, on_postgresql, worked_case
from tests.unit.bringup_world import ENTRY, recipe
from tests.waiting import async_attempts
from workers.bringups import BringupParts

nightly = on_postgresql
_T = TypeVar("_T")


@contextlib.contextmanager
def book_of(world: World, url: str) -> Iterator[FleetBringups]:
    with Ledger(url) as ledger:
        rollouts = TemporalRollouts(world.client, asyncio.get_running_loop())
        nobody: Any = None
        yield FleetBringups(ledger.bringups, ledger.ports, nobody, ClusterActivities(ledger.ports), rollouts)


async def insisting(call: Callable[[], _T], until: Callable[[_T], bool] = lambda _: True) -> _T:
    """Call again while the answer is Unavailable, as an activity does; return the answer."""
    last: object = None
    try:
        async for _ in async_attempts("it is answered"):
            try:
                last = found = await asyncio.to_thread(call)
                if until(found):
                    return found
            except Unavailable as error:
                last = error.message
    except AssertionError as error:
        raise AssertionError(f"{error}; last: {last!r}") from error
    raise AssertionError("attempts end by themselves")


@pytest.mark.nightly
async def test_what_is_owed_goes_through_the_rollout_and_a_retired_cluster_is_taken_out_by_one(
    world: World, sqlite_ledger_url: str
) -> None:
    """Seven of eight nodes came: C = min(floor(47.6), 48) = 47 of 54, so a and b have 26 and 21; with all 30 and 24."""
    name = fresh("brought-up")
    entry = BringupEntry.model_validate(
        {
            "cluster": name,
            "recipe": "bare-metal",
            "owner": "tpm",
            "nodes": 8,
            "policy": CLOCKS,
            "quotas": [{"team": "a", "gpus": 30}, {"team": "b", "gpus": 24}],
            "owed_until": datetime.now(UTC) + timedelta(days=30),
        }
    )

    def request(nodes: int, granted: dict[str, int] | None = None) -> HandOverRequest:
        island = Island(name="main", total_gpus=8 * nodes, healthy_gpus=8 * nodes)
        now = datetime.now(UTC)
        return HandOverRequest(entry=entry, number=1, islands=(island,), granted=granted, actor="ada", at=now)

    with book_of(world, sqlite_ledger_url) as book:
        assert not book.open(BringupStart(entry=entry, recipe=recipe(), actor="ada"), datetime.now(UTC)).refused
        first = await asyncio.to_thread(book.hand_over, request(7))
        assert world.sql.gpus(name) == {"a": 26, "b": 21}
        await world.start(name)
        with pytest.raises(Unavailable, match="the rest of the quotas is written once the rollout is"):
            await asyncio.to_thread(book.grant_owed, request(8, first.granted))
        await world.until(name, Stage.MONITORED)
        await world.archived(name)
        done = await insisting(lambda: book.grant_owed(request(8, first.granted)))
        assert (world.sql.gpus(name), done.owed) == ({"a": 30, "b": 24}, {})
        assert [kind for kind in world.sql.effects(f"{name}/1") if kind == "grant"] == ["grant", "grant"]

        def wind() -> WoundDown:
            return book.wind_down(
                WindDownRequest(cluster=name, owner="tpm", actor="eve", reason="over", at=datetime.now(UTC))
            )

        told = await insisting(wind)
        assert told.quota_gpus == 54
        await insisting(wind, lambda wound: wound.quota_gpus == 0)
    assert world.sql.rows("SELECT name FROM clusters WHERE name = ?", name) == []
    said = [e["text"] for e in world.sql.archive(name)]
    assert said[-1] == "left the fleet, because it is retired"
    assert world.sql.broken_links(name) == []
    assert ("enforced", "a") in world.notices(name)


class InLedger(Site):
    """Runners and checks in memory; the book and the fleet are the ledger's."""

    def parts(self, host: str = "") -> BringupParts:
        return BringupParts(self, self, host=host)


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
    with pytest.raises(Refusal, match=f"Temporal runs the bring-up of {name}: `backstop bringup cancel {name}`"):
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
