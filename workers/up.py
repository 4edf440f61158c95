"""`backstop up`: the embedded Temporal, the ledger and a worker, until Ctrl-C; started again it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from activities.adapters.ledger.facade import upgrade
from client.connection import find_target
from client.places import embedded_file
from models.errors import Unavailable
from workers.embedded_temporal import PORT, UI_PORT, EmbeddedTemporal
from workers.main import run_and_exit, serving, until_told
from workers.private import keep_private
from workers.settings import Settings, load_settings


def _port(name: str, default: int) -> int | None:
    """0 means: any free one."""
    value = int(os.environ.get(name) or default)
    return value or None


@asynccontextmanager
async def temporal(settings: Settings) -> AsyncIterator[EmbeddedTemporal | None]:
    """The configured Temporal where one is named (then None), else the embedded server, announced to the CLI."""
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


async def _main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    settings = load_settings()
    keep_private(settings.home)
    upgrade(settings.ledger_url)
    async with temporal(settings) as server, serving(settings) as client:
        where = client.service_client.config.target_host
        kind = "configured" if server is None else "embedded, taken over" if server.taken_over else "embedded"
        print(f"Temporal   {where} ({kind}, namespace {client.namespace})")
        if server is not None:
            print(f"UI         {server.ui_url}")
        print(f"state      {settings.home}")
        print(f"notices    {settings.home / 'notices.jsonl'}")
        print("worker     ready; stop with Ctrl-C, start again to go on", flush=True)
        await _until_stopped(server)
        print("stopping: the worker first, then Temporal", flush=True)


async def _until_stopped(server: EmbeddedTemporal | None) -> None:
    """Returns when told to stop. Errors: Unavailable when the embedded server dies."""
    stopped = asyncio.create_task(until_told())
    waits: set[asyncio.Task[object]] = {stopped}
    if server is not None:
        waits.add(asyncio.create_task(server.wait()))
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    if stopped not in done:
        raise Unavailable(
            "the embedded Temporal server has ended; its log is in temporal/temporal.log. "
            "Nothing is lost: start again to go on"
        )


if __name__ == "__main__":
    run_and_exit(_main)
