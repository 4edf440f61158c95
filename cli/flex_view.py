"""The division of flex as people read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from rich.console import RenderableType
from rich.text import Text

from cli.output import gpus, line, row, table
from models.flex import Division, FlexDemand, Mode
from models.flex_jobs import JobNow, Scene

_BY = {Mode.EQUAL: "equally", Mode.QUOTA: "in proportion to quota", Mode.WEIGHT: "by weight"}


def parts(asked: FlexDemand, found: Division) -> list[RenderableType]:
    """Who gets how much of it in quota and how much beyond."""
    by_name = {t.team: t for t in asked.teams}
    made = table("TEAM", "NAMESPACE", ">QUOTA", ">DEMAND", ">GETS", ">IN QUOTA", ">BEYOND", ">WANTING")
    for p in found.portions:
        team = by_name[p.team]
        wanting = team.demand_gpus - p.gpus
        row(
            made,
            p.team,
            team.parent or "",
            team.quota_gpus or 0,
            team.demand_gpus,
            p.gpus,
            p.in_quota_gpus,
            p.flex_gpus,
            wanting,
            style="yellow" if p.gpus < min(team.quota_gpus or 0, team.demand_gpus) else "",
        )
    given = sum(p.gpus for p in found.portions)
    said = f"{given} of {gpus(asked.capacity_gpus)} are given, what is beyond quota {_BY[asked.mode]}; "
    return [made, Text(), line(f"{said}{found.unused_gpus} nobody can use.")]


def story_parts(scenes: Sequence[Scene]) -> list[RenderableType]:
    """A line for each step, then how it ended."""
    if not scenes:
        return [line("Nothing happens: there are no steps.")]
    found: list[RenderableType] = [line(f"{s.step + 1:>4}  {s.what}: {_what_came(s)}") for s in scenes]
    last = scenes[-1]
    made = table("TEAM", ">QUOTA", ">SHARE", ">HAS", ">IN QUOTA", ">ON FLEX", ">WAITING", "=RUNS", "=WAITS")
    for t in last.teams:
        row(
            made,
            t.team,
            t.quota_gpus,
            t.share_gpus,
            _number(t.allocated_gpus),
            _number(t.in_quota_gpus),
            _number(t.allocated_gpus - t.in_quota_gpus),
            _number(t.queued_gpus),
            _names(j for j in last.running if j.team == t.team),
            _names(j for j in last.queued if j.team == t.team),
        )
    return [*found, Text(), made, Text(), line(f"{_number(last.unused_gpus)} of {gpus(last.capacity_gpus)} are free.")]


def _what_came(s: Scene) -> str:
    said = [f"{name} runs" for name in s.started]
    said += [f"{t.job} of {t.team} gives {_number(t.gpus)} back ({t.why})" for t in s.preempted]
    return "; ".join(said) or "nothing else"


def _names(jobs: Iterable[JobNow]) -> str:
    return " ".join(j.job for j in jobs)


def _number(value: Fraction) -> str:
    return f"{float(value):g}"
