"""Keeps the garbage collector's pauses short in a worker with thousands of rollouts in memory.

A full collection walks through every living object, about 0.8 ms for each cached rollout, and nothing else runs
meanwhile: with 1,000 of them a breach waited most of a second for it, several times a minute while work came in. So
objects that have lived for a while are set aside (`gc.freeze`), where the collector does not look. Rollouts that ended
since are collected once an hour. New objects are looked through when there are 5,000 of them, by which time most are
gone: by Python's own 700 that was a fortieth of a worker's CPU.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_SECONDS = 60.0
_ROUNDS = 60
"""Rounds in which living objects are set aside before everything is collected once."""
_NEW_OBJECTS = 5_000


@asynccontextmanager
async def tend_garbage(seconds: float = _SECONDS, rounds: int = _ROUNDS) -> AsyncIterator[None]:
    """Within, set living objects aside every so many seconds; collect all of them every so many rounds."""
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    task = asyncio.create_task(_tend(seconds, rounds))
    try:
        yield
    finally:
        task.cancel()
        gc.unfreeze()
        gc.set_threshold(*before)


async def _tend(seconds: float, rounds: int) -> None:
    count = 0
    while True:
        if count % rounds == 0:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        count += 1
        await asyncio.sleep(seconds)
