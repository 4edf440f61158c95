"""Server-sent events (`?watch`): one for each change of a status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import contextmanager
from typing import Any

from pydantic import TypeAdapter

from client.problems import problem
from models.errors import BackstopError, Refusal
from web.answers import tag_of
from web.failures import too_many

LOOK_SECONDS = 1.0
_QUIET_SECONDS = 15.0
"""After this long without a change the front sends a comment, so that callers do not give the connection up."""
_MOST_STREAMS, _MOST_OF_ONE = 200, 20


class Streams:
    """Counts of open event streams."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    @contextmanager
    def one_more(self, caller: str) -> Any:
        """Count one more stream while it is open. Errors: Problem 429."""
        own, of_all = self._of.get(caller, 0), sum(self._of.values())
        if own >= _MOST_OF_ONE:
            raise too_many(f"{caller} follows {own} event streams already: end one of them first", 5)
        if of_all >= _MOST_STREAMS:
            raise too_many(f"this front already serves {of_all} event streams: try again later", 5)
        self._of[caller] = own + 1
        try:
            yield
        finally:
            self._of[caller] -= 1
            if not self._of[caller]:
                del self._of[caller]


async def changes(
    look: Callable[[], Awaitable[Any]], adapter: TypeAdapter[Any], first: Any, request_id: str, stopping: asyncio.Event
) -> AsyncIterator[bytes]:
    """Yield the first status, then each that differs; `end` once it has ended. Errors are reported and waited out."""
    loop = asyncio.get_running_loop()
    answer, tag, said_at, complaint = first, "", loop.time(), ""
    while not stopping.is_set():
        body = adapter.dump_json(answer, by_alias=True)
        if (now := tag_of(body)) != tag:
            tag, said_at = now, loop.time()
            yield _event("status", body, tag)
            if answer.stage.has_ended:
                yield _event("end", b"{}")
                return
        elif loop.time() - said_at >= _QUIET_SECONDS:
            said_at = loop.time()
            yield b": still the same\n\n"
        await _pause(stopping)
        try:
            answer, complaint = await look(), ""
        except BackstopError as error:
            if error.message != complaint:
                complaint, said_at = error.message, loop.time()
                yield _event("problem", json.dumps(problem(error, request_id)[1]).encode())
            if isinstance(error, Refusal):
                yield _event("end", b"{}")
                return


async def _pause(stopping: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), LOOK_SECONDS)
    except TimeoutError:
        return


def _event(kind: str, data: bytes, tag: str = "") -> bytes:
    """Return one event. Our JSON has no line breaks in it."""
    head = f"event: {kind}\n" + (f"id: {tag}\n" if tag else "")
    return head.encode() + b"data: " + data + b"\n\n"
