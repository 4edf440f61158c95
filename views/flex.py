"""Flex for people: its amount, its division, and stories of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import TypeVar

from rich.console import RenderableType
from rich.text import Text

from models.base import duration_text
from models.cluster.jobs import RunsOn, jobs_text
from models.flex.division import Division, FlexDemand, FlexMode
from models.flex.flex_now import FlexNow
from models.flex.flex_sum import FlexSum
from models.flex.scene import JobNow, Scene
from models.texts import verb_of
from views.row_models import FlexOffered
from views.words import DECORATION, count, gpus, line, moment, row, span, table

_FlexT = TypeVar("_FlexT", FlexNow, FlexSum)
_BY = {FlexMode.EQUAL: "equally", FlexMode.QUOTA: "in proportion to quota", FlexMode.WEIGHT: "by weight"}


_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 56
"""The most bars of a record."""
_NAMED = 8
"""The most teams, and the most jobs, on flex that are listed."""
_WAITING = 30
"""The most waiting jobs that are listed, each with the reason."""
_YIELDING = 12
"""The most teams for which a line says which class yields first."""


def by_free_flex(offers: Iterable[_FlexT]) -> list[_FlexT]:
    """Sort the clusters by free flex, the most first; unknown ones come last."""
    return sorted(offers, key=lambda flex: (flex.health_at is None, -flex.available_gpus, flex.cluster))


def used_flex(one: FlexNow | FlexSum) -> int:
    """Return the GPUs of flex that are in use: jobs may hold more beyond their quotas than there is flex."""
    return one.flex_gpus - one.available_gpus


def fleet_parts(
    offers: Sequence[FlexNow | FlexSum], record: Sequence[FlexOffered], of: int = 0
) -> list[RenderableType]:
    """Return a line for each cluster, and the record of all. `of`: how many clusters there are."""
    if not offers:
        return [line("The ledger has no cluster: backstop fleet import FILE")]
    shown = table(
        *("CLUSTER", ">HEALTHY", ">PROMISED", ">IN QUOTA", ">FLEX", ">USED", ">FREE", ">LARGEST FREE BLOCK"),
        least=("PROMISED", "IN QUOTA", "HEALTHY"),
    )
    for one in offers:
        if one.health_at is None:
            row(shown, one.cluster, "unknown", *([None] * 6), style="yellow")
            continue
        numbers = (one.promised_gpus, one.in_quota_gpus, one.flex_gpus, used_flex(one), one.available_gpus)
        row(shown, one.cluster, f"{one.healthy_gpus}/{one.total_gpus}", *numbers, block_text(*one.largest_free_block))
    blocks = (one.largest_free_block for one in offers if one.health_at is not None)
    return [shown, *at_most_note(blocks), *fleet_summary(offers, record, of)]


def fleet_summary(
    offers: Sequence[FlexNow | FlexSum], record: Sequence[FlexOffered], of: int = 0
) -> list[RenderableType]:
    """Return the sums over these clusters; also the record, which covers all clusters, if these are all."""
    measured = [offer for offer in offers if offer.health_at is not None]
    flex = sum(offer.flex_gpus for offer in measured)
    summary = f"{count(len(offers), 'cluster')}: {gpus(flex)} of flex, {_use_text(measured)}"
    sums: list[RenderableType] = [Text(), line(f"{summary} In quota: GPUs held by jobs inside their quotas.")]
    return sums if len(offers) < of else [*sums, *_record(record)]


def _use_text(offers: Iterable[FlexNow | FlexSum]) -> str:
    """Say how much of the flex is used and free, and how much more jobs hold beyond quotas than there is flex."""
    counts = [(offer.available_gpus, used_flex(offer), offer.used_gpus) for offer in offers]
    free, used, beyond = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0, 0)
    over = beyond - used
    more = f" Jobs hold {count(over, 'more GPU')} beyond quotas than there is flex." if over else ""
    return f"{used:,} used, {free:,} free now.{more}"


AT_MOST = (
    "At most: Backstop does not know the island of every running job, so the largest free block can be smaller. If "
    "Slurm or `backstop fleet import --jobs` reports the islands of jobs, the size is exact."
)
"""Why the largest free block is an upper bound; shown below each table with such a block."""


def at_most_note(blocks: Iterable[tuple[int, bool]]) -> list[RenderableType]:
    return [line((AT_MOST, "dim"))] if not all(sure for _, sure in blocks) else []


def block_text(gpus: int, sure: bool) -> str:
    """Return the size of a free block; at most that size where the jobs' places are unknown."""
    return f"{gpus}" if sure else f"at most {gpus}"


