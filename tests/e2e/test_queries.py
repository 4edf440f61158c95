"""A question at the wrong moment changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from activities.adapters.ledger.database import upgrade
from client.connection import NAMESPACE
from models.errors import Refusal
from models.rollout.stages import Command, Stage
from models.temporal_names import HEALTH_SIGNAL, rollout_workflow_id
from tests.e2e.test_crashes import PATIENT, Processes, free_ports, killed, ledger_of, processes, world_at
from tests.e2e.world import World, cluster, replayed, team
from workers.embedded_temporal import EmbeddedTemporal

pytestmark = pytest.mark.chaos


@asynccontextmanager
async def served(home: Path) -> AsyncIterator[tuple[Processes, Mapping[str, str], World]]:
    """A server and a ledger; workers are started and killed by the test."""
    async with processes(home) as running, EmbeddedTemporal(home / "temporal", *free_ports()) as server:
        upgrade(ledger_of(home))
        where = {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": NAMESPACE, "BACKSTOP_WATCH_INTERVAL": "600"}
        yield running, where, await world_at(server.address, home)


@pytest.mark.nightly
async def test_a_question_does_not_move_a_rollout_on_at_the_time_of_its_last_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question waits while no worker lives; meanwhile the notice ends, and the next worker gets both at once."""
    # The task at the end of the notice, 6 s from now, is missed 10 s later, and a task that the dead worker had
    # with it 10 s after that: a person would ask again, but this is about the one question that waited.
    monkeypatch.setattr("client.workflow_calls._PATIENCE", timedelta(seconds=PATIENT))
    name = "asked"
    async with served(tmp_path / "home") as (running, where, world):
        worker = await running.start("workers.main", "serving", **where)
        quotas = [team("a", 200), team("b", 161, busy=100)]
        await world.fleet(cluster(name, {"main": (361, 361)}, quotas, notice="6s"))
        await world.start(name)
        await world.until(name, lambda s: s.next_at is not None and any("6s from" in c.text for c in s.waiting_for))

        await killed(worker)
        question = asyncio.create_task(world.tpm.status(name))
        await running.start("workers.main", "serving", **where)
        assert (await question).stage in (Stage.PLANNED, Stage.BUFFERED)
        await world.until(name, Stage.MONITORED)
        await world.say(name, Command.CLOSE)
        await world.ended(name)
        await replayed(world.client, [rollout_workflow_id(name)])


@pytest.mark.nightly
async def test_a_rollout_that_was_terminated_with_news_waiting_is_lost_and_is_not_asked_for_ever(
    tmp_path: Path,
) -> None:
    """Nothing can process the news after the termination, so no question about that moment is answered."""
    name = "lost"
    async with served(tmp_path / "home") as (running, where, world):
        worker = await running.start("workers.main", "serving", **where)
        await world.fleet(cluster(name, {"main": (361, 361)}, [team("a", 200)], notice="1h"))
        await world.start(name)
        await world.until(name, Stage.PLANNED)

        await killed(worker)
        await world.handle(name).signal(HEALTH_SIGNAL)
        await world.handle(name).terminate(reason="an operator's mistake")
        await running.start("workers.main", "serving", **where)
        with pytest.raises(Refusal, match=f"rollout {name}/1 .*Temporal does not run it.*--adopt"):
            await world.tpm.status(name)
