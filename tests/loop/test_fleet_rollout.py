"""A whole fleet, in waves: who starts when, what stops it, and what people can say to it."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from cli.agents.read_only import ReadingDoor
from cli.agents.tools import cluster_status
from cli.commands.fleet_plan import cuts_of, plan_now
from cli.watching import follow, follow_fleet
from models.errors import Refusal
from models.fleet.commands import FLEET_COMMANDS
from models.fleet.messages import FleetLaunch, FleetStatus
from models.fleet.state import FleetStage, MemberState, Wave
from models.rollout.stages import Command, Stage
from models.temporal_names import FLEET_ID
from tests.e2e.world import CLOCKS, World, eventually, fresh, team
from tests.waiting import PATIENCE, async_attempts
from views.fleet_rollout import status_parts

pytestmark = [
    pytest.mark.e2e,
    # A worker that stops lets go of its workflows: whatever they await then is complained of at its terminal.
    pytest.mark.filterwarnings("error:.*FleetRolloutWorkflow:pytest.PytestUnraisableExceptionWarning"),
]


def cluster(name: str, quota: int, healthy: int, total: int = 100, busy: int | None = None) -> dict[str, Any]:
    """One island, one team; C = min(85, healthy - 8) at 100 GPUs. `busy` None: all of the quota is."""
    return {
        "name": name,
        "islands": [{"name": "main", "total_gpus": total, "healthy_gpus": healthy}],
        "quotas": [team("research", quota, busy)],
        "policy": CLOCKS,
    }


def states(status: FleetStatus) -> dict[str, str]:
    return {m.cluster: m.state.value for m in status.members}


async def idle(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait until the workflow has processed all its input: one terminated before that answers no query."""
    async for _ in async_attempts("nothing of it is under way"):
        raw = (await handle.describe()).raw_description
        if not (raw.pending_activities or raw.HasField("pending_workflow_task")):
            return


async def test_a_fleet_goes_through_in_waves_pilots_first(world: World) -> None:
    a, b, c, d, e = (fresh(name) for name in "abcde")
    await world.fleet(
        cluster(a, 95, 98, busy=95),  # busy
        cluster(b, 95, 98, busy=60),  # unscheduled
        cluster(c, 80, 98),  # unallocated
        cluster(d, 95, 90, busy=60),  # unscheduled, with less headroom than b
        cluster(e, 95, 98, busy=60),  # the pilot
    )
    plan = await world.launch_fleet(fresh("fleet"), {"parallel": 1}, pilots=(e,))
    assert [(p.cluster, p.wave) for p in plan.clusters] == [
        (e, Wave.UNSCHEDULED),
        (c, Wave.UNALLOCATED),
        (b, Wave.UNSCHEDULED),
        (d, Wave.UNSCHEDULED),
        (a, Wave.BUSY),
    ]
    assert world.sql.gpus(a) == {"research": 95}
    await world.say_fleet("approve", plan_hash=plan.hash)
    status = await world.until_fleet(lambda s: s.stage.has_ended, 5 * PATIENCE)  # five rollouts, one after another
    assert status.stage is FleetStage.DONE
    assert set(states(status).values()) == {MemberState.DONE.value}
    opened = world.sql.rows("SELECT cluster FROM rollouts ORDER BY opened_at")
    assert [name for (name,) in opened] == [e, c, b, d, a]
    assert {n: world.sql.gpus(n)["research"] for n in (a, b, c, d, e)} == {a: 85, b: 85, c: 80, d: 82, e: 85}
    await eventually(
        lambda: "fleet rollout: running -> done" in world.sql.archive("(fleet)")[-1]["text"], "the archive is complete"
    )
    assert world.sql.broken_links("(fleet)") == []


