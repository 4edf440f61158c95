"""What teams are told, before it is put into words (templates live in activities/templates)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from models.base import GpuCount, Model, Name, Since, Time


class NoticeKind(StrEnum):
    PLANNED = "planned"
    """A quota will change: from when, by how many, why."""
    CHANGED = "changed"
    """The plan changed before it took effect; only teams whose cut grew get it."""
    BUFFERED = "buffered"
    ENFORCED = "enforced"
    MONITORED = "monitored"
    AT_RISK = "at_risk"
    BREACH = "breach"
    """The promise is withdrawn: hardware is missing."""
    ROLLED_BACK = "rolled_back"
    STUCK = "stuck"
    HELD = "held"
    """The rollout waits for a person (sent to the owner)."""
    CLOSED = "closed"
    REQUEST = "request"
    """What becomes of a request for more quota (to who asked and the team; to the cluster's owners, who decide)."""
    FLEET_HELD = "fleet_held"
    """A fleet rollout starts no more clusters until a person answers (sent to its owner)."""
    BRINGUP = "bringup"
    """A bring-up needs a person, or has come to its end (sent to the cluster's owner)."""
    EMERGENCY = "emergency"
    """Somebody acts alone where two persons are needed (sent to every admin)."""
    DIGEST = "digest"
    """Several notices to one audience in one message; `facts` has them."""


class Notify(StrEnum):
    """How an audience wants to be told. Its log has each notice at once, whichever it is."""

    EACH = "each"
    """As it comes; what comes in a flood goes together."""
    DIGEST = "digest"
    """Once a day; of breaches, rollbacks and what endangers a promise at once."""
    BREACH_ONLY = "breach-only"
    """Of breaches, rollbacks and what endangers a promise; of nothing else."""


def notify_of(text: str | None) -> Notify | None:
    """The choice of an audience; None: it has made none, or another tool wrote a word that is no choice."""
    return Notify(text) if text in set(Notify) else None


STARTS_A_CLOCK = frozenset({NoticeKind.PLANNED, NoticeKind.CHANGED})
"""The notice period runs from when these were delivered."""


class Notice(Model):
    """One message to one audience. `key` makes its delivery happen once."""

    key: str = Field(min_length=1, max_length=300)
    kind: NoticeKind
    cluster: Name
    audience: Name
    """The team told, or the rollout's owner."""
    contacts: tuple[str, ...] = ()
    owner: str
    """Whom to ask."""
    effective_at: Time | None = None
    before_gpus: GpuCount | None = None
    after_gpus: GpuCount | None = None
    phantom_gpus: GpuCount = 0
    """Of the GPUs that go: behind so many no healthy one stood when it was planned."""
    phantom_since: Since | None = None
    to_flex_gpus: GpuCount = 0
    reasons: tuple[str, ...] = ()
    backing_gpus: GpuCount | None = None
    yields: str = Field(default="", exclude_if=lambda text: not text)
    """Who of the team yields first, by class, in a sentence; empty: nobody knows, or nothing in use is touched."""
    stage: str = ""
    detail: str = ""
    shadow: bool = False
    facts: dict[str, Any] = Field(default_factory=dict)

    @property
    def notified_text(self) -> str:
        """The archive's entry of a notice that went out; a shadow's goes to the log alone."""
        if self.shadow:
            return f"a shadow notifies nobody; Backstop would have notified {self.audience}: {self.kind}"
        return f"Backstop notified {self.audience}: {self.kind}"


class Delivery(Model):
    """Where one notice went, and when. `repeated`: it had been sent before and was not sent again."""

    key: str
    channel: str
    address: str
    at: Time
    repeated: bool = False
