"""Signs commands as a front: it knows who gives one, and says so in the message's ticket.

Source: docs/security.md, "Tickets".
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, TypeVar

from joserfc.jwk import OKPKey

from activities.clock import Clock, utc_now
from models.access.principals import Principal
from models.access.signing import sign
from models.access.tickets import LIFETIME, Ticket, arguments_hash
from models.base import Model

_MessageT = TypeVar("_MessageT", bound=Model)
_NONCE_BYTES = 18


@dataclass(frozen=True)
class SigningKey:
    """A front's private key. `key_id`: the name by which workers know its public half."""

    key: OKPKey
    key_id: str


@dataclass(frozen=True)
class FrontSigner:
    """models.access.tickets.Signer for one principal and one command; its tickets are good for a minute.

    `roles`: those that were used, as the audit shows them. `second`: the signed ticket of the person it countersigns.
    """

    key: SigningKey
    principal: Principal
    roles: tuple[str, ...] = ()
    two_person: bool = True
    emergency: bool = False
    second: str = ""
    now: Clock = utc_now

    def __call__(self, message: _MessageT, command: str, workflow: str) -> _MessageT:
        """Return the message with the principal's name as its actor, and a ticket of its own."""
        changes: dict[str, Any] = {"ticket": ""}
        if "actor" in type(message).model_fields:
            changes["actor"] = self.principal.name
        if "warrant" in type(message).model_fields:  # machines name one, and nobody gives them a ticket
            changes["warrant"] = ""
        own_message = message.but(**changes)
        issued = int(self.now().timestamp())
        ticket = Ticket(
            principal=self.principal,
            roles=self.roles,
            command=command,
            workflow=workflow,
            args=arguments_hash(own_message),
            nonce=secrets.token_urlsafe(_NONCE_BYTES),
            iat=issued,
            exp=issued + int(LIFETIME.total_seconds()),
            emergency=self.emergency,
            two_person=self.two_person,
            second=self.second,
        )
        return own_message.but(ticket=sign(ticket, self.key.key, self.key.key_id))
