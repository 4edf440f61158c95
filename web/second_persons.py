"""Commands that need two people, at the front: the first person's command waits until the second confirms it.

The desk keeps and judges (activities/desk/second_persons.py). The front signs the first person's ticket while they are
there, and puts it into the second person's ticket, so that a check of that ticket sees both people.
Source: docs/security.md, "Tickets".
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from client.backstop import Backstop
from client.questions import desk_workflow_id
from client.repeats import repeat_key
from models.access.decision import Permitted, Target
from models.access.principals import Principal
from models.access.second_persons import SHOWN_DIGITS, Countersigned, TakenCommand, deed_of
from models.base import Model
from models.bringup.messages import BringupStart
from models.countersign_questions import KeepWaiting, TellEmergency, Turn, TurnWaiting
from models.errors import AwaitsSecond, BackstopError, Refusal, Unavailable
from models.fleet.commands import FleetCommandRequest
from models.import_questions import TakeFleet
from models.questions import DeskRequest
from models.temporal_names import FLEET_ID, bringup_workflow_id
from models.texts import count_text
from web.temporal_connection import Doors

logger = logging.getLogger("backstop.front")


class _Outcome(NamedTuple):
    said: str
    undo: str = ""


async def _check_nothing(_: Backstop, __: Any) -> None: ...


async def _check_enter(door: Backstop, start: BringupStart) -> None:
    await door.check_not_brought_up(start.entry.cluster)


async def _check_abort(door: Backstop, request: FleetCommandRequest) -> None:
    await door.check_fleet_takes("abort", request)


class _Way(NamedTuple):
    """The way to carry out a waiting command.

    `argument`: the door method's; `workflow`: the workflow that it is signed for. `wrapped`: makes the message that
    is sent. `check`: refuses what would be refused at once; the desk then looks at the ledger.
    """

    argument: str
    message: type[Model]
    workflow: Callable[[Any], str]
    give: Callable[[Backstop, Any], Awaitable[_Outcome]]
    wrapped: Callable[[Any], Any] = lambda message: message
    check: Callable[[Backstop, Any], Awaitable[None]] = _check_nothing


async def _enter(door: Backstop, start: BringupStart) -> _Outcome:
    cluster = start.entry.cluster
    answer = await door.bring_up(start)
    undo = f"backstop bringup cancel {shlex.quote(cluster)} --reason ..."
    return _Outcome(
        f"{cluster} is entered; its stage is {answer.stage}" if answer.stage else f"{cluster} is entered", undo
    )


async def _abort(door: Backstop, request: FleetCommandRequest) -> _Outcome:
    answer = await door.fleet_command("abort", request)
    return _Outcome(answer.said, answer.undo)


def _question(request: DeskRequest) -> TakeFleet:
    return TakeFleet.model_validate(request.arguments)


async def _import(door: Backstop, request: DeskRequest) -> _Outcome:
    question = _question(request)
    outcome = await door.ask(question)
    file = question.terms.file or "the file"
    clusters = count_text(outcome.counts.get("clusters", 0), "cluster")
    undo = "backstop fleet import FILE, with the previous policies; another admin must countersign it"
    return _Outcome(f"{file} is in the ledger, with {clusters}", undo)


WAYS: Mapping[str, _Way] = {
    "bringup.add": _Way(
        "start", BringupStart, lambda start: bringup_workflow_id(start.entry.cluster), _enter, check=_check_enter
    ),
    "fleet.abort": _Way("request", FleetCommandRequest, lambda _: FLEET_ID, _abort, check=_check_abort),
    "desk.take_fleet": _Way(
        "question",
        DeskRequest,
        lambda request: desk_workflow_id(_question(request)),
        _import,
        lambda question: DeskRequest(kind=question.kind, arguments=question.model_dump(mode="json")),
    ),
}
"""By the commands' keys in the table of rights. The desk itself carries out a waiting access file."""


class SecondPersons:
    """The commands of one front that wait for a second person."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    async def keep(
        self, who: Principal, command: str, target: Target, found: Mapping[str, Any], permitted: Permitted
    ) -> BackstopError:
        """Keep the command, and return the error that says it waits.

        Errors: Refusal if it would be refused now, whoever countersigned it; those of the desk.
        """
        way = WAYS.get(command)
        if way is None:
            return Refusal(f"{who.name} may not {deed_of(command, target)} alone: {permitted.sentence}")
        door = await self._doors.door_of(who)
        await way.check(door, found[way.argument])
        message = way.wrapped(found[way.argument])
        signed = self._doors.sign(message, command, way.workflow(message), who, permitted.roles)
        waits = await door.ask(
            KeepWaiting(
                command=command,
                target=target,
                message=signed.but(ticket="").model_dump(mode="json"),
                ticket=signed.ticket,
                reason=getattr(message, "reason", "") or "",
            )
        )
        digits = waits.hash[:SHOWN_DIGITS]
        text = (
            f"the command to {waits.what} waits for a second person until {waits.until:%Y-%m-%d %H:%MZ}: "
            f"{permitted.sentence}, with `backstop countersign give {digits}`"
        )
        return AwaitsSecond(text, digits, waits.until)

    async def act_alone(self, who: Principal, question: TellEmergency) -> TellEmergency:
        """Notify all admins, before anything is done; return the question that takes it back. Errors: the desk's."""
        door = await self._doors.door_of(who)
        return question.but(refused=(await door.ask(question)).number)

    async def take_back_alone(self, who: Principal, question: TellEmergency) -> None:
        """Note that the command was refused, so that nobody is asked to review what was not done."""
        try:
            await (await self._doors.door_of(who)).ask(question)
        except BackstopError as error:  # then it is reviewed like any other
            logger.warning("could not note that the command of emergency %d was refused: %s", question.refused, error)

    async def give(self, who: Principal, digits: str) -> Countersigned:
        """Carry the kept command out for both. Errors: Refusal, those of the command."""
        door = await self._doors.door_of(who)
        taken = await door.ask(TurnWaiting(hash=digits, turn=Turn.TAKE))
        try:
            done = await self._carry_out(who, taken)
        except BackstopError as error:
            if not isinstance(error, Unavailable):  # else it may be done: whoever has taken it asks again
                await door.ask(TurnWaiting(hash=digits, turn=Turn.REFUSED))
            raise
        await door.ask(TurnWaiting(hash=digits, turn=Turn.DONE))
        waits = taken.waiting
        return Countersigned(
            hash=waits.hash, command=waits.command, by=waits.by, second=who.name, said=done.said, undo=done.undo
        )

    async def _carry_out(self, who: Principal, taken: TakenCommand) -> _Outcome:
        """Carry the command out once, however often that is asked for: Temporal knows it by its hash."""
        way = WAYS.get(taken.command)
        if way is None:
            raise Refusal(
                f"this front runs another version of Backstop and does not know {taken.command}: upgrade the front"
            )
        message = way.message.model_validate(taken.message).but(actor=who.name)
        door = await self._doors.door_of(who, two_person=True, second=taken.ticket)
        key = repeat_key.set(f"countersign\0{taken.waiting.hash}")
        try:
            return await way.give(door, message)
        finally:
            repeat_key.reset(key)
