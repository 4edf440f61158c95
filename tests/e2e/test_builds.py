"""Workers name their build: a rollout keeps to its own, and moves on to the next one between two runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus

from client.answer_models import Check
from client.connection import NAMESPACE
from models.errors import BadInput, Refusal
from models.rollout.messages import RolloutInput
from models.rollout.stages import Command, Stage
from models.temporal_names import TASK_QUEUE, rollout_workflow_id
from tests.e2e.world import (
    WATCH_SECONDS,
    Sql,
    World,
    connected,
    eventually,
    fresh,
    replayed,
    worked_case,
)
from workers.embedded_temporal import EmbeddedTemporal
from workers.main import ensure_watch, serving
from workers.settings import Settings


@asynccontextmanager
async def build(world: World, url: str, name: str) -> AsyncIterator[None]:
    """A worker of this build, as its process makes it."""
    async with serving(Settings(url, world.home, None, WATCH_SECONDS, build_id=name)):
        await polled(world, name)
        yield


async def polled(world: World, name: str) -> None:
    """The server knows the build."""

    async def known() -> bool:
        return name in [b.build for b in await world.tpm.builds() if b.workers]

    await eventually(known, f"build {name} is known")


async def builds_of(world: World, cluster: str) -> list[list[str]]:
    """Return the builds that made the steps of each run, the oldest run first."""
    runs = [run async for run in world.client.list_workflows(f"WorkflowId = '{rollout_workflow_id(cluster)}'")]
    made: list[list[str]] = []
    for run in sorted(runs, key=lambda r: r.start_time):
        history = await world.client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        done = [
            e.workflow_task_completed_event_attributes.deployment_version.build_id
            for e in history.events
            if e.HasField("workflow_task_completed_event_attributes")
        ]
        made.append(sorted(set(done)))
    return made


async def check(world: World) -> Check:
    (found,) = [c for c in await world.tpm.doctor() if c.name == "builds"]
    return found


@pytest.fixture
async def world(
    request: pytest.FixtureRequest, sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """A server of its own, because builds are the whole namespace's affair. No worker yet.

    Its parameter: more of the server's settings.
    """
    settings = getattr(request, "param", ())
    async with EmbeddedTemporal(tmp_path / "temporal", None, None, dynamic_config=settings) as server:
        monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
        monkeypatch.setenv("TEMPORAL_NAMESPACE", NAMESPACE)
        with closing(Sql(sqlite_ledger_url)) as sql:
            yield World(await connected(server.address), sql, tmp_path)


@pytest.mark.nightly
async def test_a_rollout_moves_on_to_the_next_build_between_two_runs(world: World, sqlite_ledger_url: str) -> None:
    old, young = fresh("old"), fresh("young")
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        await first.enter_async_context(build(world, sqlite_ledger_url, "one"))
        assert (await check(world)).remedy == "backstop builds use one"
        with pytest.raises(BadInput, match="build 'none' has never had a worker; known builds: one"):
            await world.tpm.use_build("none")
        assert await world.tpm.use_build("one") == ""
        await ensure_watch(world.client, WATCH_SECONDS)
        await world.fleet(worked_case(old), worked_case(young))
        await world.start(old)
        await world.until(old, Stage.MONITORED)
        assert (await check(world)).text == "new rollouts start on build one"

        await second.enter_async_context(build(world, sqlite_ledger_url, "two"))
        assert await world.tpm.use_build("two") == "one"
        await world.launch(young)
        assert await builds_of(world, young) == [["two"]]
        assert await builds_of(world, old) == [["one"]], "it has only just begun its run"

        # A rollout that is old enough moves on when next it does anything, and carries all it knows.
        before = await world.status(old)
        async with asyncio.timeout(60):
            while (await world.status(old)).runs == 1:
                await world.say(old, Command.ACK, team="research")
                await asyncio.sleep(1)
        after = await world.status(old)
        assert (after.stage, after.plan_hash, after.runs) == (Stage.MONITORED, before.plan_hash, 2)
        assert await builds_of(world, old) == [["one"], ["two"]]
        held = {b.build: (b.rollouts, b.status) for b in await world.tpm.builds()}
        assert held["two"] == (2, "current")
        assert held["one"][0] == 0

        await first.aclose()
        await world.say(old, Command.ROLLBACK)
        await world.until(old, Stage.ROLLED_BACK)
        assert world.sql.gpus(old) == {"research": 345}
        await world.approve(young)
        await world.until(young, Stage.MONITORED)
        await eventually(lambda: world.sql.transitions(old)[-1:] == ["rolled_back"], "the archive of all runs")
        assert world.sql.broken_links(old) == []
        await replayed(world.client, [rollout_workflow_id(old), rollout_workflow_id(young)])


@pytest.mark.nightly
@pytest.mark.parametrize("world", [['matching.PollerHistoryTTL="2s"']], ids=["forgets a silent worker"], indirect=True)
async def test_a_build_whose_workers_went_too_soon_is_named(world: World, sqlite_ledger_url: str) -> None:
    name = fresh("left")
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        await first.enter_async_context(build(world, sqlite_ledger_url, "one"))
        await world.tpm.use_build("one")
        await world.fleet(worked_case(name))
        await world.launch(name)
        await first.aclose()
        await second.enter_async_context(build(world, sqlite_ledger_url, "two"))
        await world.tpm.use_build("two")
        async with asyncio.timeout(60):
            while (await check(world)).ok:
                await asyncio.sleep(0.5)
        found = await check(world)
        assert found.text == "1 rollout needs build one, which has no worker"
        assert found.remedy == "BACKSTOP_BUILD_ID=one backstop worker"
        with pytest.raises(Refusal, match="no worker of build one is running"):
            await world.tpm.use_build("one")
        await first.enter_async_context(build(world, sqlite_ledger_url, "one"))
        await world.approve(name)
        await world.until(name, Stage.BUFFERED)


async def test_a_run_that_another_build_continued_waits_for_one_that_understands_it(
    world: World, sqlite_ledger_url: str
) -> None:
    """Failing it would end a rollout whose effects stand."""
    async with build(world, sqlite_ledger_url, "one"):
        await world.tpm.use_build("one")
        name = fresh("ahead")
        await world.fleet(worked_case(name))
        await world.launch(name)
        state = await world.state(name)
        await world.handle(name).terminate(reason="its next run is begun by hand")
        carried = {"launch": {"cluster": name, "rollout": "r", "owner": "tpm"}, "runs": 2}
        RolloutInput.model_validate({**carried, "state": state})
        handle = await world.client.start_workflow(
            "ClusterRollout",
            {**carried, "state": {**state, "of_the_next_build": 1}},
            id=rollout_workflow_id(name),
            task_queue=TASK_QUEUE,
        )

        async def failed() -> bool:
            events = (await handle.fetch_history()).events
            return any(event.HasField("workflow_task_failed_event_attributes") for event in events)

        await eventually(failed, "its task fails")
        assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
