"""Asks the door for a caller: checks the rights, waits for a second person where one is needed, and returns the answer.

The HTTP API, the console and Slack are the ways in; all of them use this file.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from temporalio.service import RPCError

from client.backstop import Backstop
from client.operations import Operation
from client.repeats import repeat_key
from models.access.command_targets import OBJECTION_ID
from models.access.decision import Denied, Permitted
from models.access.principals import Principal
from models.access.second_persons import COUNTERSIGN, WAITS_BY_ITSELF
from models.countersign_questions import TellEmergency
from models.errors import BackstopError, BadInput, Refusal, Unavailable
from models.question_base import Question
from models.rollout.commands import CommandRequest
from web.arguments import PAYLOAD
from web.failures import forbidden_problem, too_slow
from web.rights import Everybody, Judged, Rights, reason_of
from web.second_persons import SecondPersons
from web.temporal_connection import Doors


@dataclass
class Asking:
    """A person's call: an operation with its arguments. `key`: calls with the same key are carried out once."""

    who: Principal
    operation: Operation
    in_path: Mapping[str, str]
    found: dict[str, Any]
    emergency: bool = False
    key: str = ""
    told: TellEmergency | None = None
    """The question that told admins of an emergency, if one did; it is taken back if the call is refused."""

    @property
    def command(self) -> str:
        """The call's key in the table of rights."""
        key = self.operation.command
        return key.format(**self.in_path) if "{" in key else key


@dataclass
class Giving:
    doors: Doors
    rights: Rights = field(default_factory=Everybody)

    def seconds_now(self) -> float:
        """Return the front's time, in seconds since 1970."""
        return self.doors.now().timestamp()

    @cached_property
    def second_persons(self) -> SecondPersons:
        return SecondPersons(self.doors)

    async def principal_for(self, principal: Principal, operation: Operation | None) -> Principal:
        """Return the caller as the access file names them."""
        if operation is not None and operation.method == "unserved":
            return principal  # whether anybody answers is asked while nobody does
        with temporal_as_ours():
            return await self.rights.principal_for(principal, operation)

    async def judge(self, asking: Asking) -> Judged:
        """Judge the call by the rights. Errors: those of the rights.

        If the hold is an objection that the caller may not lift, judge the call again as the objecting team's
        withdrawal.
        """
        judged = await self._judge_once(asking)
        request = asking.found.get("request")
        if isinstance(judged.decision, Denied) and isinstance(request, CommandRequest) and _names_objection(request):
            request = request.but(team=await self._team_of_objection(asking, request.hold))
            withdrawn = replace(asking, found={**asking.found, "request": request})
            own = await self._judge_once(withdrawn)
            if isinstance(own.decision, Permitted):
                asking.found.update(withdrawn.found)
                return own
        return judged

    async def judge_by_file(self, asking: Asking) -> Judged:
        """Judge the call by the access file alone: no worker is asked, and the call itself may still be refused."""
        return await self._judge_once(asking, facts=False)

    async def _judge_once(self, asking: Asking, *, facts: bool = True) -> Judged:
        with temporal_as_ours():
            return await self.rights.judge(
                asking.who, asking.operation, asking.command, asking.found, emergency=asking.emergency, facts=facts
            )

    async def _team_of_objection(self, asking: Asking, hold: str) -> str:
        """Return the team that objected; read it from the hold's id if the rollout no longer has the objection."""
        try:
            door = await self.doors.door_of(asking.who)
            status = await door.status(str(asking.found.get("cluster") or ""))
            standing = (*status.holds, *status.recorded_objections)
        except BackstopError:
            standing = ()
        return next((h.team for h in standing if h.id == hold and h.team), hold.removeprefix(OBJECTION_ID))

    async def allow(self, asking: Asking) -> Backstop:
        """Return a door for the call. Errors: Problem 403; AwaitsSecond where it waits for another person."""
        judged = await self.judge(asking)
        if isinstance(judged.decision, Denied):
            raise forbidden_problem(judged.decision.reason)
        roles, emergency = judged.decision.roles, judged.decision.emergency
        two_person = self.rights.two_person
        door = await self.doors.door_of(asking.who, two_person=two_person, roles=roles, emergency=emergency)
        before = repeat_key.set(asking.key)
        try:
            await self._require_second(asking, judged, judged.decision)
        finally:
            repeat_key.reset(before)
        return door

    async def carry_out(self, asking: Asking, door: Backstop) -> Any:
        """Carry the call out; return the answer. Errors: those of the operation; Problem 504."""
        before = repeat_key.set(asking.key)
        try:
            if asking.operation.command == COUNTERSIGN:
                return await run_within(
                    asking.operation.seconds, self.second_persons.give(asking.who, asking.found["digest"])
                )
            return await run_within(asking.operation.seconds, call_operation(asking.operation, door, asking.found))
        except (Refusal, BadInput):
            if asking.told is not None:
                await self.second_persons.take_back_alone(asking.who, asking.told)
            raise
        finally:
            repeat_key.reset(before)

    async def give(self, asking: Asking) -> Any:
        """Check the rights and carry the call out. Errors: as `allow` and `carry_out`."""
        return await self.carry_out(asking, await self.allow(asking))

    async def _require_second(self, asking: Asking, judged: Judged, permitted: Permitted) -> None:
        """Keep a command that needs a second person; tell all admins of an emergency. Errors: AwaitsSecond, Refusal."""
        if not permitted.complete and asking.command not in WAITS_BY_ITSELF:
            raise await self.second_persons.keep(asking.who, asking.command, judged.target, asking.found, permitted)
        if permitted.emergency:
            question = TellEmergency(command=asking.command, target=judged.target, reason=reason_of(asking.found))
            asking.told = await self.second_persons.act_alone(asking.who, question)


def _names_objection(request: CommandRequest) -> bool:
    return request.hold.startswith(OBJECTION_ID) and not request.team


@contextlib.contextmanager
def temporal_as_ours() -> Iterator[None]:
    """Raise Unavailable for an error of Temporal that the door let through."""
    try:
        yield
    except RPCError as error:
        raise Unavailable(f"Temporal does not answer: {error.message}") from error


async def call_operation(operation: Operation, door: Backstop, found: dict[str, Any]) -> Any:
    if operation.question:
        return await door.ask(found["question"], found[PAYLOAD])
    return await getattr(door, operation.method)(**found)


async def run_within(seconds: float, work: Any) -> Any:
    try:
        with temporal_as_ours():
            return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise too_slow(
            504,
            f"there was no answer within {seconds:.0f} s: the command may have been carried out, so check "
            "the status before you give it again",
        ) from None


def question_asking(who: Principal, operation: Operation, question: Question[Any], key: str = "") -> Asking:
    """Return the call that asks the desk a question. `operation`: the one for this kind of question."""
    return Asking(who, operation, {}, {"question": question, PAYLOAD: ""}, key=key)
