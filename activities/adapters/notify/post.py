"""One exchange over HTTP, without redirects (a POST that ends on a login page would count as delivered).

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
from dataclasses import dataclass, field
from typing import Any

import httpx

from activities.adapters.notify.reach import Reach
from models.errors import Unavailable
from models.notices import Notice, NoticeKind

_SECONDS = 20.0
"""For the whole exchange: name, connection, message and answer."""
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
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""
    whole: bool = True
    """Nothing of the text was left unread."""

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
    """JSON has been delivered. The answer, whatever it says. Errors: as `exchange`."""
    return exchange(Asked("POST", httpx.URL(url), content, headers or {}, login, verify, _SECONDS), reach)


@dataclass(frozen=True)
class Asked:
    """A request. `content`: JSON; None: there is none. `most`: bytes of the answer that are read."""

    method: str
    url: httpx.URL
    content: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    login: tuple[str, str] = field(default=("", ""), repr=False)
    verify: bool = True
    seconds: float = _SECONDS
    most: int = _ANSWER_BYTES


def exchange(asked: Asked, reach: Reach) -> Answered:
    """The answer, whatever it says. Errors: Unavailable, with the reason only; Refusal for a host that is barred."""
    ends = time.monotonic() + asked.seconds
    target = asked.url
    proxy = _proxy_of(target)
    if proxy:
        reach.check_written(target.host)
        addresses: Sequence[str] = ()
    else:
        port = target.port or (443 if target.scheme == "https" else 80)
        addresses = reach.addresses(target.host, port, asked.seconds)
    token = _posting.set(True)
    try:
        return asyncio.run(_exchanged(asked, addresses, proxy, ends))
    except TimeoutError:
        reason = f"no answer within {asked.seconds:g} seconds"
    except httpx.TransportError:
        reason = "no connection or login"
    except Exception:
        reason = "not accepted"
    finally:
        _posting.reset(token)
    # Outside the handlers: the foreign error and its text, secrets and all, end here.
    raise Unavailable(reason)


async def _exchanged(asked: Asked, addresses: Sequence[str], proxy: str | None, ends: float) -> Answered:
    target = asked.url
    # The client's own limit begins anew with each byte that trickles in.
    async with asyncio.timeout(max(0.0, ends - time.monotonic())):
        auth = httpx.BasicAuth(*asked.login) if asked.login[0] else None
        # The environment's certificates are taken, its proxies were asked for already, and no netrc has a word here.
        safe = target.scheme == "https" or proxy is not None
        context = httpx.create_ssl_context(verify=asked.verify) if safe else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client = httpx.AsyncClient(auth=auth, verify=context, timeout=asked.seconds, trust_env=False, proxy=proxy)
        sent = {"User-Agent": "Backstop", "Accept-Encoding": "identity", **asked.headers}
        sent["Host"] = target.netloc.decode()
        name = {"sni_hostname": target.host}  # by which its certificate is checked
        async with client:
            for last, url in _places(target, addresses):
                try:
                    async with client.stream(
                        asked.method, url, json=asked.content, headers=sent, extensions=name
                    ) as answer:
                        text, whole = await _beginning(answer, asked.most)
                        return Answered(answer.status_code, text, dict(answer.headers), whole)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    if last:
                        raise
    raise AssertionError("there is at least one place to connect to")


def _places(target: httpx.URL, addresses: Sequence[str]) -> list[tuple[bool, httpx.URL]]:
    """Where to connect to, one after the other, each with whether it is the last: the addresses that were looked at."""
    places = [target.copy_with(host=address) for address in addresses] or [target]
    return [(n == len(places), place) for n, place in enumerate(places, start=1)]


async def _beginning(answer: httpx.Response, most: int) -> tuple[str, bool]:
    body = bytearray()
    async for piece in answer.aiter_raw(_ANSWER_BYTES):
        body += piece
        if len(body) >= most:
            break
    return body[:most].decode(errors="replace"), len(body) < most


def _proxy_of(target: httpx.URL) -> str | None:
    """The worker's own, where it stands between: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, and NO_PROXY against them."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(target.host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_of_others(_: logging.LogRecord) -> bool:
    return not _posting.get()


for _name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy", "httpcore.socks"):
    logging.getLogger(_name).addFilter(_is_of_others)
