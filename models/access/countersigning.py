"""The check of a countersigned command: the first person's own ticket must be for the same command."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from models.access.access_versions import COUNTERSIGNED_WITHIN
from models.access.signing import PublicKey, verify_ticket
from models.access.tickets import SKEW, Ticket, arguments_hash
from models.base import Model
from models.errors import Refusal


def countersigned_by(
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
        raise Refusal("this command differs from what the first person gave: countersign exactly that, or give it anew")
    if first.nonce == ticket.nonce or first.principal.name == ticket.principal.name:
        raise Refusal(f"{ticket.principal.name} gave the command: another person has to countersign it")
    return first


def _with_giver(message: Model, first: Ticket) -> Model:
    named = "actor" in type(message).model_fields
    return message.but(actor=first.principal.name) if named else message
