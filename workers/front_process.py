"""Runs the front beside `backstop up`: a process of its own (web/serve.py), restarted if it dies, gone when we are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from backstop.program import program

logger = logging.getLogger("backstop.front")
_READY = "front: ready"
_PLACE = "front      "
_START_SECONDS = 60.0
_AGAIN_SECONDS = 2.0
_STOP_SECONDS = 10.0


class FrontBeside:
    """Reads the front's output to its end: a pipe that nobody reads would stop it."""

    def __init__(self) -> None:
        self.places: list[str] = []
        """The addresses that the front listens on; empty until the front is ready."""
        self._ready = asyncio.Event()
        self._process: Process | None = None

    @property
    def lines(self) -> list[str]:
        """Its places as people read them, or that it is not running."""
        if not self.places:
            return ["front      not running: see the error stream; commands go straight to Temporal, without a front"]
        return [
            f"console    {place} (backstop open)"
            if place.startswith("http")
            else f"front      {place} (it knows each caller by their user name)"
            for place in self.places
        ]

    async def wait_until_ready(self) -> None:
        """Wait until it answers, or will not: then the error stream says why, and everything else goes on."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), _START_SECONDS)

    async def keep(self) -> None:
        """Keep it running, until this is cancelled."""
        while True:
            command = [*program("web.serve"), "--console", "--child"]
            spawning = asyncio.ensure_future(
                asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
            )
            try:
                await asyncio.shield(spawning)
            finally:  # a cancel that comes here must not leave it behind
                self._process = await spawning
            places = await self._read_output(self._process)
            code = await self._process.wait()
            self._ready.set()  # nobody need wait any more: its complaint is on the screen
            if not places:
                return  # it never began to listen, and would not the next time
            logger.warning("the front has ended (%s), and is started again", code)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _read_output(self, process: Process) -> list[str]:
        """Return the addresses that it listened on, once it has ended."""
        assert process.stdout is not None
        places: list[str] = []
        async for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            if text.startswith(_PLACE):
                places.append(text.removeprefix(_PLACE))
            if text == _READY:
                self.places = places
                self._ready.set()
        return places

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


@asynccontextmanager
async def front_beside() -> AsyncIterator[FrontBeside]:
    """Start it; end it afterwards. If this process is killed, its standard input ends, and it stops."""
    sys.stdout.flush()
    front = FrontBeside()
    keeping = asyncio.create_task(front.keep())
    try:
        yield front
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await front.stop()