async def test_a_rehearsal_is_no_member_of_a_fleet_rollout_that_writes(world: World) -> None:
    """Otherwise it would count as rolled out, and its undo as a failure, though nothing was ever written."""
    rehearsed, undone, other = fresh("rehearsed"), fresh("undone"), fresh("other")
    await world.fleet(*(cluster(name, 95, 98, busy=60) for name in (rehearsed, undone, other)))
    for name in (rehearsed, undone):
        await world.start(name, shadow=True)
    await world.until(rehearsed, Stage.MONITORED)
    await world.start_fleet(fresh("fleet"), {"recheck": "1s", "breaker_clusters": 1})
    await world.until_fleet(lambda s: states(s)[other] == "done")
    await world.say(undone, Command.ROLLBACK)
    status = await world.until_fleet(
        lambda s: sum(m.held.startswith("a shadow rollout of the cluster is open") for m in s.members) == 2
    )
    await world.until(undone, Stage.ROLLED_BACK)
    assert (status.failed, status.holds) == (0, ())
    assert {name: states(status)[name] for name in (rehearsed, undone)} == dict.fromkeys((rehearsed, undone), "waiting")
    assert {world.sql.gpus(name)["research"] for name in (rehearsed, undone)} == {95}
    for name in (rehearsed, undone):
        await world.say(name, Command.ABORT)
    status = await world.until_fleet(lambda s: s.stage.has_ended)
    assert (status.stage, status.failed) == (FleetStage.DONE, 0)
    assert {world.sql.gpus(name)["research"] for name in (rehearsed, undone, other)} == {85}
    opened = world.sql.rows("SELECT cluster, shadow FROM rollouts ORDER BY opened_at")
    assert sorted(opened[3:]) == sorted([(rehearsed, False), (undone, False)])


async def test_a_pilot_that_breaches_stops_the_fleet_before_wave_1(world: World) -> None:
    pilot, other = fresh("pilot"), fresh("other")
    await world.fleet(cluster(pilot, 95, 98, busy=60), cluster(other, 95, 98, busy=60))
    await world.start_fleet(fresh("fleet"), {"pilot_soak": "10s"}, pilots=(pilot,))
    await world.until_fleet(lambda s: states(s)[pilot] == "done")
    await world.healthy(pilot, main=(100, 80))  # 85 were promised
    status = await world.until_fleet(lambda s: bool(s.holds))
    assert [h.id for h in status.holds] == ["pilots"]
    assert f"pilot {pilot} rolled back: no wave begins" in status.waits_for
    assert "backstop fleet resume" in status.needs
    await world.until(pilot, lambda s: s.stage is Stage.ROLLED_BACK)
    assert status.rests_until is not None
    await asyncio.sleep((status.rests_until - world.now()).total_seconds() + 1)
    assert states(await world.tpm.fleet_status())[other] == "waiting"
    assert world.sql.rows("SELECT id FROM rollouts WHERE cluster = ?", other) == []
    assert world.sql.gpus(other) == {"research": 95}
    await eventually(lambda: world.notices("(fleet)") == [("fleet_held", "tpm")], "the owner is told")
    said = await world.say_fleet("resume", reason="the node is out of the pilot, looked at with its owners")
    assert said == "resumed: pilots lifted; the earlier failure no longer counts"
    await world.until_fleet(lambda s: states(s)[other] == "done")
    assert world.sql.gpus(other) == {"research": 85}


