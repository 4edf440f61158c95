"""Sends a notice to an audience, once per notice and address.

Theory of operation. A notice's contacts become routes (channels.py), the log first and always. Each route is taken in
its turn (delivery_book.py): a pair of key and address that is in the book is done; otherwise the message is sent, then
remembered. A retry after a partial failure, a second worker or a restart therefore sends only what was not sent.

Limits: a worker that dies between the channel's answer and the book's sync leaves a delivery that nobody remembers,
and so does an answer that is lost on its way back. The retry then sends it again. Receivers can recognise it: a webhook
gets the notice's key as `Idempotency-Key` and in its payload, an e-mail as `X-Backstop-Key`, a line of the log as
`key`. Slack takes no such mark.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from activities.adapters.http import PUBLIC, Reach
from activities.adapters.notify.contact_routes import check_mail_server, routes
from activities.adapters.notify.delivery_book import DeliveryBook, FileTurns, SqliteBook, Turns
from activities.adapters.notify.mail import plain_email
from activities.adapters.notify.route_types import Message, Route
from activities.adapters.notify.slow_addresses import SlowAddresses
from activities.clock import Clock
from activities.notices.buttons import rows_of
from activities.secret_files import SecretFiles
from models.cluster.contact_secrets import LOG, NAMED, is_log
from models.errors import Refusal, Unavailable
from models.notices import Delivery, Notice
from models.texts import brief

logger = logging.getLogger(__name__)
_NOTICE_SECONDS = 60.0
"""Seconds after which no further address of a notice is tried; its retry goes on with those that are not slow."""


class LogFile:
    """The `log` channel: a file with one JSON line per notice, synced before it counts as delivered."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, message: Message) -> None:
        """Write the line to disk, whole, even if others write too. Errors: Unavailable."""
        self.write([message])

    def write(self, messages: Sequence[Message]) -> None:
        """Write a line for each, as `send`, with one sync for all."""
        lines = b"".join(_line_of(message) for message in messages)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab+", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if self._ends_torn(file.fileno()):
                    lines = b"\n" + lines  # a crash left half a line: keep ours apart from it
                while lines:
                    lines = lines[file.write(lines) :]
                os.fsync(file.fileno())
        except OSError as error:
            raise Unavailable(f"cannot be written: {error.strerror}") from error

    @staticmethod
    def _ends_torn(file: int) -> bool:
        size = os.fstat(file).st_size
        return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _line_of(message: Message) -> bytes:
    entry = {
        "at": message.at.isoformat(),
        "key": message.notice.key,
        "subject": message.subject,
        "body": message.body,
        "notice": message.notice.model_dump(mode="json", exclude={"contacts"}),
    }
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"


