"""From a contact, as the fleet file gives it, to the addresses that it stands for.

apprise carries e-mail, Slack and webhooks. Three of its habits are kept in check here: it logs tokens
(its log records, and those of the HTTP client below it, end here while we are in it), it follows
redirects (a POST that ends on a login page would count as delivered), and one URL may name several
recipients (each becomes a route of its own, so that a retry reaches only those that were missed).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from apprise import Apprise, AppriseAsset, NotifyFormat, NotifyType
from apprise.plugins import url_to_dict

from models.errors import Refusal, Unavailable
from models.notices import Notice, NoticeKind

# Narrower than what mail allows: an address that looks like a piece of a URL might hold a secret.
_EMAIL = re.compile(r"[A-Za-z0-9._'+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SLACK_HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")
_TYPES = {
    NoticeKind.AT_RISK: NotifyType.WARNING,
    NoticeKind.HELD: NotifyType.WARNING,
    NoticeKind.BREACH: NotifyType.FAILURE,
    NoticeKind.STUCK: NotifyType.FAILURE,
    NoticeKind.MONITORED: NotifyType.SUCCESS,
}
_Settings = dict[str, Any]
"""An apprise service taken apart: what its constructor is given."""


@dataclass(frozen=True)
class Message:
    """A notice in words."""

    notice: Notice
    subject: str
    body: str


@dataclass(frozen=True)
class Route:
    """One address of one channel.

    `address` may be shown and kept: it holds no token and no password. Where the real one is secret, eight
    digits of its SHA-256 tell it from others. `send`: the other side has accepted the message. Errors of
    `send`: Unavailable, with the reason only.
    """

    channel: str
    address: str
    send: Callable[[Message], None] = field(repr=False, compare=False)


def routes(contact: str, mail_server: str | None) -> tuple[Route, ...]:
    """The addresses that a contact stands for; `log` is not one of them.

    `mail_server`: the apprise URL that plain e-mail addresses are sent through.
    Errors: Refusal, without the contact's secrets, for what is malformed or of an unknown kind.
    """
    text = contact.strip()
    if plain := _plain_email(text):
        if mail_server is None:
            raise Refusal(f"{plain}: an e-mail address needs a mail server, and none is configured")
        return (_email(plain, _parsed(mail_server, "the mail server")),)
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else ""
    if scheme not in _KINDS:
        raise Refusal("*** is no kind of address known here (docs/notices.md lists them)")
    shown = f"{scheme}://***"
    if not text.isprintable() or not text.isascii() or " " in text:
        raise Refusal(f"{shown} is malformed: it holds a space or a character that needs %-encoding")
    return _KINDS[scheme](text, shown)


def check_mail_server(url: str) -> None:
    """Errors: Refusal for a URL that no mail could be sent through."""
    shown = "the mail server's URL"
    if not url.lower().startswith(("mailto://", "mailtos://")):
        raise Refusal(f"{shown} must begin with mailto:// or mailtos://")
    _mail_service(_parsed(url, shown), shown)


# --- kinds of contacts ------------------------------------------------------------------------


def _plain_email(text: str) -> str | None:
    """someone@team.example, also as mailto:... or mailto://... with nothing else."""
    bare = re.sub(r"^mailto:(//)?", "", text, flags=re.IGNORECASE)
    if not _EMAIL.fullmatch(bare):
        return None
    local, _, domain = bare.rpartition("@")
    return f"{local}@{domain.lower()}"


def _mail_routes(url: str, shown: str) -> tuple[Route, ...]:
    settings = _parsed(url, shown)
    service = _mail_service(settings, shown)
    found = [_plain_email(address) for _, address in service.targets]
    if not found or None in found:
        raise Refusal(f"{shown} is malformed: it names no recipient, or one that is no e-mail address")
    return tuple(_email(address, settings) for address in found if address is not None)


def _mail_service(settings: _Settings, shown: str) -> Any:
    service = _checked(settings, shown)
    if service.cc or service.bcc:
        raise Refusal(f"{shown} names cc or bcc: give each recipient as a contact, so that each is told once")
    return service


def _email(address: str, settings: _Settings) -> Route:
    def settings_for(message: Message) -> _Settings:
        # apprise sets a Message-ID of its own and sends a given one beside it: two are worse than none.
        headers = {"X-Backstop-Key": _header(message.notice.key), "Auto-Submitted": "auto-generated"}
        return {**settings, "targets": [address], "headers": {**settings["headers"], **headers}}

    return Route("email", address, _sender(settings_for))


def _slack_routes(url: str, shown: str) -> tuple[Route, ...]:
    settings = _parsed(url, shown)
    if settings.get("template"):
        raise Refusal(f"{shown} names a template: the words of a notice come from Backstop")
    service = _checked(settings, shown)
    names = ("token_a", "token_b", "token_c", "access_token", "workflow_path", "mode")
    digits = _digits(*(getattr(service, name) for name in names))

    def route(channel: str | None) -> Route:
        def settings_for(_: Message) -> _Settings:
            targets = [] if channel is None else [channel]
            return {**settings, "targets": targets, "include_image": False, "include_footer": False}

        suffix = "" if channel is None else f"/{channel}"
        return Route("slack", f"slack://***{digits}{suffix}", _sender(settings_for))

    return tuple(route(channel) for channel in service.channels)


def _apprise_webhook_routes(url: str, shown: str) -> tuple[Route, ...]:
    return (_webhook(_parsed(url, shown), shown),)


