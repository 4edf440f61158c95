"""A ledger that has effects which no history has: a run was terminated, or Temporal came back from an older backup.

What needs a reset of the real server is in tests/e2e/test_resets.py.
"""

from __future__ import annotations

import pytest

from models.cluster.readings import LimitMode
from models.errors import Refusal
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from tests.e2e.test_resets import LONG, adopted, later, monitored, opened, soaking, untouched, written_since
from tests.e2e.world import World, fresh, worked_case


async def test_a_launch_after_a_terminate_refuses_what_stands_or_adopts_it(world: World) -> None:
    name = fresh("ended")
    before = await monitored(world, name)
    await world.handle(name).terminate(reason="by hand")
    with pytest.raises(Refusal, match="still has effects"):
        await world.launch(name, f"{name}/2")
    assert opened(world, name) == f"{name}/1"
    await world.launch(name, f"{name}/2", adopt=True)
    await world.say(name, Command.ABORT)
    await world.ended(name)
    assert untouched(world, name) == before


async def test_an_abort_undoes_what_an_older_history_does_not_have(world: World, sqlite_ledger_url: str) -> None:
    """Its first inverse has the number of an effect that it lacks: nobody takes that one's receipt for its own."""
    name = fresh("backup")
    await world.fleet(worked_case(name, **LONG))
    before = untouched(world, name)
    await world.start(name)
    await soaking(world, name)
    await world.at_rest()  # no look is about to find it first
    written_since(sqlite_ledger_url, name, later(name, 3, EffectKind.HARDEN, mode=LimitMode.HARD))
    (check,) = [c for c in await world.tpm.doctor() if c.name == "histories"]
    assert not check.ok
    assert f"{name}: the ledger is at effect 3 of {name}/1, Temporal at effect 2 of {name}/1" in check.text
    await world.say(name, Command.ABORT)
    result = await world.ended(name)
    assert result["stage"] == "aborted"
    assert untouched(world, name) == before
    assert world.sql.row("rollouts", id=f"{name}/1")["superseded_by"] == result["rollout"]
    said = [e["text"] for e in world.sql.archive(name) if e["kind"] == "command"]
    assert said.count("abort by tpm") == 1
    (check,) = [c for c in await world.tpm.doctor() if c.name == "histories"]
    assert check.ok


async def test_a_look_finds_what_an_older_history_does_not_have(world: World, sqlite_ledger_url: str) -> None:
    name = fresh("older")
    await world.fleet(worked_case(name, **LONG))
    await world.start(name)
    await soaking(world, name)
    written_since(sqlite_ledger_url, name, later(name, 3, EffectKind.HARDEN, mode=LimitMode.HARD))
    await world.healthy(name, main=(361, 300))  # the watch tells of it
    status = await world.until(name, lambda s: s.rollout != f"{name}/1")
    adopted(world, name, status)
    assert status.stage is Stage.PLANNED
