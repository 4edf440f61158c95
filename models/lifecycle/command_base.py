"""The part that all commands to a lifecycle share: who gives it, and why."""

from __future__ import annotations

from pydantic import Field

from models.access.tickets import Ticketed
from models.base import ActorGiven, Words


class Order(Ticketed):
    """A command from one person."""

    actor: ActorGiven = Field(min_length=1)
    reason: Words = ""
