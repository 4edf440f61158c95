"""Changes that status and doctor show: a need that ended, health that nobody reports, a worker that died."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from client import rollouts as asking
from models.cluster.windows import Declared, Window, WindowKind
from models.errors import BadInput, Refusal, Unavailable
from models.fleet.state import MemberState
from models.questions import Declare, EndWindow
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command, Stage
from models.temporal_names import rollout_workflow_id
from tests.e2e.world import PATIENCE, World, cluster, fresh, team, worked_case, world_of
from tests.loop.temporal import InMemoryTemporal
from tests.waiting import eventually
from web.console.pages.fleet import fleet as fleet_page
from web.console.visit import Visit


@pytest_asyncio.fixture(loop_scope="function")
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(temporal, sqlite_ledger_url, tmp_path) as found:
        yield found


async def test_needs_are_what_the_rollout_says_now_and_silence_is_a_need(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger notes a need as things happen: one that is over stands there until the next thing happens."""
    name = fresh("needs")
    await world.fleet(worked_case(name))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    shown = await world.overview(name)
    async with asyncio.timeout(PATIENCE):  # the rollout may write its row once more, or not answer in time
        while shown.asked_at is None:
            world.sql.run("UPDATE rollouts SET needs = 'an answer that was given' WHERE cluster = ?", name)
            shown = await world.overview(name)
    assert shown.needs == ""

    monkeypatch.setattr(asking, "STALE", timedelta(0))  # its policy's 30 minutes are what counts once it is asked
    shown = await world.overview(name, lambda s: s.asked_at is not None)
    assert shown.needs == ""
    old = (world.now() - timedelta(hours=2)).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    world.sql.run("UPDATE health_samples SET at = ? WHERE cluster = ?", old, name)
    await world.overview(name, lambda s: (s.needs or "").endswith("mend the health source"))
    (check,) = [c for c in await world.tpm.doctor() if c.name == "health"]
    assert not check.ok
    assert name in check.text


