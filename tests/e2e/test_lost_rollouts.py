"""Temporal's database is gone, and the ledger knows what was open: it is said, and one command takes it all over."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

from client.connection import NAMESPACE
from models.rollout.stages import Command, Stage
from tests.e2e.world import connected, fresh, worked_case, world_of
from workers.embedded_temporal import EmbeddedTemporal


async def said(server: EmbeddedTemporal, home: Path, *words: str) -> tuple[int, str]:
    """The exit code and what is printed, of the command line as people type it."""
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
        assert "3 rollouts are open in the ledger, and Temporal does not run them." in status
        assert "Take over: `backstop launch --adopt --all`" in status
        for name, stage in ((planned, "planned"), (buffered, "buffered"), (monitored, "monitored")):
            assert any(name in row and stage in row for row in status.splitlines()), status
            assert f"backstop launch {name} --adopt" in status
        code, one = await said(server, tmp_path, "status", monitored)
        assert code == 3  # refused
        assert f"rollout {lost[monitored]} of {monitored} is open in the ledger (monitored)" in one
        code, doctor = await said(server, tmp_path, "doctor")
        assert code == 1
        assert "of 3 open in the ledger, Temporal does not run 3, which nobody guards" in doctor
        assert "backstop launch --adopt --all" in doctor

        code, adopted = await said(server, tmp_path, "launch", "--adopt", "--all", "--reason", "the database is gone")
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
        assert "of 3 open in the ledger, Temporal runs all" in doctor
        code, again = await said(server, tmp_path, "launch", "--adopt", "--all")
        assert (code, "No rollout is lost" in again) == (0, True)

        for name in names:
            await world.say(name, Command.ABORT)
            await world.ended(name)
            assert world.sql.gpus(name) == baseline
