"""What a request can do next: one of these at a time."""

from __future__ import annotations

from dataclasses import dataclass

from models.lifecycle.next_actions import Finish, Wait


@dataclass(frozen=True)
class Keep:
    """The book takes in how it stands, and the archive what happened."""


@dataclass(frozen=True)
class Write:
    """One try to write the order, or to take it back."""


RequestAction = Wait | Keep | Write | Finish
