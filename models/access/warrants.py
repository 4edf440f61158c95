"""Warrants: tickets that were admitted into the ledger, and the grounds of a machine's commands. Source: docs/adr/0057.

A row keeps the signature and the signed message, so that its user checks both again later: workflow state is never
authority, and neither is a row that nobody signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from models.access.principals import Principal, Proof, asserted_principal, proof_data
from models.access.roles import Role
from models.access.tickets import TICKET_CHARS, Ticket
from models.base import Count, Model, Text, Time
from models.errors import Refusal

if TYPE_CHECKING:
    from models.access.signing import PublicKey

BACKSTOP_SERVICE = "service:backstop"
"""The actor in the audit when Backstop itself acts on a warrant."""


class Warrant(Model):
    """A row. `subject`: the rollout, fleet rollout, request or bring-up that it is about.

    `content`: what was looked up and frozen when it was admitted (a plan with its envelope, a policy). `inherits`: the
    nonce of the warrant that it rests on, whose ticket and message it has.
    """

    nonce: str
    command: Text = Field(max_length=100)
    workflow: Text = Field(max_length=1000)
    subject: Text = Field(max_length=1000)
    update_id: Text = Field(default="", max_length=1000)
    attempt: Count = 0
    plan_hash: str = ""
    policy_hash: str = ""
    generation: Count = 0
    principal: Principal
    ticket: str = Field(default="", max_length=TICKET_CHARS)
    message: dict[str, Any] = Field(default_factory=dict)
    content: dict[str, Any] = Field(default_factory=dict)
    content_sha256: str = ""
    inherits: str = ""
    admitted_at: Time
    voided_at: Time | None = None
    voided_by: str = ""

    @property
    def live(self) -> bool:
        return self.voided_at is None


class Spent(Model):
    """A ticket that an update has used: the same nonce under another id is a replay."""

    nonce: str
    update: str
    at: Time


def still_signed(warrant: Warrant, keys: Mapping[str, PublicKey]) -> Ticket:
    """Return the ticket of a stored warrant, if its key is still good. Errors: Refusal: it is void.

    After a key is revoked, what was admitted before still counts; the time in a ticket is its signer's word, and a
    thief of the key may write any. A machine's warrant is judged by the one that it inherits from.
    """
    from models.access.signing import is_revoked, verify_ticket  # late: commands ask who may, and verify no signature

    try:
        ticket = verify_ticket(warrant.ticket, keys)
        if not warrant.inherits and is_revoked(warrant.ticket, keys, warrant.admitted_at):
            raise Refusal("the key that signed its ticket was revoked before Backstop accepted the command")
    except Refusal as error:
        raise Refusal(
            f"the warrant of {warrant.principal.name} for {warrant.command} is no longer valid: {error.message}"
        ) from None
    own = warrant.inherits or warrant.nonce
    if ticket.nonce != own or (not warrant.inherits and ticket.command != warrant.command):
        raise Refusal(f"the warrant {warrant.nonce} for {warrant.command} differs from the command that was signed")
    return ticket


def service() -> Principal:
    """Return Backstop itself as a principal."""
    return asserted_principal(BACKSTOP_SERVICE)


class AdmitRequest(Model):
    """A command that a workflow is about to obey. `kind`: of workflow (`rollout`, `fleet`, `request`, `bringup`)."""

    kind: Text = Field(max_length=20)
    command: Text = Field(max_length=100)
    update_id: Text = Field(max_length=1000)
    message: dict[str, Any]
    subject: Text = Field(default="", max_length=1000)
    """The fleet rollout's id. The ledger finds the subject of the other kinds."""
    attempt: Count = 0


class AdmitAnswer(Model):
    """The admission. `warrant`: its nonce; empty if no keys are configured. `note`: a remark for the audit.

    `proof`, `how`: how the giver was proven, by their ticket.
    """

    warrant: str = ""
    note: str = ""
    roles: tuple[Role, ...] | None = None
    """The roles that permit the command; (): no access file. None: a machine gave it, or an earlier build answered."""
    proof: Proof = Proof.ASSERTED
    how: Text = Field(default="", max_length=300)

    @property
    def as_data(self) -> dict[str, str]:
        """The proof as data of an audit row."""
        return proof_data(self.proof, self.how, self.note)
