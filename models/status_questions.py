"""The questions to the desk that `status` asks, every few seconds. models/questions.py has the others.

The types of answers that are mostly empty are imported when there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from models.base import Count, Model, Name, Time, Words
from models.question_base import Question, later
from models.rollout.holds import Hold

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
    """What holds its gates, by its last note and the calendar; empty: nothing does; None: it is not known."""
    holds: tuple[Hold, ...] = Field(default=(), exclude_if=lambda holds: not holds)
    """The holds themselves."""
    note: RolloutNote | None = Field(default=None, exclude_if=lambda note: note is None)
    """The rest of what it noted for reports, where that was asked for; None: it has noted none."""
    could: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """People who could take it, by the access file in force, where that was asked for."""
    health_at: Time | None
    """The oldest of its islands' latest health samples; None without any."""
    shadow: bool = False
    ended: bool = False
    """True: it is listed only because the last rollout there was a shadow."""
    owner: str = ""
    opened_at: Time | None = None
    fleet: str = ""
    """The fleet rollout that launched it; empty: none did."""
    counter: Count = 0
    """The number of its last effect in the ledger."""


class FleetKept(Question[KeptFleet | None], kind="fleet_kept"):
    """The ledger's record of the fleet rollout that was launched last; null: there never was one."""


class OpenRollouts(Question[tuple[Overview, ...]], kind="overview"):
    """Every open rollout as last noted, by cluster; then ended shadows that were the last rollout of their cluster."""

    could: bool = False
    """Add who could do what they need, for the first hundred that need a person."""
    noted: bool = False
    """Add what each noted for reports, and leave out when its health was last seen."""
    quiet: bool = True
    """False: leave out ended ones, and those that are monitored, need nobody, and noted that they lack no GPU."""


class RequestsOf(Question[tuple[RequestState, ...]], kind="requests"):
    """Requests by the time they were made; ended ones only with `ended`."""

    cluster: Words = ""
    ended: bool = False
