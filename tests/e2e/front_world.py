"""A front in this process, at a socket, for the world of a story."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.client import Client

from client.backstop import Backstop
from client.connection import NAMESPACE, TemporalTarget
from client.front_signer import SigningKey
from client.http_door import http_door
from client.http_exchange import AtSocket
from web.callers import Callers, Tokens
from web.front import Front
from web.server import listening
from web.settings import Address, FrontSettings
from web.temporal_connection import Doors


@asynccontextmanager
async def front_of(
    client: Client,
    socket: Path | None,
    *,
    shared: bool = False,
    listen: Address | None = None,
    tokens: tuple[Tokens, ...] = (),
    key: SigningKey | None = None,
    **more: Any,
) -> AsyncIterator[tuple[Front, list[str]]]:
    """It answers there, and signs with the key. Yields it, and where."""
    address = client.service_client.config.target_host
    target = TemporalTarget(options={"target_host": address, "namespace": NAMESPACE}, embedded=True)

    async def connected() -> tuple[Client, TemporalTarget]:
        return client, target

    front = Front(Doors(connected, lambda: key), Callers(tokens), **more)
    settings = FrontSettings(socket=socket, shared=shared, listen=listen)
    async with listening(front, settings, {"address": address, "namespace": NAMESPACE}) as where:
        yield front, where


def through(socket: Path) -> Backstop:
    """Whoever runs this test, at the front's door."""
    return http_door(AtSocket(socket))
