"""The checks of a message against its ticket, and of a countersigned command against the first person's ticket."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from models.access.access_versions import COUNTERSIGNED_WITHIN
from models.access.signing import PublicKey, in_time, verify_ticket
from models.access.tickets import SKEW, Ticket, arguments_hash
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
        raise Refusal("the command was changed after its ticket was signed: give it again")
    if getattr(message, "actor", "") != ticket.principal.name:
        raise Refusal("the ticket was given to somebody other than the actor of the command")
    return ticket


def find_countersigned(
    ticket: Ticket, keys: Mapping[str, PublicKey], now: datetime, message: Model | None = None
) -> Ticket | None:
    """Return the first person's ticket, where this one countersigns it; None: it stands alone.

    It must be for the same command, workflow and arguments, from another human, and at most a day old: it has expired
    long since, and its signature still counts. `message`: the signed message; each person's has their own name in it.
    Errors: Refusal.
    """
    if not ticket.second:
        return None
    first = verify_ticket(ticket.second, keys)
    age = now.timestamp() - first.iat
    if age > COUNTERSIGNED_WITHIN.total_seconds() or age < -SKEW.total_seconds():
        raise Refusal("the command to countersign was given more than a day ago: give the command again")
    if (first.command, first.workflow) != (ticket.command, ticket.workflow):
        raise Refusal("the ticket of the first person is for another command than the one to countersign")
    if first.args != ticket.args and (message is None or first.args != arguments_hash(_with_giver(message, first))):
        raise Refusal(
            "this command differs from the first person's: countersign their exact command, or give a new one"
        )
    if first.nonce == ticket.nonce or first.principal.name == ticket.principal.name:
        raise Refusal(f"{ticket.principal.name} gave the command: another person has to countersign it")
    return first


def _with_giver(message: Model, first: Ticket) -> Model:
    named = "actor" in type(message).model_fields
    return message.but(actor=first.principal.name) if named else message
