"""What status and doctor show beside what is so: a need that ended, health that nobody reports, a worker that died."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from client import rollouts as asking
from models.errors import BadInput, Refusal, Unavailable
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command, Stage
from models.temporal_names import rollout_workflow_id
from tests.e2e.world import PATIENCE, World, fresh, worked_case, world_of
from tests.loop.temporal import InMemoryTemporal


@pytest_asyncio.fixture(loop_scope="function")
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(temporal, sqlite_ledger_url, tmp_path) as found:
        yield found


async def test_needs_are_what_the_rollout_says_now_and_silence_is_a_need(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger notes a need as things happen: one that is over stands there until the next thing happens."""
    name = fresh("needs")
    await world.fleet(worked_case(name))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    shown = await world.overview(name)
    async with asyncio.timeout(PATIENCE):  # the rollout may write its row once more, or not answer in time
        while shown.asked_at is None:
            world.sql.run("UPDATE rollouts SET needs = 'an answer that was given' WHERE cluster = ?", name)
            shown = await world.overview(name)
    assert shown.needs == ""

    monkeypatch.setattr(asking, "STALE", timedelta(0))  # its policy's 30 minutes are what counts once it is asked
    shown = await world.overview(name, lambda s: s.asked_at is not None)
    assert shown.needs == ""
    old = (world.now() - timedelta(hours=2)).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    world.sql.run("UPDATE health_samples SET at = ? WHERE cluster = ?", old, name)
    await world.overview(name, lambda s: (s.needs or "").endswith("mend the health source"))
    (check,) = [c for c in await world.tpm.doctor() if c.name == "health"]
    assert not check.ok
    assert name in check.text


async def test_what_temporal_has_not_listed_yet_is_in_the_overview(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list is a moment late, and a page that was made in this moment is made anew only when something happens."""
    name = fresh("unlisted")
    await world.fleet(worked_case(name))
    await world.launch(name)
    await world.listed(name)
    listed = await world.overview(name, lambda s: "approve" in (s.needs or "") and s.unbacked_gpus == 345 - 319)

    async def nothing(*_: object, **__: object) -> AsyncIterator[object]:
        return
        yield

    monkeypatch.setattr(Client, "list_workflows", nothing)
    shown = await world.overview(name, lambda s: s.asked_at is not None)
    aged = {"started", "asked_at", "health_at"}
    assert shown.model_dump(exclude=aged) == listed.model_dump(exclude=aged)


async def test_where_temporals_list_is_late_the_rollout_is_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    name = fresh("late")
    await world.fleet(worked_case(name, soak_buffered="1h"))
    await world.launch(name)
    await world.listed(name)
    before = [run async for run in world.client.list_workflows() if run.id == rollout_workflow_id(name)]
    await world.approve(name)
    await world.until(name, Stage.BUFFERED)
    await world.archived(name)

    async def late(*_: object, **__: object) -> AsyncIterator[object]:
        for run in before:
            yield run

    monkeypatch.setattr(Client, "list_workflows", late)
    await world.overview(name, lambda s: s.stage == "buffered" and s.asked_at is not None)


async def test_a_shadow_is_marked_and_its_figures_are_what_is_so(world: World) -> None:
    name = fresh("rehearsal")
    await world.fleet(worked_case(name))
    await world.start(name, shadow=True)
    await world.until(name, Stage.MONITORED)
    shown = await world.overview(name, lambda s: s.asked_at is not None)
    assert (shown.shadow, shown.unbacked_gpus, shown.would_unbacked_gpus) == (True, 345 - 319, 0)
    status = await world.tpm.status(name)
    assert (status.assigned_gpus,) == world.sql.rows("SELECT gpus FROM quotas WHERE cluster = ?", name)[0]
    assert status.would is not None
    assert (status.flex_published_gpus, status.would.flex_published_gpus) == (None, 13)
    await world.say(name, Command.ABORT)
    await world.ended(name)
    assert (await world.overview(name, lambda s: not s.open)).shadow


async def test_a_name_that_the_ledger_does_not_have_is_bad_input_and_no_launch_is_offered(world: World) -> None:
    """A misspelt cluster was told to be launched, which is refused in turn."""
    known, unknown = fresh("there"), fresh("nowhere")
    await world.fleet(worked_case(known))
    for name, kind, said in (
        (known, Refusal, f"there is no rollout of {known}: launch one with `backstop launch {known}`"),
        (unknown, BadInput, f"the ledger has no cluster '{unknown}'"),
    ):
        with pytest.raises(kind, match=re.escape(said)):
            await world.tpm.status(name)
        with pytest.raises(kind, match=re.escape(said)):
            await world.tpm.command(name, Command.PAUSE, CommandRequest(actor="tpm", reason="a look first"))
    assert world.sql.rows("SELECT count(*) FROM clusters WHERE name = ?", unknown) == [(0,)]


async def test_silence_of_temporal_is_not_taken_for_nothing_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answered that there is no rollout, and was gone for a moment when it was asked whether there had been one."""
    name = fresh("silent")
    await world.fleet(worked_case(name))
    there = InMemoryTemporal._describe_workflow_execution
    for ask in (world.tpm.status(name), world.tpm.fleet_status()):

        async def away(*_: object) -> None:
            monkeypatch.setattr(InMemoryTemporal, "_describe_workflow_execution", there)
            raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")

        monkeypatch.setattr(InMemoryTemporal, "_describe_workflow_execution", away)
        with pytest.raises(Unavailable, match="connection refused"):
            await ask
