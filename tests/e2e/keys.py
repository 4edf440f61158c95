"""A front's key for stories, and what workers know of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc.jwk import OKPKey

from client.front_signer import SigningKey
from models.access.signing import PublicKey

_PRIVATE = Ed25519PrivateKey.from_private_bytes(b"a key of tests, and of no front.")
_PEM = _PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
FRONT_KEY = SigningKey(OKPKey.import_key(_PEM), "front")
_KNOWN = {
    "front": PublicKey(
        key_id="front",
        pem=FRONT_KEY.key.as_pem(private=False).decode(),
        valid_from=datetime(2020, 1, 1, tzinfo=UTC),  # before any story, also on a turned clock
    )
}


def public_keys() -> Mapping[str, PublicKey]:
    return _KNOWN
