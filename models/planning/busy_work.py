"""The jobs on GPUs in use that a plan cuts, by class, and advice where classes would help."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from models.cluster.classes import those_of
from models.cluster.jobs import RunsOn
from models.cluster.policy import Policy, Tier
from models.cluster.snapshot import Snapshot
from models.cluster.team_work import TeamWork
from models.texts import count_text, gpus_text, some_of

if TYPE_CHECKING:
    from models.planning.plan import Plan

MOST_TEAMS_AT_WORK = 100
"""The most teams for which a plan lists the jobs that yield first; a rollout stores its plan for long."""


def work_under(snapshot: Snapshot, busy: Mapping[str, int]) -> tuple[TeamWork, ...]:
    """Return the work of teams that give `busy` GPUs (by leaf), where jobs are known by name and have classes."""
    of = {work.team: work for work in snapshot.work if work.on is RunsOn.QUOTA and work.has_classes}
    under = (of[team] for team, gpus in sorted(busy.items()) if team in of and 0 < gpus <= of[team].gpus)
    return tuple(islice(under, MOST_TEAMS_AT_WORK))


def work_short(works: Iterable[TeamWork], short: Collection[str]) -> tuple[TeamWork, ...]:
    """Return the work of teams whose quotas are short of hardware, where their jobs have classes."""
    under = (work for work in works if work.team in short and work.on is RunsOn.QUOTA and work.has_classes)
    return tuple(islice(under, MOST_TEAMS_AT_WORK))


def cut_of_work(plan: Plan | None, team: str) -> str:
    """Return a sentence on the team's jobs that yield first to the plan's cut; empty: unknown, or nothing in use."""
    busy = [] if plan is None else [cut for cut in busy_cuts(plan) if cut.team == team]
    return busy[0].cut_text(team) if busy else ""


class BusyCut(NamedTuple):
    """The GPUs in use that a plan cuts from one team, and the jobs that hold them. Units: whole GPUs."""

    team: str
    gpus: int
    under: str

    def cut_text(self, whose: str) -> str:
        are = "is" if self.gpus == 1 else "are"
        return f"{gpus_text(self.gpus)} in the cut of {whose} {are} in use: {self.under}."


def busy_cuts(plan: Plan) -> Iterator[BusyCut]:
    """Yield the busy cut of each team whose jobs are known by name and have classes."""
    works = {work.team: work for work in plan.work}
    for quota in plan.quotas if works else ():
        busy = sum(cut.gpus for cut in quota.cuts if cut.tier is Tier.BUSY) if quota.team in works else 0
        if busy and (under := works[quota.team].yielding_text(busy)):
            yield BusyCut(quota.team, busy, under)


def short_of_work(works: Sequence[TeamWork], backing: Mapping[str, int] | None, quotas: Mapping[str, int]) -> str:
    """Return a sentence for each team, saying which jobs yield first where hardware is missing; empty where unknown.

    `backing`, `quotas`: GPUs by leaf, of the same values.
    """
    backing_of = {} if backing is None else backing
    sentences = [
        _short_text(work, backing_of[work.team], quotas[work.team])
        for work in works
        if work.team in backing_of.keys() & quotas
    ]
    return some_of(sentences, 3, by="; ")


def _short_text(work: TeamWork, backing: int, quota: int) -> str:
    held = min(work.gpus, quota)
    beyond, without = work.gpus - held, held - backing
    yields = "which yields" if beyond == 1 else "which yield"
    first = f"; its jobs hold {gpus_text(beyond)} beyond the quota, {yields} first" if beyond else ""
    if without <= 0:
        backed = f"healthy hardware backs all that {work.team} runs in quota{first}"
        return f"{backed}; if {work.team} loses more GPUs, {work.order}"
    have = "has no healthy one behind it" if without == 1 else "have no healthy ones behind them"
    sentence = f"{without:,} of the {gpus_text(held)} that jobs of {work.team} hold in quota {have}{first}"
    return f"{sentence}: {work.yielding_text(without + beyond)}"


def beyond_of_work(works: Iterable[TeamWork], team: str, quota: int | None) -> str:
    """Return a sentence that says which jobs beyond the team's quota yield first; empty if there are none."""
    work = next((w for w in works if w.team == team), None)
    beyond = 0 if work is None or quota is None else work.gpus - quota
    if work is None or beyond <= 0:
        return ""
    run = "is beyond the quota now and runs" if beyond == 1 else "are beyond the quota now and run"
    held = f"{beyond:,} of the {gpus_text(work.gpus)} that jobs of {team} hold"
    return f"{held} {run} on as flex, which yields first: {work.yielding_text(beyond)}."


def advice(snapshot: Snapshot, policy: Policy) -> str:
    """Return advice for teams whose running jobs are all of one class beside a protected block; empty: none."""
    alike = [*_teams_of_one_class(snapshot, policy)]
    if not alike:
        return ""
    have = "has a protected block, and all its" if len(alike) == 1 else "have protected blocks, and all their"
    yields = "so that other jobs yield before the one that the block is for"
    return f"{some_of(alike, 3)} {have} running jobs are of one class: give the jobs classes, {yields}"


def _teams_of_one_class(snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    for work in snapshot.work:
        quota = snapshot.tree.by_team.get(work.team)
        several = work.on is RunsOn.QUOTA and len(work.classes) == 1 and work.jobs > 1
        if quota is not None and quota.protected_blocks and several:
            named = len(those_of(quota.classes, policy.classes)) > 1
            yield f"{work.team} ({work.classes[0].owner_text if named else count_text(work.jobs, 'job')})"
