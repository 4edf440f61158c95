"""The one place where tests of the gate wait: until something is true, never until time has passed.

A wait ends as soon as what it waits for is so. Its patience only bounds how long a broken test hangs.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from tests.loop.turned_loop import TurnedLoop

PATIENCE = 90.0
"""Seconds until a wait is a failure: far above what any scene needs on a busy machine, and longer than a call whose
answer the server lost is waited for (60 s); until then a rollout heals by itself."""
PAUSES = (0.01, 0.02, 0.03, 0.03, 0.06, 0.06, 0.12)
"""Seconds between two looks, the last again and again: a machine that answers all the time does nothing else."""


TURNED_PAUSES = (0.01, 0.05, 0.15)
"""On a turned clock a pause takes no time, and a look as long as ever. Still shorter than any stage of a story."""
TURNED_MOST = 8
"""On a turned clock a look after which no task of a workflow and no activity has ended is left out, so often in a row:
what is looked at may change without one."""


def _pauses(what: str, seconds: float, now: Callable[[], float], pauses: tuple[float, ...] = PAUSES) -> Iterator[float]:
    """Seconds to wait before the next look. Errors: AssertionError, with `what`, once the patience is over."""
    ends = now() + seconds
    for pause in itertools.chain(pauses, itertools.repeat(pauses[-1])):
        yield pause
        assert now() < ends, f"not within {seconds:g} s: {what}"


def attempts(what: str, seconds: float = PATIENCE) -> Iterator[None]:
    """Turns of a loop that looks whether `what` is so and leaves by itself: `for _ in attempts("it is there"): ...`."""
    for pause in _pauses(what, seconds, time.monotonic):
        yield
        time.sleep(pause)


async def async_attempts(what: str, seconds: float = PATIENCE) -> AsyncIterator[None]:
    """The same for a loop that awaits: `async for _ in async_attempts("it is there"): ...`."""
    loop = asyncio.get_running_loop()
    turned = isinstance(loop, TurnedLoop)
    clock, pauses = (loop.time, TURNED_PAUSES) if turned else (time.monotonic, PAUSES)
    seen, left_out = -1, 0
    for pause in _pauses(what, seconds, clock, pauses):
        if isinstance(loop, TurnedLoop) and loop.tasks_ended == seen and left_out < TURNED_MOST:
            left_out += 1
        else:
            seen, left_out = loop.tasks_ended if isinstance(loop, TurnedLoop) else -1, 0
            yield
        await asyncio.sleep(pause)


def wait_until(true: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait until the condition is true."""
    for _ in attempts(what, seconds):
        if true():
            return


async def eventually(true: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = PATIENCE) -> None:
    """Wait until the condition is true; `true` may be a coroutine function."""
    async for _ in async_attempts(what, seconds):
        answer = true()
        if answer if isinstance(answer, bool) else await answer:
            return
