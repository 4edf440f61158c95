"""Principals: humans and services that give commands, and how they were proven. Source: docs/access.md, "The words"."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import Field

from models.base import ActorGiven, Model, Text


class Proof(StrEnum):
    """The way in which a principal was proven."""

    ASSERTED = "asserted"
    """Not proven. The caller gave the name, and anybody who reaches Temporal can give any name."""
    PEER = "peer"
    """The kernel named the user at the other end of a socket on this machine."""
    OIDC = "oidc"
    """An OpenID Connect provider signed the identity."""
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    """The caller sent a token that an admin made; the ledger has its hash."""
    SLACK = "slack"
    """Slack named the user of a button or command, and signed the message with the app's secret (docs/adr/0074)."""
    SERVICE = "service"
    """Backstop itself, acting on a warrant."""


class Principal(Model):
    """A human or a service that gives commands.

    `name` is shown in the audit: `user:ana`, `service:ci`. `human` counts where two persons are needed: the same for
    all ways in which one person comes in; empty for a service, and for an account that its provider calls a program.
    """

    name: ActorGiven = Field(min_length=1)
    human: ActorGiven = ""
    proof: Proof = Proof.ASSERTED
    how: Text = Field(default="", max_length=300)
    """The proof in words, as the audit shows it: `this machine`, an issuer, a token's name."""
    groups: tuple[ActorGiven, ...] = Field(default=(), max_length=1000)

    @property
    def is_proven(self) -> bool:
        return self.proof is not Proof.ASSERTED

    @property
    def is_program(self) -> bool:
        return self.proof is Proof.OIDC and not self.human


def proof_data(proof: Proof, how: str, note: str = "") -> dict[str, str]:
    """Return the proof of an actor as data of an audit row (models.audit_chain.proof_of reads it)."""
    return {"proof": proof.value} | ({"how": how} if how else {}) | ({"note": note} if note else {})


def asserted_principal(name: str) -> Principal:
    """Return the principal for a name where no access is configured."""
    return Principal(name=name, human=name)


def bare_name(name: str) -> str:
    """Return a person's name as policies write it: `user:ana` and `ana` are one. A service keeps its whole name."""
    return name.removeprefix("user:")


def is_one_of(actor: str, names: Iterable[str]) -> bool:
    """Return whether this actor is among a policy's names."""
    return bare_name(actor) in map(bare_name, names)
