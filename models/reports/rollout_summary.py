"""One rollout as a line of `backstop status`."""

from __future__ import annotations

from pydantic import Field

from models.base import Model, Time
from models.rollout.holds import Hold
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
    """The action that a person has to take; empty: nothing; null where no worker answered."""
    held: str | None = None
    """What holds its gates and until when, in words; empty: nothing does; null: it is not known."""
    holds: tuple[Hold, ...] = Field(default=(), exclude_if=lambda holds: not holds)
    """The holds themselves, where they are known."""
    could: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """People who could take it, by the access file in force; empty: nobody, no file, or nobody looked."""
    health_at: Time | None = None
    """The time of the latest health sample; null where there is none, or no worker answered."""
    asked_at: Time | None = None
    """The time at which the rollout itself answered what it needs; null: as the ledger last noted it."""
    shadow: bool = False
    """True: it writes nothing, and never did."""
    would_unbacked_gpus: int | None = None
    """For a shadow: the GPUs that its plan would leave without backing."""
    lost: bool = False
    """Open in the ledger, but Temporal runs nothing for it: nobody guards its quotas."""

    @property
    def urgency(self) -> tuple[int, int, str]:
        """What a list of rollouts that need a person is sorted by: the one that cannot wait is the least.

        Nobody guards what is lost, and nothing goes on that is stuck; then come values that stand and lack hardware,
        other values that stand, and plans.
        """
        unbacked = self.unbacked_gpus or 0
        written = self.stage != Stage.PLANNED and not self.shadow
        rank = (
            0 if self.lost else 1 if self.stage == Stage.STUCK else 2 if written and unbacked else 3 if written else 4
        )
        return rank, -unbacked, self.cluster
