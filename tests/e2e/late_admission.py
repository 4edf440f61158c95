"""A command that is admitted when the rollout has moved on, and is refused then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest

from activities.adapters.ledger.warrants import LedgerWarrants
from models.errors import Refusal
from models.rollout.messages import HealthChanged
from models.rollout.stages import Command, Stage
from models.temporal_names import HEALTH_SIGNAL
from tests.e2e.world import World, eventually


@contextmanager
def held(command: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Hold admissions of this command; yield two events: one has come, and it may go on."""
    come, may_go = threading.Event(), threading.Event()
    admit = LedgerWarrants.admit

    def late(self: LedgerWarrants, warrant: Any, *more: Any) -> Any:
        if warrant.command == command:
            come.set()
            may_go.wait(120)
        return admit(self, warrant, *more)

    with patch.object(LedgerWarrants, "admit", late):
        try:
            yield come, may_go
        finally:
            may_go.set()


async def refused_late(world: World, name: str, few: int) -> int:
    """Hold a promotion's admission until there is nothing left to promote; return the number of runs until then.

    Its policy has a soak of seconds. `few`: events after which the server suggests a new run, which begins once no
    command is under way.
    """
    await world.start(name)
    await world.until(name, Stage.ENFORCED)
    with held("rollout.promote") as (come, may_go):
        asked = asyncio.create_task(world.say(name, Command.PROMOTE))
        await eventually(come.is_set, "the promotion comes to be admitted")
        await world.until(name, Stage.MONITORED)
        while (status := await world.status(name)).history_events < few + 10:
            edge = HealthChanged(cluster=name, at=datetime.now(UTC), why="a word of the watch")
            await world.handle(name).signal(HEALTH_SIGNAL, edge)
            await asyncio.sleep(0.5)
        await asyncio.sleep(3)  # what was begun has been looked at, and nothing is due for long
        may_go.set()
        with pytest.raises(Refusal, match="already at the last stage"):
            await asked
    return status.runs
