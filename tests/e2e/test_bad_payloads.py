"""Messages that an untyped client can send to a running rollout: each is refused at once, and none blocks anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from models.errors import Refusal
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command, Stage
from models.temporal_names import (
    DESK_WORKFLOW,
    FLEET_WORKFLOW,
    HEALTH_SIGNAL,
    LAUNCHED_UPDATE,
    ROLLOUT_WORKFLOW,
    TASK_QUEUE,
    WATCH_WORKFLOW,
)
from tests.e2e.world import PATIENCE, World, fresh, worked_case
from tests.tried import TRIED

pytestmark = pytest.mark.e2e
LONG = "x" * 1_000_000
ISLAND = {"name": "main", "total_gpus": 8, "healthy_gpus": 8}


def payload(data: bytes, encoding: str = "json/plain") -> RawValue:
    return RawValue(Payload(metadata={"encoding": encoding.encode()}, data=data))


def given(**fields: Any) -> RawValue:
    """A command's request, right but for what the fields change."""
    return payload(json.dumps({"actor": "somebody", "reason": "to see", **fields}).encode())


NOTHING = payload(b"", "binary/null")
BAD: Mapping[str, tuple[RawValue, ...]] = {
    "no argument": (),
    "two arguments": (given(), given()),
    "null": (NOTHING,),
    "JSON null": (payload(b"null"),),
    "bytes": (payload(b"\x00\xff", "binary/plain"),),
    "an unknown encoding": (payload(b"{}", "binary/secret"),),
    "no JSON": (payload(b"{"),),
    "no UTF-8": (payload(b'{"actor": "\xff", "reason": "r"}'),),
    "nothing in it": (payload(b""),),
    "a list": (payload(b"[]"),),
    "text": (payload(b'"pause"'),),
    "a number": (payload(b"1e999"),),
    "no actor": (payload(b'{"reason": "r"}'),),
    "an empty actor": (given(actor=""),),
    "an actor that is a list": (given(actor=["a"]),),
    "an unknown field": (given(force=True),),
    "a NUL": (given(reason="a\0b"),),
    "half a character": (given(reason="\ud800"),),
    "a long reason": (given(reason=LONG),),
    "a long actor": (given(actor=LONG),),
    "a long plan": (given(plan_hash=LONG),),
    "a long team": (given(team=LONG),),
    "a long hold": (given(hold=LONG),),
    "a long how": (given(how=LONG),),
    "a long unknown field": (given(**{LONG: 1}),),
    "many unknown fields": (given(**{f"f{n}": n for n in range(100_000)}),),
    "deep": (payload(b'{"actor": ' + b"[" * 100_000),),
}
SEVERAL = ("no argument", "two arguments", "null", "JSON null", "bytes", "a list", "no actor", "an unknown field")


@pytest.fixture
async def untyped(world: World) -> Client:
    """Somebody with a library of their own and no idea of our models."""
    return await Client.connect(world.client.service_client.config.target_host, namespace=world.client.namespace)


async def unharmed(world: World, cluster: str) -> None:
    """The rollout runs, answers, and no task of it fails."""
    described = await world.handle(cluster).describe()
    assert described.raw_description.pending_workflow_task.attempt <= 1
    status = await asyncio.wait_for(world.status(cluster), PATIENCE)
    assert status.stage is Stage.PLANNED


async def refused(handle: WorkflowHandle[Any, Any], name: str, arguments: tuple[RawValue, ...]) -> str:
    """Return the error that the sender of an update gets."""
    with pytest.raises((WorkflowUpdateFailedError, RPCError)) as failed:
        await asyncio.wait_for(handle.execute_update(name, args=list(arguments)), PATIENCE)
    TRIED["bad payloads sent to a running rollout"] += 1
    cause = failed.value.cause if isinstance(failed.value, WorkflowUpdateFailedError) else failed.value
    said = cause.message if isinstance(cause, ApplicationError | RPCError) else str(cause)
    assert 0 < len(said) < 4000
    return said


async def events(handle: WorkflowHandle[Any, Any]) -> list[str]:
    history = await handle.fetch_history()
    return [EventType.Name(e.event_type) for e in history.events]


async def waiting(world: World, untyped: Client) -> tuple[str, WorkflowHandle[Any, Any]]:
    """A rollout that waits for its approval, once it is quiet, and a stranger's handle on it."""
    cluster = fresh("h100")
    await world.fleet(worked_case(cluster))
    await world.launch(cluster)
    handle = untyped.get_workflow_handle(f"rollout/{cluster}")
    await quiet(handle)
    return cluster, handle


async def quiet(handle: WorkflowHandle[Any, Any]) -> list[str]:
    """The history's events, once nothing has been added for a while. The watch sends a new rollout no signal."""
    seen: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while (now := await events(handle)) != seen or await busy(handle):
            seen = now
            await asyncio.sleep(0.5)
    return seen


