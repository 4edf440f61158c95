"""Records the golden histories anew, from real runs: `python -m tests.replay.record [name ...]`.

Only when a workflow's shape has changed and no rollout of the old shape can be in flight; otherwise patch the
workflow (`workflow.patched`), keep the old histories and add a new one.
"""

from __future__ import annotations

import asyncio
import gzip
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from activities.adapters.ledger import upgrade
from models.messages import RolloutStatus
from models.stages import Command, Stage
from tests.e2e.world import World, cluster, connected, team, world_of
from workers.embedded import EmbeddedTemporal

HISTORIES = Path(__file__).parent / "histories"
LARGEST = 300_000
FEW_EVENTS = 60
"""In the run that is to be continued as new."""


async def import_cluster(world: World, name: str) -> None:
    """C = 306 of 361: b gives 55."""
    quotas = [team("a", 200), team("b", 161, busy=100)]
    await world.fleet(cluster(name, {"main": (361, 361)}, quotas))


async def close(world: World, name: str) -> None:
    await world.until(name, Stage.MONITORED)
    await world.say(name, Command.CLOSE)
    await world.ended(name)


async def straight(world: World, name: str) -> None:
    await world.start(name)
    await close(world, name)


async def paused(world: World, name: str) -> None:
    await world.launch(name)
    await world.say(name, Command.PAUSE)
    await world.approve(name)
    await asyncio.sleep(0.5)
    await world.say(name, Command.RESUME)
    await world.until(name, Stage.BUFFERED)
    await world.say(name, Command.PAUSE)
    await asyncio.sleep(0.5)
    await world.say(name, Command.RESUME)
    await world.say(name, Command.PROMOTE)
    await close(world, name)


async def objected(world: World, name: str) -> None:
    await world.launch(name)
    await world.say(name, Command.OBJECT, actor="bea", team="b")
    await world.approve(name)
    await asyncio.sleep(0.5)
    await world.say(name, Command.RESOLVE, hold="objection-b")
    await world.until(name, Stage.BUFFERED)
    await world.say(name, Command.ACK, actor="bea", team="b")
    await close(world, name)


async def undone(world: World, name: str) -> None:
    await world.start(name)
    await world.until(name, Stage.ENFORCED)
    await world.say(name, Command.ROLLBACK)
    await world.until(name, Stage.ROLLED_BACK)
    await world.say(name, Command.RETRY)
    await world.until(name, Stage.MONITORED)
    await world.say(name, Command.ABORT)
    await world.ended(name)


async def breached(world: World, name: str) -> None:
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.healthy(name, main=(361, 300))
    await world.until(name, Stage.ROLLED_BACK)
    await world.healthy(name, main=(361, 361))
    await close(world, name)


async def shadowed(world: World, name: str) -> None:
    await world.start(name, shadow=True)
    await close(world, name)


async def continued(world: World, name: str) -> None:
    def in_a_later_run(status: RolloutStatus) -> bool:
        return status.runs > 1

    await world.start(name)
    await world.until(name, Stage.MONITORED)
    for number in range(10):
        await world.say(name, Command.ACK, team="b", reason=f"{number}")
    await world.until(name, in_a_later_run)
    await world.say(name, Command.CLOSE)
    await world.ended(name)


SCENES: dict[str, Callable[[World, str], Awaitable[None]]] = {
    scene.__name__: scene for scene in (straight, paused, objected, undone, breached, shadowed, continued)
}


async def record(names: list[str]) -> None:
    """The named scenes have been played, and their first and last runs saved."""
    few = f"limit.historyCount.suggestContinueAsNew={FEW_EVENTS}"
    for name in names:
        with tempfile.TemporaryDirectory(prefix="backstop-record-") as folder:
            home = Path(folder)
            url = f"sqlite:///{home / 'ledger.db'}"
            upgrade(url)
            async with AsyncExitStack() as stack:
                settings = [few] if name == "continued" else []
                server = EmbeddedTemporal(home / "temporal", None, None, dynamic_config=settings)
                await stack.enter_async_context(server)
                world = await stack.enter_async_context(world_of(await connected(server.address), url, home))
                await import_cluster(world, name)
                await SCENES[name](world, name)
                await save(world, name)


async def save(world: World, name: str) -> None:
    described = await world.handle(name).describe()
    runs = list(dict.fromkeys([described.raw_info.first_run_id, described.run_id]))
    for number, run in enumerate(runs, 1):
        history = await world.client.get_workflow_handle(described.id, run_id=run).fetch_history()
        data = gzip.compress(history.to_json().encode(), mtime=0)
        assert len(data) < LARGEST, f"{name} is too large to keep: {len(data)} bytes"
        path = HISTORIES / f"{name}{'' if len(runs) == 1 else f'-{number}'}.json.gz"
        path.write_bytes(data)
        print(f"{path.name}: {len(history.events)} events, {len(data)} bytes")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or list(SCENES)))
