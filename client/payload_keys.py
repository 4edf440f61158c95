"""The keys of encrypted payloads: one file of several keys, of which the newest in use encrypts and all decrypt.

The file is read again when it has changed, so that a rotation needs no restart.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import time
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, ValidationError, model_validator

from activities.clock import Clock, utc_now
from activities.regular_files import regular_file
from client.places import home
from client.private_files import write_private
from models.base import Model, Time
from models.errors import BadInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VARIABLE = "BACKSTOP_PAYLOAD_KEYS"
_BYTES = 32
_LOOK_SECONDS = 1.0
"""Least seconds between two looks at the file."""
_FILE_BYTES = 1_000_000
_ROOT = b"payload key of one workflow\n"


def keys_file() -> Path:
    """Return the file of keys: BACKSTOP_PAYLOAD_KEYS, else the one in the state folder."""
    return Path(os.environ.get(VARIABLE) or home() / "keys" / "payload.json")


def _key_text(text: str) -> str:
    try:
        fits = len(base64.b64decode(text, validate=True)) == _BYTES
    except (binascii.Error, ValueError):
        fits = False
    if not fits:  # and what was given is not said
        raise ValueError(f"must be {_BYTES} bytes in Base64")
    return text


class PayloadKey(Model):
    """A key. `use_from`: when it begins to encrypt; it decrypts as soon as it is in the file."""

    key_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    key: Annotated[str, AfterValidator(_key_text)] = Field(repr=False)
    use_from: Time


class PayloadKeys(Model):
    """The content of the file. `since`: runs that began before it were not encrypted, and are read in clear."""

    since: Time
    keys: tuple[PayloadKey, ...] = Field(min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _each_once(self) -> PayloadKeys:
        names = [key.key_id for key in self.keys]
        if len(set(names)) < len(names):
            raise ValueError("two keys have the same key_id")
        return self

    def encrypting_key(self, now: datetime) -> PayloadKey:
        """Return the newest key in use; before any is, the first that will be."""
        by_age = sorted(self.keys, key=lambda key: key.use_from)
        return next((key for key in reversed(by_age) if key.use_from <= now), by_age[0])


def new_key(now: datetime, use_from: datetime) -> PayloadKey:
    """Make a random key, named by its day and random characters."""
    key = os.urandom(_BYTES)
    name = f"{now:%Y%m%d}-{hashlib.sha256(b'id' + key).hexdigest()[:8]}"
    return PayloadKey(key_id=name, key=base64.b64encode(key).decode(), use_from=use_from)


def read_keys(path: Path) -> PayloadKeys:
    """Read the keys. Errors: BadInput naming the file and the fault, never a key."""
    try:
        with regular_file(path) as (file, status):
            if status.st_mode & 0o077 and not _is_mounted_for_us(status):
                raise BadInput(f"{path} holds keys, but other users may read it: chmod 600 {path}")
            content = file.read(_FILE_BYTES + 1)
    except FileNotFoundError:
        where = "copy it from a machine that has it (or set BACKSTOP_PAYLOAD_KEYS to where it is)"
        raise BadInput(f"{path} does not exist: {where}; `backstop keys payload new` makes the first one") from None
    except OSError as error:
        raise BadInput(f"{path} (payload keys) cannot be read: {error.strerror}") from None
    if len(content) > _FILE_BYTES:
        raise BadInput(f"{path} is not a file of payload keys: it is too large")
    try:
        return PayloadKeys.model_validate_json(content)
    except ValidationError as error:
        raise BadInput(f"{path} is not a file of payload keys: {_fault(error)}") from None


def _is_mounted_for_us(status: os.stat_result) -> bool:
    """Return whether Kubernetes mounted the file: it gives a secret to root and the pod's group, so 0440 is private."""
    return status.st_uid != os.getuid() and not status.st_mode & 0o037


def _fault(error: ValidationError) -> str:
    """Describe a fault without its value, which may be a piece of a key."""
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}"


class KeyRing:
    """The keys of a file, as they are now. Thread-safe: a new reading replaces the old one whole.

    Errors when made: BadInput. A file that becomes unreadable later changes nothing: the last good reading counts.
    """

    def __init__(self, path: Path, now: Clock = utc_now) -> None:
        self._path = path
        self._now = now
        self._keys = read_keys(path)
        self._seen = _mark_of(path)
        self._looked = time.monotonic()

    @property
    def since(self) -> datetime:
        return self._keys.since

    def encrypting_key(self) -> tuple[str, bytes]:
        """Return the key that encrypts now: its id, and itself."""
        self._look()
        key = self._keys.encrypting_key(self._now())
        return key.key_id, base64.b64decode(key.key)

    def key_of(self, key_id: str) -> bytes | None:
        """Return a key by its id; None: no known file has it."""
        self._look()
        return next((base64.b64decode(key.key) for key in self._keys.keys if key.key_id == key_id), None)

    def _look(self) -> None:
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            mark = _mark_of(self._path)
            if mark != self._seen:
                self._keys, self._seen = read_keys(self._path), mark
        except BadInput:
            return


def _mark_of(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_ino, status.st_size)


@lru_cache(maxsize=8192)
def cipher_of(key: bytes, workflow: str) -> AESGCM:
    """Return the cipher of one workflow: each key then encrypts few messages, so that random nonces never collide."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # late: most payloads are not encrypted

    return AESGCM(hmac.new(key, _ROOT + workflow.encode(errors="surrogatepass"), hashlib.sha256).digest())


def configured_ring() -> KeyRing | None:
    """Return the ring that the environment names, or the state folder has; None: payloads are not encrypted.

    Errors: BadInput for a named one that is not there, or a broken one: nothing is sent in clear instead.
    """
    path = keys_file()
    if not os.environ.get(VARIABLE) and not path.exists():
        return None
    return KeyRing(path)


def write_keys(path: Path, keys: PayloadKeys) -> None:
    """Write the keys whole or not at all, for their user alone."""
    write_private(path, f"{keys.model_dump_json(indent=2)}\n".encode())


def rotate_keys(keys: PayloadKeys, now: datetime, after: timedelta) -> PayloadKeys:
    """Return the keys with a new one that begins to encrypt `after` that time: by then every worker must have it."""
    return keys.but(keys=(*keys.keys, new_key(now, now + after)))
