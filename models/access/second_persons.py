"""Commands that wait for a second person, and what somebody did alone in an emergency.

The first one's whole request is kept as it was signed, for a day. Whoever countersigns is judged when they do: the
access file in force then says who counts. Source: docs/access.md, "The table of rights".
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from models.access.access_versions import COUNTERSIGNED_WITHIN
from models.access.decision import Target
from models.access.principals import Principal
from models.access.rights import RIGHTS
from models.access.tickets import TICKET_CHARS
from models.base import ActorGiven, Model, PositiveCount, Text, Time, Words, canonical_json

SHOWN_DIGITS = 16
"""Of a hash, as people read and type it: 64 bits. Rows have all of it."""
COUNTERSIGN = "countersign.give"
"""The key of countersigning in the table of rights."""
WAITS_BY_ITSELF = frozenset({"desk.import_access"})
"""Given by one alone it changes nothing: the file waits in the ledger for another admin, who is judged there."""


WAITING_HASH_IS = f"must be {SHOWN_DIGITS} to 64 of the digits 0-9 and a-f, as `backstop countersign list` shows them"


def is_waiting_hash(text: str) -> bool:
    """Whether it can name something that waits."""
    return SHOWN_DIGITS <= len(text) <= 64 and set(text) <= set("0123456789abcdef")


def _digits(text: str) -> str:
    if not is_waiting_hash(text):
        raise ValueError(WAITING_HASH_IS)
    return text


WaitingHash = Annotated[str, Field(max_length=64), AfterValidator(_digits)]


def deed_of(command: str, target: Target) -> str:
    """What a command does and where, as it goes on after "to": `begin a bring-up in h100-new`."""
    named = " and ".join(right.to for right in RIGHTS[command].rights_under(target.cases))
    return f"{named} the fleet rollout" if command.startswith("fleet.") else f"{named}{target.place}"


class KeptCommand(Model):
    """A command as its giver signed it. `command`: its key in the table of rights.

    `message`: what goes to the workflow, the first one's name in it as the actor. `ticket`: of exactly that; empty:
    this front has no key.
    """

    command: Text = Field(max_length=100)
    target: Target
    message: dict[str, Any]
    ticket: str = Field(default="", max_length=TICKET_CHARS)
    principal: Principal
    reason: Words = ""
    at: Time

    @property
    def hash(self) -> str:
        """SHA-256 of all of it, in hex."""
        return hashlib.sha256(canonical_json(self.canonical).encode()).hexdigest()

    @property
    def canonical(self) -> dict[str, Any]:
        """The same for the same, whatever the order in which a set was walked."""
        document: dict[str, Any] = self.model_dump(mode="json")
        document["target"]["cases"] = sorted(document["target"]["cases"])
        return document


class Awaited(Model):
    """A kept command, and what became of it. `ended`: `given`, `withdrawn`; empty: it waits, or nobody came in time."""

    kept: KeptCommand
    second: ActorGiven = ""
    """Who has taken it upon them to countersign it."""
    ended: Text = ""
    ended_at: Time | None = None

    @property
    def until(self) -> Time:
        return self.kept.at + COUNTERSIGNED_WITHIN

    @property
    def deed_text(self) -> str:
        """What would be done, as it goes on after "to"."""
        return deed_of(self.kept.command, self.kept.target)

    def why_not(self, now: Time) -> str:
        """Why it waits no more, in one sentence; empty: it does."""
        short = self.kept.hash[:SHOWN_DIGITS]
        if self.ended == "withdrawn":
            return f"{self.kept.principal.name} withdrew {short}: there is nothing left to countersign"
        if self.ended:
            return f"{self.second} has already countersigned {short}"
        if now >= self.until:
            return (
                f"{short} waited until {self.until:%Y-%m-%d %H:%MZ}, and nobody countersigned it: "
                f"{self.kept.principal.name} has to give the command again"
            )
        return ""


class Waiting(Model):
    """A kept command as people see it. `what`: what would be done, as it goes on after "to"."""

    hash: Text
    command: Text
    what: Text
    cluster: Text = ""
    by: ActorGiven
    reason: Words = ""
    at: Time
    until: Time
    could: tuple[str, ...] = ()
    """Who could countersign, by the access file in force."""
    message: dict[str, Any] = Field(default_factory=dict)
    """The whole of what was given."""
    changes: tuple[str, ...] = Field(default=(), exclude_if=lambda changes: not changes)
    """What it would change as things stand, where the message does not say."""
    second: ActorGiven = ""
    """Who is countersigning it, or has."""
    ended: Text = ""
    """`given`, `withdrawn`; empty: it waits."""


class TakenCommand(Model):
    """What a front carries out: the kept command, which one second person has taken upon them."""

    waiting: Waiting
    command: Text
    message: dict[str, Any]
    ticket: str = Field(default="", max_length=TICKET_CHARS)


class Countersigned(Model):
    """What became of a command that two have given."""

    hash: Text
    command: Text
    by: ActorGiven
    second: ActorGiven
    said: Text
    undo: Text = ""


class Emergency(Model):
    """What somebody did alone where two were needed. It stands on top of the weekly report until another has looked."""

    number: PositiveCount
    by: ActorGiven
    at: Time
    what: Text
    reason: Words
    seen_by: ActorGiven = ""
    seen_at: Time | None = None
    seen_reason: Words = ""

    @property
    def sentence(self) -> str:
        """For who reads of it."""
        return f"{self.by} acted alone in an emergency, {self.at:%Y-%m-%d %H:%MZ}: {self.what}: {self.reason}"
