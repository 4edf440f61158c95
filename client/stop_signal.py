"""Stops a process of ours on a signal."""

from __future__ import annotations

import asyncio
import os
import signal


def stop_signal(*, child: bool = False) -> asyncio.Event:
    """Return an event that Ctrl-C, SIGTERM or SIGHUP sets, and for a `child` also the end of its parent."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(name, stopped.set)

    def read() -> None:
        if not os.read(0, 1):
            loop.remove_reader(0)
            stopped.set()

    if child:
        loop.add_reader(0, read)
    return stopped


async def until_told(*, child: bool = False) -> None:
    """Wait until `stop_signal` is set."""
    await stop_signal(child=child).wait()
