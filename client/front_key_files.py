"""Keeps a front's keys on disk: its private key, and the book of public ones that workers read.

Source: docs/security.md, "Keys".
"""

from __future__ import annotations

import logging
import os
import secrets
from datetime import datetime, timedelta
from pathlib import Path

from joserfc.jwk import OKPKey
from pydantic import ValidationError

from client.front_signer import SigningKey
from client.places import home
from client.private_files import write_private
from models.access.key_book import KeyBook
from models.access.signing import PublicKey
from models.base import in_one_sentence
from models.errors import BadInput, Refusal

log = logging.getLogger("backstop.front")
SIGNS_ON = timedelta(minutes=10)
"""How long a rotated key still signs: the key book with the new key takes a while to reach every worker."""


def key_book_file() -> Path:
    """Return the file of public keys: BACKSTOP_KEYS, else the one beside the front's own key."""
    named = os.environ.get("BACKSTOP_KEYS")
    return Path(named) if named else home() / "keys" / "keys.json"


def front_key_file() -> Path:
    return home() / "keys" / "front.pem"


def read_book(path: Path) -> KeyBook:
    """Read the book of keys. Errors: BadInput naming the file, and the field and value where one is wrong."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise BadInput(
            f"{path} does not exist: `backstop keys new` makes it, or set BACKSTOP_KEYS to where it is"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {type(error).__name__}") from None
    try:
        book = KeyBook.model_validate_json(text)
    except ValidationError as error:
        raise BadInput(f"{path}: {in_one_sentence(error)}") from None
    for key in book.keys:
        if _public(key.pem) is None:
            raise BadInput(f"{path}: the pem of key {key.key_id} is not an Ed25519 public key")
    return book


def new_key(now: datetime) -> PublicKey:
    """Make a front's first key, and the book with it. Errors: Refusal if it has one."""
    private = front_key_file()
    if private.exists():
        raise Refusal(f"{private} already exists: `backstop keys rotate` replaces it with a new key")
    book = read_book(key_book_file()) if key_book_file().exists() else KeyBook()
    return _write(book, now, None)


def rotate_key(now: datetime) -> PublicKey:
    """Replace the front's key; the old one still verifies what it signed until now (and for ten minutes more)."""
    load_signing_key()
    return _write(read_book(key_book_file()), now, now + SIGNS_ON)


def replace_lost_key(now: datetime) -> PublicKey:
    """Make a new key where the private one is lost: its past signatures stay valid, later ones do not."""
    return _write(read_book(key_book_file()), now, now)


def revoke_key(key_id: str, since: datetime) -> KeyBook:
    """Revoke a key: its signatures from then on do not count. Errors: Refusal for an unknown key."""
    book = read_book(key_book_file()).revoke(key_id, since)
    _keep(book)
    return book


def load_signing_key() -> SigningKey:
    """Load the front's own key. Errors: BadInput if it is not there, not readable, or not in the book."""
    private = front_key_file()
    try:
        key = OKPKey.import_key(private.read_bytes())
    except FileNotFoundError:
        raise BadInput(f"{private} does not exist: `backstop keys new` makes it") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{private} cannot be read as a private key: {type(error).__name__}") from None
    public = key.as_pem(private=False).decode()
    entry = next((one for one in read_book(key_book_file()).keys if _public(one.pem) == public), None)
    if entry is None:
        raise BadInput(
            f"{key_book_file()} does not have the public half of {private}, so workers would refuse what "
            "this key signs: run `backstop keys rotate`"
        )
    return SigningKey(key, entry.key_id)


class FrontKey:
    """A callable that returns the front's own key as it is now; None: the front has none.

    A broken key file leaves the previous key in use: a front that did not sign would be refused everything.
    """

    def __init__(self) -> None:
        self._stamp = 0
        self._key: SigningKey | None = None
        if front_key_file().exists():
            self._key, self._stamp = load_signing_key(), _stamp()

    def __call__(self) -> SigningKey | None:
        stamp = _stamp()
        if stamp and stamp != self._stamp:
            self._stamp = stamp
            try:
                self._key = load_signing_key()
            except BadInput as error:
                log.warning("the front signs with its previous key: %s", error.message)
        return self._key


def _stamp() -> int:
    """Return when the private key was written, in nanoseconds; 0: there is none."""
    try:
        return front_key_file().stat().st_mtime_ns
    except OSError:
        return 0


def _public(pem: str) -> str | None:
    """Return the public key as we write it; None if the text is no key."""
    try:
        return OKPKey.import_key(pem).as_pem(private=False).decode()
    except ValueError:
        return None


def _write(book: KeyBook, now: datetime, rotated_at: datetime | None) -> PublicKey:
    """Write the book first, so that no front signs with a key that no worker knows."""
    key = OKPKey.generate_key("Ed25519")
    public = PublicKey(
        key_id=f"{now:%Y%m%d}-{secrets.token_hex(4)}", pem=key.as_pem(private=False).decode(), valid_from=now
    )
    _keep(book.with_key(public, rotated_at))
    write_private(front_key_file(), key.as_pem(private=True) + b"\n")
    return public


def _keep(book: KeyBook) -> None:
    write_private(key_book_file(), f"{book.model_dump_json(by_alias=True, indent=2)}\n".encode())
