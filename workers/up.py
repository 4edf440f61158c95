"""`backstop up`: the embedded Temporal, the ledger, a worker and a front, until Ctrl-C; started again it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from socket import gethostname
from typing import Any

from activities.adapters.ledger.database import upgrade
from client.connection import find_target
from client.front_key_files import front_key_file, key_book_file, new_key
from client.places import embedded_file
from client.stop_signal import stop_signal
from models.errors import Unavailable
from workers.embedded_temporal import PORT, UI_PORT, EmbeddedTemporal
from workers.front_process import front_beside
from workers.main import run_and_exit, serving
from workers.private_files import keep_private
from workers.quiet_log import quiet_log
from workers.settings import Settings, load_settings


def _port(name: str, default: int) -> int | None:
    """Read a port; 0 means any free one."""
    value = int(os.environ.get(name) or default)
    return value or None


@asynccontextmanager
async def temporal(settings: Settings) -> AsyncIterator[EmbeddedTemporal | None]:
    """Yield None if a Temporal is configured, else start the embedded server, and announce it to the CLI."""
    if not find_target().embedded:
        yield None
        return
    server = EmbeddedTemporal(
        settings.home / "temporal", _port("BACKSTOP_PORT", PORT), _port("BACKSTOP_UI_PORT", UI_PORT)
    )
    async with server:
        embedded_file().write_text(json.dumps({"address": server.address, "ui": server.ui_url, "pid": server.pid}))
        try:
            yield server
        finally:
            embedded_file().unlink(missing_ok=True)


def _with_keys(settings: Settings) -> Settings:
    """Make a front's key if there is none and all is on this machine: commands are proven from then on.

    Workers beside somebody else's Temporal need the book of public keys first, and a person brings it there.
    """
    if settings.keys is not None or not find_target().embedded or front_key_file().exists():
        return settings
    new_key(datetime.now(UTC))
    return replace(settings, keys=key_book_file())


PASSING = "--passing"
"""An argument: everything ends when its starter has gone, and the folder of the state is removed too."""


async def _main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    quiet_log()
    settings, passing, ready = load_settings(), PASSING in sys.argv, asyncio.Event()
    stopped = stop_signal(child=passing)  # from the first moment: a half-started state is stopped too
    running, stopping = asyncio.create_task(_run(settings, ready, stopped)), asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            running.cancel()
        await running
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        stopping.cancel()
        if passing and _starter_is_gone():
            shutil.rmtree(settings.home, ignore_errors=True)


def _starter_is_gone() -> bool:
    """Return whether the starter is gone: it holds the other end of our standard input, and writes nothing."""
    return bool(select.select([0], [], [], 0)[0])


async def _run(settings: Settings, ready: asyncio.Event, stopped: asyncio.Event) -> None:
    """Start everything, announce it, and stop it again. `ready`: set when nothing is half started any more."""
    keep_private(settings.home)
    upgrade(settings.ledger_url)
    settings, name = _with_keys(settings), f"backstop up@{gethostname()}"
    async with temporal(settings) as server, front_beside() as front, serving(settings, name) as client:
        where = client.service_client.config.target_host
        kind = "configured" if server is None else "embedded, taken over" if server.taken_over else "embedded"
        print(f"Temporal   {where} ({kind}, namespace {client.namespace})")
        if server is not None:
            print(f"UI         {server.ui_url}")
        print(f"state      {settings.home}")
        print(f"notices    {settings.home / 'notices.jsonl'}")
        await front.wait_until_ready()
        for text in front.lines:
            print(text)
        if settings.keys is not None and not front_key_file().exists():
            print("keys       the front has no private key, so it signs no command: run `backstop keys new --lost`")
        print("worker     ready; stop with Ctrl-C, start again to go on", flush=True)
        ready.set()
        await _until_stopped(server, stopped)
        print("stopping: the worker first, then Temporal", flush=True)


async def _until_stopped(server: EmbeddedTemporal | None, stopped: asyncio.Event) -> None:
    """Return when told to stop. Errors: Unavailable when the embedded server dies."""
    waits: set[asyncio.Task[Any]] = {asyncio.create_task(stopped.wait())}
    if server is not None:
        waits.add(asyncio.create_task(server.wait()))
    _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    if not stopped.is_set():
        raise Unavailable(
            "the embedded Temporal server has ended; its log is in temporal/temporal.log. "
            "Nothing is lost: start again to go on"
        )


if __name__ == "__main__":
    run_and_exit(_main)