async def busy(handle: WorkflowHandle[Any, Any]) -> bool:
    raw = (await handle.describe()).raw_description
    return bool(raw.pending_activities) or raw.HasField("pending_workflow_task")


@pytest.mark.nightly
async def test_a_malformed_command_is_refused_and_leaves_nothing(world: World, untyped: Client) -> None:
    cluster, handle = await waiting(world, untyped)
    before, state = await events(handle), await world.state(cluster)
    said = {what: await refused(handle, Command.PAUSE, arguments) for what, arguments in BAD.items()}
    await unharmed(world, cluster)
    assert said["no actor"] == "not a valid CommandRequest: actor: Field required (given: {'reason': 'r'})"
    assert said["null"] == "not a CommandRequest: the encoding is b'binary/null', but must be json/plain"
    assert said["two arguments"] == "exactly one argument is needed, and 2 were given"
    assert said["a long reason"] == "1000035 bytes are too many for a CommandRequest: the most is 65536"
    for command in Command:
        for what in SEVERAL:
            await refused(handle, command, BAD[what])
    await refused(handle, "destroy", (given(),))
    await unharmed(world, cluster)
    assert await events(handle) == before
    assert await world.state(cluster) == state
    assert (await handle.execute_update(LAUNCHED_UPDATE, NOTHING))["launched"]  # it asks; what else is said counts not
    assert "already paused" in await paused_twice(world, cluster)


async def paused_twice(world: World, cluster: str) -> str:
    """Proper commands go on being taken, and refused for a reason."""
    await world.say(cluster, Command.PAUSE)
    with pytest.raises(Refusal) as again:
        await world.say(cluster, Command.PAUSE)
    return again.value.message


@pytest.mark.nightly
async def test_what_no_call_can_carry_never_reaches_the_rollout(world: World, untyped: Client) -> None:
    """gRPC takes 4 MiB. (Between 2 and 4 MiB the worker's own refusal is too large, as it repeats what it refuses:
    the server gives the update up after three tries, about half a minute, and the rollout goes on.)
    """
    cluster, handle = await waiting(world, untyped)
    before = await events(handle)
    with pytest.raises(RPCError, match="larger than max"):
        await handle.execute_update(Command.PAUSE, given(reason="x" * 5_000_000))
    TRIED["bad payloads sent to a running rollout"] += 1
    assert await events(handle) == before
    await unharmed(world, cluster)


@pytest.mark.nightly
async def test_a_malformed_signal_wedges_nothing(world: World, untyped: Client) -> None:
    cluster, handle = await waiting(world, untyped)
    before = await world.state(cluster)
    signals = [(HEALTH_SIGNAL, arguments) for arguments in BAD.values()]
    signals += [("health_chnged", BAD[what]) for what in SEVERAL]
    await asyncio.gather(*(handle.signal(name, args=list(arguments)) for name, arguments in signals))
    TRIED["bad payloads sent to a running rollout"] += len(signals)
    await quiet(handle)  # so many bytes make the server cut a task short, or the rollout continue as new
    await unharmed(world, cluster)
    # One that said nothing at all was taken as it is meant: look. A look changes what was seen and nothing else.
    looks = {"seen": None, "looked_at": None, "sight": None, "clocks": None}
    after = await world.state(cluster)
    assert after | looks == before | looks
    await world.approve(cluster)
    await world.until(cluster, Stage.MONITORED)
    assert world.sql.gpus(cluster) == {"research": 306}