def cluster_parts(one: FlexNow, record: Sequence[FlexOffered]) -> list[RenderableType]:
    """Return one cluster: GPUs in quota, flex, islands, teams on flex, and its record."""
    if one.health_at is None:
        return [line((one.cluster, "bold"), ": its health is unknown, so its flex is unknown too."), *_record(record)]
    of = (
        ""
        if one.known_quotas == one.quotas
        else f" (use is known for {one.known_quotas} of {count(one.quotas, 'quota')})"
    )
    blocks: list[RenderableType] = [
        line(
            (one.cluster, "bold"), f": {one.healthy_gpus:,} of {gpus(one.total_gpus)} healthy, {moment(one.health_at)}"
        ),
        line(f"In quota: {one.promised_gpus:,} promised, {one.backed_gpus:,} backed, {one.in_quota_gpus:,} used{of}."),
        line(
            f"Flex: {one.flex_gpus:,} ({one.surplus_gpus:,} outside any quota, {one.unused_gpus:,} unused inside "
            f"quotas); {_use_text([one])}"
        ),
    ]
    if one.outside:
        held = jobs_text(one.outside.items())
        blocks.append(line(f"Jobs outside any quota hold {gpus(sum(one.outside.values()))}: {held}."))
    placed = any(i.free_block_gpus is not None for i in one.islands)
    if len(one.islands) > 1 or placed or any(i.block_gpus < i.healthy_gpus for i in one.islands):
        rows = table("ISLAND", ">HEALTHY", ">HEALTHY BLOCK", ">LARGEST FREE BLOCK")
        for i in one.islands:
            row(rows, i.name, f"{i.healthy_gpus}/{i.total_gpus}", i.block_gpus, block_text(*one.free_block(i)))
        blocks += [Text(), rows, *at_most_note(map(one.free_block, one.islands))]
    if one.on_flex:
        rows = table("ON FLEX", ">HAS", ">SHARE", ">ABOVE", "=")
        for place, team in enumerate(one.on_flex[:_NAMED]):
            first = "gives back first" if place == 0 and team.above_gpus > 0 else ""
            row(rows, team.team, team.gpus, team.share_gpus, max(0, team.above_gpus), first)
        blocks += [Text(), rows]
        if len(one.on_flex) > _NAMED:
            blocks.append(line(f"and {count(len(one.on_flex) - _NAMED, 'more team')}."))
    else:
        blocks.append(line("Nobody is on flex."))
    return [*blocks, *_jobs(one), *_record(record)]


def _jobs(one: FlexNow) -> list[RenderableType]:
    """Return the jobs on flex by name, in the order of preemption, and how long such jobs lived."""
    blocks: list[RenderableType] = []
    if one.jobs:
        jobs = table("JOB ON FLEX", "TEAM", ">GPUS", ">FOR", "ISLAND", least=["ISLAND"])
        for job in one.jobs[:_NAMED]:
            row(jobs, job.job, job.team, job.gpus, span(one.at - job.started), job.island)
        blocks += [Text(), jobs]
        more = f"; {len(one.jobs) - _NAMED} more follow" if len(one.jobs) > _NAMED else ""
        blocks.append(
            line(f"By Backstop's rule these jobs yield in this order{more}. The scheduler may choose another order.")
        )
    if one.yields:
        blocks.append(Text())
    for work in one.yields[:_YIELDING]:
        where = (
            f"Among {work.team}'s jobs on flex" if work.on is RunsOn.FLEX else f"Among the jobs in {work.team}'s quota"
        )
        blocks.append(line(f"{where}, {work.order}."))
    if len(one.yields) > _YIELDING:
        blocks.append(line(f"and {len(one.yields) - _YIELDING} more; --json has them."))
    if one.lives is not None and one.lives.ended:
        lives, days = one.lives, (one.at - one.lives.since).days
        ended = f"{lives.preempted} of them preempted"
        if lives.ended == 1:
            ended = "preempted" if lives.preempted else "not preempted"
        summary = f"In {count(days, 'day')} {count(lives.ended, 'job')} on flex ended, {ended}"
        if lives.median_seconds is not None and lives.shortest_seconds is not None:
            middle, least = (timedelta(seconds=seconds) for seconds in (lives.median_seconds, lives.shortest_seconds))
            summary += f"; median run {span(middle)}, shortest {span(least)}"
        blocks.append(line(f"{summary}."))
    return blocks


