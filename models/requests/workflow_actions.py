"""The next actions of a request; one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from models.lifecycle.workflow_actions import Finish, Wait


@dataclass(frozen=True)
class Keep:
    """Update the book, and archive the entries."""


@dataclass(frozen=True)
class Write:
    """Try to write the order, or to take it back."""


RequestAction = Wait | Keep | Write | Finish
