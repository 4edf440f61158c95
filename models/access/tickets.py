"""The front's signed statement: this principal, with these roles, gave exactly this command now.

It is a compact JWS (models/access/signing.py) of a `Ticket`, in the field `ticket` of the message itself. Source:
docs/security.md, "Tickets".
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from pydantic import Field

from models.access.principals import Principal
from models.base import Model, Text
from models.hashes import canonical_json

LIFETIME = timedelta(seconds=60)
SKEW = timedelta(seconds=60)
"""The most by which a worker's clock may differ from the front's."""
ADMITTED_WITHIN = timedelta(hours=24)
TICKET_CHARS = 8000
"""The most characters of a signed ticket."""

_MessageT = TypeVar("_MessageT", bound=Model)


class Ticket(Model):
    """The claims. `command`: a key of models/access/rights.py; `workflow`: the id of the workflow meant."""

    principal: Principal
    roles: tuple[Text, ...] = Field(default=(), max_length=20)
    """The roles that were used, as the audit shows them."""
    command: Text = Field(max_length=100)
    workflow: Text = Field(max_length=1000)
    args: Text = Field(max_length=64)
    """`arguments_hash` of the message."""
    nonce: Text = Field(min_length=16, max_length=64)
    iat: int
    exp: int
    """`iat` and `exp` are seconds since 1970-01-01, UTC."""
    emergency: bool = False
    """True: an approver acts alone in an emergency."""
    two_person: bool = True
    """False: when the front signed the ticket, no access file was in force, or it had two_person off."""
    second: Text = Field(default="", max_length=TICKET_CHARS)
    """The first person's signed ticket, which this ticket countersigns; empty: it countersigns none."""


class Ticketed(Model):
    """A message from a person to Backstop."""

    ticket: str = Field(default="", max_length=TICKET_CHARS, exclude_if=lambda ticket: not ticket)
    """The front's signed statement of who gave the command; empty: no front checked that."""


def arguments_hash(message: Model) -> str:
    """Return the SHA-256 of a message without its own ticket, in hex: reason, actor and all."""
    return hashlib.sha256(
        canonical_json(_without_tickets(message).model_dump(mode="json", by_alias=True)).encode()
    ).hexdigest()


def nonce_of(text: str) -> str:
    """Return the nonce that a signed ticket names, unverified; empty if it names none."""
    return unverified_field(text, 1, "nonce")[:64]


def unverified_field(text: str, part: int, name: str) -> str:
    """Return a field of the header (part 0) or the claims (part 1) of a signed ticket; empty if it has none."""
    try:
        encoded = text.split(".")[part]
        return str(json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))[name])
    except (IndexError, KeyError, TypeError, ValueError):
        return ""


def warrant_in(message: Model) -> dict[str, Any]:
    """Return, for an audit row, the nonce of the message's ticket, or of the warrant behind a machine's message."""
    nonce = nonce_of(str(getattr(message, "ticket", ""))) or str(getattr(message, "warrant", ""))
    return {"warrant": nonce} if nonce else {}


def _without_tickets(message: _MessageT) -> _MessageT:
    """Remove the tickets of the message and its parts: a launch is signed inside the input that starts its workflow."""
    bare = {name: _without_tickets(part) for name, part in message if isinstance(part, Model)}
    return message.but(**bare, **({"ticket": ""} if "ticket" in type(message).model_fields else {}))


class Signer(Protocol):
    """A function of the front: it gives a message its ticket, and the principal's name as its actor."""

    def __call__(self, message: _MessageT, command: str, workflow: str) -> _MessageT: ...
