"""JSON webhooks: a POST with a notice's words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlencode

import httpx

from activities.adapters.http import Asked, exchange, header_text
from activities.adapters.notify.route_types import ContactUrl, Message, Route, UrlSettings, digits
from models.errors import Refusal, Unavailable


def plain_webhook_routes(url: ContactUrl) -> tuple[Route, ...]:
    """Parse https:// and webhook+http(s)://: the URL as the receiver gave it, its query included."""
    url = replace(url, host=url.host.lower(), path=url.path or "/")
    return (_webhook(url, url.scheme != "webhook+http", parse_qs(url.query, keep_blank_values=True), UrlSettings()),)


def json_webhook_routes(url: ContactUrl) -> tuple[Route, ...]:
    """Parse json:// and jsons://, with a query (`-`) and more of the payload (`:`) behind the `?`."""
    settings = url.settings("method", "user", "pass", "password")
    if settings.plain.get("method", "POST").upper() != "POST":
        raise Refusal(f"{url.shown} sets an HTTP method other than POST: remove it, because Backstop always sends POST")
    return (_webhook(replace(url, query=urlencode(settings.params)), url.scheme == "jsons", settings.params, settings),)


def _webhook(url: ContactUrl, secure: bool, params: Mapping[str, object], settings: UrlSettings) -> Route:
    if "@" in url.path:  # the part before it may be the rest of a password with a slash in it
        raise url.malformed_refusal("its host or port is not valid, or its path holds an @ (write %40)")
    scheme = "https" if secure else "http"
    port = f":{url.port}" if url.port else ""
    receiver = f"{scheme}://{url.host}{port}{url.path}" + (f"?{url.query}" if url.query else "")
    login = url.login(settings)

    def send(message: Message) -> None:
        headers = {"Idempotency-Key": header_text(message.notice.key)}
        content = _payload(message, settings.extras)
        answer = exchange(Asked("POST", httpx.URL(receiver), content, headers, login, settings.verify), url.reach)
        if not answer.is_success:
            raise Unavailable(f"answered HTTP {answer.status}")

    secret = digits(scheme, url.host, port, url.path, sorted(params.items()))
    return Route("webhook", f"{scheme}://{url.host}{port}/***{secret}", send)


def _payload(message: Message, extras: Mapping[str, str]) -> dict[str, Any]:
    """Return the message as JSON; `extras` rename our fields (an empty name leaves one out), and add others."""
    payload: dict[str, Any] = {
        "version": "1.0",
        "title": message.subject,
        "message": message.body,
        "attachments": [],
        "type": message.type,
    }
    for name, value in extras.items():
        if name not in payload:
            payload[name] = value
        else:
            content = payload.pop(name)
            if value:
                payload[value] = content
    # Contacts stay out: they may hold the secrets of other channels.
    return {**payload, "notice": message.notice.model_dump(mode="json", exclude={"contacts"})}
