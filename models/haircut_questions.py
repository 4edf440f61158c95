"""The question to the desk of what a buffer would cost the whole fleet."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from models.asking import Question
from models.base import Share
from models.planning.haircut import USUAL, FleetHaircut


class HaircutSums(Question[FleetHaircut], kind="haircut_sums"):
    """What these buffers would cost all clusters together, each planned at each; one that cannot be is left out."""

    buffers: Annotated[tuple[Share, ...], Field(min_length=1, max_length=8)] = USUAL
