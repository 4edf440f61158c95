"""Tickets as compact JWS, signed with Ed25519 keys. The caller brings keys and time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from pydantic import ValidationError

from models.access.tickets import LIFETIME, SKEW, TICKET_CHARS, Ticket
from models.base import Model, Time
from models.errors import Refusal

_ALGORITHM = "Ed25519"


class PublicKey(Model):
    """A front's key as a worker has it. `pem`: SubjectPublicKeyInfo (RFC 8410)."""

    key_id: str
    pem: str
    valid_from: Time
    valid_until: Time | None = None
    """The time of the key's rotation. Signatures from before it remain valid; None: the key was not rotated."""
    revoked_from: Time | None = None
    """The time from which its signatures do not count, whatever the ticket says; None: it was not revoked."""


def sign(ticket: Ticket, key: OKPKey, key_id: str) -> str:
    """Sign the ticket as a compact JWS."""
    header = {"alg": _ALGORITHM, "kid": key_id, "typ": "backstop-ticket+jwt"}
    return jws.serialize_compact(header, ticket.model_dump_json(), key, algorithms=[_ALGORITHM])


def verify_ticket(text: str, keys: Mapping[str, PublicKey]) -> Ticket:
    """Return the ticket if one of these keys signed it, however long ago. Errors: Refusal, quoting nothing."""
    if len(text) > TICKET_CHARS:
        raise Refusal(f"the ticket is longer than {TICKET_CHARS} characters")
    try:
        key = _key_named_in(text, keys)
        if key is None:
            raise Refusal("the ticket is signed with a key that this worker does not have: add the front's public key")
        signed = jws.deserialize_compact(text, OKPKey.import_key(key.pem), algorithms=[_ALGORITHM])
        ticket = Ticket.model_validate_json(signed.payload)
    except (JoseError, ValidationError, ValueError, TypeError, AttributeError):
        raise Refusal("the ticket is malformed, or its signature does not match the front's key") from None
    issued = datetime.fromtimestamp(ticket.iat, tz=key.valid_from.tzinfo)
    late = key.valid_until is not None and issued >= key.valid_until
    if issued < key.valid_from - SKEW or late or (key.revoked_from is not None and issued >= key.revoked_from):
        raise Refusal("the ticket's key was not valid when the ticket was signed: give the command again")
    return ticket


def _key_named_in(text: str, keys: Mapping[str, PublicKey]) -> PublicKey | None:
    return keys.get(str(jws.extract_compact(text.encode()).headers().get("kid")))


def is_revoked(text: str, keys: Mapping[str, PublicKey], at: datetime) -> bool:
    """Return whether the key that a verified ticket names was revoked by then."""
    key = _key_named_in(text, keys)
    return key is not None and key.revoked_from is not None and at >= key.revoked_from


def in_time(ticket: Ticket, now: datetime) -> None:
    """Check that the ticket has not expired, and is not from a clock too far ahead. Errors: Refusal."""
    at, skew = now.timestamp(), SKEW.total_seconds()
    if at > ticket.exp + skew or ticket.exp - ticket.iat > LIFETIME.total_seconds():
        raise Refusal("the ticket has expired: give the command again")
    if at < ticket.iat - skew:
        raise Refusal("the ticket was signed in the future: set the clocks of the front and the worker right")
