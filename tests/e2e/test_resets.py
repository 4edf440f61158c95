"""A rollout's history is cut short, and the ledger has effects that it lacks: they are adopted or refused.

By day one reset to a task in the middle and one to the first task; by night every task, and a rollout that has ended.
The witness is plain SQL on the ledger, and Temporal's own history.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from activities.adapters.ledger.facade import Ledger
from models.cluster.readings import LimitMode
from models.errors import Refusal, Unavailable
from models.rollout.effects import Change, EffectKind, Fence
from models.rollout.stages import Command, Stage
from models.rollout.status_models import RolloutStatus
from tests.e2e.world import World, connected, eventually, fresh, worked_case, world_of
from tests.waiting import async_attempts
from workers.embedded_temporal import EmbeddedTemporal

LONG = {"soak_buffered": "1h", "soak_enforced": "1h"}


async def reset(world: World, name: str, activity: str = "", times: int = 1, run: str = "") -> None:
    """`temporal workflow reset`: to the first task, or to the one that took in this call's n-th answer.

    `run`: which one; by default the last.
    """
    world.shaky = True  # the new run is being opened for a moment, and says so
    handle = world.handle(name)
    run = run or (await handle.describe()).run_id
    of_run = world.client.get_workflow_handle(handle.id, run_id=run)

    async def has_a_task() -> bool:  # a run that has just begun has none that is completed
        events = (await of_run.fetch_history()).events
        return any(e.HasField("workflow_task_completed_event_attributes") for e in events)

    await eventually(has_a_task, f"{name} has a task that it can be reset to")
    history = await of_run.fetch_history()
    scheduled = {
        e.event_id: e.activity_task_scheduled_event_attributes.activity_type.name
        for e in history.events
        if e.HasField("activity_task_scheduled_event_attributes")
    }
    answers = [
        e.event_id
        for e in history.events
        if e.HasField("activity_task_completed_event_attributes")
        and scheduled[e.activity_task_completed_event_attributes.scheduled_event_id] == activity
    ]
    after = answers[times - 1] if activity else 0
    tasks = [e.event_id for e in history.events if e.HasField("workflow_task_completed_event_attributes")]
    await world.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=world.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=run),
            reason="by hand",
            workflow_task_finish_event_id=next(task for task in tasks if task > after),
            request_id=uuid.uuid4().hex,
        )
    )


async def say(world: World, name: str, command: Command, **fields: str) -> None:
    """Give the command again until the history has been compared with the ledger: before that nothing is answered."""
    async for _ in async_attempts(f"{command} of {name} is taken"):
        try:
            await world.say(name, command, **fields)
            return
        except Unavailable:
            continue


def opened(world: World, name: str) -> str | None:
    rollout: str | None = world.sql.row("clusters", name=name)["open_rollout"]
    return rollout


def untouched(world: World, name: str) -> dict[str, Any]:
    """Return the complete result of an undo: the quotas, and nothing reserved or followed."""
    row = world.sql.row("clusters", name=name)
    kept = ("reserve_limit", "reserved_gpus", "follows_health", "flex_gpus", "open_rollout")
    modes = world.sql.rows("SELECT team, gpus, mode FROM quotas WHERE cluster = ? ORDER BY team", name)
    return {"quotas": modes, **{column: row[column] for column in kept}}


async def monitored(world: World, name: str) -> dict[str, Any]:
    """A monitored rollout; answers what stood before it."""
    await world.fleet(worked_case(name))
    before = untouched(world, name)
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    assert world.sql.gpus(name) == {"research": 306}
    assert world.sql.mode(name) == "hard"
    return before


def adopted(world: World, name: str, status: RolloutStatus) -> None:
    """The rollout that runs now has taken over the earlier one's effects, once, by the ledger's own rows."""
    earlier, now = world.sql.row("rollouts", id=f"{name}/1"), world.sql.row("rollouts", id=status.rollout)
    adoptions = "SELECT id, adopted_from FROM rollouts WHERE cluster = ? AND adopted_from IS NOT NULL"
    assert world.sql.rows(adoptions, name) == [(status.rollout, earlier["id"])]
    assert earlier["superseded_by"] == opened(world, name) == status.rollout
    assert (now["baseline"], now["modes"]) == (earlier["baseline"], earlier["modes"])
    assert world.sql.row("clusters", name=name)["last_counter"] == 0, "the fence begins anew"
    assert world.sql.rows("SELECT kind FROM receipts WHERE rollout = ?", status.rollout) == []


@pytest.mark.parametrize(
    ("activity", "times"),
    [
        pytest.param("", 1, id="first-task", marks=pytest.mark.nightly),
        pytest.param("open_rollout", 1, id="opened", marks=pytest.mark.nightly),
        pytest.param("apply_effect", 1, id="reserved", marks=pytest.mark.nightly),
        pytest.param("apply_effect", 2, id="soft"),
        pytest.param("apply_effect", 3, id="hard", marks=pytest.mark.nightly),
    ],
)
async def test_an_abort_after_a_reset_restores_the_baseline_to_the_last_bit(
    world: World, activity: str, times: int
) -> None:
    name = fresh("reset")
    before = await monitored(world, name)
    await reset(world, name, activity, times)
    status = await world.until(name, lambda s: s.rollout != f"{name}/1")
    adopted(world, name, status)
    assert world.sql.gpus(name) == {"research": 306}, "a reset alone writes nothing"
    assert status.stage is Stage.PLANNED
    await say(world, name, Command.ABORT)
    await world.ended(name)
    assert untouched(world, name) == before
    assert world.sql.broken_links(name) == []
    assert ("held", "tpm") in world.notices(name), "the owner is called"


@pytest.mark.nightly
async def test_a_reset_past_the_last_effect_changes_nothing(world: World) -> None:
    name = fresh("even")
    before = await monitored(world, name)
    run = (await world.handle(name).describe()).run_id
    await reset(world, name, "apply_effect", 4)

    async def other_run() -> bool:
        return (await world.handle(name).describe()).run_id != run

    await eventually(other_run, "the reset has begun another run")
    await say(world, name, Command.PAUSE)
    status = await world.status(name)
    assert (status.stage, status.rollout) == (Stage.MONITORED, f"{name}/1")
    await say(world, name, Command.ABORT)
    await world.ended(name)
    assert untouched(world, name) == before


@pytest.mark.nightly
async def test_an_adopted_rollout_goes_on_from_the_ledgers_baseline_once_it_is_approved(world: World) -> None:
    """And a second reset, to before its own adoption, adopts once more."""
    name = fresh("again")
    before = await monitored(world, name)
    await reset(world, name)
    first = (await world.until(name, lambda s: s.rollout != f"{name}/1")).rollout
    await world.until(name, lambda s: s.plan_hash is not None)
    await world.approve(name)
    await world.until(name, Stage.MONITORED)
    assert world.sql.gpus(name) == {"research": 306}
    await reset(world, name)
    second = (await world.until(name, lambda s: s.rollout not in (f"{name}/1", first))).rollout
    assert world.sql.row("rollouts", id=second)["adopted_from"] == first
    await say(world, name, Command.ABORT)
    await world.ended(name)
    assert untouched(world, name) == before


@pytest.mark.nightly
async def test_until_it_is_buffered_people_read_that_nobody_guards_what_it_adopted(world: World) -> None:
    """The status, the ledger's row, the doctor and the owner's notice say so; also while an approved rollout waits."""
    name, nobody = fresh("bare"), "nobody guards the present quotas until the rollout is buffered"
    await world.fleet(worked_case(name, notice="1h"))
    await world.start(name)
    await world.say(name, Command.PROMOTE)
    assert not (await world.until(name, Stage.MONITORED)).unguarded
    await reset(world, name)
    status = await world.until(name, lambda s: s.rollout != f"{name}/1" and s.plan_hash is not None)

    def row() -> dict[str, Any]:
        return world.sql.row("rollouts", id=status.rollout)

    async def guard() -> list[tuple[str, str]]:
        return [(c.text, c.remedy) for c in await world.tpm.doctor() if c.name == "guard"]

    approve, undo = f"backstop approve {name} --plan {status.plan_hash}", "or restore the baseline: backstop abort"
    needs = f"{nobody}; approve the plan: {approve}, {undo} {name} --reason ..."
    await eventually(lambda: row()["needs"] == needs, "the ledger's row says so")
    assert (status.unguarded, (await world.status(name)).needs) == (True, needs)
    assert (world.sql.gpus(name), world.sql.mode(name), row()["stage"]) == ({"research": 306}, "hard", "planned")
    assert await guard() == [(f"{name}: {nobody}", f"{approve}, {undo} {name} --reason '...'")]
    await eventually(lambda: ("held", "tpm") in world.notices(name), "the owner is called")
    assert f"{nobody}: see `backstop status {name}` and approve" in (world.home / "notices.jsonl").read_text()
    await world.approve(name)
    status = await world.status(name)
    assert (status.stage, status.unguarded, status.needs) == (Stage.PLANNED, True, "")
    assert await guard() == [
        (f"{name}: {nobody}", f"backstop promote {name} --reason '...', {undo} {name} --reason '...'")
    ]
    await world.say(name, Command.PROMOTE)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    assert (row()["stage"], row()["needs"], await guard()) == ("monitored", "", [])


@pytest.mark.nightly
async def test_a_reset_of_a_rollout_that_has_ended_is_refused_and_writes_nothing(world: World) -> None:
    name = fresh("over")
    await monitored(world, name)
    await world.say(name, Command.CLOSE)
    await world.ended(name)
    dump, receipts = world.sql.dump(name), world.sql.effects(f"{name}/1")
    run = (await world.handle(name).describe()).run_id
    for activity, times in (("", 1), ("apply_effect", 2)):
        await reset(world, name, activity, times, run)
        result = await world.ended(name)
        assert (result["stage"], opened(world, name)) == ("aborted", None)
        assert "over" in result["reason"] or "has ended" in result["reason"]
        assert world.sql.dump(name) == dump
        assert world.sql.effects(f"{name}/1") == receipts


# --- an older copy of the history: Temporal's database came back from a backup ------------------------------------


def written_since(url: str, name: str, *changes: Change) -> None:
    """The ledger has these effects of the rollout, and no history has them."""
    with Ledger(url) as ledger:
        for change in changes:
            ledger.quotas.apply(change)


async def soaking(world: World, name: str) -> None:
    """Wait until the rollout is buffered, has looked since, and waits only for its soak."""
    await world.until(name, lambda s: s.stage is Stage.BUFFERED and {c.name for c in s.waiting_for} == {"soak"})
    await world.archived(name)


def later(name: str, counter: int, kind: EffectKind, **more: Any) -> Change:
    return Change(cluster=name, kind=kind, fence=Fence(rollout=f"{name}/1", counter=counter), **more)


# --- where keys are configured --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activity", "times"),
    [
        pytest.param("", 1, id="first-task"),
        pytest.param("apply_effect", 2, id="middle", marks=pytest.mark.nightly),
    ],
)
async def test_with_keys_a_reset_run_ends_and_a_person_adopts(ticketed: World, activity: str, times: int) -> None:
    """No ticket says that it may take over anything."""
    name = fresh("keys")
    await ticketed.fleet(worked_case(name))
    before = untouched(ticketed, name)
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    await ticketed.archived(name)
    dump = ticketed.sql.dump(name)
    await reset(ticketed, name, activity, times)
    assert (await ticketed.ended(name))["stage"] == "aborted"
    assert (ticketed.sql.dump(name), opened(ticketed, name)) == (dump, f"{name}/1")
    with pytest.raises(Refusal, match=f"open in the ledger .*launch {name} --adopt"):
        await ticketed.status(name)
    (check,) = [c for c in await ticketed.tpm.doctor() if c.name == "rollouts"]
    assert not check.ok
    await ticketed.launch(name, f"{name}/2", adopt=True)
    await ticketed.say(name, Command.ABORT)
    await ticketed.ended(name)
    assert untouched(ticketed, name) == before


# --- a run that continues an earlier one ---------------------------------------------------------------------------


@pytest.fixture
async def forgetful(sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Its server suggests a new run every few events."""
    limit = "limit.historyCount.suggestContinueAsNew=60"
    async with (
        EmbeddedTemporal(tmp_path / "temporal", None, None, dynamic_config=[limit]) as server,
        world_of(await connected(server.address), sqlite_ledger_url, tmp_path) as world,
    ):
        yield world


@pytest.mark.nightly
async def test_the_first_task_of_a_later_run_is_one_in_the_middle_too(forgetful: World, sqlite_ledger_url: str) -> None:
    """The run that is reset is the last one: it adopts nothing and begins no other by itself before that."""
    world, name = forgetful, fresh("later")
    await world.fleet(worked_case(name, **LONG))
    before = untouched(world, name)
    await world.start(name)
    await soaking(world, name)
    for number in range(8):
        await world.say(name, Command.ACK, team="research", reason=f"{number}")
    await world.until(name, lambda s: s.runs > 1)
    await world.at_rest()
    first_event = await anext(world.handle(name).fetch_history_events())
    assert first_event.workflow_execution_started_event_attributes.continued_execution_run_id, "a later run"
    written_since(sqlite_ledger_url, name, later(name, 3, EffectKind.HARDEN, mode=LimitMode.HARD))
    await reset(world, name)
    adopted(world, name, await world.until(name, lambda s: s.rollout != f"{name}/1"))
    await say(world, name, Command.ABORT)
    await world.ended(name)
    assert untouched(world, name) == before
