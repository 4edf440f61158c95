"""Holds: they keep gates shut, and never stop a rollback."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from models.audit_chain import BACKSTOP
from models.base import Model, Time
from models.texts import some_of

BREACH, REALIGN, ROLLBACK, RADIUS, REPLAN = "breach", "realign", "rollback", "blast_radius", "replan"
"""Ids of the holds that a rollout sets on itself: for on_breach hold; for a realignment, a breach rollback or another
write that needs a person; for a plan that could not be made."""

UNMERGED = "merge"
"""The id of the hold of an effect that waits on a branch until people merge it."""

PROPOSAL = "proposal"
"""The id that `resolve` names to decline a proposal, which is no hold."""


class HoldKind(StrEnum):
    PAUSED = "paused"
    OBJECTION = "objection"
    MAINTENANCE = "maintenance"
    SEV = "sev"
    DRIFT = "drift"
    FREEZE = "freeze"
    UNKNOWN_HEALTH = "unknown_health"
    BLAST_RADIUS = "blast_radius"
    MERGE = "merge"
    """An effect waits on a branch of a repository until people merge it."""
    BREACH = "breach"
    """A breach with on_breach: hold, or a realignment outside the envelope."""
    BREAKER = "breaker"
    """For a fleet rollout: too large a share of its clusters rolled back."""
    PILOTS = "pilots"
    """For a fleet rollout: a pilot rolled back."""


class Hold(Model):
    """A reason to keep gates shut. It never stops a rollback."""

    id: str
    kind: HoldKind
    reason: str
    actor: str
    at: Time
    until: Time | None = None
    team: str | None = None
    after_enforced: bool = False
    """An objection that came too late to stop a gate; it is recorded, and a person answers it."""


_NO_PERSON = (BACKSTOP, "guard", "calendar", "health", "planner")
"""Actors of holds that no person set."""
_NAMED = 3


def holds_text(holds: Iterable[Hold]) -> str:
    """Say in one line what holds a rollout, who set it, and until when if that is known; empty: nothing does."""
    return some_of(list(dict.fromkeys(map(_hold_text, holds))), _NAMED, by="; ")


def standing_text(hold: Hold) -> str:
    """Say that a person has to lift the hold."""
    return f"held ({_hold_text(hold)})"


def _hold_text(hold: Hold) -> str:
    kind = "SEV" if hold.kind is HoldKind.SEV else hold.kind.replace("_", " ")
    by = "" if hold.actor in _NO_PERSON else f" by {hold.actor}"
    until = "" if hold.until is None else f", until {hold.until:%Y-%m-%d %H:%MZ}"
    return f"{kind}{by}: {hold.reason}{until}"
