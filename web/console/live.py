"""Tells every open page that something has happened. One question, which waits at the ledger, serves all pages.

Each page carries the mark from before it was read, because later events are not on it. While no page is open the front
asks nothing but that mark, and the last question, which ends by itself. While nothing happens a page gets only a
comment now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from models.access.principals import Principal, Proof
from models.errors import BackstopError
from models.questions import Pulse
from web.events import Streams
from web.temporal_connection import Doors

logger = logging.getLogger("backstop.console")
_WAITS_SECONDS = 20.0
_LATE_SECONDS = 10.0
_LEFT = "the worker that was asked has left"
_AGAIN_SECONDS = 2.0
_MARK_SECONDS = 3.0
_QUIET_SECONDS = 15.0
_FRONT = Principal(name="service:front", proof=Proof.SERVICE, how="the front itself")


class Live:
    def __init__(self, doors: Doors, streams: Streams | None = None) -> None:
        self._doors = doors
        self.streams = streams or Streams()
        self.mark = ""
        """The last mark of the ledger; empty while no page is open."""
        self.away = ""
        """Why no worker reports the mark, in a sentence; empty while one does."""
        self._changed = asyncio.Condition()
        self._open = 0
        self._looking: asyncio.Task[None] | None = None

    async def mark_now(self) -> str:
        """Return the present mark: a page that is read after this has everything before it. Empty: no answer."""
        if not self.mark:
            with contextlib.suppress(BackstopError, TimeoutError):
                door = await self._doors.door_of(_FRONT)
                return await asyncio.wait_for(door.ask(Pulse()), _MARK_SECONDS)
        return self.mark

    async def follow(self, who: str, stopping: asyncio.Event) -> AsyncIterator[bytes]:
        """Yield one page's server-sent events: `mark` whenever it changes; `away` when nobody reports it any more."""
        with self.streams.one_more(who):
            self._open += 1
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            try:
                seen = notice = ""
                while not stopping.is_set():
                    if self.mark and not self.away and (self.mark != seen or notice):
                        seen, notice = self.mark, ""
                        yield f"event: mark\ndata: {seen}\n\n".encode()
                        continue
                    if self.away and not notice:
                        notice = " ".join(self.away.split())
                        yield f"event: away\ndata: {notice}\n\n".encode()
                        continue
                    if not await self._changes(stopping):
                        yield b": still the same\n\n"
            finally:
                self._open -= 1

    async def _changes(self, stopping: asyncio.Event) -> bool:
        """Return whether something changed within the time for which a connection may be silent."""
        changed = asyncio.ensure_future(self._wait_for_change((self.mark, self.away)))
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait((changed, stopped), timeout=_QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (changed, stopped):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        return changed.done() and not changed.cancelled()

    async def _wait_for_change(self, before: tuple[str, str]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: (self.mark, self.away) != before)

    async def _look(self) -> None:
        """Ask for changes while any page is open. Errors are tried again: a page without an event is only out of date.

        A question that waits at a worker when the last page closes is left to end by itself, and serves the next
        page. If it were abandoned, it would hold a thread there, one for each page that somebody closes.
        """
        while self._open:
            try:
                door = await self._doors.door_of(_FRONT)
                asked = door.ask(Pulse(since=self.mark, seconds=_WAITS_SECONDS))
                mark = await asyncio.wait_for(asked, _WAITS_SECONDS + _LATE_SECONDS)
            except (BackstopError, TimeoutError) as error:
                why = error.message if isinstance(error, BackstopError) else _LEFT
                logger.info("no worker answers whether anything has changed; the console asks again: %s", why)
                await self._tell(self.mark, why)
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                await self._tell(mark, "")
        self.mark = self.away = ""

    async def _tell(self, mark: str, away: str) -> None:
        if (mark, bool(away)) != (self.mark, bool(self.away)):
            self.mark, self.away = mark, away
            async with self._changed:
                self._changed.notify_all()
