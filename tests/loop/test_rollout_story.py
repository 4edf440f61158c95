"""Whole rollouts on a real ledger and a turned clock; the ledger's rows are read by plain SQL."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from activities.watch import health_watch
from models.cluster.windows import Declared, Window, WindowKind
from models.errors import BadInput, Refusal
from models.questions import Declare, EndWindow
from models.rollout.messages import LaunchAnswer, LaunchRequest
from models.rollout.stages import Command, Stage
from models.rollout.status_models import RolloutStatus
from models.temporal_names import WATCH_ID
from tests.e2e.test_races import Hooks
from tests.e2e.world import (
    TREE_CUT,
    World,
    cluster,
    eventually,
    fresh,
    on_postgresql,
    team,
    tree,
    worked_case,
    world_of,
)

LONG = "1h"
FORWARD = ["reserve", "set_soft", "harden", "follow"]


nightly = on_postgresql


async def stays(world: World, name: str, stage: Stage, seconds: float) -> RolloutStatus:
    """The rollout is in this stage all the while."""
    for _ in range(round(seconds / 0.1)):
        assert (await world.status(name)).stage is stage
        await asyncio.sleep(0.1)
    return await world.until(name, stage)


def waits_for(status: RolloutStatus) -> set[str]:
    return {condition.name for condition in status.waiting_for}


async def only_waits_for(world: World, name: str, stage: Stage, condition: str, seconds: float) -> RolloutStatus:
    """Wait until only this condition is open, and check that the rollout then stays in the stage."""
    await world.until(name, lambda s: s.stage is stage and waits_for(s) == {condition})
    status = await stays(world, name, stage, seconds)
    assert waits_for(status) == {condition}
    return status


# --- before it is open ------------------------------------------------------------------------


async def test_a_cancel_that_comes_before_the_rollout_is_open_counts_too(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    hooks = Hooks()
    async with world_of(temporal, sqlite_ledger_url, tmp_path, touch=hooks.on) as world:
        name = fresh("early")
        await world.fleet(worked_case(name))
        book = world.sql.row("clusters", name=name)
        with hooks.hold("open_rollout.quotas", lambda read: read == name, answered=True) as opening:
            launching = asyncio.create_task(world.launch(name))
            await opening.here()
            await world.handle(name).cancel()
            await eventually(lambda: cancel_is_heard(world, name), "the rollout has heard of the cancel")
            opening.go()

        with pytest.raises(Refusal, match="the workflow was cancelled"):
            await launching
        assert (await world.ended(name))["stage"] == "aborted"
        assert world.sql.row("clusters", name=name) == book
        assert world.sql.gpus(name) == {"research": 345}


async def cancel_is_heard(world: World, name: str) -> bool:
    """Every workflow task is completed, and so is that of the cancel."""
    described = (await world.handle(name).describe()).raw_description
    return not described.HasField("pending_workflow_task")


# --- breaches --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world_by_url", "buffer", "promised"),
    [("sqlite", 0, {"a": 200, "b": 161}), ("postgresql", 0.15, {"a": 200, "b": 106})],
    indirect=["world_by_url"],
)
async def test_a_blip_is_no_breach_and_what_lasts_is_one(
    world_by_url: World, buffer: float, promised: dict[str, int]
) -> None:
    world, sql = world_by_url, world_by_url.sql
    name = fresh("blip")
    quotas = [team("a", 200), team("b", 161, busy=100)]
    policy = {"buffer": buffer, "spare_gpus": 8 if buffer else 0, "breach_after": "6s"}
    await world.fleet(cluster(name, {"main": (361, 361)}, quotas, **policy))
    answer = await world.start(name)
    await world.until(name, Stage.MONITORED)
    assert sql.gpus(name) == promised

    # A blip is seen and writes nothing.
    await world.healthy(name, main=(361, 300))
    at_risk = (await world.until(name, lambda s: bool(s.at_risk))).at_risk
    assert {r.team for r in at_risk} == {"a", "b"}
    assert sum(r.backing_gpus for r in at_risk) == 300
    assert {r.team: r.quota_gpus for r in at_risk} == promised
    await world.healthy(name, main=(361, 361))
    await world.until(name, lambda s: not s.at_risk)
    await stays(world, name, Stage.MONITORED, 0.7)
    assert sql.effects(f"{name}/1") == FORWARD

    await breached_and_retried(world, name, answer, promised)
    guard = {e["text"].split(":")[0]: e["at"] for e in sql.archive(name) if e["kind"] == "guard"}
    waited = datetime.fromisoformat(guard["breach"]) - datetime.fromisoformat(guard["at risk"])
    assert waited >= timedelta(seconds=3), "half of what it may be short"


async def test_a_breach_rolls_back_to_what_is_backed_and_the_retry_starts_from_the_baseline(world: World) -> None:
    name, promised = fresh("breach"), {"a": 200, "b": 161}
    quotas = [team("a", 200), team("b", 161, busy=100)]
    await world.fleet(cluster(name, {"main": (361, 361)}, quotas, buffer=0, spare_gpus=0))
    answer = await world.start(name)
    await world.until(name, Stage.MONITORED)
    assert world.sql.gpus(name) == promised
    await breached_and_retried(world, name, answer, promised)


async def breached_and_retried(world: World, name: str, answer: LaunchAnswer, promised: dict[str, int]) -> None:
    """Play from monitored, with all 361 GPUs healthy, to monitored at the second attempt."""
    sql, rollout, forward = world.sql, f"{name}/1", FORWARD
    await world.healthy(name, main=(361, 300))
    await world.until(name, Stage.ROLLED_BACK)

    assert sql.gpus(name) == {"a": 200, "b": 100}
    assert sql.mode(name) == "soft"
    held = sql.row("clusters", name=name)
    assert (held["reserve_limit"], held["reserved_gpus"], bool(held["follows_health"])) == (300, 61, False)
    assert sql.effects(rollout) == [*forward, "unfollow", "soften", "restore", "release"]

    await world.healthy(name, main=(361, 361))
    status = await world.until(name, Stage.MONITORED)

    assert status.attempt == 2
    assert sql.gpus(name) == promised
    assert sql.mode(name) == "hard"
    assert sql.effects(rollout) == [*forward, "unfollow", "soften", "restore", "release", *forward]
    await world.archived(name)
    effects = [e["text"] for e in sql.archive(name) if e["kind"] == "effect"]
    assert [text for text in effects if text.startswith(("reserve", "harden", "unfollow", "soften"))] == [
        "reserve: the freed capacity is reserved: no quota can be raised into it",
        "harden: the limits are hard",
        "unfollow: the flex pool no longer follows health",
        "soften: the limits are soft again",
        "reserve: the freed capacity is reserved: no quota can be raised into it",
        "harden: the limits are hard",
    ]
    plans = [e["text"] for e in sql.archive(name) if e["kind"] == "plan"]
    assert len(plans) == 2
    assert all(f": cut {361 - sum(promised.values())} of 361 GPUs" in text for text in plans)
    assert answer.plan is not None
    assert [e["actor"] for e in sql.archive(name) if e["text"].startswith("approve")] == ["tpm"]
    assert sql.transitions(name) == [
        *("buffered", "enforced", "monitored", "rolling_back", "rolled_back", "planned"),
        *("buffered", "enforced", "monitored"),
    ]
    await eventually(lambda: {kind for kind, _ in world.notices(name)} >= {"breach", "rolled_back"}, "people are told")
    assert sql.broken_links(name) == []


async def test_what_one_island_lacks_is_cut_there_alone(world: World) -> None:
    sql = world.sql
    name = fresh("islands")
    quotas = [
        team("q1", 180, islands=["X"], protected_blocks=[180]),
        team("q2", 60, islands=["X"]),
        team("q3", 140, islands=["Y"]),
    ]
    await world.fleet(cluster(name, {"X": (200, 190), "Y": (200, 160)}, quotas, buffer=0.15, attempts=1))
    answer = await world.start(name)
    assert answer.plan is not None
    assert {q.team: q.cut_gpus for q in answer.plan.quotas} == {"q1": 0, "q2": 50, "q3": 0}
    await world.until(name, Stage.MONITORED)
    assert sql.gpus(name) == {"q1": 180, "q2": 10, "q3": 140}
    assert sql.rows("SELECT islands, limit_gpus FROM reserve_limits WHERE cluster = ? ORDER BY islands", name) == [
        ("X", 190),
        ("Y", 140),
    ]

    await world.healthy(name, X=(200, 185), Y=(200, 160))
    status = await world.until(name, Stage.ROLLED_BACK)

    assert sql.gpus(name) == {"q1": 180, "q2": 5, "q3": 140}
    assert "retry" in status.needs  # the only attempt is spent: a person is called
    assert sql.effects(f"{name}/1")[-2:] == ["restore", "release"]


async def test_the_safety_poll_makes_up_for_a_dead_watch(world: World) -> None:
    name = fresh("poll")
    await world.fleet(worked_case(name, safety_poll="1s"))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.client.get_workflow_handle(WATCH_ID).terminate(reason="nobody watches")
    await world.healthy(name, main=(361, 300))
    await world.until(name, Stage.ROLLED_BACK)
    assert world.sql.gpus(name) == {"research": 300}


async def test_the_watch_makes_up_for_a_lost_signal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rollout's own look is a day away."""
    name, lost = fresh("lost-signal"), list[str]()
    await world.fleet(worked_case(name))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.at_rest()  # what the last step changed is told
    signal = health_watch.WatchActivities._signal

    async def loses_one(watch: health_watch.WatchActivities, cluster: str, mark: str, now: datetime) -> bool:
        if cluster == name and not lost and "short research" in mark:
            lost.append(mark)
            return True
        return await signal(watch, cluster, mark, now)

    monkeypatch.setattr(health_watch.WatchActivities, "_signal", loses_one)
    monkeypatch.setattr(health_watch, "_TELL_AGAIN_SECONDS", 5.0)
    await world.healthy(name, main=(361, 300))
    await eventually(lambda: bool(lost), "a signal that is lost")
    await asyncio.sleep(1)
    assert not (await world.status(name)).at_risk
    await world.until(name, Stage.ROLLED_BACK)
    assert world.sql.gpus(name) == {"research": 300}


