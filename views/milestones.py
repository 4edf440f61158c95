"""Milestones for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from models.reports.milestones import MEASURED, MilestoneStanding, State
from views.words import line, moment, row, table

STYLE = {State.DONE: "green", State.ON_TRACK: "", State.BEHIND: "red", State.UNKNOWN: "yellow"}


def milestones_parts(standings: Sequence[MilestoneStanding]) -> list[RenderableType]:
    """Return a line for each, and the rule."""
    if not standings:
        return [line("There is no milestone yet. `backstop milestones set FILE` sets them.")]
    rows = table(
        *("MILESTONE", "=MEASURE", ">NUMBER", "=OF", ">EXPECTED", ">TARGET", "=DUE", "=STANDS", "~LAST NOTED"),
        least=("OF", "EXPECTED", "MEASURE"),
    )
    for standing in standings:
        counted = (
            standing.number is not None and standing.milestone.measure in MEASURED
        )  # what nobody has noted yet is of no time
        row(
            rows,
            standing.milestone.name,
            words(standing.milestone.measure),
            standing.number,
            f"{standing.number_at:%Y-%m-%d %H:%MZ}" if standing.number_at else "now" if counted else None,
            standing.expected,
            standing.milestone.target,
            standing.milestone.due,
            standing.state.value,
            note_text(standing) or None,
            style=STYLE[standing.state],
        )
    return [rows, Text(), line(RULE)]


RULE = (
    "On track: at or ahead of a straight line that begins at the number on the day the milestone was set, and ends "
    "at the target on the last day."
)


def words(measure: str) -> str:
    return measure.replace("_", " ").replace("gpus", "GPUs")


def note_text(standing: MilestoneStanding) -> str:
    return "" if standing.note is None else f"{moment(standing.note.at)} {standing.note.actor}: {standing.note.reason}"
