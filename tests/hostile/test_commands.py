"""Rubbish thrown at every command of a rollout, a fleet rollout and a request, and at what names them.

The commands and their fields are found in the tables and models. Two other rollouts stand beside them and are
answered in time; no workflow task fails; what was thrown at still answers at the end. By day that is played in
tests/loop/test_hostile_commands.py.
"""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from models.errors import BackstopError
from models.fleet.commands import FLEET_COMMANDS, FleetCommandRequest
from models.questions import OneRequest
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.state import QuotaAsk
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command, Stage
from models.temporal_names import FLEET_ID, request_workflow_id
from tests.e2e.conftest import *  # noqa: F403 - its worlds are fixtures here too
from tests.e2e.world import World, cluster, fresh, team, worked_case
from tests.hostile import COUNTS, NAMES, TIMES, Rubbish, threw
from tests.tried import some
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.e2e
IN_TIME = 10.0
"""Seconds in which a neighbour is answered: the tests of `make nightly` hold them to it."""
LONGEST = Rubbish("150 emoji", "\N{FIRE}" * 150)
ROWS = [*NAMES, *COUNTS, *TIMES]
ENDS = ("abort", "close", "decline", "withdraw", "approve")
"""Thrown last, and without a reason: what they end can be thrown at no more."""


async def told(handle: WorkflowHandle[Any, Any], command: str, request: dict[str, Any]) -> str:
    """Return what the sender gets: an answer, or one sentence."""
    try:
        data = json.dumps(request).encode()
        given = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=data))
        await asyncio.wait_for(handle.execute_update(command, given), PATIENCE)
    except (WorkflowUpdateFailedError, RPCError) as error:
        cause = error.cause if isinstance(error, WorkflowUpdateFailedError) else error
        said = cause.message if isinstance(cause, ApplicationError | RPCError) else str(cause)
        assert 0 < len(said) < 4000, (command, request)
        assert "Traceback" not in said
        return said
    return "taken"


def requests(commands: tuple[str, ...], model: type[BaseModel]) -> list[tuple[str, dict[str, Any], str]]:
    """(command, request, what): each command meets each row (by day: every fourth), each field most of them."""
    fields, turn = list(model.model_fields), count()
    found: list[tuple[str, dict[str, Any], str]] = []
    for command in sorted(commands, key=lambda name: (name in ENDS, name)):
        reason = {} if command in ENDS else {"reason": "to see"}
        for row in some(ROWS, from_=len(found)):
            field = fields[next(turn) % len(fields)]
            if field == "reason" and command in ENDS:
                field = "actor"
            value = (row.value,) if model.model_fields[field].annotation is tuple else row.value
            found.append((command, {"actor": "somebody", **reason, field: value}, f"{row.what} as {field}"))
    return found


async def unharmed(world: World, *neighbours: str, within: float = PATIENCE) -> None:
    """They are asked and commanded, and answer."""
    for name in neighbours:
        async with asyncio.timeout(within):
            assert (await world.status(name)).stage is Stage.PLANNED
            await world.say(name, Command.ACK, team="research")


async def thrown(
    world: World, stranger: Client, workflow_id: str, table: Any, neighbours: tuple[str, ...], within: float
) -> set[str]:
    """Everything of the table; answers which commands were taken."""
    handle, taken = stranger.get_workflow_handle(workflow_id), set()
    for number, (command, request, what) in enumerate(table):
        if await told(handle, command, request) == "taken":
            taken.add(command)
        threw(f"the commands of {workflow_id.split('/', maxsplit=1)[0]}: {what.split(' as ')[1]}")
        if number % 60 == 59:
            await unharmed(world, *neighbours, within=within)

    async def goes_on() -> bool:
        described = await world.client.get_workflow_handle(workflow_id).describe()
        return described.raw_description.pending_workflow_task.attempt <= 1

    await eventually(goes_on, "no workflow task is tried again and again")
    return taken


@pytest.mark.nightly
async def test_what_stands_beside_rubbish_in_a_command_is_answered_in_time(world: World) -> None:
    await harms_nobody(world, IN_TIME)


async def harms_nobody(world: World, within: float) -> None:
    stranger = Client(world.client.service_client, namespace=world.client.namespace)
    target, one, other = (fresh(name) for name in ("target", "one", "other"))
    for name in (target, one, other):
        await world.fleet(worked_case(name))
        await world.launch(name)
    beside = (one, other)

    rubbish = requests(tuple(map(str, Command)), CommandRequest)
    await thrown(world, stranger, f"rollout/{target}", rubbish, beside, within)
    assert len((await world.status(target)).holds) <= 10
    await unharmed(world, *beside, within=within)

    await world.launch_fleet("fleet")
    await thrown(world, stranger, FLEET_ID, requests(FLEET_COMMANDS, FleetCommandRequest), beside, within)
    assert (await world.tpm.fleet_status()).fleet == "fleet"

    asked = fresh("asked")
    await world.fleet(cluster(asked, {"main": (100, 100)}, [team("a", 10)], owners=["capacity"]))
    world.asked.add(asked)
    ask = QuotaAsk(request=asked, team="a", cluster=asked, gpus=1, actor="dev", reason="a deadline")
    assert (await world.person("dev").request(ask)).stage == "asked"
    commands = tuple(map(str, RequestCommand))
    await thrown(world, stranger, request_workflow_id(asked), requests(commands, RequestOrder), beside, within)
    assert (await world.tpm.ask(OneRequest(request=asked))).stage == "asked"
    await unharmed(world, *beside, within=within)


@pytest.mark.nightly
async def test_a_name_that_is_taken_at_an_import_works_and_others_are_refused(world: World) -> None:
    """The name is tried as a cluster, an island, a team and an owner; each accepted one gets a rollout that answers."""
    beside = fresh("beside")
    await world.fleet(worked_case(beside))
    await world.launch(beside)
    taken, refused = [], []
    for number, row in enumerate([LONGEST, *NAMES]):
        document = cluster(row.value, {row.value: (100, 100)}, [team(row.value, 90, busy=10)])
        try:
            await world.fleet(document)
        except (ValidationError, BackstopError, UnicodeEncodeError) as refusal:
            refused.append(str(refusal))
            continue
        finally:
            threw("names at an import")
        request = LaunchRequest(cluster=row.value, rollout=f"r/{number}", owner=row.value, reason=row.value)
        world.launched.add(row.value)
        answer = await asyncio.wait_for(world.tpm.launch(request), 30)
        assert answer.plan is not None
        await asyncio.wait_for(world.say(row.value, Command.OBJECT, actor=row.value, team=row.value), IN_TIME)
        await asyncio.wait_for(world.say(row.value, Command.APPROVE, plan_hash=answer.plan.hash), IN_TIME)
        status = await asyncio.wait_for(world.status(row.value), IN_TIME)
        assert (status.owner, [t.team for t in status.teams]) == (row.value, [row.value])
        taken.append(row.what)
    assert {"150 emoji", "an apostrophe", "SQL", "right to left", "a formula"} <= {*taken}
    assert not {"200 emoji", "no name", "10,000 letters", "a line break", "a NUL"} & {*taken}
    assert all(refused)
    await unharmed(world, beside, within=IN_TIME)
