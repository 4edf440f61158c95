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
from models.base import PositiveCount, Text, Words
from models.fleet.state import FLEET
from models.question_base import Question


def chain_of(command: str, target: Target) -> str:
    """Whose part of the archive tells of a command."""
    return FLEET if command.startswith("fleet.") else target.cluster or ACCESS_CHAIN


class KeepWaiting(Question[Waiting], kind="keep_waiting"):
    """The command of whoever asks waits for a second person: what a front keeps. Errors: Refusal.

    The same one again is the same.
    """

    command: Text = Field(max_length=100)
    target: Target
    message: dict[str, Any]
    ticket: str = Field(default="", max_length=TICKET_CHARS)
    reason: Words = ""


class WaitingNow(Question[tuple[Waiting, ...]], kind="waiting"):
    """What waits for a second person, the oldest first."""


class WaitingOne(Question[Waiting], kind="waiting_one"):
    """One that waits or did, with all that would be done. Errors: Refusal where there is none."""

    hash: WaitingHash


class Turn(StrEnum):
    """What becomes of a command that somebody countersigns."""

    TAKE = "take"
    """It is about to be carried out for this second person, and for no other."""
    DONE = "done"
    REFUSED = "refused"
    """It was not taken: it goes on waiting."""


class TurnWaiting(Question[TakenCommand], kind="turn_waiting"):
    """Who asks countersigns it: what a front asks before and after it carries it out. Errors: Refusal."""

    hash: WaitingHash
    turn: Turn
    reason: Words = ""


class WithdrawWaiting(Question[Waiting], kind="withdraw_waiting"):
    """The command waits no more. Errors: Refusal for who did not give it."""

    hash: WaitingHash
    reason: Words = ""


class TellEmergency(Question[Emergency], kind="tell_emergency"):
    """All admins are told that who asks acts alone: what a front asks before it lets them. Errors: Refusal."""

    command: Text = Field(max_length=100)
    target: Target
    reason: Words


class SeenEmergency(Question[Emergency], kind="seen_emergency"):
    """Another admin has looked at what somebody did alone. Errors: Refusal for who did it, and where there is none."""

    number: PositiveCount
    reason: Words
