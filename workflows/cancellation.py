"""A workflow that a cancel does not cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def live_through(life: Coroutine[Any, Any, _T], cancelled: Callable[[], None]) -> _T:
    """Return the result of `life`. A cancel calls `cancelled`, and `life` goes on: effects must be undone first."""
    living = asyncio.create_task(life)
    while True:
        try:
            return await asyncio.shield(living)
        except asyncio.CancelledError:
            if living.done():
                raise
            cancelled()