async def test_neither_a_declared_absence_nor_an_implausible_drop_is_a_breach(world: World) -> None:
    sql = world.sql
    name = fresh("guard")
    await world.fleet(worked_case(name, confirm_samples=5))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    effects = sql.effects(f"{name}/1")

    # A relabelled exporter.
    await world.healthy(name, main=(361, 0))
    await world.until(name, lambda s: not s.health_known)
    status = await stays(world, name, Stage.MONITORED, 1.5)
    assert status.healthy_gpus == 319
    await world.healthy(name, main=(361, 319))
    await world.until(name, lambda s: s.health_known)

    # A SEV that explains what is missing.
    sql.run(
        "INSERT INTO windows (cluster, kind, starts, ends, reason, gpus) VALUES (?, 'sev', ?, ?, 'SEV-1: cooling', 20)",
        name,
        f"{world.now():%Y-%m-%dT%H:%M:%S.%fZ}",
        "2999-01-01T00:00:00.000000Z",
    )
    await world.until(name, lambda s: [h.kind.value for h in s.holds] == ["sev"])
    await world.healthy(name, main=(361, 300))
    await world.until(name, lambda s: [(r.team, r.backing_gpus) for r in s.at_risk] == [("research", 300)])
    await stays(world, name, Stage.MONITORED, 1.5)
    assert sql.effects(f"{name}/1") == effects

    # Only what exceeds it counts.
    await world.healthy(name, main=(361, 280))
    await world.until(name, Stage.ROLLED_BACK)
    assert sql.gpus(name) == {"research": 280}