LAUNCHES: Mapping[str, Mapping[str, Any]] = {
    "an owner in two lines": {"owner": "a\nb"},
    "a long rollout": {"rollout": "x" * 201},
    "no rollout": {"rollout": ""},
    "a NUL in the reason": {"reason": "a\0b"},
    "a long policy": {"policy": {"notice": LONG[:30_000]}},
    "many settings": {"policy": {f"f{n}": n for n in range(100_000)}},
    "a policy that is text": {"policy": "careful"},
    "shadow perhaps": {"shadow": "perhaps"},
}
STARTS: Mapping[str, tuple[RawValue, ...]] = {
    **{what: BAD[what] for what in BAD if what not in ("a long reason", "deep", "no argument")},
    "no argument": (),
    "deep": (payload(b'{"launch": ' + b"[" * 100_000),),
    **{
        what: (payload(json.dumps({"launch": {"cluster": "c", "rollout": "r", "owner": "o", **fields}}).encode()),)
        for what, fields in LAUNCHES.items()
    },
}
DESK: Mapping[str, Mapping[str, Any]] = {
    "an unknown kind": {"kind": "drop"},
    "no cluster": {"kind": "snapshot"},
    "a cluster that is a list": {"kind": "facts", "arguments": {"cluster": ["c"]}},
    "a cluster that is not there": {"kind": "facts", "arguments": {"cluster": "nowhere"}},
    "a limit below one": {"kind": "clusters", "arguments": {"limit": 0}},
    "a limit without end": {"kind": "clusters", "arguments": {"limit": 10**9}},
    "a name with a NUL": {"kind": "archived", "arguments": {"cluster": "a\0b"}},
    "arguments for none": {"kind": "doctor", "arguments": {"cluster": "c"}},
    "a part that is no Base64": {
        "kind": "stage_import",
        "arguments": {"import_id": "i", "part": 0},
        "payload": "***",
    },
    "a part without its number": {"kind": "stage_import", "arguments": {"import_id": "i"}, "payload": ""},
    "nothing staged": {"kind": "commit_import", "arguments": {"import_id": "i", "parts": 1}},
    "too many parts": {"kind": "commit_import", "arguments": {"import_id": "i", "parts": 10**30}},
    "a sample of nothing": {"kind": "add_health", "arguments": {"samples": [{}]}},
    "samples that are text": {"kind": "add_health", "arguments": {"samples": "all"}},
    "a sample of nowhere": {
        "kind": "add_health",
        "arguments": {"samples": [{"cluster": "nowhere", "at": "2026-01-01T00:00:00Z", "islands": [ISLAND]}]},
    },
    "a sample before all time": {
        "kind": "add_health",
        "arguments": {"samples": [{"cluster": "c", "at": "0001-01-01T00:00:00+14:00", "islands": [ISLAND]}]},
    },
    "an entry of no kind": {"kind": "archive", "arguments": {"entries": [{"key": "k", "kind": "rumour"}]}},
    "arguments that are a list": {"kind": "teams", "arguments": []},
}


async def failed(untyped: Client, workflow: str, arguments: tuple[RawValue, ...]) -> str:
    """Return why the workflow ended: it must not run on and fail its task again and again."""
    workflow_id = f"rollout/{fresh('bad')}"
    with pytest.raises(WorkflowFailureError) as ended:
        await asyncio.wait_for(
            untyped.execute_workflow(workflow, args=list(arguments), id=workflow_id, task_queue=TASK_QUEUE), 20
        )
    TRIED["bad inputs that workflows were started with"] += 1
    cause = ended.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type in ("BadInput", "Refusal")
    assert len(cause.message.splitlines()) == 1
    assert len(cause.message) < 1000
    return cause.message


@pytest.mark.nightly
async def test_a_malformed_start_ends_with_its_reason(world: World, untyped: Client) -> None:
    tables = ("rollouts", "clusters", "quotas", "audit", "imports", "import_parts", "health_samples")
    before = {table: world.sql.rows(f"SELECT * FROM {table}") for table in tables}
    said = {what: await failed(untyped, ROLLOUT_WORKFLOW, arguments) for what, arguments in STARTS.items()}
    assert said["no argument"] == "a rollout needs its launch as its input"
    assert said["a long policy"] == (
        "not a valid RolloutInput: launch.policy: must be at most 20,000 characters long when written as JSON"
    )
    assert said["many settings"].endswith("bytes are too many for a RolloutInput: the most is 65536")
    for request in DESK.values():
        await failed(untyped, DESK_WORKFLOW, (payload(json.dumps(request).encode()),))
    await failed(untyped, DESK_WORKFLOW, ())
    for arguments in (
        (),
        (NOTHING,),
        (given(),),
        (payload(b'{"launch": {"fleet": "f", "owner": "", "pace": {"x": 1}}}'),),
    ):
        assert "fleet rollout" in await failed(untyped, FLEET_WORKFLOW, arguments) or arguments
    for interval in (0, -1, 1e300, "often", None):
        asked = payload(json.dumps({"interval_seconds": interval}).encode())
        assert "interval_seconds" in await failed(untyped, WATCH_WORKFLOW, (asked,))
    assert {table: world.sql.rows(f"SELECT * FROM {table}") for table in tables} == before


@pytest.mark.nightly
async def test_names_as_long_as_names_may_be_are_rolled_out(world: World) -> None:
    """Temporal bounds ids, summaries and search attributes by bytes."""
    cluster, owner, team = (f"{fresh('é')}{'é' * 200}"[:200] for _ in range(3))
    document = worked_case(cluster)
    document["quotas"][0]["team"] = team
    await world.fleet(document)
    world.launched.add(cluster)
    await world.tpm.launch(LaunchRequest(cluster=cluster, rollout=cluster, owner=owner, reason="é" * 2000))
    await world.approve(cluster)
    await world.until(cluster, Stage.MONITORED)
    assert world.sql.gpus(cluster) == {team: 306}