class Notifier:
    """NotifyPort: the log file, e-mail, Slack and webhooks.

    `mail_server`: a URL (mailto://, mailtos://) for plain e-mail addresses; its own recipients are not used. The book
    and the turns default to files beside the log, for workers of one machine; workers of several machines need a book
    and turns that they share. `reach`: where contacts may lead; the mail server is the operator's, and may be anywhere.
    `named`: the contacts behind `named:NAME`, by name. `secrets`: the files behind `secret:NAME`, in a contact, in one
    of `named` and as the mail server. `buttons`: a front takes the buttons that are pressed in Slack.
    """

    def __init__(
        self,
        log_file: Path,
        now: Clock,
        mail_server: str | None = None,
        book: DeliveryBook | None = None,
        turns: Turns | None = None,
        reach: Reach = PUBLIC,
        named: Mapping[str, str] = MappingProxyType({}),
        secrets: SecretFiles | None = None,
        buttons: bool = False,
    ) -> None:
        """Errors: Refusal for a malformed `mail_server`, Unavailable for one with an unreadable secret."""
        self._secrets = secrets or SecretFiles()
        if mail_server is not None:
            check_mail_server(self._secrets.resolve(mail_server))
        self._buttons = buttons
        self._now = now
        self._reach = reach
        self._named = named
        self._slow = SlowAddresses()
        self._mail_server = mail_server
        self._book = book or SqliteBook(log_file.with_name(log_file.name + ".book"))
        self._turns = turns or FileTurns(log_file.with_name(log_file.name + ".turns"))
        self._log_file = LogFile(log_file)
        self._log = Route(LOG, LOG, self._log_file.send)

    def deliver(self, notice: Notice, subject: str, body: str) -> tuple[Delivery, ...]:
        """Deliver the notice to the log and each of its contacts, once per key and address.

        Every address is tried before an error is raised. Errors: Unavailable names those that failed, and calling again
        sends only these; Refusal, when nothing else failed, those that are malformed.
        """
        message = Message(notice, subject, body, self._now(), rows_of(notice) if self._buttons else ())
        taken, refused, failed = self._routes(notice)
        deliveries: list[Delivery] = []
        ends = time.monotonic() + _NOTICE_SECONDS
        for route in taken:
            try:
                if time.monotonic() >= ends:
                    raise Unavailable("no time was left for it in this round")
                deliveries.append(self._deliver_once(route, message))
            except Unavailable as error:
                logger.warning("notice %s did not reach %s %s: %s", notice.key, route.channel, route.address, error)
                failed.append(f"{route.channel} {route.address} ({error.message})")
            except Refusal as error:
                refused.append(f"{route.channel} {route.address}: {error.message}")
        if failed:
            raise Unavailable(_sentence(notice, "was not delivered to", [*failed, *refused]))
        if refused:
            raise Refusal(_sentence(notice, "has contacts that cannot be used", refused))
        return tuple(deliveries)

    def write_log(self, notices: Sequence[tuple[Notice, str, str]]) -> tuple[Delivery, ...]:
        """Write the notices into the log, each once per key, in their order, with one sync for all."""
        keys = [notice.key for notice, _, _ in notices]
        with ExitStack() as turns:
            for turn in sorted({_turn_of(notice, LOG) for notice, _, _ in notices}):  # taken in one order by everybody
                turns.enter_context(self._turns.take_turn(turn, LOG))
            before, at = self._book.read_sent_times(keys, LOG), self._now()
            fresh = {n.key: Message(n, subject, body, at) for n, subject, body in notices if n.key not in before}
            if fresh:
                try:
                    with self._slow.try_address(LOG):
                        self._log_file.write(list(fresh.values()))
                except Unavailable as error:
                    raise Unavailable(f"the log of notices {error.message}") from error
                at = self._now()
                self._book.remember(list(fresh), LOG, at)
        logger.info("written into the log: %s", ", ".join(fresh))
        return tuple(
            Delivery(key=key, channel=LOG, address=LOG, at=before.get(key, at), repeated=key in before) for key in keys
        )

    def _routes(self, notice: Notice) -> tuple[list[Route], list[str], list[str]]:
        """Return each address once, the log first; faults of invalid contacts; and of contacts to try again."""
        taken = {self._log.address: self._log}
        refused: list[str] = []
        failed: list[str] = []
        for number, contact in enumerate(notice.contacts, start=1):
            if is_log(contact):
                continue
            try:
                for route in self._routes_of(self._contact_behind(contact)):
                    taken.setdefault(route.address, route)
            except Refusal as error:
                refused.append(f"contact {number} of {notice.audience}: {error.message}")
            except Unavailable as error:  # a secret that is not there: perhaps it will be
                failed.append(f"contact {number} of {notice.audience} ({error.message})")
        return list(taken.values()), refused, failed

    def _contact_behind(self, contact: str) -> str:
        """Return the contact behind a name; any other contact itself. Errors: Refusal, Unavailable."""
        if not contact.strip().lower().startswith(NAMED):
            return self._secrets.resolve(contact)
        name = contact.strip()[len(NAMED) :]
        if name not in self._named:
            raise Refusal(f"{brief(contact.strip())} is not in the worker's file of contacts (BACKSTOP_CONTACTS)")
        return self._secrets.resolve(self._named[name])

    def _routes_of(self, contact: str) -> tuple[Route, ...]:
        """Return the contact's routes. Errors: Refusal, Unavailable."""
        server = self._mail_server
        if server is not None and plain_email(contact.strip()):
            server = self._secrets.resolve(server)
        return routes(contact, server, self._reach)

    def _deliver_once(self, route: Route, message: Message) -> Delivery:
        key = message.notice.key
        with self._turns.take_turn(_turn_of(message.notice, route.address), route.address):
            at = self._book.read_sent_times([key], route.address).get(key)
            repeated = at is not None
            if at is None:
                with self._slow.try_address(route.address):
                    route.send(message)
                at = self._now()
                self._book.remember([key], route.address, at)
                logger.info("notice %s delivered to %s %s", key, route.channel, route.address)
        return Delivery(key=key, channel=route.channel, address=route.address, at=at, repeated=repeated)


def _turn_of(notice: Notice, address: str) -> str:
    """Return what a delivery takes its turn for: in the log, all notices of a cluster, which a call writes together."""
    return f"log of {notice.cluster}" if address == LOG else notice.key


def _sentence(notice: Notice, what: str, items: Sequence[str]) -> str:
    return f"the notice {notice.key} {what}: {'; '.join(items)}"
