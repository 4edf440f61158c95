"""The ports of notices: where they wait, and what brings them to people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from models.notice_digests import Fate, Lane, Letter, MailPace, Untold
from models.notices import Delivery, Notice, Notify


class OutboxPort(Protocol):
    """Where notices wait until they are sent, and go together where that is better (models/notice_digests.py)."""

    def wishes(self, audiences: Sequence[str]) -> dict[str, tuple[tuple[str, ...], Notify | None]]:
        """Contacts, and how it wants to be told where it says so, of those audiences that are known."""
        ...

    def post(self, audience: str, posts: Sequence[tuple[Notice, Lane]]) -> None:
        """They wait, each once per key."""
        ...

    def take(self, audience: str, pace: MailPace, keys: Sequence[str] = ()) -> tuple[Letter, ...]:
        """What is due is formed into messages; those to be sent now. `keys`: only those with these, whenever tried."""
        ...

    def audiences_due(self, pace: MailPace) -> tuple[str, ...]:
        """Those with something to be sent, or tried again, now."""
        ...

    def mark_sent(self, key: str, deliveries: Sequence[Delivery]) -> None:
        """The message has reached all its addresses. Idempotent."""
        ...

    def mark_refused(self, key: str, why: str) -> None:
        """The message is given up, as contacts cannot be used."""
        ...

    def mark_failed(self, key: str, why: str) -> None:
        """The message is tried again, the later the longer it has been tried."""
        ...

    def fates(self, audience: str, keys: Sequence[str], pace: MailPace) -> dict[str, Fate]:
        """What became of posted notices, by key."""
        ...

    def waits(self, pace: MailPace) -> tuple[Untold, ...]:
        """What is not sent, by audience."""
        ...


class NotifyPort(Protocol):
    def deliver(self, notice: Notice, subject: str, body: str) -> tuple[Delivery, ...]:
        """The notice has reached the log and each of its contacts, once per key."""
        ...
