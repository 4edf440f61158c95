"""The weekly status: what happened in the week, what comes next, what is at risk, and whether it helped.

Two sources are kept apart. The past (`Past`) comes from the ledger's archive, tallies and notes, for any week. The
present (`Live`) comes from the rollouts that are open now, and has no history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import Field

from models.access.second_persons import Emergency
from models.base import Count, Model, Name, Time
from models.cluster.policy import AFTER_ALL
from models.cluster.windows import Entry
from models.reports.bringups import BringupsWeek
from models.reports.milestones import (
    MONITORED_CLUSTERS,
    PHANTOM_GPUS,
    ROLLED_OUT_WAVES,
    Milestones,
    MilestoneStanding,
    standings,
)
from models.reports.tallies import Point
from models.rollout.stages import Stage

WEEK = timedelta(days=7)
BEFORE = timedelta(days=7)
"""The length of the period `before`, which ends at a rollout's first write."""
AHEAD = timedelta(days=14)
"""Windows that begin within this time are listed."""


class Move(Model):
    """A rollout went from one stage to another."""

    cluster: Name
    rollout: str
    at: Time
    before: str
    after: str
    actor: str
    text: str


class Mean(Model):
    """Means of a cluster's tallies over some time. Units: GPUs.

    `lacking_gpus`: in-quota GPUs that waited for lack of healthy hardware, over the tallies that know it; None without
    any. `phantom_gpus`: promised GPUs without healthy hardware, over the tallies whose health was known.
    """

    tallies: Count
    since: Time
    until: Time
    lacking_gpus: float | None
    phantom_gpus: float | None


class BeforeAndAfter(Model):
    """The figures that show whether a rollout helped one cluster. None: there is no tally of that time."""

    cluster: Name
    wrote_at: Time
    monitored_at: Time | None
    before: Mean | None
    after: Mean | None


class MonitoredStep(Model):
    """The number of monitored clusters from a time on."""

    at: Time
    clusters: Count


class ClusterCut(Model):
    """The GPUs that a cluster's rollouts cut in the week, and gave back. Units: GPUs of leaf quotas."""

    cluster: Name
    cut_gpus: Count
    phantom_gpus: Count
    """The cut GPUs that had no healthy GPU behind them."""
    to_flex_gpus: Count
    back_gpus: Count = 0
    """GPUs given back, by rollbacks and by later plans."""
    withdrawn_gpus: Count = 0
    """GPUs withdrawn because hardware had failed, in answer to breaches; not part of `cut_gpus`."""


class Totals(Model):
    """The outcome over all clusters that have both a before and an after."""

    clusters: Count
    lacking_before: float | None
    lacking_after: float | None
    asking: Count
    """Clusters whose waiting GPUs are known before and after."""
    phantom_before: float
    phantom_after: float


class RowCounts(Model):
    """The number of rows in the week's lists. A page gets only the first rows of each."""

    done: Count
    undone: Count
    outcomes: Count


class CutSums(Model):
    """The sums of `ClusterCut` over all clusters. Units: GPUs. `clusters`: those in which plans cut something."""

    clusters: Count
    cut_gpus: Count
    phantom_gpus: Count
    to_flex_gpus: Count
    back_gpus: Count
    withdrawn_gpus: Count


class WeekSums(Model):
    """The figures over all rows of a report's lists."""

    rows: RowCounts
    cut: CutSums
    totals: Totals


