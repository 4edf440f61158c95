"""Works out the answers about all clusters once, some time after a worker's start.

They are kept beside what they were worked out from (ADR 77, ADR 116), so that nobody's first look at a page waits for
them. It is done once: what moves later is read by whoever looks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager

logger = logging.getLogger("backstop.worker")
_START_SECONDS = 45.0
"""Seconds by which the rollouts in a worker's memory have been replayed."""
_PAUSE_SECONDS = 2.0


@asynccontextmanager
async def looking_first(
    looks: Callable[[], Iterator[str]],
    executor: Executor,
    start_seconds: float = _START_SECONDS,
    pause_seconds: float = _PAUSE_SECONDS,
) -> AsyncIterator[None]:
    """Within, take one look after the other, in a thread and with pauses. `looks`: yields the name of each."""
    task = asyncio.create_task(_look(looks(), executor, start_seconds, pause_seconds))
    try:
        yield
    finally:
        task.cancel()


async def _look(looks: Iterator[str], executor: Executor, start_seconds: float, pause_seconds: float) -> None:
    await asyncio.sleep(start_seconds)
    try:
        while True:
            if not await asyncio.get_running_loop().run_in_executor(executor, next, looks, ""):
                return
            await asyncio.sleep(pause_seconds)
    except Exception as error:  # a page that asks the same says it to its reader
        logger.warning(
            "could not prepare the clusters' figures in advance, so the first page that shows them computes them: %s",
            error,
        )