# --- undoing ---------------------------------------------------------------------------------


async def test_an_undo_restores_the_baseline_bit_for_bit(world: World) -> None:
    sql = world.sql
    name = fresh("undo")
    await world.fleet(tree(name))
    sql.run("UPDATE quotas SET mode = 'soft' WHERE cluster = ? AND team IN ('a', 'org-2')", name)
    baseline, book = sql.quotas(name), sql.row("clusters", name=name)
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    assert sql.gpus(name) == TREE_CUT
    assert sql.mode(name) == "hard"

    said = (await world.say(name, Command.ROLLBACK, actor="tia", reason="jobs fail")).said
    assert "8 GPUs of the baseline have no healthy hardware today" in said
    await world.until(name, Stage.ROLLED_BACK)

    assert sql.quotas(name) == baseline
    await world.archived(name)
    counted = {"open_rollout": f"{name}/1", "last_counter": 8, "completed_rollouts": 1}
    assert sql.row("clusters", name=name) == book | counted
    (undo,) = [e for e in sql.archive(name) if e["data"].get("after") == "rolling_back"]
    assert undo["actor"] == "tia"
    assert "8 GPUs of the baseline have no healthy hardware today" in undo["text"]

    await world.say(name, Command.RETRY)
    await world.until(name, Stage.MONITORED)
    assert sql.gpus(name) == TREE_CUT
    await world.say(name, Command.ABORT)

    assert (await world.ended(name))["stage"] == "aborted"
    assert sql.quotas(name) == baseline
    assert sql.row("clusters", name=name) == book | {"completed_rollouts": 1}
    again = ["reserve", "set_soft", "harden", "follow", "unfollow", "soften", "restore", "release"]
    assert sql.effects(f"{name}/1") == again * 2

    await world.launch(name, rollout=f"{name}/2")
    await world.say(name, Command.ABORT)
    assert (await world.ended(name))["stage"] == "aborted"
    assert sql.quotas(name) == baseline
    assert sql.effects(f"{name}/2") == []
    assert sql.row("clusters", name=name) == book | {"completed_rollouts": 1}
    assert sql.broken_links(name) == []


