"""One POST of JSON, without redirects (one that ends on a login page would count as delivered).

The HTTP client logs URLs, and Slack's and many webhooks' hold a token: its log records end here while we are in it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx

from activities.adapters.notify.reach import Reach
from models.errors import Unavailable
from models.notices import Notice, NoticeKind

_SECONDS = 20.0
"""For the whole delivery: name, connection, message and answer."""
_ANSWER_BYTES = 4096
"""Of an answer that are read; what it goes on to say is nobody's concern."""
_TYPES = {
    NoticeKind.AT_RISK: "warning",
    NoticeKind.HELD: "warning",
    NoticeKind.BREACH: "failure",
    NoticeKind.STUCK: "failure",
    NoticeKind.MONITORED: "success",
}
_posting: ContextVar[bool] = ContextVar("whether we are in the HTTP client", default=False)


@dataclass(frozen=True)
class Answered:
    """What the receiver said: its status, and how its text begins."""

    status: int
    text: str

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def type_of(notice: Notice) -> str:
    """How bad it is: info, success, warning or failure."""
    return _TYPES.get(notice.kind, "info")


def post(
    url: str,
    content: Mapping[str, Any],
    reach: Reach,
    headers: Mapping[str, str] | None = None,
    login: tuple[str, str] = ("", ""),
    verify: bool = True,
) -> Answered:
    """The answer, whatever it says. Errors: Unavailable, with the reason only; Refusal for a host that is barred."""
    ends = time.monotonic() + _SECONDS
    target = httpx.URL(url)
    proxy = _proxy_of(target)
    if proxy:
        reach.check_written(target.host)
        addresses: Sequence[str] = ()
    else:
        addresses = reach.addresses(target.host, target.port or (443 if target.scheme == "https" else 80), _SECONDS)
    token = _posting.set(True)
    try:
        return asyncio.run(_posted(target, addresses, proxy, content, headers or {}, login, verify, ends))
    except TimeoutError:
        reason = f"no answer within {_SECONDS:g} seconds"
    except httpx.TransportError:
        reason = "no connection or login"
    except Exception:
        reason = "not accepted"
    finally:
        _posting.reset(token)
    # Outside the handlers: the foreign error and its text, secrets and all, end here.
    raise Unavailable(reason)


async def _posted(
    target: httpx.URL,
    addresses: Sequence[str],
    proxy: str | None,
    content: Mapping[str, Any],
    headers: Mapping[str, str],
    login: tuple[str, str],
    verify: bool,
    ends: float,
) -> Answered:
    # The client's own limit begins anew with each byte that trickles in.
    async with asyncio.timeout(max(0.0, ends - time.monotonic())):
        auth = httpx.BasicAuth(*login) if login[0] else None
        # The environment's certificates are taken, its proxies were asked for already, and no netrc has a word here.
        safe = target.scheme == "https" or proxy is not None
        context = httpx.create_ssl_context(verify=verify) if safe else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client = httpx.AsyncClient(auth=auth, verify=context, timeout=_SECONDS, trust_env=False, proxy=proxy)
        sent = {"User-Agent": "Backstop", "Accept-Encoding": "identity", **headers, "Host": target.netloc.decode()}
        name = {"sni_hostname": target.host}  # by which its certificate is checked
        async with client:
            for last, url in _places(target, addresses):
                try:
                    async with client.stream("POST", url, json=content, headers=sent, extensions=name) as answer:
                        return Answered(answer.status_code, await _beginning(answer))
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    if last:
                        raise
    raise AssertionError("there is at least one place to connect to")


def _places(target: httpx.URL, addresses: Sequence[str]) -> list[tuple[bool, httpx.URL]]:
    """Where to connect to, one after the other, each with whether it is the last: the addresses that were looked at."""
    places = [target.copy_with(host=address) for address in addresses] or [target]
    return [(n == len(places), place) for n, place in enumerate(places, start=1)]


async def _beginning(answer: httpx.Response) -> str:
    said = b""
    async for piece in answer.aiter_raw(_ANSWER_BYTES):
        said += piece
        if len(said) >= _ANSWER_BYTES:
            break
    return said[:_ANSWER_BYTES].decode(errors="replace")


def _proxy_of(target: httpx.URL) -> str | None:
    """The worker's own, where it stands between: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, and NO_PROXY against them."""
    proxies = urllib.request.getproxies()
    found = proxies.get(target.scheme) or proxies.get("all")
    if not found or urllib.request.proxy_bypass(target.host):
        return None
    return found if "://" in found else f"http://{found}"


def _is_of_others(_: logging.LogRecord) -> bool:
    return not _posting.get()


for _name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy", "httpcore.socks"):
    logging.getLogger(_name).addFilter(_is_of_others)
