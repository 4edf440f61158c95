"""A front in this process for the world of a story: at sockets, and in memory where the story's Temporal is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from temporalio.client import Client

from activities.clock import Clock, utc_now
from client import http_exchange
from client.backstop import Backstop
from client.connection import NAMESPACE, TemporalTarget
from client.front_signer import SigningKey
from client.http_door import http_door
from tests.loop.fronts import AT_SOCKET, ToFronts, listening_in_memory
from tests.loop.temporal import InMemoryTemporal
from web.callers import Callers, Tokens
from web.front import Front
from web.server import listening
from web.settings import Address, FrontSettings
from web.temporal_connection import Doors


def _is_in_memory(client: Client) -> bool:
    return isinstance(client.service_client, InMemoryTemporal)


def doors_of(client: Client, key: SigningKey | None = None) -> Doors:
    """A front's doors to this Temporal, by its clock."""
    address = client.service_client.config.target_host
    target = TemporalTarget(options={"target_host": address, "namespace": NAMESPACE}, embedded=True)
    service = client.service_client
    now: Clock = service.now if isinstance(service, InMemoryTemporal) else utc_now

    async def connected() -> tuple[Client, TemporalTarget]:
        return client, target

    return Doors(connected, lambda: key, now)


def listening_at(
    client: Client,
    front: Front,
    settings: FrontSettings,
    temporal: Mapping[str, str] = {},
) -> AbstractAsyncContextManager[list[str]]:
    """Listen, as web.server.listening does."""
    return (listening_in_memory if _is_in_memory(client) else listening)(front, settings, temporal)


def http_to(client: Client, url: str = "", socket: Path | None = None, **more: Any) -> httpx.AsyncClient:
    """Somebody who sends requests there, and to the other fronts of the story."""
    transport: httpx.AsyncBaseTransport | None = None
    if _is_in_memory(client):
        transport = ToFronts(socket)
    elif socket is not None:
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
    return httpx.AsyncClient(transport=transport, base_url=url or AT_SOCKET, timeout=60, **more)


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
    """Run a front that signs with the key. Yields it, and its addresses."""
    front = Front(doors_of(client, key), Callers(tokens), **more)
    settings = FrontSettings(socket=socket, shared=shared, listen=listen)
    about = {"address": client.service_client.config.target_host, "namespace": NAMESPACE}
    async with listening_at(client, front, settings, about) as where:
        yield front, where


def through(socket: Path) -> Backstop:
    """Return the front's door for the user who runs this test."""
    return http_door(http_exchange.AtSocket(socket))


def through_url(url: str, bearer: Callable[[], str]) -> Backstop:
    """Return the front's door for the owner of this token."""
    return http_door(http_exchange.AtUrl(url), bearer)
