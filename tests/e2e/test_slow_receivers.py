"""A team's server that drips holds up no promise: another cluster's breach is answered beside it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.rollout.stages import Stage
from tests.e2e.world import cluster, eventually, fresh, team, world_of
from tests.hostile import receivers, threw
from tests.hostile.receivers import LISTED, receiver
from tests.loop.test_requests import ask

MANY = 20
"""Calls of each kind that hang: more than the worker has slots for them."""


@pytest.mark.nightly
async def test_a_breach_is_answered_while_notices_and_questions_are_stuck(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """Dripping webhooks of four teams take every slot of notices, questions that hang every general one."""
    loud, short, go_on = fresh("loud"), fresh("short"), threading.Event()
    ledgers: list[Ledger] = []

    def hang(ledger: Ledger, _: Notifier) -> None:
        ledgers.append(ledger)
        real = ledger.fleet.calendar
        ledger.fleet.calendar = lambda *asked: (go_on.wait(120), real(*asked))[1]  # type: ignore[method-assign]

    slow = [f"slow-{n}" for n in range(4)]
    with receiver(receivers.drips) as port:
        teams = [{"name": name, "contacts": [f"webhook+http://{LISTED}:{port}/{name}"]} for name in slow]
        quotas = [*(team(name, 10) for name in slow), team("research", 20)]
        async with world_of(temporal, sqlite_ledger_url, tmp_path, touch=hang) as world:
            try:
                await world.fleet(
                    cluster(short, {"main": (361, 361)}, [team("research", 300, busy=300)]),
                    cluster(loud, {"main": (100, 100)}, quotas, owners=slow),
                    teams=teams,
                )
                await world.start(short)
                await world.until(short, Stage.MONITORED)
                await asyncio.gather(*(ask(world, loud, 1) for _ in range(MANY)))
                questions = [asyncio.create_task(world.tpm.calendar(loud)) for _ in range(MANY)]
                await asyncio.sleep(1)
                began = time.monotonic()
                ledgers[0].samples.add_health([_sample(short, 295)], "exporter")
                await eventually(lambda: world.sql.gpus(short)["research"] == 295, "the breach is answered", 60)
                took = time.monotonic() - began
                assert not any(question.done() for question in questions), "or nothing was stuck"
            finally:
                go_on.set()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.gather(*questions), 60)
            await world.until(short, Stage.ROLLED_BACK)
    assert took < 1 + 10, "breach_after, and ten seconds"
    threw("webhooks beside a breach")


def _sample(cluster: str, healthy: int) -> HealthSample:
    """Write a sample into the ledger as an exporter does, without asking anybody."""
    island = Island(name="main", total_gpus=361, healthy_gpus=healthy)
    return HealthSample(cluster=cluster, at=datetime.now(UTC), islands=(island,))
