"""Every message that a front sends has its ticket, under the command's own name and for its workflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from joserfc.jwk import OKPKey
from temporalio.client import Client, WithStartWorkflowOperation
from temporalio.service import RPCError, RPCStatusCode

from client.backstop import Backstop
from client.connection import TemporalTarget
from client.front_signer import FrontSigner, SigningKey
from client.repeats import repeat_key
from models.access.principals import Principal, Proof
from models.access.signing import PublicKey, verify_ticket
from models.access.tickets import Ticket, arguments_hash
from models.base import Model
from models.bringup.commands import BringupOrder
from models.bringup.stages import BringupCommand
from models.errors import BackstopError
from models.fleet.commands import FleetCommandRequest
from models.fleet.messages import FleetInput, FleetLaunch
from models.questions import DeskRequest
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.messages import RequestInput
from models.requests.state import QuotaAsk
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest, RolloutInput
from models.rollout.stages import Command
from models.status_questions import OpenRollouts
from tests.unit.cli_fakes import Polled

KEY = OKPKey.generate_key("Ed25519")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PUBLIC = {"k1": PublicKey(key_id="k1", pem=KEY.as_pem(private=False).decode(), valid_from=NOW)}
SRE = Principal(name="user:sre", human="user:sre", proof=Proof.PEER, how="this machine")


class Server(Polled):
    """Takes everything, answers nothing, and keeps what came: the workflow's id, the update's, and the message."""

    def __init__(self) -> None:
        self.came: list[tuple[str, str, Any]] = []

    async def start_workflow(self, _: str, given: Model, *, id: str, **__: Any) -> None:
        self.came.append((id, "", given))
        raise _gone()

    async def execute_update_with_start_workflow(
        self, _: str, *, start_workflow_operation: WithStartWorkflowOperation[Any, Any], **__: Any
    ) -> None:
        start = start_workflow_operation._start_workflow_input
        self.came.append((start.id, "", start.args[0]))
        raise _gone()

    def get_workflow_handle(self, workflow_id: str) -> Server:
        self._workflow = workflow_id
        return self

    async def start_update(self, _: str, given: Model, *, id: str, **__: Any) -> None:
        self.came.append((self._workflow, id, given))
        raise _gone()

    async def describe(self) -> None:
        raise _gone()


def _gone() -> RPCError:
    return RPCError("nobody is here", RPCStatusCode.UNAVAILABLE, b"")


def door(server: Server) -> Backstop:
    signer = FrontSigner(SigningKey(KEY, "k1"), SRE, ("operator",), now=lambda: NOW)
    target = TemporalTarget(options={"target_host": "x", "namespace": "y"}, embedded=False)
    return Backstop(cast("Client", server), "user:sre", target, signer)


def given(message: Any) -> Any:
    """Return the signed part of a message that starts a workflow."""
    match message:
        case RolloutInput() | FleetInput():
            return message.launch
        case RequestInput():
            return message.ask
    return message


def read(message: Any) -> Ticket:
    signed = given(message)
    ticket = verify_ticket(signed.ticket, PUBLIC)
    assert ticket.args == arguments_hash(signed)
    # As the worker reads it: nothing of it is lost on the wire.
    assert arguments_hash(type(message).model_validate_json(message.model_dump_json(by_alias=True))) == arguments_hash(
        message
    )
    return ticket


SAID = {
    "rollout.launch": lambda d: d.launch(
        LaunchRequest(cluster="h100", rollout="h100/1", owner="tpm", policy={"soak": "1h"})
    ),
    "rollout.abort": lambda d: d.command("h100", Command.ABORT, CommandRequest(actor="tpm", reason="no")),
    "fleet.launch": lambda d: d.launch_fleet(FleetLaunch(fleet="f", owner="tpm")),
    "fleet.approve": lambda d: d.fleet_command("approve", FleetCommandRequest(actor="tpm", plan_hash="ab")),
    "request.ask": lambda d: d.request(
        QuotaAsk(request="r-1", team="vision", cluster="h100", gpus=8, actor="tpm", until=NOW)
    ),
    "request.decline": lambda d: d.decide_request(
        "r-1", RequestCommand.DECLINE, RequestOrder(actor="tpm", reason="no room")
    ),
    "bringup.cancel": lambda d: d.bringup_command(
        "h200", BringupCommand.CANCEL, BringupOrder(actor="tpm", reason="no power", deadline=NOW)
    ),
    "desk.overview": lambda d: d.ask(OpenRollouts()),
}
WORKFLOWS = {"rollout": "rollout/h100", "fleet": "fleet-rollout", "request": "request/r-1", "bringup": "bringup/h200"}


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("command", SAID)
async def test_every_message_has_its_own_ticket(command: str) -> None:
    server = Server()
    with pytest.raises(BackstopError):
        await SAID[command](door(server))
    workflow_id, _, message = server.came[0]
    ticket = read(message)
    assert (ticket.command, ticket.workflow) == (command, workflow_id)
    assert workflow_id.startswith(WORKFLOWS.get(command.partition(".")[0], "desk/"))
    assert ticket.principal == SRE
    assert given(message).actor == "user:sre"  # whatever the caller wrote there


@pytest.mark.filterwarnings("ignore:coroutine")
async def test_without_a_signer_nothing_of_it_is_on_the_wire() -> None:
    bare = [
        LaunchRequest(cluster="h100", rollout="h100/1", owner="tpm"),
        CommandRequest(actor="tpm"),
        FleetLaunch(fleet="f", owner="tpm"),
        FleetCommandRequest(actor="tpm"),
        QuotaAsk(request="r-1", team="vision", cluster="h100", gpus=8, actor="tpm"),
        RequestOrder(actor="tpm"),
        BringupOrder(actor="tpm"),
        DeskRequest(kind="overview"),
    ]
    for message in bare:
        assert "ticket" not in message.model_dump_json()
        assert "ticket" in type(message).model_fields


@contextmanager
def under(key: str) -> Iterator[None]:
    """Give the commands within under this key."""
    token = repeat_key.set(key)
    try:
        yield
    finally:
        repeat_key.reset(token)


@pytest.mark.parametrize(
    ("once", "other", "same"), [("", "", False), ("key-1", "key-1", True), ("key-1", "key-2", False)]
)
async def test_a_command_given_again_under_its_key_is_the_same_command(once: str, other: str, same: bool) -> None:
    server = Server()
    for key in (once, other):
        with pytest.raises(BackstopError), under(key):
            await door(server).command("h100", Command.PAUSE, CommandRequest(actor="tpm", reason="wait"))
    (_, first, one), (_, second, two) = server.came[0], [c for c in server.came if isinstance(c[2], CommandRequest)][-1]
    assert (first == second) is same
    assert read(one).nonce != read(two).nonce  # each time it is signed again


async def test_other_arguments_under_the_same_key_are_another_command() -> None:
    server = Server()
    for why in ("wait", "wait longer"):
        with pytest.raises(BackstopError), under("key-1"):
            await door(server).command("h100", Command.PAUSE, CommandRequest(actor="tpm", reason=why))
    ids = {update for _, update, message in server.came if isinstance(message, CommandRequest)}
    assert len(ids) == 2