class Past(Model):
    """The ledger's facts about a week and the time before it, without shadow rollouts."""

    since: Time
    until: Time
    clusters: Count
    """Clusters in the ledger now."""
    moves: tuple[Move, ...]
    """Moves of the week, in order of time."""
    monitored: tuple[Name, ...]
    """Clusters monitored at `until`, by name."""
    monitored_before: Count
    """Clusters monitored at `since`."""
    steps: tuple[MonitoredStep, ...]
    outcomes: tuple[BeforeAndAfter, ...]
    points: tuple[Point, ...]
    """The points of the curves, up to `until`."""
    cuts: tuple[ClusterCut, ...] = ()
    """Cuts of the week, by cluster; a cluster without any is left out."""
    names: tuple[Name, ...] = ()
    """The names of all clusters in the ledger now."""
    week_ago: Point | None
    began: Time | None
    """The time of the first tally."""
    milestones: Milestones
    waves: int | None = Field(default=None, exclude_if=lambda waves: waves is None)
    """The number of waves that are rolled out whole; None, and left out: no milestone measures this."""
    bringups: BringupsWeek | None = Field(default=None, exclude_if=lambda week: week is None)
    """The week's bring-ups; None, and left out: there are none yet."""
    emergencies: tuple[Emergency, ...] = Field(default=(), exclude_if=lambda emergencies: not emergencies)
    """Commands up to `until` that one person gave where two were needed, and no other admin has reviewed yet."""
    sums: WeekSums | None = Field(default=None, exclude_if=lambda sums: sums is None)
    """The sums over all rows, if the lists have only the first rows of a report; None: the lists are whole."""


class NextStep(Model):
    """A rollout that continues by itself. `at`: when its gate opens; None: an event opens it, not the time."""

    cluster: Name
    stage: str
    at: Time | None
    waits_for: str
    owner: str


class AtRisk(Model):
    """Quotas of a rollout that lack hardware now."""

    cluster: Name
    stage: str
    lacking_gpus: Count
    teams: tuple[str, ...]
    """The first of the teams whose quotas lack hardware."""
    team_count: Count
    breach_at: Time | None = None
    advisory: bool = False
    """True: in this stage the quotas are no promises."""


class Blocked(Model):
    """A rollout that waits for a person or an incident.

    `kind`: of the hold, or `decision`; `by`: who set it, or decides. `needs`: what to do, of the whole rollout.
    """

    cluster: Name
    stage: str
    kind: str
    by: str
    since: Time | None
    reason: str
    needs: str