async def test_the_breaker_stops_a_fleet_of_which_too_many_fail_and_resume_lets_it_go_on(world: World) -> None:
    """30% of ten clusters fail; one in ten may."""
    names = [fresh("c") for _ in range(10)]
    slow = {**CLOCKS, "soak_buffered": "5s", "soak_enforced": "5s"}  # all three are on their way at once
    await world.fleet(*({**cluster(name, 95, 98, busy=60), "policy": slow} for name in names))
    await world.start_fleet(fresh("fleet"), {"parallel": 3, "breaker_clusters": 10})
    status = await world.until_fleet(lambda s: sum(m.stage in ("buffered", "enforced") for m in s.members) == 3)
    first = [m.cluster for m in status.members if m.state is MemberState.RUNNING]
    for name in first:  # 85 were promised
        await world.healthy(name, main=(100, 80))
    status = await world.until_fleet(lambda s: bool(s.holds) and s.failed == 3)
    assert [h.id for h in status.holds] == ["breaker"]
    assert re.match(
        r"\d of \d clusters rolled back, and at most 10% of 10 may: Backstop starts no more clusters",
        status.holds[0].reason,
    )
    started = set(opened(world))
    assert started <= {*first, *names}
    assert len(started) <= 6  # a slot that a failure frees may be taken before the second failure is seen
    await asyncio.sleep(3)
    assert set(opened(world)) == started
    untouched = [name for name in names if name not in started]
    assert all(world.sql.gpus(name) == {"research": 95} for name in untouched)
    for name in first:
        await world.healthy(name, main=(100, 98))
    await world.say_fleet("resume", reason="three bad racks, replaced")
    status = await world.until_fleet(lambda s: s.stage.has_ended, 90)
    assert status.stage is FleetStage.DONE
    assert {states(status)[name] for name in names if name not in first} == {"done"}
    assert set(opened(world)) == set(names)


def opened(world: World) -> list[str]:
    """Clusters in the order in which their rollouts were opened."""
    return [name for (name,) in world.sql.rows("SELECT cluster FROM rollouts ORDER BY opened_at")]


async def test_the_order_is_made_anew_from_todays_snapshots_before_each_start(world: World) -> None:
    a, b, c, d = (fresh(name) for name in "abcd")
    slow = {**CLOCKS, "soak_enforced": "4s"}  # what is reported meanwhile counts for the next start
    await world.fleet(
        {**cluster(a, 95, 100, busy=60), "policy": slow},
        cluster(b, 95, 98, busy=60),
        cluster(c, 95, 97, busy=60),
        cluster(d, 95, 99, busy=95),  # by its use of wave busy
    )
    plan = await world.launch_fleet(fresh("fleet"), {"parallel": 1})
    assert [p.cluster for p in plan.clusters] == [a, b, c, d]
    await world.say_fleet("approve", plan_hash=plan.hash)
    await world.until_fleet(lambda s: states(s)[a] == "running")
    await world.healthy(b, main=(100, 96))  # c has more headroom now
    status = await world.until_fleet(lambda s: s.stage.has_ended)
    assert status.stage is FleetStage.DONE
    assert opened(world) == [a, c, b, d]


async def test_what_grew_beyond_the_approval_asks_a_person_and_holds_nobody_else(world: World) -> None:
    grown, fits = fresh("a"), fresh("b")
    await world.fleet(cluster(grown, 95, 100, busy=60), cluster(fits, 95, 98, busy=60))
    plan = await world.launch_fleet(fresh("fleet"), {"parallel": 1})
    assert {p.cluster: p.cut_gpus for p in plan.clusters} == {grown: 10, fits: 10}
    await world.healthy(grown, main=(100, 90))  # its ceiling is 82 now
    await world.healthy(fits, main=(100, 99))
    await world.say_fleet("approve", plan_hash=plan.hash)
    status = await world.until_fleet(lambda s: states(s) == {fits: "done", grown: "running"} and bool(s.needs))
    assert status.needs.startswith(f"{grown} wait")
    assert world.sql.gpus(grown) == {"research": 95}
    await world.approve(grown)
    status = await world.until_fleet(lambda s: s.stage.has_ended)
    assert world.sql.gpus(grown) == {"research": 82}
    assert world.sql.gpus(fits) == {"research": 85}


