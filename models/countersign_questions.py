"""Questions to the desk about second persons: what waits for one, and what was done without one.

models/questions.py has the others.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from models.access.access_versions import ACCESS_CHAIN
from models.access.decision import Target
from models.access.second_persons import Emergency, TakenCommand, Waiting, WaitingHash
from models.access.tickets import TICKET_CHARS
from models.base import Count, PositiveCount, Text, Words
from models.fleet.state import FLEET
from models.question_base import Question


def chain_of(command: str, target: Target) -> str:
    """Return the chain of the archive that records a command."""
    return FLEET if command.startswith("fleet.") else target.cluster or ACCESS_CHAIN


class KeepWaiting(Question[Waiting], kind="keep_waiting"):
    """Keep the asker's command until a second person countersigns it: a front asks this. Errors: Refusal.

    Keeping the same command again changes nothing.
    """

    command: Text = Field(max_length=100)
    target: Target
    message: dict[str, Any]
    ticket: str = Field(default="", max_length=TICKET_CHARS)
    reason: Words = ""


class WaitingNow(Question[tuple[Waiting, ...]], kind="waiting"):
    """The commands that wait for a second person, the oldest first."""


class WaitingOne(Question[Waiting], kind="waiting_one"):
    """A command that waits or has waited for a second person, in full. Errors: Refusal where there is none."""

    hash: WaitingHash


class Turn(StrEnum):
    """The outcome of countersigning a command."""

    TAKE = "take"
    """The front is about to carry the command out with this second person, and with no other."""
    DONE = "done"
    REFUSED = "refused"
    """The command was not carried out and still waits."""


class TurnWaiting(Question[TakenCommand], kind="turn_waiting"):
    """Countersign it: a front asks this before and after it carries the command out. Errors: Refusal."""

    hash: WaitingHash
    turn: Turn
    reason: Words = ""


class WithdrawWaiting(Question[Waiting], kind="withdraw_waiting"):
    """Withdraw the waiting command. Errors: Refusal unless the asker gave it."""

    hash: WaitingHash
    reason: Words = ""


class TellEmergency(Question[Emergency], kind="tell_emergency"):
    """Notify all admins that the asker acts alone: a front asks this before it lets them. Errors: Refusal.

    `refused`: instead, the number of that emergency, once its command was refused: nothing was done alone.
    """

    command: Text = Field(max_length=100)
    target: Target
    reason: Words
    refused: Count = 0


class UnseenEmergencies(Question[tuple[Emergency, ...]], kind="unseen_emergencies"):
    """The commands that somebody gave alone and that no other admin has reviewed, by number.

    A worker of an earlier build does not know the question: it gives no answer, not an empty one.
    """


class SeenEmergency(Question[Emergency], kind="seen_emergency"):
    """Record that another admin has reviewed what somebody did alone. Errors: Refusal for that person, or none."""

    number: PositiveCount
    reason: Words