class Live(Model):
    """The present state of open rollouts, shadows left out."""

    next: tuple[NextStep, ...] = ()
    at_risk: tuple[AtRisk, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    windows: tuple[Entry, ...] = ()
    """Declared windows that are not over and begin within two weeks."""
    silent: tuple[Name, ...] = ()
    """Rollouts that have noted nothing in the ledger; the report lacks them."""
    shadows: tuple[Name, ...] = ()
    """Clusters with an open shadow rollout, which changes nothing and is in none of the figures."""


class ClusterWeek(Model):
    """One cluster's line. `stands`: monitored, or the last stage it reached this week; empty: neither."""

    cluster: Name
    stands: str
    cut: ClusterCut | None = None
    outcome: BeforeAndAfter | None = None


class Week(Model):
    """The whole report. `live` None: the week is over, and what was open then is no longer known."""

    since: Time
    until: Time
    clusters: Count
    monitored: Count
    monitored_before: Count
    now: Point | None
    week_ago: Point | None
    began: Time | None
    done: tuple[Move, ...]
    """Rollouts that reached monitored this week and were not undone after it; some have been closed since."""
    undone: tuple[Move, ...]
    """Rollouts that were rolled back this week."""
    live: Live | None
    milestones: tuple[MilestoneStanding, ...]
    outcomes: tuple[BeforeAndAfter, ...]
    totals: Totals
    rows: RowCounts
    cut: CutSums
    cuts: tuple[ClusterCut, ...] = ()
    """Cuts of the week, by cluster; a cluster without any is left out."""
    every: tuple[ClusterWeek, ...] = ()
    """Every cluster, by name."""
    points: tuple[Point, ...]
    steps: tuple[MonitoredStep, ...]
    bringups: BringupsWeek | None = None
    """The week's bring-ups; null: there are none yet. For a past week, bring-ups still under way are left out."""
    emergencies: tuple[Emergency, ...] = ()
    """Commands up to `until` that one person gave where two were needed, and no other admin has reviewed yet."""


def week(past: Past, live: Live | None) -> Week:
    """Build the report."""
    now = past.points[-1] if past.points and past.until - past.points[-1].at <= timedelta(days=1) else None
    measured = {
        MONITORED_CLUSTERS: len(past.monitored),
        PHANTOM_GPUS: None if now is None or not now.known else now.phantom_gpus,
        ROLLED_OUT_WAVES: past.waves,
    }
    sums = sums_of(past) if past.sums is None else past.sums
    return Week(
        since=past.since,
        until=past.until,
        clusters=past.clusters,
        monitored=len(past.monitored),
        monitored_before=past.monitored_before,
        now=now,
        week_ago=past.week_ago,
        began=past.began,
        done=_moves_to_monitored(past.moves),
        undone=_moves_back(past.moves),
        live=live,
        milestones=standings(past.milestones, measured, past.until, {} if now is None else {PHANTOM_GPUS: now.at}),
        outcomes=past.outcomes,
        **dict(sums),
        cuts=past.cuts,
        every=_cluster_weeks(past),
        points=past.points,
        steps=past.steps,
        emergencies=past.emergencies,
        bringups=past.bringups if live is not None or past.bringups is None else past.bringups.but(going=()),
    )


def sums_of(past: Past) -> WeekSums:
    cut = {name: sum(getattr(one, name) for one in past.cuts) for name in CutSums.model_fields if name != "clusters"}
    return WeekSums(
        rows=RowCounts(
            done=len(_moves_to_monitored(past.moves)), undone=len(_moves_back(past.moves)), outcomes=len(past.outcomes)
        ),
        cut=CutSums(clusters=sum(one.cut_gpus > 0 for one in past.cuts), **cut),
        totals=totals(past.outcomes),
    )


def shorten(past: Past, most: int) -> Past:
    """Return the sums, and what the first rows of each of the report's lists are made from."""
    shown = {move.cluster for move in (*_moves_to_monitored(past.moves)[-most:], *_moves_back(past.moves)[:most])}
    return past.but(
        moves=tuple(move for move in past.moves if move.cluster in shown),
        names=tuple(name for name in past.names if name in shown),
        outcomes=tuple(worst_first(past.outcomes)[:most]),
        steps=(),
        cuts=(),
        sums=sums_of(past),
    )


def worst_first(outcomes: Iterable[BeforeAndAfter]) -> list[BeforeAndAfter]:
    """Order them by what was wrong before: GPUs that waited, then phantom GPUs."""

    def rank(outcome: BeforeAndAfter) -> tuple[float, str]:
        before = outcome.before
        weight = -1.0 if before is None else 1000.0 * (before.lacking_gpus or 0.0) + (before.phantom_gpus or 0.0)
        return -weight, outcome.cluster

    return sorted(outcomes, key=rank)


def _cluster_weeks(past: Past) -> tuple[ClusterWeek, ...]:
    """Return one line for each cluster, whether or not anything happened to it."""
    cuts, outcomes = {cut.cluster: cut for cut in past.cuts}, {outcome.cluster: outcome for outcome in past.outcomes}
    there, stage = set(past.monitored), {move.cluster: move.after for move in past.moves}
    return tuple(
        ClusterWeek(
            cluster=name,
            stands="monitored" if name in there else stage.get(name, ""),
            cut=cuts.get(name),
            outcome=outcomes.get(name),
        )
        for name in past.names
    )


def _moves_to_monitored(moves: Iterable[Move]) -> tuple[Move, ...]:
    """Return each cluster's last move to monitored, unless it was undone afterwards; a closed rollout keeps its cut."""
    last: dict[str, Move] = {}
    for move in moves:
        if move.after == Stage.MONITORED:
            last[move.cluster] = move
        elif move.after in (Stage.ROLLING_BACK, Stage.ROLLED_BACK):
            last.pop(move.cluster, None)
    return tuple(sorted(last.values(), key=lambda m: (m.at, m.cluster)))


def _moves_back(moves: Iterable[Move]) -> tuple[Move, ...]:
    return tuple(move for move in moves if move.after == Stage.ROLLED_BACK)


def totals(outcomes: Sequence[BeforeAndAfter]) -> Totals:
    both = [
        (outcome.before, outcome.after)
        for outcome in outcomes
        if outcome.before is not None and outcome.after is not None
    ]
    phantom = [(before.phantom_gpus, after.phantom_gpus) for before, after in both]
    lacking = [(before.lacking_gpus, after.lacking_gpus) for before, after in both]
    knows_phantom = [(before, after) for before, after in phantom if before is not None and after is not None]
    knows = [(before, after) for before, after in lacking if before is not None and after is not None]
    return Totals(
        clusters=len(both),
        lacking_before=sum(before for before, _ in knows) if knows else None,
        lacking_after=sum(a for _, a in knows) if knows else None,
        asking=len(knows),
        phantom_before=sum(before for before, _ in knows_phantom),
        phantom_after=sum(a for _, a in knows_phantom),
    )


def waves_done(wave_of: Mapping[str, str], monitored: Iterable[str]) -> int:
    """Return how many waves have all of their clusters monitored. `wave_of`: the wave of every cluster.

    Clusters that come after all waves are of none.
    """
    there = set(monitored)
    waves: dict[str, bool] = {}
    for cluster, wave in wave_of.items():
        if wave != AFTER_ALL:
            waves[wave] = waves.get(wave, True) and cluster in there
    return sum(waves.values())


class Passage(NamedTuple):
    """One rollout's moves through its stages, shadows left out. `wrote_at`: its first write to the quota system."""

    cluster: str
    rollout: str
    wrote_at: datetime | None
    moves: tuple[Move, ...]


def list_monitored(passages: Sequence[Passage], at: datetime) -> tuple[str, ...]:
    """Return the clusters that were monitored at that time, by name."""
    last: dict[str, Move] = {}
    for move in in_order(passages):
        if move.at <= at:
            last[move.cluster] = move
    return tuple(sorted(name for name, move in last.items() if move.after == Stage.MONITORED))


def steps_of(passages: Sequence[Passage], until: datetime) -> tuple[MonitoredStep, ...]:
    """Return the number of monitored clusters over time, one step for each change."""
    there: set[str] = set()
    steps: list[MonitoredStep] = []
    for move in in_order(passages):
        if move.at > until:
            break
        (there.add if move.after == Stage.MONITORED else there.discard)(move.cluster)
        if not steps or steps[-1].clusters != len(there):
            steps.append(MonitoredStep(at=move.at, clusters=len(there)))
    return tuple(steps)


def in_order(passages: Sequence[Passage]) -> list[Move]:
    """Return all moves in order of time; those of one rollout keep their order."""
    return sorted((m for p in passages for m in p.moves), key=lambda m: m.at)


class Span(NamedTuple):
    """A period of one cluster to average over; `monitored`: only over tallies in which it was monitored.

    `until` None: it has not ended.
    """

    cluster: str
    since: datetime
    until: datetime | None
    monitored: bool = False


def spans(passages: Sequence[Passage], until: datetime) -> list[tuple[Passage, Move | None, Span, Span | None]]:
    """Return by cluster its first rollout that wrote, its last move to monitored, and the periods before and after."""
    by_cluster: dict[str, list[Passage]] = {}
    for passage in passages:
        if passage.wrote_at is not None and passage.wrote_at <= until:
            by_cluster.setdefault(passage.cluster, []).append(passage)
    rows = []
    for cluster, theirs in sorted(by_cluster.items()):
        first = min(theirs, key=lambda p: p.wrote_at or until)
        wrote = first.wrote_at or until
        moves = [m for m in in_order(theirs) if m.at <= until]
        reached = [move for move in moves if move.after == Stage.MONITORED]
        last = reached[-1] if reached else None
        before = Span(cluster, wrote - BEFORE, wrote)
        after = None
        if last is not None:
            left = next((move.at for move in moves if move.at > last.at), None)
            after = Span(cluster, last.at, left, monitored=True)
        rows.append((first, last, before, after))
    return rows
