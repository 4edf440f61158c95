"""What lives on is set aside from the garbage collector, and found again once it is garbage."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from tests.waiting import eventually
from workers.garbage_collection import tend_garbage

pytestmark = pytest.mark.slow  # takes seconds: `make quick` leaves it to `make test`


@pytest.fixture(autouse=True)
def _set_aside_again() -> Iterator[None]:
    """What the suite had set aside (tests/conftest.py) is not looked through for the rest of its tests."""
    yield
    gc.freeze()


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


async def test_what_lives_on_is_set_aside_and_given_back_at_the_end() -> None:
    gc.unfreeze()  # what the suite itself has set aside
    async with tend_garbage(seconds=60, rounds=2):
        await asyncio.sleep(0)
        aside = gc.get_freeze_count()
    assert aside > 0
    assert gc.get_freeze_count() == 0


async def test_what_dies_after_it_was_set_aside_is_found() -> None:
    async with tend_garbage(seconds=0.01, rounds=3):
        rings = [Ring()]
        gone = weakref.ref(rings[0])
        await eventually(lambda: all(found is not rings[0] for found in gc.get_objects()), "it is set aside")
        rings.clear()
        gc.collect()
        assert gone() is not None, "it is looked for where the collector does not look"
        await eventually(lambda: gone() is None, "it is found")


async def test_a_worker_sets_aside_in_steps_and_looks_through_everything_seldom() -> None:
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