async def test_a_persons_undo_is_not_retried_by_itself(world: World) -> None:
    name = fresh("undone")
    await world.fleet(tree(name))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.say(name, Command.ROLLBACK, actor="tia", reason="jobs fail")
    await world.until(name, Stage.ROLLED_BACK)
    await stays(world, name, Stage.ROLLED_BACK, 1.5)


async def lost(world: World, lost_in: Stage) -> str:
    """A rollout of the tree was terminated in this stage; nothing is undone. The next one stays in its first soak."""
    name = fresh("lost")
    await world.fleet(tree(name, soak_buffered=LONG))
    world.sql.run("UPDATE quotas SET mode = 'soft' WHERE cluster = ? AND team = 'b'", name)
    await world.start(name)
    await world.until(name, Stage.BUFFERED)
    if lost_in is not Stage.BUFFERED:
        await world.say(name, Command.PROMOTE)
        await world.until(name, lost_in)
    await world.archived(name)
    await world.handle(name).terminate(reason="an operator's mistake")
    return name


async def adopted_and_undone(world: World, name: str) -> None:
    answer = await world.launch(name, rollout=f"{name}/9", adopt=True)
    assert answer.plan is not None
    assert answer.plan.assigned_gpus == 240  # from the lost rollout's baseline, not from what it left
    await world.approve(name)
    await world.until(name, Stage.BUFFERED)
    assert world.sql.gpus(name) == TREE_CUT
    await world.say(name, Command.ROLLBACK)
    await world.until(name, Stage.ROLLED_BACK)


async def test_a_lost_rollout_is_adopted_or_refused(world: World) -> None:
    sql = world.sql
    name = await lost(world, Stage.MONITORED)

    with pytest.raises(Refusal, match=f"still has effects of rollout {name}/1"):
        await world.launch(name, rollout=f"{name}/2")
    assert sql.gpus(name) == TREE_CUT
    await adopted_and_undone(world, name)

    assert sql.row("rollouts", id=f"{name}/1")["superseded_by"] == f"{name}/9"
    assert sql.gpus(name) == {"a": 100, "b": 80, "org": 60, "org-1": 30, "org-2": 30}
    found = sql.row("clusters", name=name)
    assert (found["reserve_limit"], found["reserved_gpus"], bool(found["follows_health"])) == (None, 0, False)
    assert sql.broken_links(name) == []


