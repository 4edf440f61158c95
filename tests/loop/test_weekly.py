"""A week in seconds: tallies, milestones and the report of a rollout that ran, against what SQL says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client

from cli.pages.report import page
from client.weekly_report import weekly
from models.errors import Refusal
from models.questions import MilestonesNow, NoteMilestone, PlanMilestones
from models.reports.milestones import Milestone, State
from models.reports.weekly import WEEK, Week
from models.rollout.stages import Command, Stage
from tests.e2e.world import World, eventually, fresh, on_postgresql, team, worked_case, world_of
from tests.unit.test_report import widths
from views.report import markdown

SECOND = timedelta(seconds=1)

nightly = on_postgresql


@pytest_asyncio.fixture(loop_scope="function")
async def world(temporal: Client, ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world on each database, with a tally each half second."""
    replays = ledger_url.startswith("sqlite")
    async with world_of(temporal, ledger_url, tmp_path, tally_seconds=0.5, replays=replays) as found:
        yield found


def tallies(world: World, cluster: str, stage: str | None) -> list[tuple[int | None, ...]]:
    """(phantom, pending, lacking) of each tally of a cluster in a stage."""
    columns = "SELECT assigned_gpus - backed_gpus, pending_gpus, lacking_gpus FROM tallies WHERE cluster = ?"
    if stage is None:
        return world.sql.rows(f"{columns} AND stage IS NULL", cluster)
    return world.sql.rows(f"{columns} AND stage = ?", cluster, stage)


async def report(world: World, now: datetime | None = None) -> Week:
    until = now or world.now()
    return await weekly(world.tpm, until - WEEK, until, [until - SECOND, until], timedelta(hours=3), live=now is None)


async def test_a_rollout_is_told_in_the_report_with_its_outcome(world: World) -> None:
    name, other = fresh("weekly"), fresh("waiting")
    asked = {**worked_case(name), "quotas": [team("research", 345, busy=310, pending_gpus=35)]}
    await world.fleet(asked, worked_case(other))
    await eventually(lambda: len(tallies(world, name, None)) >= 2, "tallies before the rollout")
    assert set(tallies(world, name, None)) == {(26, 35, 26)}
    assert {row[1:] for row in tallies(world, other, None)} == {(None, None)}  # nobody says what waits there

    milestones = (
        Milestone(name="pilot", measure="monitored_clusters", target=1, due=date(2199, 1, 1)),
        Milestone(name="trained", measure="users trained", target=10, due=date(2199, 1, 1)),
        Milestone(name="waves", measure="rolled_out_waves", target=1, due=date(2199, 1, 1)),
        Milestone(name="little phantom", measure="phantom_gpus", target=5, due=date(2199, 1, 1)),
    )
    plan = (await world.tpm.ask(PlanMilestones(milestones=milestones))).plan
    assert [p.started_from for p in plan.planned] == [0, 0, 0, 52]
    await world.person("ana").ask(NoteMilestone(milestone="trained", number=4, reason="first class"))
    with pytest.raises(Refusal, match="measures milestone 'pilot' itself"):
        await world.tpm.ask(NoteMilestone(milestone="pilot", number=4, reason="wishful"))

    before = world.now()
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    await eventually(lambda: len(tallies(world, name, "monitored")) >= 2, "tallies of the monitored cluster")
    assert set(tallies(world, name, "monitored")) == {(0, 0, 0)}
    await world.launch(other)
    await world.say(other, Command.PAUSE, "ana", reason="a paper is due")

    week = await report(world)

    assert (week.clusters, week.monitored, week.monitored_before) == (2, 1, 0)
    assert [(m.cluster, m.after) for m in week.done] == [(name, "monitored")]
    assert week.now is not None
    assert (week.now.phantom_gpus, week.now.lacking_gpus, week.now.asking) == (26, 0, 1)
    (outcome,) = week.outcomes
    wrote = str(world.sql.one("SELECT min(at) FROM receipts WHERE kind = 'set_soft'")).replace("T", " ")
    assert str(outcome.wrote_at)[:23] == wrote[:23]
    assert outcome.before is not None
    assert outcome.after is not None
    assert (outcome.before.lacking_gpus, outcome.before.phantom_gpus) == (26.0, 26.0)
    assert (outcome.after.lacking_gpus, outcome.after.phantom_gpus) == (0.0, 0.0)
    assert outcome.before.until < outcome.wrote_at
    stand = {s.milestone.name: (s.number, s.state) for s in week.milestones}
    assert stand["pilot"] == (1, State.DONE)
    assert stand["trained"] == (4, State.ON_TRACK)
    assert stand["waves"] == (0, State.ON_TRACK)  # both clusters are of one wave, and one is not monitored
    assert stand["little phantom"] == (26, State.ON_TRACK)
    assert week.live is not None
    assert [(b.cluster, b.kind, b.by, b.reason) for b in week.live.blocked] == [
        (other, "paused", "ana", "a paper is due")
    ]
    assert week.live.next == ()

    # The worked case of docs/design.md: 39 GPUs, 26 of them phantom. What was written stands in the receipts.
    taken = [json.loads(text) for (text,) in world.sql.rows("SELECT receipt FROM receipts WHERE kind = 'set_soft'")]
    (cut,) = week.cuts
    assert cut.cut_gpus == sum(sum(r["before"].values()) - sum(r["after"].values()) for r in taken) == 39
    assert (cut.cluster, cut.phantom_gpus, cut.to_flex_gpus, cut.back_gpus) == (name, 26, 13, 0)
    assert [each.cluster for each in week.every] == sorted([name, other])
    shown = page(week)
    for when, stage in (("before", "stage IS NULL"), ("after", "stage = 'monitored'")):
        mean = world.sql.one(f"SELECT avg(lacking_gpus) FROM tallies WHERE cluster = ? AND {stage}", name)
        assert widths(shown)[f"{when}-0"] / widths(shown)["before-0"] == pytest.approx(float(mean) / 26, abs=0.01)

    told = markdown(week)
    assert "39 GPUs were cut from quotas in 1 cluster this week: 26 phantom removed, 13 moved to flex." in told
    assert f"| {name} | monitored |" in told
    assert f"| {other} | paused | ana |" in told
    assert f"| {name} | 26 | 0 | 26 | 0 |" in told
    assert f"<td>{name}</td><td>monitored</td>" in shown

    past = await report(world, before)
    assert (past.live, past.monitored, past.done, past.outcomes) == (None, 0, (), ())
    assert past.now is not None
    assert past.now.phantom_gpus == 52
    entries = [e["text"] for e in world.sql.archive("(milestones)")]
    assert entries == ["set 4 milestones: pilot, trained, waves, little phantom", "noted 4 for trained"]
    assert world.sql.broken_links("(milestones)") == []


