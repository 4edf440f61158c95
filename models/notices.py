"""Notices to teams, before they are put into words (templates are in activities/templates)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from models.base import GpuCount, Model, Name, Since, Time


class NoticeKind(StrEnum):
    PLANNED = "planned"
    """A quota will change: when, by how many GPUs, and why."""
    CHANGED = "changed"
    """The plan changed before it took effect; only teams whose cut grew receive it."""
    BUFFERED = "buffered"
    ENFORCED = "enforced"
    MONITORED = "monitored"
    AT_RISK = "at_risk"
    BREACH = "breach"
    """The promise is withdrawn, because healthy hardware is missing."""
    ROLLED_BACK = "rolled_back"
    STUCK = "stuck"
    HELD = "held"
    """The rollout waits for a person (sent to the owner)."""
    CLOSED = "closed"
    REQUEST = "request"
    """The progress of a request for more quota (sent to the requester, the team, and the owners who decide)."""
    FLEET_HELD = "fleet_held"
    """A fleet rollout starts no more clusters until a person answers (sent to its owner)."""
    BRINGUP = "bringup"
    """A bring-up needs a person, or has ended (sent to the cluster's owner)."""
    EMERGENCY = "emergency"
    """Somebody acts alone where two persons are needed (sent to every admin)."""
    DIGEST = "digest"
    """Several notices to one audience in one message; `facts` has them."""


class Notify(StrEnum):
    """The notices that an audience chooses. Its log gets each notice at once, whatever the choice."""

    EACH = "each"
    """Each notice as it comes. Many notices at once go in one message."""
    DIGEST = "digest"
    """One message a day. Breaches, rollbacks and dangers to a promise are sent at once."""
    BREACH_ONLY = "breach-only"
    """Only breaches, rollbacks and dangers to a promise."""


def notify_of(text: str | None) -> Notify | None:
    """Return the choice of an audience; None: it has made none, or another tool wrote an unknown word."""
    return Notify(text) if text in set(Notify) else None


STARTS_A_CLOCK = frozenset({NoticeKind.PLANNED, NoticeKind.CHANGED})
"""Kinds of notices whose delivery starts the notice period."""


class Notice(Model):
    """A message to one audience. `key` makes its delivery happen once."""

    key: str = Field(min_length=1, max_length=300)
    kind: NoticeKind
    cluster: Name
    audience: Name
    """The team that is notified, or the rollout's owner."""
    contacts: tuple[str, ...] = ()
    owner: str
    """The rollout's owner, whom readers can ask."""
    effective_at: Time | None = None
    before_gpus: GpuCount | None = None
    after_gpus: GpuCount | None = None
    phantom_gpus: GpuCount = 0
    """The cut GPUs that had no healthy GPU behind them when the change was planned."""
    phantom_since: Since | None = None
    to_flex_gpus: GpuCount = 0
    reasons: tuple[str, ...] = ()
    backing_gpus: GpuCount | None = None
    yields: str = Field(default="", exclude_if=lambda text: not text)
    """A sentence on the team's jobs that yield first, by class; empty: unknown, or no job is affected."""
    stage: str = ""
    detail: str = ""
    shadow: bool = False
    facts: dict[str, Any] = Field(default_factory=dict)

    @property
    def notified_text(self) -> str:
        """The archive's entry for a notice that was sent; a shadow's goes to the log only."""
        if self.shadow:
            return f"a shadow notifies nobody; Backstop would have notified {self.audience}: {self.kind}"
        return f"Backstop notified {self.audience}: {self.kind}"


class Delivery(Model):
    """The destination and time of one notice. `repeated`: it had been sent before and was not sent again."""

    key: str
    channel: str
    address: str
    at: Time
    repeated: bool = False