@pytest.mark.parametrize(("changed", "to"), [("a", 70), ("b", 75)], ids=["was cut", "was not cut"])
async def test_the_undo_of_an_adopted_rollout_leaves_what_others_changed(world: World, changed: str, to: int) -> None:
    """This holds for changes before the loss and after it: only the ledger remembers them."""
    name = await lost(world, Stage.MONITORED)
    world.sql.set(changed, to, name)
    await world.launch(name, rollout=f"{name}/9", adopt=True)
    await world.say(name, Command.ABORT)
    await world.ended(name)
    baseline = {"a": 100, "b": 80, "org": 60, "org-1": 30, "org-2": 30}
    assert world.sql.gpus(name) == baseline | {changed: to}


async def test_an_adopted_rollout_restores_the_baseline_that_was_first_cut_from(world: World) -> None:
    """Not that of the launch: before the first effect others changed a quota, and another plan was made."""
    name = fresh("rebased")
    await world.fleet(tree(name))
    await world.launch(name)
    world.sql.set("b", 75, name)
    while not (await world.status(name)).approved_by:  # the watch may tell of the change first: a new plan is made then
        with contextlib.suppress(Refusal):
            await world.approve(name)
        await asyncio.sleep(0.2)
    await world.until(name, Stage.MONITORED)  # nothing of ours stood: the gate found the change and planned again
    await world.handle(name).terminate(reason="an operator's mistake")
    await world.launch(name, rollout=f"{name}/9", adopt=True)
    await world.say(name, Command.ABORT)
    await world.ended(name)
    assert world.sql.gpus(name) == {"a": 100, "b": 75, "org": 60, "org-1": 30, "org-2": 30}


async def test_the_undo_of_an_adopted_rollout_restores_modes(world: World) -> None:
    name = await lost(world, Stage.BUFFERED)
    await adopted_and_undone(world, name)
    hard = dict.fromkeys(TREE_CUT, "hard")
    assert world.sql.modes(name) == hard | {"b": "soft"}


# --- what others write -----------------------------------------------------------------------


async def test_freed_gpus_cannot_be_taken_and_other_writes_show_as_drift(world_on_each: World) -> None:
    world, sql = world_on_each, world_on_each.sql
    name = fresh("foreign")
    quotas = [team("a", 60), team("b", 40, busy=10)]  # C = 85: b gives 15
    await world.fleet(cluster(name, {"main": (100, 100)}, quotas, soak_buffered=LONG))
    await world.start(name)
    await world.until(name, Stage.BUFFERED)
    assert sql.gpus(name) == {"a": 60, "b": 25}

    newcomer = "INSERT INTO quotas (cluster, team, gpus, mode, blocks, minimum) VALUES (?, 'c', 1, 'hard', '', 0)"
    assert "85" in sql.set_refused("a", 61, name)
    assert "85" in sql.set_refused("b", 40, name)
    assert "85" in sql.refused(newcomer, name)
    with pytest.raises(Refusal, match=f"{name} quota a: gpus 60 -> 75: cannot be changed while rollout .* is open"):
        await world.fleet(cluster(name, {"main": (100, 100)}, [team("a", 75), team("b", 25)]))
    assert sql.gpus(name) == {"a": 60, "b": 25}
    assert not (await world.status(name)).holds

    # What takes nothing that was freed goes through, and holds the rollout until a person says what it means.
    sql.set("b", 20, name)
    status = await world.until(name, lambda s: bool(s.holds))
    (hold,) = status.holds
    assert hold.id == "drift"
    assert hold.reason.startswith("changed by others: b 25 -> 20, by ")
    await world.say(name, Command.PROMOTE)
    await world.until(name, lambda s: s.stage is Stage.BUFFERED and waits_for(s) == {"drift", "holds"})
    await world.say(name, Command.RESOLVE, hold="drift", how="restore")
    await world.until(name, Stage.MONITORED)
    assert sql.gpus(name) == {"a": 60, "b": 25}

    sql.set("b", 21, name)
    await world.until(name, lambda s: bool(s.holds))
    await world.say(name, Command.RESOLVE, hold="drift", how="accept")
    await world.until(name, lambda s: not s.holds)
    await world.say(name, Command.ROLLBACK)
    await world.until(name, Stage.ROLLED_BACK)
    assert sql.gpus(name) == {"a": 60, "b": 21}  # an undo leaves alone what others changed
    sql.set("a", 61, name)  # nothing is reserved any more


