"""The next actions of a bring-up. Each is a value: the loop uses it as the key of the task under way."""

from __future__ import annotations

from dataclasses import dataclass

from models.lifecycle.workflow_actions import Finish, Wait


@dataclass(frozen=True)
class LookForSupply:
    """Ask for the supply until it is there, or its answer changes."""


@dataclass(frozen=True)
class Start:
    """Note the start of this step or undo, then start it."""

    run: str


@dataclass(frozen=True)
class Follow:
    """Look at this attempt until it has ended, or has left no trace."""

    run: str
    attempt: int


@dataclass(frozen=True)
class Stop:
    """End this attempt."""

    run: str
    attempt: int


@dataclass(frozen=True)
class AskChecks:
    """Ask these checks."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class HandOver:
    """Put the cluster into the fleet: islands, capacity, sources, first quotas."""


@dataclass(frozen=True)
class GrantOwed:
    """Grant GPUs that are owed, as far as they fit: more nodes arrived than were handed over."""


@dataclass(frozen=True)
class WindDown:
    """Take the quotas to zero, and see whether anything still runs."""


BringupAction = Wait | Finish | LookForSupply | Start | Follow | Stop | AskChecks | HandOver | GrantOwed | WindDown
