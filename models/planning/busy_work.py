"""Whose work stands on the GPUs in use that a plan cuts, by class; and whom classes would help."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from models.base import count_text, gpus_text, some_of
from models.cluster.classes import those_of
from models.cluster.jobs import RunsOn
from models.cluster.policy import Policy, Tier
from models.cluster.snapshot import Snapshot
from models.cluster.work import TeamWork

if TYPE_CHECKING:
    from models.planning.plan import Plan

MOST_TEAMS_AT_WORK = 100
"""Teams of which a plan says who yields first: a rollout carries its plan for long."""


def work_under(snapshot: Snapshot, busy: Mapping[str, int]) -> tuple[TeamWork, ...]:
    """Of the teams that give GPUs in use, where their jobs are known by name and have classes. `busy`: GPUs by leaf."""
    of = {work.team: work for work in snapshot.work if work.on is RunsOn.QUOTA and work.classed}
    under = (of[team] for team, gpus in sorted(busy.items()) if team in of and 0 < gpus <= of[team].gpus)
    return tuple(islice(under, MOST_TEAMS_AT_WORK))


def work_short(works: Iterable[TeamWork], short: Collection[str]) -> tuple[TeamWork, ...]:
    """Of the teams whose quotas are short of hardware, where their jobs have classes."""
    under = (work for work in works if work.team in short and work.on is RunsOn.QUOTA and work.classed)
    return tuple(islice(under, MOST_TEAMS_AT_WORK))


def cut_of_work(plan: Plan | None, team: str) -> str:
    """Who of the team yields first to the plan's cut, in a sentence; empty where nobody knows, or nothing is in use."""
    work = None if plan is None else next((w for w in plan.work if w.team == team), None)
    if plan is None or work is None:
        return ""
    busy = sum(c.gpus for q in plan.quotas if q.team == team for c in q.cuts if c.tier is Tier.BUSY)
    under = work.under(busy)
    are = "is" if busy == 1 else "are"
    return f"Of the cut of {team}, {gpus_text(busy)} {are} in use: {under}." if busy and under else ""


def short_of_work(works: Sequence[TeamWork], backing: Mapping[str, int] | None) -> str:
    """Who yields first of each of these where hardware is missing, a sentence each; empty where nobody knows."""
    known = {} if backing is None else backing
    return some_of([_short(work, known[work.team]) for work in works if work.team in known], 3, by="; ")


def _short(work: TeamWork, backing: int) -> str:
    without = work.gpus - backing
    if without <= 0:
        return f"healthy hardware stands behind all that {work.team} runs in quota; were it to lose more, {work.order}"
    have = "has no healthy one behind it" if without == 1 else "have no healthy ones behind them"
    held = f"{without} of the {gpus_text(work.gpus)} that jobs of {work.team} hold in quota"
    return f"{held} {have}: {work.under(without)}"


def advice(snapshot: Snapshot, policy: Policy) -> str:
    """On teams whose running jobs are all of one class beside a protected block; empty where there is none."""
    alike = [*_alike(snapshot, policy)]
    if not alike:
        return ""
    have = "has a protected block, and all its" if len(alike) == 1 else "have protected blocks, and all their"
    yields = "so that the rest yields before what the block is for"
    return f"{some_of(alike, 3)} {have} running jobs are of one class: give them classes, {yields}"


def _alike(snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    for work in snapshot.work:
        quota = snapshot.tree.by_team.get(work.team)
        several = work.on is RunsOn.QUOTA and len(work.classes) == 1 and work.jobs > 1
        if quota is not None and quota.protected_blocks and several:
            named = len(those_of(quota.classes, policy.classes)) > 1
            yield f"{work.team} ({count_text(work.jobs, 'job')}{f' of class {work.classes[0].job_class}' * named})"
