"""Whether a message is what its ticket says: the same in a worker's validators and in its activities. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from models.access.signing import PublicKey, in_time, verify_ticket
from models.access.tickets import Ticket, arguments_hash
from models.base import Model
from models.errors import Refusal

NO_TICKET = "it has no ticket, and here every command needs one: give it through the front (BACKSTOP_URL)"


def check_ticket(
    message: Model, command: str, workflow: str, keys: Mapping[str, PublicKey], now: datetime | None = None
) -> Ticket:
    """The ticket of exactly this message. `now`: it must not have expired either. Errors: Refusal in one sentence."""
    text = str(getattr(message, "ticket", ""))
    if not text:
        raise Refusal(NO_TICKET)
    ticket = verify_ticket(text, keys)
    if now is not None:
        in_time(ticket, now)
    if ticket.command != command:
        raise Refusal(f"its ticket is for another command than {command}")
    if ticket.workflow != workflow:
        raise Refusal("its ticket is for another workflow")
    if ticket.args != arguments_hash(message):
        raise Refusal("it is not what was signed: something of it was changed on the way")
    if getattr(message, "actor", "") != ticket.principal.name:
        raise Refusal("its ticket is somebody else's")
    return ticket
