"""Contact URLs in their parts, and the routes that they become, each to one address of one channel."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import unquote, urlsplit

from activities.adapters.http import PUBLIC, Reach
from activities.notices.buttons import ButtonRow
from models.errors import Refusal
from models.notices import Notice, NoticeKind

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d*)?")
_NO = ("no", "n", "false", "f", "off", "0")
_IDLE = frozenset({"", *("redirect", "retry", "wait", "optional", "format", "overflow", "emojis", "tz", "cto", "rto")})
"""Settings that change nothing here; a contact written for another program may have them."""
_TYPES = {
    NoticeKind.AT_RISK: "warning",
    NoticeKind.HELD: "warning",
    NoticeKind.BREACH: "failure",
    NoticeKind.STUCK: "failure",
    NoticeKind.MONITORED: "success",
}


@dataclass(frozen=True)
class Message:
    """A notice in words."""

    notice: Notice
    subject: str
    body: str
    at: datetime
    rows: tuple[ButtonRow, ...] = ()
    """Buttons to answer the notice with; empty: none would work."""

    @property
    def type(self) -> str:
        """The message's severity: info, success, warning or failure."""
        return _TYPES.get(self.notice.kind, "info")


@dataclass(frozen=True)
class Route:
    """An address of one channel.

    `address` may be shown and kept: it holds no token and no password. If the real one is secret, eight digits of its
    SHA-256 tell it from others. `send` returns when the other side has accepted the message; it raises Unavailable,
    with the reason only.
    """

    channel: str
    address: str
    send: Callable[[Message], None] = field(repr=False, compare=False)


@dataclass(frozen=True)
class UrlSettings:
    """The settings after a contact's `?`: plain ones, and those marked by `+` (headers), `-` and `:`."""

    plain: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    extras: Mapping[str, str] = field(default_factory=dict)

    @property
    def verify(self) -> bool:
        """True if the receiver's certificate is checked."""
        return self.plain.get("verify", "").lower() not in _NO


@dataclass(frozen=True)
class ContactUrl:
    """A contact that is a URL. Only `shown` may be shown, and no other part."""

    shown: str
    scheme: str
    user: str = field(repr=False)
    password: str = field(repr=False)
    host: str = field(repr=False)
    """The host as given; an IPv6 address has its brackets."""
    port: int | None
    path: str = field(repr=False)
    query: str = field(repr=False)
    reach: Reach = PUBLIC
    """The addresses that the URL may lead to; everywhere for the operator's own contact."""

    @classmethod
    def parse(cls, text: str, shown: str, reach: Reach = PUBLIC) -> ContactUrl:
        """Parse the URL. Errors: Refusal."""
        try:
            parts = urlsplit(text)
            port, authority = parts.port, _AUTHORITY.fullmatch(parts.netloc.rpartition("@")[2])
        except ValueError:
            raise Refusal(f"{shown} is malformed: it has no valid host and port") from None
        if authority is None or port == 0:
            raise Refusal(f"{shown} is malformed: it has no valid host and port")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(shown, parts.scheme, user, password, authority[1], port, parts.path, parts.query, reach)

    def segments(self) -> list[str]:
        """Return the parts of its path, decoded."""
        return [unquote(segment) for segment in self.path.split("/") if segment]

    def settings(self, *names: str) -> UrlSettings:
        """Return its query, decoded. Errors: Refusal for a setting that is none of `names`: it may matter."""
        marked: dict[str, dict[str, str]] = {mark: {} for mark in ("", *"+-:")}
        for pair in self.query.split("&"):
            name, value = (unquote(text).strip() for text in pair.partition("=")[::2])
            if name[:1] in marked and name:
                marked[name[0]][name[1:]] = value
            else:
                marked[""][name.lower()] = value
        if not marked[""].keys() <= {"verify", *names, *_IDLE}:
            raise Refusal(
                f"{self.shown} has a setting that Backstop does not support (docs/notices.md lists the supported ones)"
            )
        if marked["+"] and not self.reach.everywhere:
            raise Refusal(
                f"{self.shown} sets a header: remove it, because Backstop sets the headers of a message itself"
            )
        if not all(text.isascii() and text.isprintable() for item in marked["+"].items() for text in item):
            raise self.malformed_refusal("a header holds a character that no header may hold")
        return UrlSettings(*marked.values())

    def login(self, settings: UrlSettings) -> tuple[str, str]:
        """Return user and password; empty if there are none. Settings take precedence over the part before the host."""
        plain = settings.plain
        return plain.get("user", self.user), plain.get("pass", plain.get("password", self.password))

    def malformed_refusal(self, why: str = "") -> Refusal:
        return Refusal(f"{self.shown} is malformed" + (f": {why}" if why else " (docs/notices.md shows the spellings)"))


def digits(*parts: object) -> str:
    """Hash the parts, to tell secret addresses apart.

    The delivery book has the hash: if it changes, all is sent again.
    """
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