async def test_a_window_keeps_its_cluster_from_starting_and_nobody_else(world: World) -> None:
    frozen, free = fresh("a"), fresh("b")
    ends = world.now() + timedelta(seconds=12)
    window = {"kind": "freeze", "starts": "2026-01-01T00:00:00Z", "ends": ends.isoformat(), "reason": "quarter end"}
    await world.fleet(
        {**cluster(frozen, 95, 100, busy=60), "windows": [window]},
        cluster(free, 95, 95, busy=60),
    )
    await world.start_fleet(fresh("fleet"), {"parallel": 1})
    status = await world.until_fleet(lambda s: states(s)[free] == "done")
    (member,) = [m for m in status.members if m.cluster == frozen]
    if world.now() < ends:
        assert member.state is MemberState.WAITING
        assert "quarter end" in member.held
    status = await world.until_fleet(lambda s: s.stage.has_ended)
    assert opened(world) == [free, frozen]
    (at,) = world.sql.rows("SELECT opened_at FROM rollouts WHERE cluster = ?", frozen)[0]
    assert datetime.fromisoformat(at) >= ends


async def test_the_budget_spreads_the_starts(world: World) -> None:
    names = [fresh("c") for _ in range(3)]
    large = fresh("large")
    await world.fleet(*(cluster(name, 95, 98, busy=60) for name in names), cluster(large, 120, 98, busy=60))
    await world.start_fleet(fresh("fleet"), {"budget_per_hour": 25, "parallel": 10})
    status = await world.until_fleet(lambda s: list(states(s).values()).count("done") == 2)
    assert len(opened(world)) == 2
    (passed,) = [m for m in status.members if m.cluster == large]
    assert passed.held.startswith("it would move 35 GPUs, above the budget of 25")
    status = await world.until_fleet(lambda s: "waits for the budget" in s.waits_for)
    left = "it would move 10 GPUs, and 5 of this hour's budget are left"
    assert status.waits_for.endswith(f"waits for the budget: {left}; Backstop looks again every 2s")
    assert (status.hour_gpus, status.day_gpus) == (5, 4076)
    assert status.needs.startswith(f"{large} cannot start")
    assert sorted(states(status).values()) == ["done", "done", "waiting", "waiting"]


async def test_people_skip_move_pause_and_promote(world: World) -> None:
    a, b, c, pilot = (fresh(name) for name in ("a", "b", "c", "pilot"))
    await world.fleet(*(cluster(name, 95, 98, busy=60) for name in (a, b, c, pilot)))
    await world.start_fleet(fresh("fleet"), {"pilot_soak": "1h", "bake": "1h", "parallel": 1}, pilots=(pilot,))
    await world.until_fleet(lambda s: s.rests_until is not None)
    await world.say_fleet("move", clusters=(c,), wave=Wave.UNALLOCATED)
    await world.say_fleet("skip", clusters=(b,), reason="is being retired")
    with pytest.raises(Refusal, match=f"{b} is skipped already"):
        await world.say_fleet("skip", clusters=(b,))
    with pytest.raises(Refusal, match="promote needs a reason"):
        await world.say_fleet("promote", reason="")
    await world.say_fleet("pause", reason="SEV in the region")
    assert "waived" in await world.say_fleet("promote")
    await asyncio.sleep(1)
    assert opened(world) == [pilot]
    await world.say_fleet("resume")
    # The resume began the soak again, and what was waived stays waived.
    status = await world.until_fleet(lambda s: s.wave is Wave.UNALLOCATED and s.rests_until is not None)
    assert opened(world) == [pilot, c]
    await world.say_fleet("promote", reason="no need to wait for one cluster")
    status = await world.until_fleet(lambda s: s.stage.has_ended)
    assert states(status) == {a: "done", b: "skipped", c: "done", pilot: "done"}
    assert world.sql.gpus(b) == {"research": 95}
    assert world.sql.refusals("(fleet)") == [
        f"tpm: skip refused: {b} is skipped already",
        "tpm: promote refused: promote needs a reason",
    ]