# --- people ----------------------------------------------------------------------------------


async def test_people_hold_release_and_hasten_a_rollout(world: World) -> None:
    sql = world.sql
    name = fresh("people")
    # C = 340 of 400: a and b give 30 each.
    quotas = [team("a", 200, busy=100), team("b", 200, busy=100)]
    policy = {"acks": "all", "ack_deadline": LONG, "soak_enforced": LONG, "authorities": ["sre"]}
    await world.fleet(cluster(name, {"main": (400, 400)}, quotas, **policy))
    await world.launch(name)

    await world.say(name, Command.OBJECT, actor="bea", team="b", reason="deadline on Friday")
    await world.say(name, Command.OBJECT, actor="ann", team="a", reason="me too")
    await world.approve(name)
    status = await only_waits_for(world, name, Stage.PLANNED, "holds", 0.5)
    assert [(h.id, h.actor, h.reason) for h in status.holds] == [
        ("objection-b", "bea", "deadline on Friday"),
        ("objection-a", "ann", "me too"),
    ]
    with pytest.raises(Refusal, match="mallory may not resolve an objection here: ask tpm or sre"):
        await world.say(name, Command.RESOLVE, actor="mallory", hold="objection-b")
    await world.say(name, Command.RESOLVE, actor="sre", hold="objection-b")
    await stays(world, name, Stage.PLANNED, 0.3)
    assert sql.gpus(name) == {"a": 200, "b": 200}
    await world.say(name, Command.RESOLVE, hold="objection-a")
    await world.until(name, Stage.BUFFERED)

    await world.say(name, Command.ACK, actor="ann", team="a")
    status = await only_waits_for(world, name, Stage.BUFFERED, "acks", 0.5)
    assert [c.text for c in status.waiting_for] == ["1 of 2 acknowledgements, or their deadline"]
    await world.say(name, Command.PAUSE)
    with pytest.raises(Refusal, match="already paused"):
        await world.say(name, Command.PAUSE)
    await world.say(name, Command.ACK, actor="bea", team="b")
    await only_waits_for(world, name, Stage.BUFFERED, "holds", 0.5)
    assert sql.mode(name) == "soft"
    await world.say(name, Command.RESUME)
    await world.until(name, Stage.ENFORCED)
    assert sql.mode(name) == "hard"

    said = (await world.say(name, Command.OBJECT, actor="bea", team="b", reason="too late")).said
    assert "too late to hold" in said
    assert not (await world.status(name)).holds
    with pytest.raises(Refusal, match="promote needs a reason"):
        await world.say(name, Command.PROMOTE, reason=" ")
    await world.say(name, Command.PROMOTE)
    await world.until(name, Stage.MONITORED)
    with pytest.raises(Refusal, match="already at the last stage"):
        await world.say(name, Command.PROMOTE)
    assert sql.gpus(name) == {"a": 170, "b": 170}
    await world.archived(name)
    refused = ["mallory: resolve refused", "tpm: pause refused", "tpm: promote refused", "tpm: promote refused"]
    await eventually(
        lambda: [":".join(text.split(":")[:2]) for text in sql.refusals(name)] == refused, "refusals in the archive"
    )
    spoken = [(e["actor"], e["data"]["command"]) for e in sql.archive(name) if "command" in e["data"]]
    assert spoken == [
        ("tpm", "import_fleet"),
        ("tpm", "launch"),
        *(("bea", "object"), ("ann", "object"), ("tpm", "approve"), ("sre", "resolve"), ("tpm", "resolve")),
        *(("ann", "ack"), ("tpm", "pause"), ("bea", "ack"), ("tpm", "resume")),
        *(("bea", "object"), ("tpm", "promote")),
    ]
    assert sql.broken_links(name) == []


