"""One rollout in a line, as `backstop status` shows all of them."""

from __future__ import annotations

from models.base import Model, Time


class RolloutSummary(Model):
    """One rollout as Temporal's visibility shows it, with what the ledger knows of it beside."""

    cluster: str
    stage: str
    wave: str
    owner: str
    unbacked_gpus: int | None
    """What is so; of a shadow null where the rollout did not answer."""
    started: Time
    closed: Time | None
    open: bool
    needs: str | None = None
    """What a person has to do, empty: nothing; null where no worker answered."""
    health_at: Time | None = None
    """Of the latest health sample; null where there is none, or no worker answered."""
    asked_at: Time | None = None
    """When the rollout itself said what it needs; null: as the ledger last noted it."""
    shadow: bool = False
    """Nothing is written, and nothing of it was."""
    would_unbacked_gpus: int | None = None
    """Of a shadow: what would be."""
    lost: bool = False
    """Open in the ledger, and Temporal runs nothing for it: nobody guards what stands."""
