"""Real processes are killed with -9 in the middle of a rollout, and started again as an operator would."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from activities.adapters.ledger import upgrade
from models.stages import Command, Stage
from tests.e2e.world import Sql, World, cluster, connected, eventually, team
from workers.embedded import NAMESPACE, EmbeddedTemporal, LeftBehind

pytestmark = pytest.mark.chaos

FORWARD = ["reserve", "set_soft", "harden", "follow"]
INVERSE = ["unfollow", "soften", "restore", "release"]
PATIENT = 90.0
"""A killed worker is missed after 10 s by the server, once for the task it had and once for its queue."""


class Processes:
    """Backstop's own commands as processes, all with one home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        self._running: list[asyncio.subprocess.Process] = []

    def log(self, module: str) -> str:
        path = self.home / f"{module}.log"
        return path.read_text() if path.exists() else ""

    async def start(self, module: str, says: str, **environment: str) -> asyncio.subprocess.Process:
        """`python -m module`, once it has said so."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "BACKSTOP_"))}
        ours = {"BACKSTOP_HOME": str(self.home), "BACKSTOP_WATCH_INTERVAL": "0.1"}
        with (self.home / f"{module}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module),
                env=inherited | ours | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.append(process)
        await eventually(lambda: says in self.log(module) or process.returncode is not None, f"{module}: {says}")
        assert process.returncode is None, self.log(module)
        return process

    async def up(self) -> asyncio.subprocess.Process:
        return await self.start("workers.up", "ready", BACKSTOP_PORT="0", BACKSTOP_UI_PORT="0")

    async def worker(self, address: str) -> asyncio.subprocess.Process:
        where = {"TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": NAMESPACE}
        return await self.start("workers.main", "serving", **where)

    def server(self) -> LeftBehind:
        """The embedded server, as the lock on its files names it."""
        lock = self.home / "temporal" / "temporal.lock"
        pid, port, ui_port = map(int, lock.read_text().split())
        return LeftBehind(lock, pid, port, ui_port)

    async def stop(self) -> None:
        """Nothing that was started runs any more, whatever state the test left it in."""
        for process in self._running:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 20)
            if process.returncode is None:
                await killed(process)
        if (self.home / "temporal" / "temporal.lock").exists() and self.server().lives:
            self.server().kill()


async def killed(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


@asynccontextmanager
async def processes(home: Path) -> AsyncIterator[Processes]:
    found = Processes(home)
    try:
        yield found
    finally:
        await found.stop()


def ledger_of(home: Path) -> str:
    return f"sqlite:///{home / 'ledger.db'}"


async def world_behind(address: str, home: Path) -> World:
    return World(await connected(address), Sql(ledger_of(home)), home, shaky=True)


QUOTAS = [team("a", 200), team("b", 161, busy=100)]
"""C = 306 of 361: b gives 55."""


def landed_once(world: World, name: str, effects: list[str]) -> None:
    """Each effect has its one receipt and its one place in the archive."""
    assert world.sql.effects(f"{name}/1") == effects
    assert world.sql.broken_links(name) == []
    archived = [e["data"]["fence"] for e in world.sql.archive(name) if "fence" in e["data"]]
    assert archived == list(range(1, len(effects) + 1))


async def test_a_rollout_outlives_its_processes(tmp_path: Path) -> None:
    """Two operators at once: their machines have nothing to do with each other."""
    await asyncio.gather(
        everything_is_killed(tmp_path / "up"),
        the_server_dies_while_the_worker_goes_on(tmp_path / "apart"),
    )


async def everything_is_killed(home: Path) -> None:
    name = "crash"
    async with processes(home) as running:
        up = await running.up()
        address = json.loads((home / "temporal.json").read_text())["address"]
        world = await world_behind(address, home)
        sql = world.sql
        await world.fleet(cluster(name, {"main": (361, 361)}, QUOTAS, notice="0s", soak_buffered="2s"))
        baseline = sql.quotas(name)
        await world.start(name)

        # The worker dies while the first effects are on their way; the server lives on and is taken over.
        await eventually(lambda: bool(sql.rows("SELECT * FROM receipts")), "the first effect")
        server = running.server()
        await killed(up)
        assert server.lives
        up = await running.up()
        assert "taken over" in running.log("workers.up")
        assert running.server() == server
        await world.until(name, Stage.BUFFERED, PATIENT)
        assert sql.gpus(name) == {"a": 200, "b": 106}

        # A power cut: both die, and only files are left.
        await killed(up)
        server.kill()
        await server.wait()
        up = await running.up()
        assert "taken over" not in running.log("workers.up")
        address = json.loads((home / "temporal.json").read_text())["address"]
        world = await world_behind(address, home)
        await world.until(name, Stage.MONITORED, PATIENT)
        assert sql.gpus(name) == {"a": 200, "b": 106}
        assert sql.mode(name) == "hard"
        await world.archived(name)
        landed_once(world, name, FORWARD)

        # The server alone dies: `up` says so and ends; started again it goes on.
        os.kill(running.server().pid, signal.SIGKILL)
        assert await asyncio.wait_for(up.wait(), 30) == 1
        assert "the embedded Temporal server has ended" in running.log("workers.up")
        up = await running.up()
        address = json.loads((home / "temporal.json").read_text())["address"]
        world = await world_behind(address, home)
        await world.until(name, Stage.MONITORED, PATIENT)
        await world.say(name, Command.ABORT)
        await world.ended(name)
        assert sql.quotas(name) == baseline
        landed_once(world, name, [*FORWARD, *INVERSE])

        up.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(up.wait(), 30) == 0
        assert not running.server().lives


async def the_server_dies_while_the_worker_goes_on(home: Path) -> None:
    name = "apart"
    async with processes(home) as running, EmbeddedTemporal(home / "temporal", *free_ports()) as server:
        upgrade(ledger_of(home))
        worker = await running.worker(server.address)
        world = await world_behind(server.address, home)
        sql = world.sql
        await world.fleet(cluster(name, {"main": (361, 361)}, QUOTAS, soak_buffered="2s", recover_after="1h"))
        await world.start(name)
        await world.until(name, Stage.BUFFERED)

        os.kill(server.pid, signal.SIGKILL)
        assert await server.wait() == -signal.SIGKILL
        await asyncio.sleep(1)
        await server.start()
        await world.until(name, Stage.MONITORED, PATIENT)
        assert worker.returncode is None
        assert sql.gpus(name) == {"a": 200, "b": 106}
        await world.archived(name)
        landed_once(world, name, FORWARD)

        # Hardware fails, and the worker dies while it rolls back.
        await world.healthy(name, main=(361, 300))
        await eventually(lambda: len(sql.effects(f"{name}/1")) > len(FORWARD), "the rollback's first effect")
        await killed(worker)
        worker = await running.worker(server.address)
        await world.until(name, Stage.ROLLED_BACK, PATIENT)
        assert sql.gpus(name) == {"a": 200, "b": 100}
        assert sql.mode(name) == "soft"
        await world.archived(name)
        landed_once(world, name, [*FORWARD, *INVERSE])
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(worker.wait(), 30) == 0


def free_ports() -> tuple[int, int]:
    """Free now, and kept by the server over its restarts."""
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
