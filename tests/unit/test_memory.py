"""Long-lived objects are set aside from the garbage collector, and found again once they are garbage.

Each story is played in a process of its own: to look through all that the suite has imported takes a second each time.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from workers.garbage_collection import tend_garbage

pytestmark = pytest.mark.slow  # takes seconds: `make quick` leaves it to `make test`


ROOT = Path(__file__).parents[2]


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    code = f"import asyncio; from tests.unit import test_memory; asyncio.run(test_memory.{story.__name__}())"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


async def live_on() -> None:
    async with tend_garbage(seconds=60, rounds=2):
        await asyncio.sleep(0)
        aside = gc.get_freeze_count()
    assert aside > 0
    assert gc.get_freeze_count() == 0


async def look_seldom() -> None:
    """A chain of living objects is looked through once a few thousand are new."""
    looks: list[str] = []
    gc.callbacks.append(lambda phase, _: looks.append(phase))
    before = gc.get_threshold()
    async with tend_garbage():
        await asyncio.sleep(0)
        looks.clear()
        kept = [Ring() for _ in range(4_000)]
        assert len(looks) <= 2, "it looks once and is done"
    assert len(kept) == 4_000
    assert gc.get_threshold() == before


async def die_aside() -> None:
    async with tend_garbage(seconds=0.01, rounds=3):
        rings = [Ring()]
        gone = weakref.ref(rings[0])
        await eventually(lambda: all(found is not rings[0] for found in gc.get_objects()), "it is set aside")
        rings.clear()
        gc.collect()
        assert gone() is not None, "it is looked for where the collector does not look"
        await eventually(lambda: gone() is None, "it is found")


async def set_aside_in_steps() -> None:
    looks: list[int] = []

    def looked(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            looks.append(gc.get_freeze_count())

    gc.callbacks.append(looked)
    try:
        async with tend_garbage(seconds=0.01, rounds=4):
            await eventually(lambda: len(looks) >= 9, "it has looked nine times")
    finally:
        gc.callbacks.remove(looked)
    whole = [number for number, aside in enumerate(looks) if not aside]
    assert whole[0] == 0
    assert whole[1] >= 4


def test_what_lives_on_is_set_aside_and_given_back_at_the_end() -> None:
    play(live_on)


def test_new_objects_are_looked_through_when_there_are_thousands() -> None:
    play(look_seldom)


def test_what_dies_after_it_was_set_aside_is_found() -> None:
    play(die_aside)


def test_a_worker_sets_aside_in_steps_and_looks_through_everything_seldom() -> None:
    play(set_aside_in_steps)
