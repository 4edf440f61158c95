"""One POST of JSON, without redirects (one that ends on a login page would count as delivered).

The HTTP client logs URLs, and Slack's and many webhooks' hold a token: its log records end here while we are in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import httpx

from models.errors import Unavailable
from models.notices import Notice, NoticeKind

_SECONDS = 20.0
"""For the whole delivery: connection, message and answer."""
_TYPES = {
    NoticeKind.AT_RISK: "warning",
    NoticeKind.HELD: "warning",
    NoticeKind.BREACH: "failure",
    NoticeKind.STUCK: "failure",
    NoticeKind.MONITORED: "success",
}
_posting: ContextVar[bool] = ContextVar("whether we are in the HTTP client", default=False)


def type_of(notice: Notice) -> str:
    """How bad it is: info, success, warning or failure."""
    return _TYPES.get(notice.kind, "info")


def post(
    url: str,
    content: Mapping[str, Any],
    headers: Mapping[str, str],
    login: tuple[str, str] = ("", ""),
    verify: bool = True,
) -> httpx.Response:
    """The answer, whatever it says. Errors: Unavailable, with the reason only."""
    token = _posting.set(True)
    try:
        return asyncio.run(_posted(url, content, headers, login, verify))
    except TimeoutError:
        reason = f"no answer within {_SECONDS:.0f} seconds"
    except httpx.TransportError:
        reason = "no connection or login"
    except Exception:
        reason = "not accepted"
    finally:
        _posting.reset(token)
    # Outside the handlers: the foreign error and its text, secrets and all, end here.
    raise Unavailable(reason)


async def _posted(
    url: str, content: Mapping[str, Any], headers: Mapping[str, str], login: tuple[str, str], verify: bool
) -> httpx.Response:
    # The client's own limit begins anew with each byte that trickles in.
    auth = httpx.BasicAuth(*login) if login[0] else None
    async with asyncio.timeout(_SECONDS), httpx.AsyncClient(auth=auth, verify=verify, timeout=_SECONDS) as client:
        return await client.post(url, json=content, headers={"User-Agent": "Backstop", **headers})


def _is_of_others(_: logging.LogRecord) -> bool:
    return not _posting.get()


for _name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy", "httpcore.socks"):
    logging.getLogger(_name).addFilter(_is_of_others)
