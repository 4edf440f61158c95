"""What a rollout has still to archive and to tell."""

from __future__ import annotations

from pydantic import Field

from models.audit import AuditEntry
from models.base import Count, Model, Time
from models.notices import Notice
from models.rollout.stages import Stage


class Post(Model):
    """What is still to be archived and told."""

    outbox: tuple[AuditEntry, ...] = ()
    """Not yet archived."""
    mail: tuple[Notice, ...] = ()
    """Not yet delivered."""
    unseen: tuple[str, ...] = ()
    """Keys of those that say what stands behind a quota, which no look has told since the quotas were written."""
    owner_told: tuple[str, ...] = ()
    """What the owner was told of what stands now (models/rollout/owner_news.py)."""
    serial: Count = 0
    """Counts audit entries and notices: their keys."""
    trouble: str = ""
    """Why mail is being tried again."""
    waiting: dict[str, Time] = Field(default_factory=dict)
    """Keys of notices in the mail that the ledger sends, with when to ask whether it has."""
    noted: Stage | None = None
    """The stage the registry shows."""