async def test_a_maintenance_window_holds_until_it_ends(world: World) -> None:
    name = fresh("window")
    spec = worked_case(name)
    ends = world.now() + timedelta(seconds=3)
    spec["windows"] = [
        {
            "kind": "maintenance",
            "starts": (ends - timedelta(hours=1)).isoformat(),
            "ends": ends.isoformat(),
            "reason": "new switches",
        }
    ]
    await world.fleet(spec)
    await world.start(name)
    status = await world.until(name, lambda s: waits_for(s) == {"holds"})
    assert [(h.kind.value, h.reason, h.until) for h in status.holds] == [("maintenance", "new switches", ends)]
    with_hold = await world.until(name, Stage.BUFFERED)
    assert with_hold.at >= ends
    assert world.sql.gpus(name) == {"research": 306}


async def test_a_declared_incident_holds_at_once_and_a_window_ahead_is_foretold(world: World) -> None:
    name, now = fresh("declared"), world.now()
    await world.fleet(worked_case(name))
    await world.launch(name)
    sev = Window(kind=WindowKind.SEV, starts=now, ends=now + timedelta(hours=1), reason="fabric", gpus=5)
    ahead = Window(
        kind=WindowKind.MAINTENANCE,
        starts=now + timedelta(days=3),
        ends=now + timedelta(days=4),
        reason="new firmware",
        gpus=39,
    )
    hold = Declared(source=f"hold {name}", windows=((name, sev),))
    entries = (
        await world.tpm.ask(Declare(declared=(hold, Declared(source=f"ics {name}", windows=((name, ahead),)))))
    ).stand
    status = await world.until(name, lambda s: bool(s.holds and s.foretold))
    assert [(h.kind.value, h.reason) for h in status.holds] == [("sev", "fabric")]
    # By then the 5 GPUs of the incident are back: 345 promised, 319 + 5 - 39 healthy.
    assert [(f.reason, f.lacks) for f in status.foretold] == [("new firmware", {"research": 60})]
    await world.approve(name)
    status = await world.until(name, lambda s: waits_for(s) == {"holds"})
    assert (status.stage, world.sql.gpus(name)) == (Stage.PLANNED, {"research": 345})

    await world.tpm.ask(
        EndWindow(cluster=name, number=next(e.id for e in entries if e.source == hold.source), reason="repaired")
    )
    await world.until(name, Stage.MONITORED)
    said = [(e["actor"], e["text"].split(" from ")[0], e["reason"]) for e in world.sql.archive(name)]
    assert ("tpm", "declared sev of 5 GPUs", "fabric") in said
    assert ("tpm", "declared maintenance of 39 GPUs", "new firmware") in said
    assert ("tpm", "ended sev of 5 GPUs", "repaired") in said
    assert world.sql.broken_links(name) == []
    with pytest.raises(BadInput, match="the ledger has no cluster 'nowhere'"):
        await world.tpm.ask(Declare(declared=(Declared(source="hold x", windows=(("nowhere", sev),)),)))


async def test_the_overview_says_what_each_rollout_needs_from_a_person(world: World) -> None:
    name = fresh("needs")

    async def until(wanted: str) -> None:
        found = await world.overview(name, lambda s: (s.needs or "nothing").startswith(wanted))
        assert found.health_at is not None

    await world.fleet(worked_case(name, soak_buffered="1h"))
    await world.launch(name)
    await until("approve the plan: backstop approve")
    await world.approve(name)
    await world.until(name, Stage.BUFFERED)
    await until("nothing")
    await world.say(name, Command.PAUSE)
    await until(f"paused by tpm: backstop resume {name}")
    await world.say(name, Command.RESUME)
    await until("nothing")


async def test_a_refused_launch_leaves_no_rollout_behind(world: World) -> None:
    name = fresh("nowhere")
    request = LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", reason="a slip of the pen")
    with pytest.raises(Refusal, match="was not launched: the ledger has no cluster"):
        await world.tpm.launch(request)
    with pytest.raises(Refusal, match=f"^{name}: it was not launched: the ledger has no cluster"):
        await world.status(name)
    assert name not in [s.cluster for s in await world.tpm.rollouts()]


