"""The check of a message against its ticket, for a worker's validators and its activities."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from models.access.signing import PublicKey, in_time, verify_ticket
from models.access.tickets import Ticket, arguments_hash
from models.base import Model
from models.errors import Refusal

NO_TICKET = "the command has no ticket, and this worker requires one: give it through the front (set BACKSTOP_URL)"


def check_ticket(
    message: Model, command: str, workflow: str, keys: Mapping[str, PublicKey], now: datetime | None = None
) -> Ticket:
    """Return the ticket of exactly this message. `now`: checks its expiry too. Errors: Refusal in one sentence."""
    text = str(getattr(message, "ticket", ""))
    if not text:
        raise Refusal(NO_TICKET)
    ticket = verify_ticket(text, keys)
    if now is not None:
        in_time(ticket, now)
    if ticket.command != command:
        raise Refusal(f"the ticket is for {ticket.command}, not for {command}: give the command again")
    if ticket.workflow != workflow:
        raise Refusal(f"the ticket is for workflow {ticket.workflow}, not for {workflow}: give the command again")
    if ticket.args != arguments_hash(message):
        raise Refusal("the command differs from what the ticket signs: it was changed on the way; give it again")
    if getattr(message, "actor", "") != ticket.principal.name:
        raise Refusal("the ticket was given to somebody other than the actor of the command")
    return ticket
