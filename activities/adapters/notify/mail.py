"""E-mail, by SMTP: one message to one recipient at a time, so that a retry reaches only those that were missed."""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.mime.text import MIMEText
from email.utils import format_datetime, formataddr, make_msgid, parseaddr
from typing import Any

from activities.adapters.http import Reach, header_text
from activities.adapters.notify.route_types import ContactUrl, Message, Route
from models.errors import Refusal, Unavailable

# Narrower than what mail allows: an address that looks like a piece of a URL might hold a secret.
_EMAIL = re.compile(r"[A-Za-z0-9._'+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_PORTS = {"insecure": 25, "starttls": 587, "ssl": 465}
_SETTINGS = ("from", "name", "to", "cc", "bcc", "reply", "smtp", "mode", "user", "pass", "password")
_CONNECT_SECONDS, _ANSWER_SECONDS, _DELIVERY_SECONDS = 5.0, 15.0, 45.0


@dataclass(frozen=True)
class MailServer:
    """The server for outgoing mail, and the sender's name."""

    host: str
    port: int
    mode: str
    """insecure, starttls, or ssl (TLS from the first byte)."""
    verify: bool
    user: str
    password: str = field(repr=False)
    sender: tuple[str, str]
    """The sender's name and address."""
    reply_to: tuple[str, ...]
    headers: Mapping[str, str] = field(repr=False)
    recipients: tuple[str, ...]
    """The recipients that its URL names."""
    reach: Reach


def plain_email(text: str) -> str | None:
    """Return the address in someone@team.example, mailto:... or mailto://... with nothing else."""
    bare = re.sub(r"^mailto:(//)?", "", text, flags=re.IGNORECASE)
    if not _EMAIL.fullmatch(bare):
        return None
    local, _, domain = bare.rpartition("@")
    return f"{local}@{domain.lower()}"


def mail_server(url: ContactUrl) -> MailServer:
    """Parse the URL. Errors: Refusal for a URL that no mail could be sent through."""
    settings = url.settings(*_SETTINGS)
    plain = settings.plain
    if plain.get("cc") or plain.get("bcc"):
        raise Refusal(
            f"{url.shown} names cc or bcc: give each recipient as a contact of its own, so that each gets one message"
        )
    mode = plain.get("mode", "").lower() or ("starttls" if url.scheme == "mailtos" else "insecure")
    user, password = url.login(settings)
    name, sender = parseaddr(plain.get("from", ""))
    if "@" not in sender:  # at most a name
        name, sender = plain.get("from") or "Backstop", f"{user.partition('@')[0]}@{url.host}"
    reply_to = _split_addresses(plain.get("reply", ""))
    if mode not in _PORTS or not all(map(_EMAIL.fullmatch, (sender, *reply_to))):
        raise url.malformed_refusal()
    recipients = [plain_email(each) for each in (*url.segments(), *_split_addresses(plain.get("to", "")))]
    if None in recipients:
        raise url.malformed_refusal("it names a recipient that is not an e-mail address")
    return MailServer(
        host=(plain.get("smtp") or url.host).strip("[]"),
        port=url.port or _PORTS[mode],
        mode=mode,
        verify=settings.verify,
        user=user,
        password=password,
        sender=(plain.get("name", name), sender),
        reply_to=reply_to,
        headers=settings.headers,
        recipients=tuple(each for each in recipients if each) or (sender,),
        reach=url.reach,
    )


def email_route(address: str, server: MailServer) -> Route:
    def send(message: Message) -> None:
        # Raised outside of any handler: the foreign error and its text, secrets and all, end in `_failure`.
        if reason := _failure(server, address, _compose(server, address, message)):
            raise Unavailable(reason)

    return Route("email", address, send)


def _split_addresses(addresses: str) -> tuple[str, ...]:
    return tuple(filter(None, re.split(r"[,;\s]+", addresses)))


def _compose(server: MailServer, address: str, message: Message) -> str:
    mail = MIMEText(message.body, "plain", "utf-8")
    for name, value in server.headers.items():
        mail[name] = value
    mail["X-Backstop-Key"] = header_text(message.notice.key)
    mail["Auto-Submitted"] = "auto-generated"
    mail["Subject"] = message.subject
    mail["From"] = formataddr(server.sender)
    mail["To"] = address
    if server.reply_to:
        mail["Reply-To"] = ", ".join(server.reply_to)
    mail["Message-ID"] = make_msgid(domain=server.host)
    mail["Date"] = format_datetime(message.at.astimezone())
    return mail.as_string()


def _failure(server: MailServer, address: str, mail: str) -> str:
    """Return why the server did not accept the mail, in our words: its own may hold a password. Empty if it did.

    Errors: Refusal for a server that is barred.
    """
    smtp: _TimedTls | _TimedPlain | None = None
    try:
        context = ssl.create_default_context()
        if not server.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        smtp = _TimedTls(context=context) if server.mode == "ssl" else _TimedPlain()
        smtp.reach = server.reach
        code, _ = smtp.connect(server.host, server.port)
        if code != 220:
            return "no connection or login"
        if server.mode == "starttls":
            smtp.starttls(context=context)
        if server.user and server.password:
            smtp.login(server.user, server.password)
        smtp.sendmail(server.sender[1], [address], mail)
    except (smtplib.SMTPSenderRefused, smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError):
        return "the mail server refused the message"
    except Refusal:
        raise
    except Exception:
        return "no connection or login"
    else:
        return ""
    finally:
        if smtp is not None:
            with suppress(OSError):  # which smtplib's errors are: the mail is accepted, or is not, by now
                smtp.quit()
            smtp.close()


class _Reaching(smtplib.SMTP):
    """Connects to an address that was checked."""

    reach: Reach

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        *others, last = self.reach.addresses(host, port, _ANSWER_SECONDS)
        for address in others:
            with suppress(OSError):
                return socket.create_connection((address, port), _CONNECT_SECONDS)
        return socket.create_connection((last, port), timeout)


class _Timed(smtplib.SMTP):
    """Cuts a slow server off: a socket's own limit starts over with each byte."""

    _host: str
    """The name against which the certificate is checked."""

    def __init__(self, **options: Any) -> None:
        self._closed = threading.Event()
        super().__init__(timeout=_ANSWER_SECONDS, **options)

    def connect(self, host: str = "", port: int = 0, *args: Any) -> tuple[int, bytes]:
        self._host = host
        threading.Thread(target=self._cut_off, name="mail limit", daemon=True).start()
        return super().connect(host, port, *args)

    def close(self) -> None:
        self._closed.set()
        super().close()

    def _cut_off(self) -> None:
        """Repeatedly shut the connection down: at first there may be none, or TLS is just being negotiated."""
        wait = _DELIVERY_SECONDS
        while not self._closed.wait(wait):
            wait = 1.0
            if self.sock is not None:
                with suppress(OSError):
                    socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


class _TimedPlain(_Timed, _Reaching):
    pass


class _TimedTls(_Timed, smtplib.SMTP_SSL, _Reaching):
    """Inherits SMTP_SSL before the connection that it wraps."""
