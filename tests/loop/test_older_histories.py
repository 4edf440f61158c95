"""A ledger that has effects which no history has: a run was terminated, or Temporal came back from an older backup.

What needs a reset of the real server is in tests/e2e/test_resets.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client

from activities.adapters.ledger.facade import Ledger
from activities.ports.registry import OpenRollout
from models.cluster.readings import LimitMode
from models.errors import Refusal, Unavailable
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from tests.e2e.test_races import Hooks
from tests.e2e.test_resets import LONG, adopted, later, monitored, opened, say, soaking, untouched, written_since
from tests.e2e.world import World, fresh, worked_case, world_of


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


async def test_a_command_on_its_way_to_the_archive_is_archived_once(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """The rollout begins anew while the ledger has not yet answered that it has the command."""
    hooks = Hooks()
    async with world_of(temporal, sqlite_ledger_url, tmp_path, touch=hooks.on) as world:
        name = fresh("sent")
        await world.fleet(worked_case(name, **LONG))
        await world.start(name)
        await soaking(world, name)
        with hooks.hold("record.record", lambda r, *_: any(e.text.startswith("pause by") for e in r.entries)) as sent:
            await world.say(name, Command.PAUSE)
            await sent.here()
            written_since(sqlite_ledger_url, name, later(name, 3, EffectKind.HARDEN, mode=LimitMode.HARD))
            await world.healthy(name, main=(361, 300))  # the watch tells of it
            await world.until(name, lambda s: s.rollout != f"{name}/1")
            sent.go()
        await say(world, name, Command.ABORT)
        await world.ended(name)
        said = [e["text"] for e in world.sql.archive(name) if e["kind"] == "command"]
        assert said.count("pause by tpm") == 1


async def test_an_adoption_whose_answer_is_lost_happens_once(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = list[str]()

    def loses_one(ledger: Ledger, _: object) -> None:
        opens = ledger.registry.open_rollout

        def then_fails(opening: OpenRollout, adopt: bool, fence: int | None = None) -> OpenRollout:
            answer = opens(opening, adopt, fence)
            if answer.adopted_from and not lost:
                lost.append(answer.rollout)
                raise Unavailable("it is written, and the answer is lost")
            return answer

        monkeypatch.setattr(ledger.registry, "open_rollout", then_fails)

    async with world_of(temporal, sqlite_ledger_url, tmp_path, touch=loses_one) as world:
        name = fresh("unheard")
        await world.fleet(worked_case(name, **LONG))
        before = untouched(world, name)
        await world.start(name)
        await soaking(world, name)
        written_since(sqlite_ledger_url, name, later(name, 3, EffectKind.HARDEN, mode=LimitMode.HARD))
        await world.healthy(name, main=(361, 300))  # the watch tells of it
        status = await world.until(name, lambda s: s.rollout != f"{name}/1")
        assert lost == [status.rollout]
        adopted(world, name, status)
        await say(world, name, Command.ABORT)
        await world.ended(name)
        assert untouched(world, name) == before