async def test_an_abort_leaves_what_is_done_and_ends_what_has_changed_nothing(world: World) -> None:
    done, waits, later = fresh("a"), fresh("b"), fresh("c")
    slow = {**cluster(waits, 95, 97, busy=60), "policy": {**CLOCKS, "notice": "1h"}}
    await world.fleet(cluster(done, 95, 98, busy=60), slow, cluster(later, 95, 95, busy=60))
    await world.start_fleet(fresh("fleet"), {"parallel": 1})
    await world.until_fleet(lambda s: states(s) == {done: "done", waits: "running", later: "waiting"})
    said = await world.say_fleet("abort", reason="the quarter is over")
    assert said == "aborting: Backstop ends 1 rollout that has changed nothing yet; the others go on"
    status = await world.until_fleet(lambda s: s.stage.has_ended)
    assert status.stage is FleetStage.ABORTED
    assert (await world.ended(waits))["stage"] == "aborted"
    assert (await world.status(done)).stage is Stage.MONITORED
    assert {n: world.sql.gpus(n)["research"] for n in (done, waits, later)} == {done: 85, waits: 95, later: 95}


async def test_an_abort_that_undoes_brings_every_baseline_back_but_not_what_others_opened(world: World) -> None:
    mine, theirs, waiting = fresh("a"), fresh("b"), fresh("c")
    await world.fleet(*(cluster(name, 95, 98, busy=60) for name in (mine, theirs, waiting)))
    await world.start(theirs)
    await world.until(theirs, Stage.MONITORED)
    await world.start_fleet(fresh("fleet"), {"parallel": 1})
    await world.until_fleet(lambda s: states(s)[mine] == "done")
    await world.say_fleet("abort", reason="the schedulers' owners asked", undo=True)
    status = await world.until_fleet(lambda s: s.stage.has_ended)
    assert status.stage is FleetStage.ABORTED
    assert (await world.ended(mine))["stage"] == "aborted"
    assert world.sql.gpus(mine) == {"research": 95}
    assert (await world.status(theirs)).stage is Stage.MONITORED
    assert world.sql.gpus(theirs) == {"research": 85}
    (joined,) = [m for m in status.members if m.cluster == theirs]
    assert joined.joined
    with pytest.raises(Refusal, match="the fleet rollout has ended"):
        await world.say_fleet("pause")


async def test_a_rehearsal_of_the_fleet_gives_way_to_a_real_launch(world: World) -> None:
    name, before, real = fresh("a"), fresh("rehearsal"), fresh("fleet")
    still = {**CLOCKS, "soak_buffered": "1h"}  # else the rehearsal may be over before anybody else launches
    await world.fleet({**cluster(name, 95, 98, busy=60), "policy": still})
    await world.start_fleet(before, shadow=True)
    await world.until_fleet(lambda s: {m.cluster: m.rollout for m in s.members}.get(name, "") != "")
    with pytest.raises(Refusal, match=r"a fleet rollout \(a rehearsal that writes no quota\) is open already"):
        await world.launch_fleet(fresh("again"), shadow=True)
    before_launch, cuts = await plan_now(world.tpm, FleetLaunch(fleet="not launched", owner="tpm"))
    plan = await world.launch_fleet(real)
    assert (plan.fleet, plan.hash) == (real, before_launch.hash), "as `fleet plan` showed it"
    envelope = json.loads(world.sql.one("SELECT envelope FROM fleet_plans WHERE fleet = ? AND cluster = ?", real, name))
    assert cuts == {name: envelope["largest_cut"]} == {name: {"research": 10}}
    assert await cuts_of(world.tpm, plan, [name]) == cuts
    assert (await world.tpm.fleet_status()).shadow is False
    (rehearsed,) = world.sql.rows("SELECT stage, shadow FROM rollouts WHERE cluster = ?", name)
    assert (rehearsed[0], bool(rehearsed[1])) == ("aborted", True)
    assert world.sql.gpus(name) == {"research": 95}
    await world.say_fleet("abort")  # a plan that awaits its approval is answered for in other stories too
    await world.until_fleet(lambda s: s.stage.has_ended)