async def test_what_temporal_has_not_listed_yet_is_in_the_overview(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list is a moment late, and a page that was made in this moment is made again only when something happens."""
    name = fresh("unlisted")
    await world.fleet(worked_case(name))
    await world.launch(name)
    await world.listed(name)
    listed = await world.overview(name, lambda s: "approve" in (s.needs or "") and s.unbacked_gpus == 345 - 319)

    async def nothing(*_: object, **__: object) -> AsyncIterator[object]:
        return
        yield

    monkeypatch.setattr(Client, "list_workflows", nothing)
    shown = await world.overview(name, lambda s: s.asked_at is not None)
    aged = {"started", "asked_at", "health_at"}
    assert shown.model_dump(exclude=aged) == listed.model_dump(exclude=aged)


async def test_a_cluster_that_no_plan_brings_under_its_ceiling_is_after_all_waves(world: World) -> None:
    """`plan` says so; its floor leaves nothing to cut, so its deepest tier would be that of the painless wave."""
    name = fresh("floor")
    await world.fleet(cluster(name, {"main": (16, 16)}, [team("a", 16, busy=2, minimum_gpus=16)]))
    await world.launch(name)
    await world.listed(name)
    row = await world.overview(name, lambda s: s.wave not in ("", "none"))
    assert row.wave == (await world.status(name)).wave == "after all"


async def test_where_temporals_list_is_late_the_rollout_is_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    name = fresh("late")
    await world.fleet(worked_case(name, soak_buffered="1h"))
    await world.launch(name)
    await world.listed(name)
    before = [run async for run in world.client.list_workflows() if run.id == rollout_workflow_id(name)]
    await world.approve(name)
    await world.until(name, Stage.BUFFERED)
    await world.archived(name)

    async def late(*_: object, **__: object) -> AsyncIterator[object]:
        for run in before:
            yield run

    monkeypatch.setattr(Client, "list_workflows", late)
    await world.overview(name, lambda s: s.stage == "buffered" and s.asked_at is not None)


async def test_a_shadow_is_marked_and_its_figures_are_what_is_so(world: World) -> None:
    name = fresh("rehearsal")
    await world.fleet(worked_case(name))
    await world.start(name, shadow=True)
    await world.until(name, Stage.MONITORED)
    shown = await world.overview(name, lambda s: s.asked_at is not None)
    assert (shown.shadow, shown.unbacked_gpus, shown.would_unbacked_gpus) == (True, 345 - 319, 0)
    status = await world.tpm.status(name)
    assert (status.assigned_gpus,) == world.sql.rows("SELECT gpus FROM quotas WHERE cluster = ?", name)[0]
    assert status.would is not None
    assert (status.flex_published_gpus, status.would.flex_published_gpus) == (None, 13)
    await world.say(name, Command.ABORT)
    await world.ended(name)
    assert (await world.overview(name, lambda s: not s.open)).shadow


async def test_a_name_that_the_ledger_does_not_have_is_bad_input_and_no_launch_is_offered(world: World) -> None:
    """A misspelt cluster was told to be launched, which is refused in turn."""
    known, unknown = fresh("there"), fresh("nowhere")
    await world.fleet(worked_case(known))
    for name, kind, said in (
        (known, Refusal, f"there is no rollout of {known}: launch one with `backstop launch {known}`"),
        (unknown, BadInput, f"the ledger has no cluster '{unknown}'"),
    ):
        with pytest.raises(kind, match=re.escape(said)):
            await world.tpm.status(name)
        with pytest.raises(kind, match=re.escape(said)):
            await world.tpm.command(name, Command.PAUSE, CommandRequest(actor="tpm", reason="a look first"))
    assert world.sql.rows("SELECT count(*) FROM clusters WHERE name = ?", unknown) == [(0,)]


async def test_silence_of_temporal_is_not_taken_for_nothing_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal answers that no rollout runs, and is away when asked whether there ever was one."""
    name = fresh("silent")
    await world.fleet(worked_case(name))
    there = InMemoryTemporal._describe_workflow_execution
    for ask in (world.tpm.status(name), world.tpm.fleet_status()):

        async def away(*_: object) -> None:
            monkeypatch.setattr(InMemoryTemporal, "_describe_workflow_execution", there)
            raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")

        monkeypatch.setattr(InMemoryTemporal, "_describe_workflow_execution", away)
        with pytest.raises(Unavailable, match="connection refused"):
            await ask


def holds_in_archive(world: World, cluster: str) -> set[str]:
    """Return the holds that the archive has put on the cluster's rollout and not taken off."""
    standing: dict[str, str] = {}
    for entry in world.sql.archive(cluster):
        if entry["kind"] == "hold" and "kind_of_hold" in entry["data"]:
            standing[entry["data"]["hold"]] = entry["data"]["kind_of_hold"]
        elif entry["kind"] == "hold":
            standing.pop(entry["data"]["hold"], None)
        elif entry["data"].get("command") == "resume":
            standing.pop("paused", None)
    return set(standing.values())


async def held_on_page(world: World) -> dict[str, str]:
    """Return by cluster what the Fleet page says under `?show=held`; its tile must have the same number."""

    async def call(name: str) -> Any:
        return await getattr(world.tpm, name)()

    async def try_call(name: str, **arguments: Any) -> tuple[Any, str]:
        return (await getattr(world.tpm, name)(**arguments), "") if name == "open_fleet" else (None, "")

    async def try_ask(_: object) -> tuple[None, str]:
        return None, "nobody was asked"

    async def why_not(*_: object, **__: object) -> str:
        return "no button is pressed"

    async def may_by_file(*_: object, **__: object) -> bool:
        return False

    visit = SimpleNamespace(
        query={"show": "held"},
        now=world.now(),
        principal=SimpleNamespace(name="tpm"),
        call=call,
        try_call=try_call,
        try_ask=try_ask,
        why_not=why_not,
        may_by_file=may_by_file,
    )
    values = (await fleet_page(cast("Visit", visit))).values
    assert (values["held"], values["held_unknown"]) == (len(values["rows"]), "")
    return {row.cluster: row.held for row in values["rows"]}


async def test_what_is_on_hold_is_what_the_story_held(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is checked by the rollouts' own status, and by the ledger alone if there are too many to ask."""
    free, paused, resumed, frozen, thawed, first, second = (
        fresh(name) for name in ("free", "paused", "resumed", "frozen", "thawed", "first", "second")
    )
    slow = {"soak_buffered": "1h"}
    await world.fleet(
        *(worked_case(name, **slow) for name in (free, paused, resumed, frozen, thawed)),
        *(worked_case(name, **slow, max_moved_gpus=50) for name in (first, second)),
    )
    ends = (world.now() + timedelta(hours=2)).replace(microsecond=0)
    window = Window(kind=WindowKind.FREEZE, starts=world.now(), ends=ends, reason="year end")
    declared = [Declared(source=f"hold {name}", windows=((name, window),)) for name in (frozen, thawed)]
    entries = (await world.tpm.ask(Declare(declared=tuple(declared)))).stand
    await world.start(first)
    await world.until(first, Stage.BUFFERED)  # 39 of the 50 GPUs that may move in an hour
    for name in (free, paused, resumed, frozen, thawed, second):
        await world.start(name)
    for name in (free, paused, resumed):
        await world.until(name, Stage.BUFFERED)
    await world.until(second, lambda s: [h.kind.value for h in s.holds] == ["blast_radius"])
    await world.say(paused, Command.PAUSE, reason="hands off")
    await world.say(resumed, Command.PAUSE)
    await world.say(resumed, Command.RESUME)
    (number,) = [e.id for e in entries if e.cluster == thawed]
    await world.tpm.ask(EndWindow(cluster=thawed, number=number, reason="over"))
    await world.until(thawed, Stage.BUFFERED)
    await world.until(frozen, lambda s: bool(s.holds))
    names = (free, paused, resumed, frozen, thawed, first, second)
    for name in (free, paused, resumed, thawed, first):
        await world.archived(name)
    await eventually(lambda: bool(holds_in_archive(world, second)), "the hold is archived")

    until = f", until {ends:%Y-%m-%d %H:%MZ}"
    now = world.now().replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    in_windows = world.sql.rows("SELECT cluster FROM windows WHERE starts <= ? AND ends > ?", now, now)
    assert [name for (name,) in in_windows] == [frozen]
    assert {name: holds_in_archive(world, name) for name in names if holds_in_archive(world, name)} == {
        paused: {"paused"},
        second: {"blast_radius"},
    }
    ((booked_at,),) = world.sql.rows("SELECT at FROM moves WHERE cluster = ?", first)
    room = datetime.fromisoformat(str(booked_at)).replace(tzinfo=UTC) + timedelta(hours=1)
    for most_asked in (200, 0):
        monkeypatch.setattr(asking, "MOST_ASKED", most_asked)
        held = await held_on_page(world)
        assert held.keys() == {paused, frozen, second}
        assert (held[paused], held[frozen]) == ("paused by tpm: hands off", f"freeze: year end{until}")
        assert held[second].startswith("blast radius: ")
        assert held[second].endswith(f", until {room:%Y-%m-%d %H:%MZ}")

    world.sql.run("UPDATE rollouts SET held = NULL WHERE cluster IN (?, ?)", free, frozen)  # as an earlier build's run
    rows = {one.cluster: one.held for one in await world.tpm.overview()}
    assert (rows[free], rows[frozen]) == (None, f"freeze: year end{until}"), "unknown is not nothing"


async def test_clusters_that_wait_for_a_paused_fleet_rollout_are_on_hold(world: World) -> None:
    names = [fresh("fleet") for _ in range(3)]
    await world.fleet(*(worked_case(name, soak_buffered="1h") for name in names))
    await world.start_fleet(fresh("f"), {"parallel": 1})
    await world.until_fleet(lambda s: sum(m.state is MemberState.RUNNING for m in s.members) == 1)
    assert await held_on_page(world) == {}, "to wait for its turn is no hold"
    await world.say_fleet("pause", reason="look first")
    begun = {name for (name,) in world.sql.rows("SELECT cluster FROM rollouts")}
    assert len(begun) == 1
    held = dict.fromkeys({*names} - begun, "the whole fleet rollout, paused by tpm: look first")
    assert await held_on_page(world) == held
    await world.say_fleet("resume")
    assert await held_on_page(world) == {}
