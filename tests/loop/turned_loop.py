"""An event loop whose clock is turned: when nothing is left to do, it is at once the time of the next timer.

Threads are waited for in real time, as SQL takes as long as it takes; while one of them works, the clock stands still.
So it does while a connection to somebody outside is open.
One that waits for the loop itself is not waited for.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
"""When stories begin: a Monday's morning."""
_THREADS_SECONDS = 60.0
"""How long a thread may work, in real time, until the story has failed."""
_LEAST_SECONDS = 1e-6
"""Past a timer, as asyncio lets it wait while its time is just now; less would be lost in rounding."""
_run_threadsafe = asyncio.run_coroutine_threadsafe


class TurnedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._seconds = 0.0
        self._working = 0
        """Calls that threads have under way."""
        self._waiting = 0
        """Threads that wait for what this loop does for them."""
        self._counts = threading.Lock()
        self.tasks_ended = 0
        """Tasks of workflows and attempts of activities, but no queries, that the server in memory has answers to."""
        super().__init__(_Turning(self))
        self._clock_resolution = 0.0  # else what is due in less than that comes at once, and it never gets later

    def time(self) -> float:
        return self._seconds

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._seconds)

    def turn(self, seconds: float) -> None:
        """Move the clock on. Timers of the time between fire next, late."""
        self._seconds += seconds

    @property
    def held(self) -> bool:
        """A thread works, and time must not pass."""
        with self._counts:
            return self._working > self._waiting

    @property
    def has_more(self) -> bool:
        """There is something left to do at this time."""
        return bool(self._ready)  # type: ignore[attr-defined]

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        self._working += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._worked)
        return future

    def _worked(self, _: object) -> None:
        self._working -= 1

    def waited_for(self, future: concurrent.futures.Future[Any]) -> None:
        """A thread waits for this from now on."""
        with self._counts:
            self._waiting += 1

        def came(_: object) -> None:
            with self._counts:
                self._waiting -= 1

        future.add_done_callback(came)
        self.call_soon_threadsafe(_nothing)  # the loop may be waiting for this thread already: it looks again

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], *args: Any, **more: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect as asyncio does; while the connection is open another process works, and the clock stands still."""
        self._working += 1
        ended = self._once_worked()

        def protocol() -> asyncio.Protocol:
            made = protocol_factory()
            lost = made.connection_lost

            def connection_lost(error: Exception | None) -> None:
                ended()
                lost(error)

            setattr(made, "connection_lost", connection_lost)  # noqa: B010 - of this one connection
            return made

        try:
            return await super().create_connection(protocol, *args, **more)
        except BaseException:
            ended()
            raise

    def _once_worked(self) -> Callable[[], None]:
        left = [1]

        def ended() -> None:
            self._working -= left[0]
            left[0] = 0

        return ended


def _nothing() -> None:
    """Wake a loop."""


def run_coroutine_threadsafe(
    coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
) -> concurrent.futures.Future[Any]:
    """Run as asyncio does, for a thread that then waits for it."""
    future = _run_threadsafe(coroutine, loop)
    if isinstance(loop, TurnedLoop):
        loop.waited_for(future)
    return future


async def in_counted_thread(work: Callable[[], Any]) -> Any:
    """Work in a thread, as client.http_door does for a request; meanwhile the clock stands still."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


class _Turning(selectors.DefaultSelector):
    """Instead of waiting for the next timer it turns the clock there."""

    def __init__(self, loop: TurnedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if found or self._loop.has_more:
            return found
        if self._loop.held or timeout is None:
            found = super().select(_THREADS_SECONDS)
            if not found and self._loop.held:
                raise TimeoutError(f"a thread has worked for {_THREADS_SECONDS:g} s")
            if not found:
                raise TimeoutError("the story waits for what nobody does")
            return found
        self._loop.turn(timeout + _LEAST_SECONDS)
        return found
