"""Keys that `backstop up` made: a ticket is believed where there is one, and needed once access is configured."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client

from models.audit_chain import proof_of
from models.errors import Refusal
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command, Stage
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.world import World, eventually, fresh, worked_case, world_of
from workers.front_public_keys import TicketsWanted

PROVEN = {"proof": "peer", "how": "this machine"}
ASSERTED = {"proof": "asserted"}


class Access:
    """A fake of access: whether a file is in force, and the worker's view of that, which is seconds late."""

    def __init__(self) -> None:
        self.in_force = False
        self.wanted = TicketsWanted(lambda: self.in_force)

    def put_in_force(self) -> None:
        self.in_force = True
        self.wanted.ask_again()


@pytest.fixture
def access() -> Access:
    return Access()


@pytest_asyncio.fixture(loop_scope="function")
async def offered(temporal: Client, sqlite_ledger_url: str, tmp_path: Path, access: Access) -> AsyncIterator[World]:
    keys = (FRONT_KEY, public_keys)
    async with world_of(temporal, sqlite_ledger_url, tmp_path, keys=keys, wanted=access.wanted) as found:
        yield found


@contextlib.contextmanager
def straight_at_temporal(world: World) -> Iterator[None]:
    """Past the front: whoever speaks is who they say."""
    keys, world.keys = world.keys, None
    try:
        yield
    finally:
        world.keys = keys


def proofs(world: World, cluster: str) -> dict[str, Any]:
    """Return how the archive says that the author of each command was proven."""
    rows = [e for e in world.sql.archive(cluster) if e["kind"] == "command" and not e["refused"]]
    return {e["data"]["command"]: e["data"].get("proof") for e in rows}


async def test_each_row_says_how_its_actor_was_proven(offered: World) -> None:
    name = fresh("offered")
    await offered.fleet(worked_case(name))
    await offered.launch(name)
    with straight_at_temporal(offered):
        await offered.approve(name)
        await offered.say(name, Command.PAUSE)
    await offered.say(name, Command.RESUME)
    await offered.until(name, Stage.MONITORED)
    await eventually(lambda: "resume" in proofs(offered, name), "the commands are archived")
    assert proofs(offered, name) == {
        "import_fleet": PROVEN,
        "launch": PROVEN,
        "approve": ASSERTED,
        "pause": ASSERTED,
        "resume": PROVEN,
    }
    rows = [e for e in offered.sql.archive(name) if e["kind"] == "command" and not e["text"].startswith("import")]
    told = {e["text"]: proof_of(e["data"]) for e in rows}
    assert told == {
        "launched by tpm": "proven (this machine)",
        "approve by sre": "asserted",
        "pause by tpm": "asserted",
        "resume by tpm": "proven (this machine)",
    }


async def test_without_keys_every_row_says_that_its_actor_was_asserted(world: World) -> None:
    name = fresh("asserted")
    await world.fleet(worked_case(name))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await eventually(lambda: "approve" in proofs(world, name), "the commands are archived")
    assert proofs(world, name) == {"import_fleet": ASSERTED, "launch": ASSERTED, "approve": ASSERTED}


async def test_a_ticket_that_is_there_has_to_be_right_although_none_is_needed(offered: World) -> None:
    name = fresh("altered")
    await offered.fleet(worked_case(name))
    await offered.launch(name)
    with straight_at_temporal(offered):
        unsigned = offered.person("tpm")
    signer = offered.signer("tpm")
    assert signer is not None
    request = signer(CommandRequest(actor="tpm", reason="one"), "rollout.pause", offered.handle(name).id)
    with pytest.raises(Refusal, match="was changed after its ticket was signed"):
        await unsigned.command(name, Command.PAUSE, request.but(reason="another"))
    assert "pause" not in proofs(offered, name)


async def test_once_an_access_file_is_in_force_what_has_no_ticket_is_refused(offered: World, access: Access) -> None:
    name = fresh("closing")
    await offered.fleet(worked_case(name))
    await offered.start(name)
    await offered.until(name, Stage.MONITORED)
    access.put_in_force()
    with straight_at_temporal(offered), pytest.raises(Refusal, match="this worker requires one: give it"):
        await offered.say(name, Command.PAUSE)
    await offered.healthy(name, main=(361, 290))
    await offered.until(name, Stage.ROLLED_BACK)
    assert sum(offered.sql.gpus(name).values()) <= 290, "what was begun through the front goes on, breach and all"
    await offered.say(name, Command.PAUSE)
    await eventually(lambda: "pause" in proofs(offered, name), "the command is archived")
    assert proofs(offered, name)["pause"] == PROVEN


async def test_what_was_approved_without_a_ticket_goes_no_step_forward_then(offered: World, access: Access) -> None:
    name = fresh("approved-before")
    await offered.fleet(worked_case(name, notice="4s"))
    with straight_at_temporal(offered):
        await offered.start(name)
    access.put_in_force()
    await eventually(lambda: bool(offered.sql.refusals(name)), "the first effect is refused")
    (refused,) = offered.sql.refusals(name)[:1]
    assert refused.endswith("the ledger has no valid approval of its plan")
    assert offered.sql.gpus(name) == {"research": 345}


async def test_a_plan_of_before_is_approved_with_a_ticket_and_goes_its_way(offered: World, access: Access) -> None:
    name = fresh("launched-before")
    await offered.fleet(worked_case(name))
    with straight_at_temporal(offered):
        await offered.launch(name)
    access.put_in_force()
    await offered.approve(name)
    await offered.until(name, Stage.MONITORED)
    assert offered.sql.gpus(name) == {"research": 306}