def _record(record: Sequence[FlexOffered]) -> list[RenderableType]:
    """Return how much flex there was: each bar is the least of some hours."""
    if not record:
        return [Text(), line("No record yet: the watch adds one every hour.")]
    offered = [hour.flex_gpus for hour in record]
    each = -(-len(offered) // _WIDTH)
    least = [min(offered[n : n + each]) for n in range(0, len(offered), each)]
    top = max(*offered, 1)
    bars = "".join(_BARS[min(len(_BARS) - 1, value * len(_BARS) // (top + 1))] if value else " " for value in least)
    middle = sorted(offered)[len(offered) // 2]
    if min(offered) == max(offered):
        which = "The record of" if len(record) == 1 else "Each record since"
        return [Text(), line(f"{which} {moment(record[0].at)} has {gpus(middle)} of flex.")]
    spread = f"between {min(offered):,} and {gpus(max(offered))} of flex, and half of them at least {middle:,}"
    return [Text(), line(f"Records since {moment(record[0].at)} have {spread}: ", (f"|{bars}|", DECORATION))]


def parts(asked: FlexDemand, division: Division) -> list[RenderableType]:
    """Return how much each team gets in quota and beyond."""
    by_name = {t.team: t for t in asked.teams}
    teams = table(
        *("TEAM", "NAMESPACE", ">QUOTA", ">DEMAND", ">GETS", ">IN QUOTA", ">BEYOND", ">WANTING"), least=["NAMESPACE"]
    )
    for p in division.portions:
        team = by_name[p.team]
        wanting = team.demand_gpus - p.gpus
        row(
            teams,
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
    given_gpus = asked.capacity_gpus - division.unused_gpus
    are = verb_of(given_gpus)
    summary = f"{given_gpus:,} of {gpus(asked.capacity_gpus)} {are} given out, the part beyond quotas {_BY[asked.mode]}"
    return [teams, Text(), line(f"{summary}; {division.unused_gpus:,} left over.")]


def story_parts(scenes: Sequence[Scene]) -> list[RenderableType]:
    """Return a line for each step, then how it ended."""
    if not scenes:
        return [line("Nothing happens: there are no steps.")]
    scene_lines: list[RenderableType] = [line(f"{_when(scene)}  {scene.what}: {_what_came(scene)}") for scene in scenes]
    last = scenes[-1]
    teams = table(
        *("TEAM", ">QUOTA", ">SHARE", ">HAS", ">IN QUOTA", ">SIBLINGS", ">ON FLEX", ">WAITING", "~RUNS", "~WAITS"),
        least=("SIBLINGS", "QUOTA", "SHARE"),
    )
    for t in last.teams:
        row(
            teams,
            t.team,
            t.quota_gpus,
            t.share_gpus,
            _number(t.allocated_gpus),
            _number(t.in_quota_gpus),
            _number(t.siblings_gpus),
            _number(t.allocated_gpus - t.in_quota_gpus - t.siblings_gpus),
            _number(t.queued_gpus),
            _names(j for j in last.running if j.team == t.team),
            _names(j for j in last.queued if j.team == t.team),
        )
    free = f"{_number(last.unused_gpus)} of {gpus(last.capacity_gpus)} {'is' if last.unused_gpus == 1 else 'are'} free."
    return [*scene_lines, Text(), teams, *_list_waiting(last), Text(), line(free)]


def _when(scene: Scene) -> str:
    """Return the step's number, or the time of a scene that followed by itself."""
    return f"      at {duration_text(scene.at)}" if scene.woken else f"{scene.step + 1:>4}"


def _list_waiting(last: Scene) -> list[RenderableType]:
    """Return each job that waits in the end, and why."""
    if not last.queued:
        return []
    jobs = table("JOB THAT WAITS", "TEAM", ">GPUS", "~WHY")
    for j in last.queued[:_WAITING]:
        row(jobs, j.job, j.team, _number(j.gpus), j.why)
    more = len(last.queued) - _WAITING
    return [Text(), jobs, *([line(f"and {count(more, 'more job')}; --json has all.")] if more > 0 else [])]


def _what_came(scene: Scene) -> str:
    events = [f"{name} runs" for name in scene.started]
    events += [f"{t.job} of {t.team} gives {_number(t.gpus)} back ({t.why})" for t in scene.preempted]
    return "; ".join(events) or "nothing else"


def _names(jobs: Iterable[JobNow]) -> str:
    return " ".join(j.job for j in jobs)


def _number(value: Fraction) -> str:
    return f"{float(value):g}"
