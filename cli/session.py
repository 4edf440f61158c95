"""One conversation with the server, from connecting to saying goodbye."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from client.backstop import Backstop

_T = TypeVar("_T")


def ask(actor: str, question: Callable[[Backstop], Awaitable[_T]]) -> _T:
    """The answer to one question. Errors: models.errors, Unavailable when nothing answers."""
    return asyncio.run(asked(actor, question))


async def asked(actor: str, question: Callable[[Backstop], Awaitable[_T]]) -> _T:
    """The same, inside a loop."""
    # Imported late: Temporal's client takes longer to import than most commands take to run.
    from client import telemetry
    from client.backstop import Backstop

    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    with telemetry.spoken(command) as (plugins, runtime):
        door = await Backstop.connect(actor, plugins=plugins, runtime=runtime)
        try:
            return await question(door)
        finally:
            await door.close()