async def test_one_that_was_terminated_awaits_no_approval(world: World) -> None:
    """Its plan still read as awaiting one, and a person was shown it and asked; so was that of a cluster's rollout."""
    name, fleet = fresh("a"), fresh("fleet")
    await world.fleet(cluster(name, 95, 98, busy=60))
    plan = await world.launch_fleet(fleet)
    sampled = str(world.sql.one("SELECT MAX(at) FROM health_samples WHERE cluster = ?", name))
    assert [p.health_at for p in plan.clusters] == [datetime.fromisoformat(sampled).replace(tzinfo=UTC)]
    await world.launch(name)
    assert (await world.tpm.fleet_plan()).hash == plan.hash
    assert (await world.tpm.ahead(name)).stage is Stage.PLANNED
    await eventually(lambda: "plan" in {e["kind"] for e in world.sql.archive("(fleet)")}, "it is archived")
    for handle in (world.client.get_workflow_handle(FLEET_ID), world.handle(name)):
        await idle(handle)
        await handle.terminate(reason="an operator's mistake")
    for asked in (world.tpm.ahead(name), world.say(name, Command.PAUSE)):
        with pytest.raises(Refusal, match=rf"of {name} is open in the ledger \(planned\) and Temporal does not run it"):
            await asked
    lost = (
        f"fleet rollout {fleet} of 1 cluster is open in the ledger (planned) and Temporal does not run it: "
        "no cluster is started; take it over with `backstop launch --fleet --adopt`"
    )
    for question in (world.tpm.fleet_plan(), world.say_fleet("approve", world.approver, plan_hash=plan.hash)):
        with pytest.raises(Refusal) as refused:
            await question
        assert refused.value.message == lost
    with pytest.raises(Refusal) as refused:
        await follow_fleet(world.tpm, every=1, once=True, as_json=True)
    assert refused.value.message == lost
    stands = await world.tpm.fleet_status()
    assert (stands.stage.value, stands.lost, stands.needs) == (
        "planned",
        lost,
        "it is lost: backstop launch --fleet --adopt",
    ), "as everybody who asks the door has it: HTTP, agents, the console"
    assert any(f"{lost}. The lines below show its last known state." in str(part) for part in status_parts(stands))
    of_cluster = (
        f"rollout {name}/1 of {name} is open in the ledger (planned) and Temporal does not run it: "
        f"nobody guards its quotas; take it over with `backstop launch {name} --adopt`"
    )
    answer = await cluster_status(ReadingDoor(world.tpm), name)
    assert (answer["lost"], answer["needs"]) == (of_cluster, f"it is lost: backstop launch {name} --adopt")
    with pytest.raises(Refusal) as refused:
        await follow(world.tpm, name, every=1, once=True, as_json=True)
    assert refused.value.message == of_cluster
    assert world.sql.gpus(name) == {"research": 95}


async def test_one_fleet_rollout_at_a_time(world: World) -> None:
    await world.fleet(cluster(fresh("a"), 95, 98, busy=60))
    await world.launch_fleet(fresh("fleet"))
    with pytest.raises(Refusal, match="a fleet rollout is open already, and only one can be open"):
        await world.launch_fleet(fresh("fleet"))
    handle = world.client.get_workflow_handle(FLEET_ID)
    for command in FLEET_COMMANDS:  # one that cannot be read is refused to its face
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(command, {"reason": "r"})
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.message.startswith("not a valid FleetCommandRequest: actor: Field required")
    await world.say_fleet("abort")
    await handle.result()
    with pytest.raises(Refusal, match="no fleet rollout was launched: the ledger has no cluster nowhere"):
        await world.launch_fleet(fresh("fleet"), pilots=("nowhere",))