def _plain_webhook_routes(url: str, shown: str) -> tuple[Route, ...]:
    """https:// and webhook+http(s)://: the URL as the receiver gave it, its query included."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Refusal(f"{shown} is malformed: it has no valid host and port") from None
    if parts.hostname in _SLACK_HOSTS:
        return _slack_routes(url, shown)
    query: dict[str, list[str]] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        query.setdefault(name, []).append(value)
    host = parts.hostname or ""
    settings = {
        "schema": "json" if parts.scheme == "webhook+http" else "jsons",
        "host": f"[{host}]" if ":" in host else host,
        "port": port,
        "user": parts.username and unquote(parts.username),
        "password": parts.password and unquote(parts.password),
        "fullpath": parts.path or "/",
        "params": query,
        "headers": {},
        "payload": {},
    }
    return (_webhook(settings, shown),)


def _webhook(settings: _Settings, shown: str) -> Route:
    service = _checked(settings, shown)
    if not service.host or "@" in service.fullpath or not 0 < (service.port or 1) < 65536:
        raise Refusal(f"{shown} is malformed: it has no valid host and port, or an @ in its path (write %40)")
    scheme = "https" if service.secure else "http"
    port = f":{service.port}" if service.port else ""
    digits = _digits(scheme, service.host, port, service.fullpath, sorted(service.params.items()))

    def settings_for(message: Message) -> _Settings:
        # Contacts stay out: they may hold the secrets of other channels.
        payload = {"notice": message.notice.model_dump(mode="json", exclude={"contacts"})}
        headers = {"Idempotency-Key": _header(message.notice.key)}
        return {
            **settings,
            "payload": {**settings["payload"], **payload},
            "headers": {**settings["headers"], **headers},
        }

    return Route("webhook", f"{scheme}://{service.host}{port}/***{digits}", _sender(settings_for))


def _plain_http(_: str, shown: str) -> tuple[Route, ...]:
    raise Refusal(f"{shown} would send over an open line: if that is meant, write webhook+http://")


_KINDS: Mapping[str, Callable[[str, str], tuple[Route, ...]]] = {
    "mailto": _mail_routes,
    "mailtos": _mail_routes,
    "slack": _slack_routes,
    "json": _apprise_webhook_routes,
    "jsons": _apprise_webhook_routes,
    "https": _plain_webhook_routes,
    "webhook+http": _plain_webhook_routes,
    "webhook+https": _plain_webhook_routes,
    "http": _plain_http,
}


def _header(key: str) -> str:
    """The key as a header's value: what is not plain ASCII is %-encoded."""
    return quote(key, safe="!#$&'()*+,/:;=?@[]~")


def _digits(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


# --- apprise, kept quiet ----------------------------------------------------------------------


_said: ContextVar[list[str] | None] = ContextVar("what apprise said while we are in it", default=None)


def _keep_quiet(record: logging.LogRecord) -> bool:
    """Let no record out while we are in apprise: it may hold a token. Warnings are kept for `_reason`."""
    said = _said.get()
    if said is None:
        return True
    if record.levelno >= logging.WARNING:
        said.append(record.getMessage())
    return False


for _name in ("apprise", "urllib3.connectionpool", "urllib3.util.retry"):
    logging.getLogger(_name).addFilter(_keep_quiet)


@contextmanager
def _listening() -> Iterator[list[str]]:
    said: list[str] = []
    token = _said.set(said)
    try:
        yield said
    finally:
        _said.reset(token)


def _asset() -> AppriseAsset:
    # No deadline of apprise's own: it would give up while its thread still sends. Sockets have theirs.
    return AppriseAsset(app_id="Backstop", app_desc="Backstop", app_url="", http_redirects=False, service_timeout=0)


def _parsed(url: str, shown: str) -> _Settings:
    with _listening():
        try:
            urlsplit(url).port  # noqa: B018 - refuses a port that is none
            settings: _Settings | None = url_to_dict(url)  # type: ignore[no-untyped-call]
        except Exception:
            settings = None
    if not settings:
        raise Refusal(f"{shown} is malformed (docs/notices.md shows the spellings)")
    return {"headers": {}, "payload": {}, **settings, "retry": 0, "optional": False, "redirect": False}


def _checked(settings: _Settings, shown: str) -> Any:
    """The service, to look at; what apprise would drop with a mere warning is refused."""
    with _listening() as said:
        try:
            service = Apprise.instantiate(dict(settings), asset=_asset(), suppress_exceptions=False)
        except Exception:
            service = None
    if service is None or said:
        raise Refusal(f"{shown} is malformed (docs/notices.md shows the spellings)")
    return service


def _sender(settings_for: Callable[[Message], _Settings]) -> Callable[[Message], None]:
    def send(message: Message) -> None:
        with _listening() as said:
            try:
                service = Apprise.instantiate(settings_for(message), asset=_asset(), suppress_exceptions=False)
                sent = service is not None and service.notify(
                    title=message.subject,
                    body=message.body,
                    body_format=NotifyFormat.TEXT,
                    notify_type=_TYPES.get(message.notice.kind, NotifyType.INFO),
                )
            except Exception as e:
                said.append(type(e).__name__)
                sent = False
        # Outside the handler: the foreign error and its text, secrets and all, end here.
        if not sent:
            raise Unavailable(_reason(said))

    return send


def _reason(said: Sequence[str]) -> str:
    """Why it failed, in our words: apprise's may hold a token."""
    text = " ".join(said)
    if code := re.search(r"error=(\d{3})\b", text):
        return f"answered HTTP {code[1]}"
    if "onnection error" in text:
        return "no connection or login"
    if "Sending email" in text:
        return "the mail server refused the message"
    return "not accepted"
