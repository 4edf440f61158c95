"""Who commands, and how that was proven. Source: docs/access.md, "The words"."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import Field

from models.base import ActorGiven, Model, Text


class Proof(StrEnum):
    """How we know that somebody is who they say they are."""

    ASSERTED = "asserted"
    """The name that the caller gave: whoever reaches Temporal calls itself what it likes."""
    PEER = "peer"
    """The kernel named the user at the other end of a socket on this machine."""
    OIDC = "oidc"
    """An OpenID Connect provider signed it."""
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    """A token that an admin made, of which the ledger keeps the hash."""
    SLACK = "slack"
    """Slack said whose press or command it is, and signed that with the app's secret (docs/adr/0074)."""
    SERVICE = "service"
    """Backstop itself, acting on a warrant."""


class Principal(Model):
    """A human or a service that commands.

    `name` stands in the audit: `user:ana`, `service:ci`. `human` is who counts where two persons are needed: the same
    for all ways in which one person comes in; empty for a service.
    """

    name: ActorGiven = Field(min_length=1)
    human: ActorGiven = ""
    proof: Proof = Proof.ASSERTED
    how: Text = Field(default="", max_length=300)
    """In words, as the audit shows it: `this machine`, an issuer, a token's name."""
    groups: tuple[ActorGiven, ...] = Field(default=(), max_length=1000)

    @property
    def is_proven(self) -> bool:
        return self.proof is not Proof.ASSERTED


def proof_data(proof: Proof, how: str, note: str = "") -> dict[str, str]:
    """How an actor was proven, as the data of an audit row has it (models.audit_chain.proof_of reads it)."""
    return {"proof": proof.value} | ({"how": how} if how else {}) | ({"note": note} if note else {})


def asserted_principal(name: str) -> Principal:
    """Whoever speaks where no access is configured."""
    return Principal(name=name, human=name)


def bare_name(name: str) -> str:
    """A person's name as policies write it: `user:ana` and `ana` are one. Of a service its whole name."""
    return name.removeprefix("user:")


def is_one_of(actor: str, names: Iterable[str]) -> bool:
    """Whether a policy's names have this actor among them."""
    return bare_name(actor) in map(bare_name, names)
