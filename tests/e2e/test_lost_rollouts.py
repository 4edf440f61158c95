"""Temporal's database is gone, and the ledger knows what was open: it is said, and one command takes it all over."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from client.connection import NAMESPACE
from models.fleet.state import FleetStage, MemberState
from models.rollout.stages import Command, Stage
from models.status_questions import OpenRollouts, Overview
from tests.e2e.world import CLOCKS, World, cluster, connected, eventually, fresh, team, worked_case, world_of
from workers.embedded_temporal import EmbeddedTemporal


async def said(server: EmbeddedTemporal, home: Path, *words: str) -> tuple[int, str]:
    """Run the command line as people type it; return the exit code and the output."""
    environment = {
        **os.environ,
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_NAMESPACE": NAMESPACE,
        "BACKSTOP_HOME": str(home),
        "BACKSTOP_ACTOR": "tpm",
        "COLUMNS": "300",
    }
    program = (sys.executable, "-m", "cli.main", *words)
    process = await asyncio.create_subprocess_exec(
        *program, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, output.decode()


@pytest.mark.nightly
async def test_lost_rollouts_are_named_and_adopted_all_at_once(sqlite_ledger_url: str, tmp_path: Path) -> None:
    planned, buffered, monitored = (fresh(name) for name in ("lost-planned", "lost-buffered", "lost-monitored"))
    names = sorted((planned, buffered, monitored))
    server = EmbeddedTemporal(tmp_path / "temporal", None, None)
    async with server, world_of(await connected(server.address), sqlite_ledger_url, tmp_path) as world:
        for name, policy in ((planned, {}), (buffered, {"soak_buffered": "1h"}), (monitored, {})):
            await world.fleet(worked_case(name, **policy))
        await world.launch(planned)
        await world.start(buffered)
        await world.until(buffered, Stage.BUFFERED)
        await world.start(monitored)
        await world.until(monitored, Stage.MONITORED)
        for name in (buffered, monitored):
            await world.archived(name)
        baseline, cut = world.sql.gpus(planned), world.sql.gpus(monitored)
        assert (baseline, cut) == ({"research": 345}, {"research": 306})
        lost = {name: world.sql.row("clusters", name=name)["open_rollout"] for name in names}

    shutil.rmtree(tmp_path / "temporal")
    server = EmbeddedTemporal(tmp_path / "temporal", None, None)
    async with server, world_of(await connected(server.address), sqlite_ledger_url, tmp_path) as world:
        world.launched |= {*names}
        code, status = await said(server, tmp_path, "status")
        assert code == 0
        assert "3 rollouts are open in the ledger, but Temporal does not run them." in status
        assert "To take over: `backstop launch --adopt --all`" in status
        for name, stage in ((planned, "planned"), (buffered, "buffered"), (monitored, "monitored")):
            assert any(name in row and stage in row for row in status.splitlines()), status
            assert f"backstop launch {name} --adopt" in status
        code, one = await said(server, tmp_path, "status", monitored)
        assert code == 3  # refused
        assert f"rollout {lost[monitored]} of {monitored} is open in the ledger (monitored)" in one
        code, doctor = await said(server, tmp_path, "doctor")
        assert code == 1
        assert "Temporal has lost 3 of 3 rollouts that the ledger has open, so nobody guards" in doctor
        assert "backstop launch --adopt --all" in doctor

        words = ("launch", "--adopt", "--all", "--reason", "the database is gone")
        code, refused = await said(server, tmp_path, *words)
        assert (code, "There is no terminal to ask on, so nothing was changed" in refused) == (2, True)
        assert {name: world.sql.row("clusters", name=name)["open_rollout"] for name in names} == lost
        code, adopted = await said(server, tmp_path, *words, "--yes")
        assert code == 0, adopted
        assert "3 of 3 lost rollouts adopted" in adopted
        for name in names:
            now = world.sql.row("clusters", name=name)["open_rollout"]
            assert now != lost[name]
            took = world.sql.row("rollouts", id=now)["adopted_from"]
            assert took == (None if name == planned else lost[name])  # nothing stood there
            assert world.sql.row("rollouts", id=lost[name])["superseded_by"] == now
        assert [world.sql.gpus(name) for name in (planned, buffered, monitored)] == [baseline, cut, cut]
        code, doctor = await said(server, tmp_path, "doctor")
        assert "Temporal runs all 3 that the ledger has open" in doctor
        code, again = await said(server, tmp_path, "launch", "--adopt", "--all")
        assert (code, "No rollout is lost" in again) == (0, True)

        for name in names:
            await world.say(name, Command.ABORT)
            await world.ended(name)
            assert world.sql.gpus(name) == baseline


@pytest.mark.nightly
async def test_a_lost_fleet_rollout_is_named_and_goes_on_where_it_was(sqlite_ledger_url: str, tmp_path: Path) -> None:
    """A pilot is through, one cluster is on its way, one was skipped, two wait: each goes on as what it was."""
    pilot, on_its_way, skipped, later, last = names = [fresh(n) for n in ("pilot", "way", "skip", "later", "last")]
    slow = {**CLOCKS, "soak_buffered": "1h"}
    clusters = [cluster(n, {"main": (100, 98)}, [team("research", 95, busy=60)]) for n in names]
    clusters[1]["policy"] = slow
    server = EmbeddedTemporal(tmp_path / "temporal", None, None)
    async with server, world_of(await connected(server.address), sqlite_ledger_url, tmp_path) as world:
        await world.fleet(*clusters)
        await world.launch_fleet("fleet/lost", {"parallel": 1, "bake": "1h"}, pilots=(pilot,))
        plan = await world.tpm.fleet_plan()
        await world.say_fleet("approve", plan_hash=plan.hash)
        await world.say_fleet("skip", clusters=(skipped, later, last))
        await world.say_fleet("pace", pace={"parallel": 2, "budget_per_hour": 300})
        await world.until_fleet(lambda s: any(m.cluster == on_its_way and m.stage == "buffered" for m in s.members))
        await world.say_fleet("move", clusters=(later, last), wave="busy")
        await world.say_fleet("pause", reason="a SEV")
        await eventually(
            lambda: any(e["data"].get("hold") == "paused" for e in world.sql.archive("(fleet)")), "it is archived"
        )
        await world.archived(on_its_way)
        rows = world.sql.rows("SELECT cluster, id FROM rollouts WHERE fleet = 'fleet/lost' ORDER BY opened_at")
        assert [name for name, _ in rows] == [pilot, on_its_way]
        before = {name: world.sql.gpus(name) for name in names}

    shutil.rmtree(tmp_path / "temporal")
    server = EmbeddedTemporal(tmp_path / "temporal", None, None)
    async with server, world_of(await connected(server.address), sqlite_ledger_url, tmp_path) as world:
        world.launched, world.fleet_launched = {*names}, True
        what = "fleet rollout fleet/lost of 5 clusters is open in the ledger (running) and Temporal does not run it"
        for asked, ends in (("status", 0), ("fleet status", 3), ("doctor", 1)):
            code, text = await said(server, tmp_path, *asked.split())
            assert (code, what in text, "backstop launch --fleet --adopt" in text) == (ends, True, True), text

        words = ("launch", "--fleet", "--adopt", "--reason", "the database is gone")
        code, refused = await said(server, tmp_path, *words)
        assert (code, "Take over fleet rollout fleet/lost? There is no terminal" in refused) == (2, True)
        assert world.sql.one("SELECT COUNT(*) FROM rollouts") == 2
        code, adopted = await said(server, tmp_path, *words, "--yes")
        assert code == 0, adopted
        assert "fleet/lost is taken over; Backstop no longer knows:" in adopted
        assert "the failures that its breaker (`max_failed`) counted" in adopted
        assert "pace: 2 clusters at once, at most 300 GPUs an hour" in adopted
        assert {name: world.sql.gpus(name) for name in names} == before  # nothing is written before a person approves

        status = await world.tpm.fleet_status()
        assert (status.owner, status.stage, status.pace.parallel) == ("tpm", FleetStage.PLANNED, 2)
        assert status.fleet != "fleet/lost"
        taken = world.sql.rows("SELECT cluster, id FROM rollouts WHERE fleet = 'fleet/lost' AND superseded_by IS NULL")
        members = {m.cluster: m for m in status.members}
        assert {(name, members[name].rollout) for name in (pilot, on_its_way)} == set(taken)
        assert {name: (m.state, m.wave.value) for name, m in members.items()} == {
            pilot: (MemberState.RUNNING, "pilot"),
            on_its_way: (MemberState.RUNNING, "unscheduled"),
            skipped: (MemberState.SKIPPED, "unscheduled"),
            later: (MemberState.WAITING, "busy"),
            last: (MemberState.WAITING, "busy"),
        }
        for name in (pilot, on_its_way):
            await world.approve(name)
        await world.until(pilot, Stage.MONITORED)
        plan = await world.tpm.fleet_plan()
        code, _ = await said(server, tmp_path, "fleet", "approve", "--plan", plan.hash)
        assert code == 0
        await world.until_fleet(lambda s: s.stage is FleetStage.RUNNING)
        await world.say(on_its_way, Command.PROMOTE)
        await world.until_fleet(
            lambda s: all(m.state is MemberState.DONE for m in s.members if m.cluster == on_its_way)
        )
        assert world.sql.gpus(later) == before[later]  # the wave bakes for an hour

        code, aborted = await said(server, tmp_path, "fleet", "abort", "--undo", "--reason", "enough", "--yes")
        assert code == 0, aborted
        await world.until_fleet(lambda s: s.stage is FleetStage.ABORTED)
        assert {name: world.sql.gpus(name)["research"] for name in names} == dict.fromkeys(names, 95)
        code, doctor = await said(server, tmp_path, "doctor")
        assert "fleet rollout" not in doctor


@pytest.mark.nightly
async def test_one_that_ends_while_it_is_asked_for_is_not_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger was asked a moment before its end, Temporal a moment after it."""
    name = fresh("ended")
    await world.fleet(worked_case(name))
    await world.launch(name)
    answers = [await world.tpm.ask(OpenRollouts())]
    assert [row.cluster for row in answers[0] if not row.ended and row.cluster == name] == [name]
    await world.say(name, Command.ABORT)
    await world.ended(name)
    tpm = world.tpm
    asked = tpm.ask

    async def late(question: OpenRollouts) -> tuple[Overview, ...]:
        return answers.pop() if answers else await asked(question)

    monkeypatch.setattr(tpm, "ask", late)
    assert name not in {row.cluster for row in await tpm.lost()}
    assert not answers
