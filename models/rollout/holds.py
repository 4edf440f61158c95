"""Holds: what stops gates from opening, never a rollback."""

from __future__ import annotations

from enum import StrEnum

from models.base import Model, Time

BREACH, REALIGN, ROLLBACK, RADIUS, REPLAN = "breach", "realign", "rollback", "blast_radius", "replan"
"""Ids of the holds that a rollout sets on itself: on_breach hold; a realignment, a breach rollback or
another write that needs a person; a plan that could not be made."""


PROPOSAL = "proposal"
"""What `resolve` names to decline a proposal, which holds nothing."""


class HoldKind(StrEnum):
    PAUSED = "paused"
    OBJECTION = "objection"
    MAINTENANCE = "maintenance"
    SEV = "sev"
    DRIFT = "drift"
    FREEZE = "freeze"
    UNKNOWN_HEALTH = "unknown_health"
    BLAST_RADIUS = "blast_radius"
    BREACH = "breach"
    """on_breach: hold, or a realignment outside the envelope."""
    BREAKER = "breaker"
    """Of a fleet rollout: too large a share of its clusters rolled back."""
    PILOTS = "pilots"
    """Of a fleet rollout: a pilot rolled back."""


class Hold(Model):
    """Stops gates from opening, never a rollback."""

    id: str
    kind: HoldKind
    reason: str
    actor: str
    at: Time
    until: Time | None = None
    team: str | None = None
    after_enforced: bool = False
    """An objection made too late to stop a gate: recorded, and answered by a person."""
