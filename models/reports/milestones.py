"""The plan's milestones: targets with a due day, and their state by one simple rule.

A milestone is *done* when its target is reached. Until it is due it is *on track* while its number is at least on the
straight line from its number when it was set to its target on its last day; else it is *behind*. Past due it is behind.
Where its number is unknown the state is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from models.base import GpuCount, Model, Name, Text, Time, Words, find_repeated
from models.texts import brief

CHAIN = "(milestones)"
"""The chain of the archive that records changes to milestones; each cluster has a chain of its own."""
MONITORED_CLUSTERS, PHANTOM_GPUS, ROLLED_OUT_WAVES = "monitored_clusters", "phantom_gpus", "rolled_out_waves"
MEASURED = (MONITORED_CLUSTERS, PHANTOM_GPUS, ROLLED_OUT_WAVES)
"""The measures that Backstop counts itself; for every other milestone, people note the number."""


def _day(value: Any) -> Any:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        if isinstance(value, str) and len(value) == 10:
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise ValueError(f"must be a day such as 2026-12-04, not {brief(value)}")


Day = Annotated[date, BeforeValidator(_day)]


class Milestone(Model):
    """A milestone as a person writes it. `due`: its last day, in UTC.

    `measure`: monitored_clusters, rolled_out_waves (reached from below), phantom_gpus (reached from above), or people's
    work in words of their own, such as `users trained` (from below).
    """

    name: Name
    measure: Text = Field(min_length=1, max_length=100)
    target: GpuCount
    due: Day

    @field_validator("measure")
    @classmethod
    def _is_known(cls, measure: str) -> str:
        if "_" in measure and measure not in MEASURED:
            raise ValueError(
                f"must be {', '.join(MEASURED)}, or words of your own without an underscore, not {brief(measure)}"
            )
        return measure.strip()

    @model_validator(mode="after")
    def _ahead(self) -> Self:
        if self.measure != PHANTOM_GPUS and self.target == 0:
            raise ValueError(
                f"target is 0, which is reached from the start: give a larger target (milestone {self.name})"
            )
        return self

    @property
    def falls(self) -> bool:
        """True where less is better."""
        return self.measure == PHANTOM_GPUS


class MilestoneFile(Model):
    """The whole plan: setting it replaces the one before."""

    milestones: tuple[Milestone, ...] = Field(min_length=1, max_length=100)

    @model_validator(mode="after")
    def _once(self) -> Self:
        for _, name in find_repeated(milestone.name for milestone in self.milestones):
            raise ValueError(f"milestone {name!r} is given twice")
        return self


class Planned(Model):
    """A milestone in the ledger. `started_from`: its number at `began`; None: unknown."""

    milestone: Milestone
    began: Time
    started_from: GpuCount | None


class MilestoneNote(Model):
    """The total that people's work had reached, as somebody noted it."""

    milestone: Name
    at: Time
    number: GpuCount
    actor: str
    reason: Words


class Milestones(Model):
    """The plan in its order, and every note of its milestones in order of time."""

    planned: tuple[Planned, ...] = ()
    notes: tuple[MilestoneNote, ...] = ()


def measures_waves(milestones: Milestones) -> bool:
    return any(one.milestone.measure == ROLLED_OUT_WAVES for one in milestones.planned)


class PlanNow(Model):
    """The plan with today's numbers: `measured` by measure, waves if the plan measures them."""

    plan: Milestones
    measured: dict[str, int | None]
    read_at: dict[str, Time] = Field(default_factory=dict)
    """By measure from tallies, the time at which it was read."""


class State(StrEnum):
    DONE = "done"
    ON_TRACK = "on track"
    BEHIND = "behind"
    UNKNOWN = "unknown"


class MilestoneStanding(Model):
    """The state of one milestone at one time. `expected`: by the straight line; None if its start is unknown."""

    milestone: Milestone
    number: int | None
    expected: int | None
    started_from: int | None
    state: State
    note: MilestoneNote | None = None
    """The last note; None: there is none."""
    number_at: Time | None = None
    """Time of `number`, from the last note or the last tallies; None: the answer's own time."""


def standings(
    plan: Milestones, measured: Mapping[str, int | None], at: datetime, read_at: Mapping[str, datetime] | None = None
) -> tuple[MilestoneStanding, ...]:
    """Return the state of each milestone. `measured`: numbers that Backstop counts itself; `read_at`: their times."""
    all_standings = []
    for planned in plan.planned:
        measure = planned.milestone.measure
        last = last_note(plan.notes, planned.milestone.name, at)
        stands = measure_standing(planned, _number(planned.milestone, measured, last), at, last)
        of = (read_at or {}).get(measure) if measure in MEASURED else None if last is None else last.at
        all_standings.append(stands.model_copy(update={"number_at": of}))
    return tuple(all_standings)


def _number(milestone: Milestone, measured: Mapping[str, int | None], last: MilestoneNote | None) -> int | None:
    if milestone.measure in MEASURED:
        return measured.get(milestone.measure)
    return 0 if last is None else last.number


def last_note(notes: Iterable[MilestoneNote], name: str, at: datetime) -> MilestoneNote | None:
    return max((note for note in notes if note.milestone == name and note.at <= at), key=lambda n: n.at, default=None)


def measure_standing(
    planned: Planned, number: int | None, at: datetime, last: MilestoneNote | None = None
) -> MilestoneStanding:
    """Apply the rule to one milestone. The line is rounded in its favour: a part of a cluster does not count."""
    milestone = planned.milestone
    expected = _expected_number(planned, at)
    if number is None:
        state = State.UNKNOWN
    elif (number <= milestone.target) if milestone.falls else (number >= milestone.target):
        state = State.DONE
    elif at >= _end(milestone):
        state = State.BEHIND
    elif expected is None:
        state = State.UNKNOWN
    else:
        state = State.ON_TRACK if (number <= expected if milestone.falls else number >= expected) else State.BEHIND
    return MilestoneStanding(
        milestone=milestone, number=number, expected=expected, started_from=planned.started_from, state=state, note=last
    )


def _expected_number(planned: Planned, at: datetime) -> int | None:
    if planned.started_from is None:
        return None
    length = (_end(planned.milestone) - planned.began) // timedelta(seconds=1)
    gone = min(max((at - planned.began) // timedelta(seconds=1), 0), length)
    if length <= 0:
        return planned.milestone.target
    way = planned.milestone.target - planned.started_from
    # Towards the start, in whole numbers: floor going up, ceiling going down.
    done = (abs(way) * gone) // length
    return planned.started_from + (done if way >= 0 else -done)


def _end(milestone: Milestone) -> datetime:
    due = milestone.due
    return datetime(due.year, due.month, due.day, tzinfo=UTC) + timedelta(days=1)


def replace_plan(
    before: Sequence[Planned], milestones: Sequence[Milestone], now: datetime, measured: Mapping[str, int | None]
) -> tuple[Planned, ...]:
    """Return the new plan. A milestone that keeps its name and measure keeps its start, where it has one."""
    by_name = {p.milestone.name: p for p in before}
    plan = []
    for milestone in milestones:
        same = by_name.get(milestone.name)
        if same is not None and same.started_from is not None and same.milestone.measure == milestone.measure:
            plan.append(same.model_copy(update={"milestone": milestone}))
            continue
        start = measured.get(milestone.measure) if milestone.measure in MEASURED else 0
        plan.append(Planned(milestone=milestone, began=now, started_from=start))
    return tuple(plan)
