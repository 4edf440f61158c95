"""Commands that wait for a second person, and commands that somebody gave alone in an emergency.

The first person's whole request is kept as it was signed, for a day. The countersigner is judged when they countersign,
by the access file in force then. Source: docs/access.md, "The table of rights".
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
from models.base import ActorGiven, Model, PositiveCount, Text, Time, Words
from models.hashes import canonical_json

SHOWN_DIGITS = 16
"""The number of hex digits of a hash that people read and type (64 bits). The ledger has the whole hash."""
COUNTERSIGN = "countersign.give"
"""The key of the right to countersign in RIGHTS."""
WAITS_BY_ITSELF = frozenset({"desk.import_access"})
"""Commands that store their own proposal in the ledger until another admin countersigns it."""
WAITING_HASH_IS = f"must be {SHOWN_DIGITS} to 64 of the digits 0-9 and a-f, as `backstop countersign list` shows them"


def is_waiting_hash(text: str) -> bool:
    """Return whether the text can name a waiting command."""
    return SHOWN_DIGITS <= len(text) <= 64 and set(text) <= set("0123456789abcdef")


def _digits(text: str) -> str:
    if not is_waiting_hash(text):
        raise ValueError(WAITING_HASH_IS)
    return text


WaitingHash = Annotated[str, Field(max_length=64), AfterValidator(_digits)]


def deed_of(command: str, target: Target) -> str:
    """Return what a command does and where, as it continues after "to": `enter a cluster in h100-new`."""
    named = " and ".join(right.to for right in RIGHTS[command].rights_under(target.cases))
    if not command.startswith("fleet."):
        return f"{named}{target.place}"
    if "fleet rollout" in named:
        return named
    deed, with_, way = named.partition(" with ")
    return f"{deed}{' of' * (' ' in deed)} the fleet rollout{with_}{way}"


class KeptCommand(Model):
    """A command as its giver signed it. `command`: its key in the table of rights.

    `message`: the workflow's message, with the giver as actor. `ticket`: for exactly that message; empty: this front
    has no key.
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
        """SHA-256 of all its content, in hex."""
        return hashlib.sha256(canonical_json(self.canonical).encode()).hexdigest()

    @property
    def canonical(self) -> dict[str, Any]:
        """The content in one spelling, independent of the order of sets."""
        document: dict[str, Any] = self.model_dump(mode="json")
        document["target"]["cases"] = sorted(document["target"]["cases"])
        return document


class Awaited(Model):
    """A kept command and its outcome. `ended`: `given`, `withdrawn`; empty: it waits, or nobody came in time."""

    kept: KeptCommand
    second: ActorGiven = ""
    """The person who has begun to countersign it; empty: nobody."""
    ended: Text = ""
    ended_at: Time | None = None

    @property
    def until(self) -> Time:
        return self.kept.at + COUNTERSIGNED_WITHIN

    @property
    def deed_text(self) -> str:
        """The deed, as it continues after "to"."""
        return deed_of(self.kept.command, self.kept.target)

    def why_not(self, now: Time) -> str:
        """Return in one sentence why it waits no more; empty: it waits."""
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
    """A kept command as people see it. `what`: the deed, as it continues after "to"."""

    hash: Text
    command: Text
    what: Text
    cluster: Text = ""
    by: ActorGiven
    reason: Words = ""
    at: Time
    until: Time
    could: tuple[str, ...] = ()
    """People who could countersign, by the access file in force."""
    message: dict[str, Any] = Field(default_factory=dict)
    """The command's whole message, without its ticket; empty in a list."""
    changes: tuple[str, ...] = Field(default=(), exclude_if=lambda changes: not changes)
    """The changes that the command would make now, where its message does not list them."""
    second: ActorGiven = ""
    """The person who is countersigning, or has countersigned; empty: nobody."""
    ended: Text = ""
    """`given`, `withdrawn`; empty: it waits, or nobody countersigned in time."""


class TakenCommand(Model):
    """The kept command for the front to carry out, once a second person has taken it."""

    waiting: Waiting
    command: Text
    message: dict[str, Any]
    ticket: str = Field(default="", max_length=TICKET_CHARS)


class Countersigned(Model):
    """The outcome of a command that two persons gave."""

    hash: Text
    command: Text
    by: ActorGiven
    second: ActorGiven
    said: Text
    undo: Text = ""


class Emergency(Model):
    """A command that somebody gave alone where two were needed, shown until another admin has reviewed it."""

    number: PositiveCount
    by: ActorGiven
    at: Time
    what: Text
    reason: Words
    seen_by: ActorGiven = ""
    seen_at: Time | None = None
    seen_reason: Words = ""

    @property
    def is_refused(self) -> bool:
        """True if its command was refused: nothing was done alone, and nobody needs to review it."""
        return self.seen_at is not None and not self.seen_by

    @property
    def sentence(self) -> str:
        """A sentence for its readers."""
        return f"{self.by} acted alone in an emergency, {self.at:%Y-%m-%d %H:%MZ}: {self.what}: {self.reason}"
