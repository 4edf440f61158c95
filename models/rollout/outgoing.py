"""A rollout's archive entries and notices that still have to go out."""

from __future__ import annotations

from pydantic import Field

from models.base import Time
from models.lifecycle.outgoing import Outgoing
from models.rollout.stages import Stage


class Post(Outgoing):
    """The entries and notices still to go out, with their delivery state."""

    unseen: tuple[str, ...] = ()
    """Keys of notices that report backing, which no look has tested since the quotas were written."""
    owner_told: tuple[str, ...] = ()
    """Marks of the current news that the owner was told (models/rollout/owner_news.py)."""
    trouble: str = ""
    """The reason the mail is being tried again."""
    waiting: dict[str, Time] = Field(default_factory=dict)
    """Keys of notices that the ledger sends, with the time to ask whether it has."""
    noted: Stage | None = None
    """The stage the registry shows."""
