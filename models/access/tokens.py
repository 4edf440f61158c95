"""Tokens, for those who come in without a browser. The ledger has the hash, and nobody the token itself.

A token's secret is made where it is shown, and only its hash is sent: no history, log or backup ever had the token.
Source: docs/access.md, "The words".
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import AfterValidator, Field

from models.access.access_file import BOUNDLESS, GROUP, SERVICE, AccessFile, Bare, Patterns, Receiver, any_matches
from models.access.principals import Principal, Proof
from models.access.roles import Role
from models.base import ActorGiven, Model, Time
from models.texts import brief

TOKEN_PREFIX = "bst_"  # noqa: S105 - by which scanners for leaked secrets know one
TOKEN_BYTES = 32
"""Random bytes in a token: 43 characters of base64 after the prefix."""


def _no_group(name: str) -> str:
    if name.startswith(GROUP):
        raise ValueError(f"must be user:NAME or service:NAME, not {brief(name)}: a group cannot own a token")
    return name


TokenOwner = Annotated[Receiver, AfterValidator(_no_group)]
TokenHash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class TokenScope(Model):
    """The part of its owner's rights that a token carries. `commands`: patterns of keys of the table of rights."""

    roles: tuple[Role, ...] = Field(min_length=1, max_length=len(Role))
    clusters: Patterns = BOUNDLESS
    teams: Patterns = BOUNDLESS
    commands: Patterns = BOUNDLESS

    def has_command(self, command: str) -> bool:
        return any_matches(self.commands, command)

    @property
    def text(self) -> str:
        """A text such as `viewer, operator; clusters h100-*`."""
        parts = [", ".join(self.roles)]
        named = (("clusters", self.clusters), ("teams", self.teams), ("commands", self.commands))
        parts += [f"{what} {', '.join(names)}" for what, names in named if names != BOUNDLESS]
        return "; ".join(parts)


class TokenLine(Model):
    """A token as people see it listed: its hash is of no use to them."""

    name: Bare
    owner: TokenOwner
    scope: TokenScope
    made_by: ActorGiven
    made_at: Time
    expires_at: Time
    revoked_at: Time | None = None
    revoked_by: ActorGiven = ""


class Token(TokenLine):
    """A token as the ledger has it."""

    hash: TokenHash

    def principal(self, access: AccessFile) -> Principal:
        """Return the principal that it lets in, its owner. `why_not` says whether it is still valid."""
        human = "" if self.owner.startswith(SERVICE) else access.human_of(self.owner)
        return Principal(name=self.owner, human=human, proof=Proof.TOKEN, how=f"token {self.name}")

    def why_not(self, now: Time) -> str:
        """Return in one sentence why it is not valid; empty: it is."""
        if self.revoked_at is not None:
            return f"token {self.name} was revoked at {self.revoked_at:%Y-%m-%d %H:%MZ} by {self.revoked_by}"
        if now >= self.expires_at:
            return f"token {self.name} expired at {self.expires_at:%Y-%m-%d %H:%MZ}: ask an admin for another one"
        return ""


def line_of(token: Token) -> TokenLine:
    return TokenLine.model_validate(token.model_dump(exclude={"hash"}))


def token_hash(token: str) -> str:
    """Return the SHA-256 in hex. A token is random enough to need no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()
