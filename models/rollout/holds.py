"""Holds: they keep gates shut, and never stop a rollback."""

from __future__ import annotations

from enum import StrEnum

from models.base import Model, Time

BREACH, REALIGN, ROLLBACK, RADIUS, REPLAN = "breach", "realign", "rollback", "blast_radius", "replan"
"""Ids of the holds that a rollout sets on itself: for on_breach hold; for a realignment, a breach rollback or another
write that needs a person; for a plan that could not be made."""

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
    """An objection made too late to stop a gate: recorded, and answered by a person."""
