"""Resolves a contact, as the fleet file gives it, to its addresses.

One contact may name several recipients: each becomes a route of its own, so that a retry reaches only those that were
missed. A channel is a file beside this one and a line in `_KINDS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from activities.adapters.http import EVERYWHERE, PUBLIC, Reach
from activities.adapters.notify.mail import email_route, mail_server, plain_email
from activities.adapters.notify.route_types import ContactUrl, Route
from activities.adapters.notify.slack import is_slack, native_slack_routes, slack_routes
from activities.adapters.notify.webhook import json_webhook_routes, plain_webhook_routes
from models.errors import Refusal

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def routes(contact: str, server: str | None, reach: Reach = PUBLIC) -> tuple[Route, ...]:
    """Return the addresses that a contact stands for; `log` is not one of them.

    `server`: the URL of the mail server for plain e-mail addresses. `reach`: where contacts may lead. Errors: Refusal,
    without the contact's secrets, for a malformed or unknown contact.
    """
    text = contact.strip()
    if plain := plain_email(text):
        if server is None:
            raise Refusal(
                f"{plain}: an e-mail address needs a mail server, and this worker has none (BACKSTOP_MAIL_SERVER)"
            )
        return (email_route(plain, mail_server(ContactUrl.parse(server, "the mail server", EVERYWHERE))),)
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else ""
    if scheme not in _KINDS:
        raise Refusal(
            "the contact is not of a kind that Backstop supports (docs/notices.md lists the kinds); the contact "
            "is not shown here, because it may be a secret"
        )
    shown = f"this {scheme}:// contact"
    if not text.isprintable() or not text.isascii() or " " in text:
        raise Refusal(f"{shown} is malformed: it holds a space or a character that needs %-encoding")
    return _KINDS[scheme](ContactUrl.parse(text, shown, reach))


def check_mail_server(url: str) -> None:
    """Raise Refusal for a URL that no mail could be sent through."""
    shown = "the mail server's URL"
    if not url.lower().startswith(("mailto://", "mailtos://")):
        raise Refusal(f"{shown} must begin with mailto:// or mailtos://")
    mail_server(ContactUrl.parse(url, shown, EVERYWHERE))


def _mail_routes(url: ContactUrl) -> tuple[Route, ...]:
    server = mail_server(url)
    return tuple(email_route(address, server) for address in server.recipients)


def _web_routes(url: ContactUrl) -> tuple[Route, ...]:
    return native_slack_routes(url) if is_slack(url) else plain_webhook_routes(url)


def _plain_http(url: ContactUrl) -> tuple[Route, ...]:
    raise Refusal(f"{url.shown} would send without encryption: use https, or write webhook+http:// if you mean it")


_KINDS: Mapping[str, Callable[[ContactUrl], tuple[Route, ...]]] = {
    "mailto": _mail_routes,
    "mailtos": _mail_routes,
    "slack": slack_routes,
    "json": json_webhook_routes,
    "jsons": json_webhook_routes,
    "https": _web_routes,
    "webhook+http": _web_routes,
    "webhook+https": _web_routes,
    "http": _plain_http,
}
