"""One rollout as a line of `backstop status`."""

from __future__ import annotations

from pydantic import Field

from models.base import Model, Time
from models.lifecycle.holds import Hold
from models.rollout.stages import Stage


class RolloutSummary(Model):
    """One rollout as Temporal's visibility shows it, with the ledger's facts beside."""

    cluster: str
    stage: str
    wave: str
    owner: str
    unbacked_gpus: int | None
    """GPUs without backing in the quotas as written; null for a shadow that did not answer."""
    started: Time
    closed: Time | None
    open: bool
    needs: str | None = None
    """The action that a person has to take; empty: none; null: no worker answered."""
    held: str | None = None
    """The holds on its gates and when they end, in words; empty: none; null: unknown."""
    holds: tuple[Hold, ...] = Field(default=(), exclude_if=lambda holds: not holds)
    """The holds behind `held`, where they are known."""
    could: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """People who may take that action, by the access file in force; empty: nobody, no file, or not looked up."""
    health_at: Time | None = None
    """Time of the latest health sample; null: there is none, or no worker answered."""
    asked_at: Time | None = None
    """Time at which the rollout itself answered; null: `needs` is as the ledger last noted it."""
    shadow: bool = False
    """True: the rollout writes no quotas and never has."""
    would_unbacked_gpus: int | None = None
    """For a shadow: the GPUs that its plan would leave without backing; null otherwise."""
    lost: bool = False
    """The ledger has it open, but Temporal runs no workflow for it: nobody guards its quotas."""

    @property
    def urgency(self) -> tuple[int, int, str]:
        """The sort key of rollouts that need a person; the most urgent one sorts first.

        Nobody guards what is lost, and nothing goes on that is stuck; then come values that stand and lack hardware,
        other values that stand, and plans.
        """
        unbacked = self.unbacked_gpus or 0
        written = self.stage != Stage.PLANNED and not self.shadow
        rank = (
            0 if self.lost else 1 if self.stage == Stage.STUCK else 2 if written and unbacked else 3 if written else 4
        )
        return rank, -unbacked, self.cluster
