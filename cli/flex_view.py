"""The division of flex as people read it."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from cli.output import gpus, line, row, table
from models.flex import Division, FlexDemand, Mode

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
