"""A command that the server dropped before the rollout saw it is sent again, as the same command."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from temporalio.api.common.v1 import GrpcStatus
from temporalio.api.errordetails.v1 import WorkflowNotReadyFailure
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from client import questions
from client import workflow_calls as calls
from client.backstop import Backstop
from client.connection import TemporalTarget
from client.worker_builds import by_last_poll
from models.errors import Unavailable
from models.question_base import DeskAnswer
from models.questions import Pulse
from models.rollout.commands import CommandRequest
from models.rollout.messages import CommandAnswer, LaunchAnswer, LaunchRequest
from models.rollout.stages import Command, Stage
from tests.unit.cli_fakes import Polled
from tests.unit.loop_clock import LoopClock

REQUEST = CommandRequest(actor="tpm", team="research")
ANSWER = CommandAnswer(cluster="a", command=Command.ACK, stage=Stage.MONITORED, said="taken")


class Server(Polled):
    """Answers updates with these errors first; keeps the ids they came under."""

    def __init__(self, *errors: RPCError) -> None:
        self._errors = list(errors)
        self.ids: list[str] = []

    def get_workflow_handle(self, workflow_id: str) -> Server:
        return self

    async def start_update(self, name: str, request: CommandRequest, *, id: str, **_: Any) -> Server:
        self.ids.append(id)
        if self._errors:
            raise self._errors.pop()
        return self

    async def result(self) -> CommandAnswer:
        return ANSWER


def not_ready() -> RPCError:
    status = GrpcStatus(code=RPCStatusCode.FAILED_PRECONDITION)
    status.details.add().Pack(WorkflowNotReadyFailure())
    return RPCError("workflow task failure", RPCStatusCode.FAILED_PRECONDITION, status.SerializeToString())


async def told(server: Server) -> CommandAnswer:
    door = Backstop(cast("Client", server), "tpm", TemporalTarget(options={"target_host": "here"}, embedded=True))
    return await door.command("a", Command.ACK, REQUEST)


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_PAUSE_SECONDS", 0.0)


async def test_a_command_between_two_runs_is_given_again_under_its_id() -> None:
    server = Server(not_ready(), not_ready())
    assert await told(server) == ANSWER
    assert len(server.ids) == 3
    assert len(set(server.ids)) == 1


async def test_a_command_as_a_run_closes_is_given_to_the_next_one() -> None:
    why = "workflow operation can not be applied because workflow is closing"
    status = GrpcStatus(code=RPCStatusCode.RESOURCE_EXHAUSTED)
    server = Server(RPCError(why, RPCStatusCode.RESOURCE_EXHAUSTED, status.SerializeToString()))
    assert await told(server) == ANSWER
    assert len(server.ids) == 2
    assert len(set(server.ids)) == 1


async def test_a_rollout_that_cannot_take_it_at_all_is_told_in_the_end() -> None:
    server = Server(*(not_ready() for _ in range(100)))
    with pytest.raises(Unavailable, match="workflow task failure"):
        await told(server)
    assert 1 < len(server.ids) < 100


async def test_any_other_answer_is_final() -> None:
    status = GrpcStatus(code=RPCStatusCode.FAILED_PRECONDITION)
    server = Server(RPCError("no", RPCStatusCode.FAILED_PRECONDITION, status.SerializeToString()))
    with pytest.raises(Unavailable):
        await told(server)
    assert len(server.ids) == 1


class Busy(Server):
    """Starts what it is told to, and its worker does not end the first step in time."""

    async def execute_update_with_start_workflow(self, _: str, *, id: str, **__: Any) -> Any:
        self.ids.append(id)
        why = "Unable to perform workflow execution update due to Workflow Task in failed state."
        raise RPCError(why, RPCStatusCode.FAILED_PRECONDITION, GrpcStatus().SerializeToString())

    async def execute_update(self, name: str, *_: Any, id: str, **__: Any) -> Any:
        self.ids.append(id)
        if self._errors:
            raise self._errors.pop()
        return LaunchAnswer(launched=True, rollout="a/1", cluster="a", stage=Stage.PLANNED)


async def test_a_launch_whose_first_step_failed_is_answered_when_that_is_made_anew() -> None:
    server = Busy(not_ready())
    door = Backstop(cast("Client", server), "tpm", TemporalTarget(options={"target_host": "here"}, embedded=True))
    answer = await door.launch(LaunchRequest(cluster="a", rollout="a/1", owner="tpm", reason="x"))
    assert answer.launched
    assert len(server.ids) == 3
    assert len(set(server.ids)) == 1


class EarlierBuild(Server):
    """Its workflow knows no query of what commands would lead to."""

    async def query(self, name: str, **_: Any) -> Any:
        raise WorkflowQueryFailedError(
            f"Query handler for '{name}' expected but not found, and there is no dynamic handler. known: [status]"
        )


async def test_a_rollout_of_an_earlier_build_is_told_to_be_looked_at_by_its_status() -> None:
    door = Backstop(
        cast("Client", EarlierBuild()), "tpm", TemporalTarget(options={"target_host": "here"}, embedded=True)
    )
    with pytest.raises(
        Unavailable, match=r"^a: its rollout runs on an earlier version of Backstop, .*: see `status`, then give --yes$"
    ):
        await door.ahead("a")


class Deaf(Polled):
    """A server that missed the end of a run while somebody waited for it: who waits again is answered."""

    def __init__(self, misses: int, clock: LoopClock, length: int = 11) -> None:
        self._misses = misses
        self._clock = clock
        self.history_length = length
        self.asked = self.given_up = 0

    async def start_workflow(self, *_: Any, **__: Any) -> Deaf:
        return self

    async def result(self) -> DeskAnswer:
        self.asked += 1
        if self.asked > self._misses:
            return DeskAnswer(result="7")
        self._clock.forward(max(questions._WAITS))  # it is waited for in vain
        try:
            return await asyncio.Future[DeskAnswer]()
        finally:
            self.given_up += 1

    async def describe(self, **_: Any) -> Deaf:
        return self

    async def terminate(self, reason: str, **_: Any) -> None:
        self._misses = 0


async def answer_of(server: Deaf) -> str:
    door = Backstop(cast("Client", server), "tpm", TemporalTarget(options={"target_host": "here"}, embedded=True))
    return await door.ask(Pulse(since="6", seconds=1))


@pytest.mark.parametrize("misses", [0, 1, 7])
async def test_an_answer_that_the_server_missed_is_asked_for_again(
    misses: int, monkeypatch: pytest.MonkeyPatch, loop_clock: LoopClock
) -> None:
    monkeypatch.setattr(questions, "_WAITS", (600, 1200))
    server = Deaf(misses, loop_clock)
    assert await answer_of(server) == "7"
    assert (server.asked, server.given_up) == (misses + 1, misses)


async def test_a_question_that_no_worker_took_up_is_given_up(
    monkeypatch: pytest.MonkeyPatch, loop_clock: LoopClock
) -> None:
    monkeypatch.setattr(questions, "_WAITS", (600, 1200))
    server = Deaf(10**6, loop_clock, length=2)
    with pytest.raises(Unavailable, match="no worker"):
        await answer_of(server)
    await asyncio.sleep(0)
    assert server.asked == server.given_up == 2


def poller(name: str, at: str) -> PollerInfo:
    info = PollerInfo(identity=name)
    info.last_access_time.FromJsonString(at)
    return info


def test_a_worker_that_ended_before_a_restart_is_not_counted() -> None:
    """A poll lasts a minute and is followed by the next one: who is behind another by more than that polls no more."""
    quiet, newest, ended = (
        poller("1@quiet", "2026-03-01T12:00:00Z"),
        poller("2@new", "2026-03-01T12:01:00Z"),
        poller("3@old", "2026-03-01T11:59:40Z"),
    )
    assert by_last_poll([quiet, newest, ended]) == ([quiet, newest], [ended])
    assert by_last_poll([ended]) == ([ended], [])
    assert by_last_poll([]) == ([], [])
