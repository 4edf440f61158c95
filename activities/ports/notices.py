"""The ports of notices: the outbox where they wait, and the channels that bring them to people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from models.notice_digests import Fate, Lane, Letter, MailPace, Untold
from models.notices import Delivery, Notice, Notify


class OutboxPort(Protocol):
    """Keeps notices until they are sent, together where that is better (models/notice_digests.py)."""

    def wishes(self, audiences: Sequence[str]) -> dict[str, tuple[tuple[str, ...], Notify | None]]:
        """Return contacts, and the audience's own choice of how to be notified, if any, for known audiences."""

    def post(self, audience: str, posts: Sequence[tuple[Notice, Lane]]) -> None:
        """Keep the notices until they are sent, each once per key."""

    def take(self, audience: str, pace: MailPace, keys: Sequence[str] = ()) -> tuple[Letter, ...]:
        """Form messages from the due notices; return those to be sent now. `keys`: only those with these."""

    def audiences_due(self, pace: MailPace) -> tuple[str, ...]:
        """Return the audiences with a message to be sent, or tried again, now."""

    def mark_sent(self, key: str, deliveries: Sequence[Delivery]) -> None:
        """Record that the message has reached all its addresses. Idempotent."""

    def mark_refused(self, key: str, why: str) -> None:
        """Give the message up, as contacts cannot be used."""

    def mark_failed(self, key: str, why: str) -> None:
        """Have the message tried again, the later the longer it has been tried."""

    def fates(self, audience: str, keys: Sequence[str], pace: MailPace) -> dict[str, Fate]:
        """Return the fate of posted notices, by key."""

    def waits(self, pace: MailPace) -> tuple[Untold, ...]:
        """Return the notices that are not sent yet, by audience."""


class NotifyPort(Protocol):
    def deliver(self, notice: Notice, subject: str, body: str) -> tuple[Delivery, ...]:
        """Deliver the notice to the log and each of its contacts, once per key."""

    def write_log(self, notices: Sequence[tuple[Notice, str, str]]) -> tuple[Delivery, ...]:
        """Write notices, each with its subject and body, into the log alone, once per key; return their deliveries.

        Nobody writes more than a few at a time. Errors: Unavailable.
        """
