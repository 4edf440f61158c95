"""Real processes are killed with -9 in the middle of a rollout, and started again as an operator would."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from activities.adapters.ledger.database import upgrade
from client.connection import NAMESPACE
from models.errors import Refusal
from models.rollout.stages import Command, Stage
from tests.e2e.world import Sql, World, cluster, connected, eventually, team
from workers import embedded_temporal as embedded
from workers.embedded_temporal import EmbeddedTemporal, LeftBehind

pytestmark = pytest.mark.chaos

FORWARD = ["reserve", "set_soft", "harden", "follow"]
INVERSE = ["unfollow", "soften", "restore", "release"]
PATIENT = 90.0
"""A killed worker is missed after 10 s by the server, once for the task it had and once for its queue."""
MISSED = 40.0
"""A call that a killed worker had is missed after 15 s, long before its own minute is over."""


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

    async def world(self) -> World:
        """People at the `up` that runs now."""
        return await world_at(json.loads((self.home / "temporal.json").read_text())["address"], self.home)

    def server(self) -> LeftBehind:
        """The embedded server, as the lock on its files names it."""
        return server_in(self.home / "temporal")

    async def stop(self) -> None:
        """Stop all that was started, whatever state the test left it in."""
        for process in self._running:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 20)
            if process.returncode is None:
                await killed(process)
        if (self.home / "temporal" / "temporal.lock").exists() and self.server().lives:
            self.server().kill()


def server_in(directory: Path) -> LeftBehind:
    lock = directory / "temporal.lock"
    pid, port, ui_port = map(int, lock.read_text().split())
    return LeftBehind(lock, pid, port, ui_port)


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


async def world_at(address: str, home: Path) -> World:
    return World(await connected(address), Sql(ledger_of(home)), home, shaky=True)


QUOTAS = [team("a", 200), team("b", 161, busy=100)]
"""C = 306 of 361: b gives 55."""


def landed_once(world: World, name: str, effects: list[str]) -> None:
    """Check that each effect has exactly one receipt and one archive entry."""
    assert world.sql.effects(f"{name}/1") == effects
    assert world.sql.broken_links(name) == []
    archived = [e["data"]["fence"] for e in world.sql.archive(name) if "fence" in e["data"]]
    landed = world.sql.rows("SELECT counter FROM receipts WHERE rollout = ? ORDER BY counter", f"{name}/1")
    assert archived == [counter for (counter,) in landed]


@pytest.mark.nightly
async def test_a_rollout_outlives_its_processes(tmp_path: Path) -> None:
    """Three operators at once: their machines have nothing to do with each other."""
    await asyncio.gather(
        up_is_killed_and_then_everything(tmp_path / "up"),
        the_server_dies_and_up_ends(tmp_path / "server"),
        the_server_dies_while_the_worker_goes_on(tmp_path / "apart"),
    )


async def up_is_killed_and_then_everything(home: Path) -> None:
    name = "crash"
    async with processes(home) as running:
        up = await running.up()
        world = await running.world()
        sql = world.sql
        await world.fleet(cluster(name, {"main": (361, 361)}, QUOTAS, notice="0s", soak_buffered="2s"))
        await world.start(name)

        # The worker dies while the first effects are on their way; the server lives on and is taken over.
        await eventually(lambda: bool(sql.rows("SELECT * FROM receipts")), "the first effect")
        server = running.server()
        await killed(up)
        assert server.lives
        up = await running.up()
        assert "taken over" in running.log("workers.up")
        assert running.server() == server
        await world.until(name, lambda s: s.stage is not Stage.PLANNED, PATIENT)
        assert sql.gpus(name) == {"a": 200, "b": 106}

        # A power cut: both die, and only files are left.
        await killed(up)
        server.kill()
        await server.wait()
        up = await running.up()
        assert "taken over" not in running.log("workers.up")
        world = await running.world()
        await world.until(name, Stage.MONITORED, PATIENT)
        assert sql.gpus(name) == {"a": 200, "b": 106}
        assert sql.mode(name) == "hard"
        await world.archived(name)
        landed_once(world, name, FORWARD)

        up.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(up.wait(), 30) == 0
        assert not running.server().lives


async def the_server_dies_and_up_ends(home: Path) -> None:
    name = "server"
    async with processes(home) as running:
        up = await running.up()
        world = await running.world()
        sql = world.sql
        await world.fleet(cluster(name, {"main": (361, 361)}, QUOTAS, soak_buffered="2s"))
        baseline = sql.quotas(name)
        await world.start(name)
        await world.until(name, Stage.BUFFERED)

        os.kill(running.server().pid, signal.SIGKILL)
        assert await asyncio.wait_for(up.wait(), 30) == 1
        assert "the embedded Temporal server has ended" in running.log("workers.up")
        await running.up()
        world = await running.world()
        await world.until(name, Stage.MONITORED, PATIENT)
        assert sql.gpus(name) == {"a": 200, "b": 106}
        await world.say(name, Command.ABORT)
        await world.ended(name)
        assert sql.quotas(name) == baseline
        landed_once(world, name, [*FORWARD, *INVERSE])


async def the_server_dies_while_the_worker_goes_on(home: Path) -> None:
    name = "apart"
    async with processes(home) as running, EmbeddedTemporal(home / "temporal", *free_ports()) as server:
        upgrade(ledger_of(home))
        worker = await running.worker(server.address)
        world = await world_at(server.address, home)
        sql = world.sql
        clocks = {"soak_buffered": "2s", "breach_after": "3s", "recover_after": "1h"}
        await world.fleet(cluster(name, {"main": (361, 361)}, QUOTAS, **clocks))
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

        # Hardware fails, and the worker dies in the middle of the first call that writes: a look only reads.
        await world.healthy(name, main=(361, 300))
        sql.run("BEGIN IMMEDIATE")
        await world.calling(name, "apply_effect")
        await killed(worker)
        sql.run("ROLLBACK")
        worker = await running.worker(server.address)
        await world.until(name, Stage.ROLLED_BACK, MISSED)
        assert sql.gpus(name) == {"a": 200, "b": 100}
        assert sql.mode(name) == "soft"
        await world.archived(name)
        landed_once(world, name, [*FORWARD, *INVERSE])
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(worker.wait(), 30) == 0


@pytest.mark.nightly
async def test_a_fleet_goes_on_where_it_was_when_everything_dies(tmp_path: Path) -> None:
    names = [f"fleet-{number}" for number in range(6)]
    async with processes(tmp_path / "up") as running:
        up = await running.up()
        world = await running.world()
        await world.fleet(*(cluster(n, {"main": (100, 98)}, [team("a", 95, busy=60)]) for n in names))
        await world.start_fleet("whole", {"parallel": 2}, pilots=(names[5],))

        def opened() -> list[str]:
            return [n for (n,) in world.sql.rows("SELECT cluster FROM rollouts ORDER BY opened_at")]

        await eventually(lambda: len(opened()) >= 2, "the first of the wave after the pilot")
        await killed(up)  # the server goes on
        up = await running.up()
        world = await running.world()
        await eventually(lambda: len(opened()) >= 4, "more are started", PATIENT)
        server = running.server()
        await killed(up)
        server.kill()
        await server.wait()
        await running.up()
        world = await running.world()
        status = await world.until_fleet(lambda s: s.stage.has_ended, PATIENT)
        assert [m.state.value for m in status.members] == ["done"] * 6
        assert opened()[0] == names[5]
        assert sorted(opened()) == names  # each once
        assert all(world.sql.gpus(n) == {"a": 85} for n in names)
        await eventually(lambda: "running -> done" in world.sql.archive("(fleet)")[-1]["text"], "its archive", PATIENT)
        assert world.sql.broken_links("(fleet)") == []


async def left_behind(directory: Path) -> LeftBehind:
    """A server whose starter died."""
    code = (
        "import asyncio, os, pathlib, sys, workers.embedded_temporal as e; "
        "asyncio.run(e.EmbeddedTemporal(pathlib.Path(sys.argv[1]), None, None).start()); os._exit(9)"
    )
    starter = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(directory))
    assert await asyncio.wait_for(starter.wait(), 60) == 9
    return server_in(directory)


@pytest.mark.nightly
async def test_a_server_that_was_left_behind_is_taken_over_or_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await left_behind(tmp_path)
    async with EmbeddedTemporal(tmp_path, None, found.ui_port) as server:
        assert server.taken_over
        assert (server.pid, server.address) == (found.pid, f"127.0.0.1:{found.port}")
        with pytest.raises(Refusal, match=f"process {found.pid}"):
            await EmbeddedTemporal(tmp_path, None, None).start()
    assert not found.lives

    silent = await left_behind(tmp_path)
    os.kill(silent.pid, signal.SIGSTOP)
    state = Path(f"/proc/{silent.pid}/stat")  # its threads stop a moment later: until then it may answer
    await eventually(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "the server has stopped")
    monkeypatch.setattr(embedded, "_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(embedded, "_STOP_SECONDS", 0.5)
    port, ui_port = free_ports()
    async with EmbeddedTemporal(tmp_path, None, None) as server:
        assert not server.taken_over
        assert not silent.lives or server.pid != silent.pid
    elsewhere = await left_behind(tmp_path)
    async with EmbeddedTemporal(tmp_path, port, ui_port) as server:
        assert not server.taken_over
        assert server.pid != elsewhere.pid
        assert server.address == f"127.0.0.1:{port}"


def free_ports() -> tuple[int, int]:
    """Free now, and so low that nobody is given them by chance while a killed server is away."""
    found: list[int] = []
    while len(found) < 2:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = random.randrange(20_000, 30_000)
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found[0], found[1]
