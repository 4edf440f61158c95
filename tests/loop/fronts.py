"""Fronts of stories on a turned clock: no byte goes through a socket, where the clock could not wait for it.

A front is found by the address or the path at which it would listen. Browsers, people's doors and the command line
speak to it as they do over HTTP, as far as ASGI and `client.http_exchange.FrontPlace` go.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from client.http_exchange import AtSocket, AtUrl, Reply
from models.errors import Unavailable
from web.front import Front
from web.peer import PEER, own_user
from web.settings import FrontSettings

_FRONTS: dict[str, tuple[Front, asyncio.AbstractEventLoop]] = {}
"""By address or path."""
_ports = itertools.count(1)
AT_SOCKET = "http://front"


@asynccontextmanager
async def listening_in_memory(
    front: Front, settings: FrontSettings, temporal: Mapping[str, str]
) -> AsyncIterator[list[str]]:
    """Listen as web.server.listening does. Errors: Unavailable if another front has the path."""
    where = [] if settings.socket is None else [str(settings.socket)]
    if where and where[0] in _FRONTS:
        raise Unavailable(f"another front already listens at {where[0]}")
    front.with_console, front.public_url = settings.listen is not None, settings.public_url
    if settings.listen is not None:
        where.append(f"http://127.0.0.1:{next(_ports)}")
        front.console_at = settings.public_url or where[-1]
    _FRONTS.update(dict.fromkeys(where, (front, asyncio.get_running_loop())))
    try:
        yield where
    finally:
        front.stopping.set()
        for address in where:
            del _FRONTS[address]
        if front.slack_desk is not None:
            await front.slack_desk.finish()


class ToFronts(httpx.AsyncBaseTransport):
    """Requests go to the front with that address, or (`socket`) to the one at that path, as this process's user."""

    def __init__(self, socket: Path | None = None) -> None:
        self._socket = socket

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        address = f"{url.scheme}://{url.host}:{url.port}" if self._socket is None else str(self._socket)
        front, _ = _FRONTS[address]
        peer = None if self._socket is None else own_user()

        async def identified(scope: Any, receive: Any, send: Any) -> None:
            await front({**scope, "state": {PEER: peer}}, receive, send)

        return await httpx.ASGITransport(identified, raise_app_exceptions=True).handle_async_request(request)


async def _exchange(
    transport: ToFronts, verb: str, url: str, headers: Mapping[str, str], body: bytes, seconds: float
) -> Reply:
    async with httpx.AsyncClient(transport=transport, timeout=None) as http:
        try:
            async with asyncio.timeout(seconds):
                answer = await http.request(verb, url, headers=dict(headers), content=body)
        except TimeoutError:
            raise Unavailable(f"the front has not answered within {seconds:.0f} s") from None
    return Reply(answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, answer.content)


class InMemoryUrl(AtUrl):
    """client.http_exchange.AtUrl, for any thread but the front's own; one that no front in memory has is as ever."""

    def exchange(self, verb: str, target: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Reply:
        if self.url not in _FRONTS:
            return super().exchange(verb, target, headers, body, seconds)
        asked = _exchange(ToFronts(), verb, self.url + target, headers, body, seconds)
        return asyncio.run_coroutine_threadsafe(asked, _FRONTS[self.url][1]).result()


class InMemorySocket(AtSocket):
    """client.http_exchange.AtSocket, likewise."""

    def answers(self) -> bool:
        return str(self.path) in _FRONTS or super().answers()

    def exchange(self, verb: str, target: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Reply:
        if str(self.path) not in _FRONTS:
            return super().exchange(verb, target, headers, body, seconds)
        asked = _exchange(ToFronts(self.path), verb, AT_SOCKET + target, headers, body, seconds)
        return asyncio.run_coroutine_threadsafe(asked, _FRONTS[str(self.path)][1]).result()