async def test_waves_are_counted_whole_by_what_rollouts_noted_and_by_todays_plans(world: World) -> None:
    """By hand: 39 of 345 GPUs go. 45 unallocated ones suffice in the first wave; in the busy one each GPU has a job."""
    calm, calm_too, busy = fresh("calm"), fresh("calm-too"), fresh("busy")

    def idle(name: str) -> dict[str, Any]:
        return {**worked_case(name), "quotas": [team("research", 345, busy=300)]}

    async def waves(*milestones: str) -> list[tuple[int | None, ...]]:
        planned = [Milestone(name=n, measure="rolled_out_waves", target=2, due=date(2199, 1, 1)) for n in milestones]
        if planned:
            await world.tpm.ask(PlanMilestones(milestones=tuple(planned)))
        now = await world.tpm.ask(MilestonesNow())
        week = await report(world)
        assert {s.number for s in week.milestones} == {now.measured["rolled_out_waves"]}
        return [(p.started_from, now.measured["rolled_out_waves"]) for p in now.plan.planned]

    await world.fleet(idle(calm), {**worked_case(busy), "quotas": [team("research", 345, busy=345)]})
    assert (await world.tpm.ask(MilestonesNow())).measured.keys() == {"monitored_clusters", "phantom_gpus"}
    assert await waves("before") == [(0, 0)]
    await world.start(calm)
    await world.until(calm, Stage.MONITORED)
    await world.archived(calm)
    assert await waves("before", "later") == [(0, 1), (1, 1)]
    await world.start(busy)
    await world.until(busy, Stage.MONITORED)
    await world.archived(busy)
    assert await waves() == [(0, 2), (1, 2)]
    await world.fleet(idle(calm), idle(calm_too), {**worked_case(busy), "quotas": [team("research", 345, busy=345)]})
    assert await waves() == [(0, 1), (1, 1)], "a new cluster of the first wave, which has no rollout yet"


async def test_what_a_breach_takes_is_no_phantom_that_a_rollout_removed(world: World) -> None:
    """345 -> 306 by the plan, 306 -> 300 by a breach, 300 -> 306 by the next attempt: receipts say what each moved."""
    name = fresh("breached")
    await world.fleet(worked_case(name, breach_after="0.3s"))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.healthy(name, main=(361, 300))
    await world.until(name, Stage.ROLLED_BACK)
    await world.healthy(name, main=(361, 319))
    await world.until(name, lambda status: status.stage is Stage.MONITORED and status.attempt == 2)
    await world.archived(name)
    moved = {"set_soft": [0, 0], "restore": [0, 0]}
    for kind, text in world.sql.rows("SELECT kind, receipt FROM receipts WHERE kind IN ('set_soft', 'restore')"):
        receipt = json.loads(text)
        gpus = sum(receipt["before"].values()) - sum(receipt["after"].values())
        moved[kind][gpus < 0] += abs(gpus)
    assert moved == {"set_soft": [39, 6], "restore": [6, 0]}
    (cut,) = (await report(world)).cuts
    assert (cut.cut_gpus, cut.phantom_gpus, cut.to_flex_gpus) == (39, 26, 13)
    assert (cut.withdrawn_gpus, cut.back_gpus) == (6, 6)
    told = markdown(await report(world))
    assert "this week: 26 phantom removed, 13 moved to flex. Breaches withdrew 6 more GPUs, whose hardware" in told


async def test_a_shadow_is_no_progress(world: World) -> None:
    name = fresh("shade")
    await world.fleet(worked_case(name))
    await world.start(name, shadow=True)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    await eventually(lambda: len(tallies(world, name, "monitored")) >= 1, "a tally of the shadow")
    week = await report(world)
    assert (week.monitored, week.done, week.outcomes) == (0, (), ())
    assert world.sql.one(
        "SELECT max(shadow) FROM tallies" if not world.sql.postgresql else "SELECT bool_or(shadow) FROM tallies"
    )