async def test_a_rollout_that_moves_too_much_at_once_holds(world: World) -> None:
    name = fresh("radius")
    await world.fleet(worked_case(name, max_moved_gpus=38))
    await world.start(name)
    status = await world.until(name, lambda s: bool(s.holds))
    assert [h.kind.value for h in status.holds] == ["blast_radius"]
    assert world.sql.gpus(name) == {"research": 345}
    await world.say(name, Command.RESOLVE, hold="blast_radius")
    await world.until(name, Stage.MONITORED)
    assert world.sql.gpus(name) == {"research": 306}


# --- launching -------------------------------------------------------------------------------


async def test_a_rehearsal_waits_for_no_notice_and_gives_way_to_a_real_launch(world: World) -> None:
    """Its notice would be three days, and nobody is told; a launch that met it was refused, and did not say by what."""
    sql = world.sql
    name = fresh("rehearsal")
    await world.fleet(worked_case(name, notice="3d", soak_buffered="30d"))
    await world.start(name, f"{name}/rehearsal", shadow=True)
    await world.until(name, Stage.BUFFERED)
    with pytest.raises(Refusal, match="of tpm, a rehearsal that writes no quota"):
        await world.launch(name, f"{name}/again", shadow=True)

    answer = await world.launch(name, f"{name}/real")

    assert answer.gave_way == f"{name}/rehearsal"
    stages = sql.rows("SELECT id, stage, shadow FROM rollouts WHERE cluster = ? ORDER BY opened_at", name)
    assert [(row[0], row[1], bool(row[2])) for row in stages] == [
        (f"{name}/rehearsal", "aborted", True),
        (f"{name}/real", "planned", False),
    ]
    assert sql.row("clusters", name=name)["open_rollout"] == f"{name}/real"
    await world.approve(name)
    waits = [c.until for c in (await world.status(name)).waiting_for if c.name == "notice"]
    assert waits, "and the real one gives its teams their notice"
    with pytest.raises(Refusal, match="is open already"):
        await world.launch(name, f"{name}/third")


async def test_of_two_launches_one_wins_and_the_other_is_told(world: World) -> None:
    sql = world.sql
    name = fresh("race")
    await world.fleet(worked_case(name))

    answers = await asyncio.gather(
        *(world.launch(name, rollout=f"{name}/{number}") for number in (1, 2)), return_exceptions=True
    )

    (won,) = [a for a in answers if isinstance(a, LaunchAnswer)]
    (lost,) = [a for a in answers if isinstance(a, Refusal)]
    assert f"a rollout of {name} is open already" in lost.message
    assert sql.row("clusters", name=name)["open_rollout"] == won.rollout
    assert sql.rows("SELECT id FROM rollouts WHERE cluster = ?", name) == [(won.rollout,)]
    assert [text.split(":")[1] for text in sql.refusals(name)] == [" launch refused"]


async def test_a_plan_that_is_not_backed_cannot_be_launched(world: World) -> None:
    sql = world.sql
    name = fresh("unbacked")
    await world.fleet(worked_case(name, max_tier="unallocated"))
    book = sql.row("clusters", name=name)

    with pytest.raises(Refusal, match=r"not backed by healthy GPUs.*max_tier busy would suffice"):
        await world.launch(name)

    assert (await world.ended(name))["stage"] == "aborted"
    assert sql.row("clusters", name=name) == book
    assert sql.gpus(name) == {"research": 345}
    assert sql.effects(f"{name}/1") == []
    assert (await world.handle(name).describe()).status is WorkflowExecutionStatus.COMPLETED
    answer = await world.launch(name, rollout=f"{name}/2", policy={"max_tier": "unscheduled"})
    assert answer.plan is not None
    assert answer.plan.short_by_gpus == 4
    with pytest.raises(Refusal, match="no cluster 'nowhere'"):
        await world.launch("nowhere")
