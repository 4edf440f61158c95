"""Questions about all clusters that pages ask at each look. A worker works their answers out once, after its start."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from models.fleet_cut_questions import HaircutSums
from models.question_base import Question
from models.questions import FlexSums, PastWeek, Tallies
from models.reports.tallies import slot_of
from models.reports.weekly import WEEK


class CurveSpan(NamedTuple):
    """The length of a curve, back from now, and its number of points."""

    length: timedelta
    points: int


FLEET_CURVE = CurveSpan(timedelta(weeks=4), 57)
FLEX_CURVE = CurveSpan(timedelta(days=7), 85)
LEADER_CURVE = CurveSpan(timedelta(days=56), 57)


def times_back(now: datetime, length: timedelta, points: int) -> tuple[list[datetime], timedelta]:
    """Return so many times up to now, over about this length, oldest first; and the step between them.

    All but the last stay the same for a whole step, so that their tallies are summed once.
    """
    step = length / (points - 1)
    newest = slot_of(now, step)
    return [*(newest - step * n for n in reversed(range(points - 1))), now], step


def curve_question(now: datetime, length: timedelta, points: int, cluster: str = "") -> Tallies:
    """Return the question for a curve of one cluster, or of all."""
    times, step = times_back(now, length, points)
    return Tallies(cluster=cluster, times=tuple(times), within_seconds=int(step.total_seconds()))


def first_questions(now: datetime) -> Sequence[Question[Any]]:
    """Return what a worker asks itself first, the most looked at before the others."""
    leader = curve_question(now, *LEADER_CURVE)
    week = PastWeek(since=now - WEEK, until=now, times=leader.times, within_seconds=leader.within_seconds)
    curves = curve_question(now, *FLEET_CURVE), curve_question(now, *FLEX_CURVE)
    return curves[0], FlexSums(), curves[1], week, HaircutSums()
