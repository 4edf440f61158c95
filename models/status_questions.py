"""The questions to the desk that `status` asks, every few seconds. models/questions.py has the others.

The types of answers that are mostly empty are imported when there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from models.base import Count, Model, Name, Time, Words
from models.lifecycle.holds import Hold
from models.question_base import Question, later

if TYPE_CHECKING:
    from models.fleet.archived_state import KeptFleet
    from models.requests.state import RequestState
    from models.rollout.status_models import RolloutNote
else:
    KeptFleet = later("models.fleet.archived_state", "KeptFleet")
    RequestState = later("models.requests.state", "RequestState")
    RolloutNote = later("models.rollout.status_models", "RolloutNote")


class Overview(Model):
    """An open rollout as one line of the registry."""

    cluster: Name
    rollout: str
    stage: str
    needs: str
    """The action that a person has to take, as of the last event; empty: nothing."""
    held: str | None = None
    """What holds the rollout's gates, by its last record and the calendar; empty: nothing; None: unknown."""
    holds: tuple[Hold, ...] = Field(default=(), exclude_if=lambda holds: not holds)
    """The holds that `held` describes."""
    note: RolloutNote | None = Field(default=None, exclude_if=lambda note: note is None)
    """The rollout's other data for reports, if the question has `noted`; None: not asked for, or not recorded."""
    could: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """People who could do what `needs` says, by the access file in force, if the question has `could`."""
    health_at: Time | None
    """The time of the oldest of its islands' latest samples; None: no sample, or the question has `noted`."""
    shadow: bool = False
    ended: bool = False
    """True: the rollout has ended. It was a shadow, and the last rollout of its cluster."""
    owner: str = ""
    opened_at: Time | None = None
    fleet: str = ""
    """The fleet rollout that launched it; empty: none did."""
    counter: Count = 0
    """The number of the rollout's last effect in the ledger; 0: none."""


class FleetKept(Question[KeptFleet | None], kind="fleet_kept"):
    """The ledger's record of the fleet rollout that was launched last; null: there never was one."""


class OpenRollouts(Question[tuple[Overview, ...]], kind="overview"):
    """Every open rollout as last noted, by cluster; then ended shadows that were the last rollout of their cluster."""

    could: bool = False
    """True: add `could` to the first hundred rollouts that need a person."""
    noted: bool = False
    """True: add each rollout's `note`, and leave out `health_at`."""
    quiet: bool = True
    """False: leave out ended rollouts, and monitored ones that need nobody and recorded that they lack no GPU."""


class RequestsOf(Question[tuple[RequestState, ...]], kind="requests"):
    """Requests by the time they were made; ended ones only with `ended`."""

    cluster: Words = ""
    ended: bool = False
