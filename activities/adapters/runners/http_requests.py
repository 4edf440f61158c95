"""Requests of the runners and checks over HTTP: to hosts that the worker lists, each with its own token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

import httpx

from activities.adapters.http import EVERYWHERE, Answered, Asked, Reach, exchange
from activities.adapters.runners.printed_text import one_line
from activities.adapters.runners.settings import Allowed
from models.bringup.placeholders import leads_aside
from models.errors import BadInput, Refusal, Unavailable
from models.texts import brief

MOST_ANSWER = 4_000_000
"""The most bytes of an answer."""


def url_of(text: str) -> httpx.URL:
    """Parse a URL. Errors: BadInput, also for a path with `..`: the client, or a proxy, would follow that."""
    try:
        url = httpx.URL(text)
        named = url.scheme in ("http", "https") and bool(url.host) and b"%" not in url.raw_host
    except (httpx.InvalidURL, ValueError, TypeError):
        named, url = False, httpx.URL()
    if not named:
        raise BadInput(f"{brief(one_line(text))} is not the URL of a host")
    if leads_aside(re.split("[?#]", text, maxsplit=1)[0]):
        raise BadInput(
            f"a URL of {place_of(url)} has `..` or `.` in its path, which leads to another place on the host: remove it"
        )
    return url


def place_of(url: httpx.URL) -> str:
    """Return the part of a URL that may be shown: its path and query may be secret."""
    return one_line(f"{url.scheme}://{url.netloc.decode(errors='replace')}")


class Web:
    """The hosts that a worker's settings list."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed

    def ask(self, asked: Asked) -> Answered:
        """Make the request. Errors: BadInput for a host that is not listed or leads inside; Unavailable."""
        host = self._allowed.host_of(asked.url)
        headers = {**bearer(self._allowed, host.token), **asked.headers}
        return ask_runner(replace(asked, headers=headers), self._allowed.settings.reach)


def bearer(allowed: Allowed, variable: str | None) -> dict[str, str]:
    """Return the header with the token. Errors: BadInput."""
    return {} if variable is None else {"Authorization": f"Bearer {allowed.token(variable)}"}


def ask_runner(asked: Asked, reach: Reach = EVERYWHERE) -> Answered:
    """Make the request. Errors: BadInput, Unavailable: each names the host."""
    try:
        return exchange(asked, reach)
    except Refusal as error:
        raise BadInput(f"{place_of(asked.url)} may not be called: {error.message}") from None
    except Unavailable as error:
        raise Unavailable(f"{place_of(asked.url)}: {error.message}") from None


def message_of(answer: Answered) -> str:
    """Return the reason that a refusal gives in `message`, `error` or `detail` of a JSON object; empty if none."""
    try:
        document = json.loads(answer.text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, Mapping):
        for name in ("message", "error", "detail"):
            if isinstance(document.get(name), str):
                return one_line(document[name])
    return ""


def refusal_text(answer: Answered, where: str) -> str:
    message = message_of(answer)
    return f"{where} answered HTTP {answer.status}{f': {message}' if message else ''}"
