"""What a rollout has still to archive and to tell."""

from __future__ import annotations

from pydantic import Field

from models.base import Time
from models.lifecycle.outgoing import Outgoing
from models.rollout.stages import Stage


class Post(Outgoing):
    """What is still to be archived and told, and what is known of it."""

    unseen: tuple[str, ...] = ()
    """Keys of those that say what stands behind a quota, which no look has told since the quotas were written."""
    owner_told: tuple[str, ...] = ()
    """What the owner was told of what stands now (models/rollout/owner_news.py)."""
    trouble: str = ""
    """Why mail is being tried again."""
    waiting: dict[str, Time] = Field(default_factory=dict)
    """Keys of notices in the mail that the ledger sends, with when to ask whether it has."""
    noted: Stage | None = None
    """The stage the registry shows."""
