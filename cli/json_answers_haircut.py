"""The JSON answer of `haircut`, in a file of its own: importing all other answers' models takes longer than it."""

from __future__ import annotations

from cli.json_answer_base import JsonAnswer
from models.planning.fleet_haircut import Haircut, Part, TeamPart


class HaircutAnswer(Haircut, JsonAnswer, schema="haircut"):
    """The costs of buffers: each list has one entry for each of `buffers`, in their order."""


class HaircutPart(Part):
    """A cluster or wave at the explained buffer: a row of `backstop haircut --by`."""

    name: str


class HaircutTeam(TeamPart):
    """A team's quotas at the explained buffer."""

    name: str
