"""Calls a function for many clusters, a few at a time; a refusal for one does not stop the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from models.errors import BackstopError

AT_ONCE = 8
"""How many commands or questions run at the same time."""

_T = TypeVar("_T")
_AnswerT = TypeVar("_AnswerT")


async def act_on_each(
    items: Iterable[_T], act: Callable[[_T], Awaitable[_AnswerT]]
) -> list[tuple[_T, _AnswerT | BackstopError]]:
    """Return the answer or error of each, in their order."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(item: _T) -> tuple[_T, _AnswerT | BackstopError]:
        async with turn:
            try:
                return item, await act(item)
            except BackstopError as error:
                return item, error

    return list(await asyncio.gather(*map(one, items)))
