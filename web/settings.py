"""The front's settings, read from the environment and its options in this one place."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from client.places import front_socket
from client.slack_secret import SigningSecret
from models.errors import BadInput
from models.texts import brief
from web.oidc import Terms, is_safe_address

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
OWN_MODE, SHARED_MODE = 0o600, 0o666
CONSOLE_PORT = 8420


@dataclass(frozen=True)
class Address:
    """A TCP address to listen at."""

    host: str
    port: int
    or_any: bool = False
    """If the port is taken, listen at any other port of the host."""

    @property
    def loopback(self) -> bool:
        return self.host in _LOOPBACK


@dataclass(frozen=True)
class FrontSettings:
    """The settings of a front. `shared`: other users of this machine may use the socket too."""

    socket: Path | None
    shared: bool = False
    listen: Address | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    public_url: str = ""
    """The console's URL for browsers, behind a TLS proxy; empty: the address where it listens."""
    codec_origins: tuple[str, ...] = ()
    """Origins of Temporal UIs whose pages may have payloads decrypted."""
    oidc: Terms | None = None
    """The provider whose tokens the front accepts; None: it accepts no provider's tokens."""
    oidc_secret: str = field(default="", repr=False)
    """The secret of the console's client at the provider; empty: a public client."""
    slack: SigningSecret | None = None
    """The secret with which Slack signs; None: the front accepts nothing from Slack."""
    slack_replies: tuple[str, ...] = ()
    """Origins where answers for Slack may go, instead of Slack's own; empty: Slack's own."""


def load_front_settings(listen: str = "", tls_cert: str = "", tls_key: str = "") -> FrontSettings:
    """Read the settings. Errors: BadInput naming the option or the variable and its value."""
    named = os.environ.get("BACKSTOP_SOCKET", "")
    if named and not named.startswith("/"):
        raise BadInput(f"BACKSTOP_SOCKET must be an absolute path, not {brief(named)}")
    address = _address(listen) if listen else None
    for option, path in (("--tls-cert", tls_cert), ("--tls-key", tls_key)):
        if path and not Path(path).is_file():
            raise BadInput(f"{option} {path}: there is no such file")
    if bool(tls_cert) != bool(tls_key):
        raise BadInput("--tls-cert and --tls-key belong together: give both")
    if address is None and tls_cert:
        raise BadInput("--tls-cert needs --listen HOST:PORT: give both")
    if tls_cert:
        _check_pair(tls_cert, tls_key)
    if address is not None and not address.loopback and not tls_cert:
        raise BadInput(
            f"--listen {listen}: plain HTTP would show tokens to everybody on the network; give --tls-cert "
            "and --tls-key, "
            "or listen at 127.0.0.1 behind a TLS proxy"
        )
    return FrontSettings(
        socket=front_socket(),
        shared=bool(named),
        listen=address,
        tls_cert=Path(tls_cert) if tls_cert else None,
        tls_key=Path(tls_key) if tls_key else None,
        public_url=_public_url(os.environ.get("BACKSTOP_PUBLIC_URL", "")),
        codec_origins=_origins(
            "BACKSTOP_CODEC_ORIGINS", _TEMPORAL_UI, "of Temporal UIs such as https://temporal.example"
        ),
        oidc=_oidc(),
        oidc_secret=_secret(os.environ.get("BACKSTOP_OIDC_CLIENT_SECRET_FILE", "")),
        slack=SigningSecret.from_settings(),
        slack_replies=_origins("BACKSTOP_SLACK_REPLIES", _GATEWAY, "such as https://slack-gateway.example"),
    )


def _check_pair(tls_cert: str, tls_key: str) -> None:
    """Check that TLS can use the certificate and the key. Errors: BadInput."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls_cert, tls_key, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise BadInput(
            f"--tls-cert {tls_cert} and --tls-key {tls_key} must be a certificate and its key without a password, "
            f"both in PEM: {error}"
        ) from None


def beside_up() -> Address:
    """Return the console's address: BACKSTOP_CONSOLE_PORT here, else 8420, else a free port. Errors: BadInput."""
    text = os.environ.get("BACKSTOP_CONSOLE_PORT", "") or str(CONSOLE_PORT)
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise BadInput(f"BACKSTOP_CONSOLE_PORT must be a port from 0 to 65535, not {brief(text)}")
    return Address("127.0.0.1", int(text), or_any=True)


def _public_url(text: str) -> str:
    if text and not re.fullmatch(r"https://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?/?", text):
        raise BadInput(
            "BACKSTOP_PUBLIC_URL must be the console's address and begin with https://, such as "
            f"https://backstop.example, not {brief(text)}"
        )
    return text.rstrip("/")


_TEMPORAL_UI = r"https?://[A-Za-z0-9.:\[\]-]{1,253}"
_GATEWAY = r"(https://[A-Za-z0-9.-]{1,253}|http://(127\.0\.0\.1|localhost|\[::1\]))(:[0-9]{1,5})?"
"""Where answers for Slack may go: to a gateway over TLS, or over plain HTTP to a test on this machine."""


def _origins(name: str, form: str, which: str) -> tuple[str, ...]:
    origins = tuple(part.strip().rstrip("/") for part in os.environ.get(name, "").split(",") if part.strip())
    for origin in origins:
        if not re.fullmatch(form, origin):
            raise BadInput(f"{name} must be origins {which}, separated by commas, not {brief(origin)}")
    return origins


def _oidc() -> Terms | None:
    issuer, client = os.environ.get("BACKSTOP_OIDC_ISSUER", ""), os.environ.get("BACKSTOP_OIDC_CLIENT_ID", "")
    audience = os.environ.get("BACKSTOP_OIDC_AUDIENCE") or client
    if not issuer:
        return None
    if not is_safe_address(issuer) or issuer.split() != [issuer]:
        raise BadInput(f"BACKSTOP_OIDC_ISSUER must begin with https://, not {brief(issuer)}")
    if not audience:
        raise BadInput(
            "BACKSTOP_OIDC_AUDIENCE is missing: set it to this front's client ID, so that tokens for other "
            "applications are refused"
        )
    return Terms(issuer, audience, client, os.environ.get("BACKSTOP_OIDC_GROUPS", "groups"))


def _secret(path: str) -> str:
    """Read a secret from its file, so that no list of processes shows it. Errors: BadInput."""
    if not path:
        return ""
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"BACKSTOP_OIDC_CLIENT_SECRET_FILE {brief(path)} cannot be read") from None
    if not secret:
        raise BadInput(f"BACKSTOP_OIDC_CLIENT_SECRET_FILE {brief(path)} is empty")
    return secret


def _address(text: str) -> Address:
    match = re.fullmatch(r"(\[[0-9a-fA-F:]{2,45}\]|[A-Za-z0-9.-]{1,253}):([0-9]{1,5})", text)
    if match is None or int(match[2]) > 65535:
        raise BadInput(f"--listen takes HOST:PORT, such as 127.0.0.1:8443, not {brief(text)}")
    return Address(match[1].strip("[]"), int(match[2]))
