"""Questions to the desk about cuts in many clusters: by a buffer, or by the plan of a fleet rollout."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from models.base import Name, Share
from models.planning.fleet_haircut import USUAL, FleetHaircut
from models.planning.plan import Envelope
from models.question_base import Question


class HaircutSums(Question[FleetHaircut], kind="haircut_sums"):
    """The cost of each of these buffers to all clusters together; a cluster that cannot be planned is left out."""

    buffers: Annotated[tuple[Share, ...], Field(min_length=1, max_length=8)] = USUAL


class FleetEnvelopes(Question[dict[Name, Envelope]], kind="fleet_envelopes"):
    """The envelope that an approval of this fleet rollout's plan approves, by planned cluster."""

    fleet: Name
    clusters: tuple[Name, ...] = Field(min_length=1, max_length=200)
