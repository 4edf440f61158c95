"""Finds out who could give the command that a rollout, a request or a bring-up waits for."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from models.access.command_targets import command_awaited, team_awaited
from models.access.decision import Target, who_could
from models.access.principals import is_one_of
from models.access.rights import RIGHTS, Case
from models.access_questions import AccessNow, AimOf
from models.errors import BackstopError, Refusal, Unavailable
from models.question_base import Question
from models.rollout.stages import Command, Stage, command_line
from models.rollout.status_models import RolloutStatus
from models.texts import some_of

if TYPE_CHECKING:
    from models.rollout.messages import LaunchAnswer

_NAMED = 5
_COULD = 3
"""Most people that a message names who could open a gate."""
_UNLESS = "unless an access file says otherwise"
UNKNOWN = "who could act is unknown: no worker answered"
_SECONDS = 5
"""The longest wait for an answer that is only shown beside another one."""
AskWhoCould = Callable[[str, str], Awaitable[Sequence[str]]]
"""`Backstop.who_could`, called with the command line and the cluster."""
AskDesk = Callable[[Question[Any]], Awaitable[Any]]


async def who_could_now(ask: AskDesk, key: str, target: Target, subject: str = "") -> tuple[str, ...] | None:
    """Return who could give the command, as the access file in force names them, without the person who launched, asked
    for or entered it where somebody else must act. None: there is no file. Errors: Unavailable if no answer comes in
    time."""
    stands = await _in_time(ask(AccessNow()))
    if stands is None:
        raise Unavailable(UNKNOWN)
    if stands.version is None:
        return None
    if key not in RIGHTS:
        return ()
    try:
        target = await asyncio.wait_for(ask(AimOf(command=key, target=target, subject=subject)), _SECONDS)
    except Refusal:
        pass  # no worker has keys: nobody knows whose doing it is
    except (BackstopError, TimeoutError):
        raise Unavailable(UNKNOWN) from None
    return who_could(stands.version.file, key, target)


async def who_could_give(ask: AskDesk, needs: str, cluster: str, subject: str) -> tuple[str, ...]:
    """Return who could give the first command in a status's `needs`; without an access file nobody.

    Errors: as `who_could_now`.
    """
    key, cases = command_awaited(needs)
    target = Target(cluster=cluster, team=team_awaited(needs), cases=cases)
    return await who_could_now(ask, key, target, subject) or ()


async def could_act_now(ask: AskDesk, status: RolloutStatus) -> tuple[str, ...]:
    """Return who could give the first command that the rollout needs; without an access file, who may resolve it."""
    if not status.needs:
        return ()
    choices = status.undoing.choices if status.undoing is not None else ()
    key, cases = command_awaited(*([choice.line for choice in choices] or [status.needs]))
    risky = status.stage is Stage.STUCK or status.at_risk or status.breach_of
    cases |= frozenset({Case.AT_RISK} if risky else ())
    could = await who_could_now(ask, key, Target(cluster=status.cluster, cases=cases))
    return status.lifters if could is None else could


async def name_other_lifters(ask: AskDesk, answer: LaunchAnswer, launcher: str) -> str:
    """Say who may resolve its holds where its launcher may not; empty if they may, or an access file decides."""
    if not answer.lifters or is_one_of(launcher, answer.lifters):
        return ""
    stands = await _in_time(ask(AccessNow()))
    if stands is None or stands.version is not None:
        return ""
    may = some_of(answer.lifters, _NAMED)
    if is_one_of(launcher, answer.deciders):
        return (
            f"Objections can be resolved by {may}; {launcher}, who launched the rollout, can resolve only other holds."
        )
    others = [name for name in answer.deciders if name not in answer.lifters]
    more = f" (and a hold that is no objection also by {some_of(others, _NAMED)})" if others else ""
    return f"Holds can be resolved by {may}{more}, not by {launcher}, who launched the rollout."


class Openers(NamedTuple):
    """The people who could open a gate, in words: by hold, who could lift it; by team, who could acknowledge for it."""

    lifts: dict[str, str] = {}  # noqa: RUF012
    acks: dict[str, str] = {}  # noqa: RUF012


async def who_could_open(who_could: AskWhoCould, status: RolloutStatus) -> Openers:
    """Return who could open the rollout's gate, without holds that end by themselves.

    An access file decides where there is one: `who_could` answers for it, or raises where no answer comes.
    """
    lines = {hold.id: status.lifts.get(hold.id, "") for hold in (*status.holds, *status.recorded_objections)}
    end = f"{command_line('calendar end', status.cluster)} ID"
    lines |= {hold.id: end for hold in status.holds if hold.actor == "calendar"}
    ack = command_line(Command.ACK, status.cluster)
    acks = {team: f"{ack} --team {shlex.quote(team)}" for team in list_unacknowledged(status)[:_COULD]}
    needed = {(command_awaited(line), team_awaited(line)): line for line in (*lines.values(), *acks.values()) if line}
    answers = await asyncio.gather(*(_or_unknown(who_could(line, status.cluster)) for line in needed.values()))
    able = dict(zip(needed, answers, strict=True))

    def text(line: str, without_file: Sequence[str] = ()) -> str:
        return could_text(able[command_awaited(line), team_awaited(line)], without_file)

    return Openers(
        {hold: text(line, status.may_lift.get(hold, ())) for hold, line in lines.items() if line},
        {team: text(line) for team, line in acks.items()},
    )


def could_text(names: Sequence[str] | None, without_file: Sequence[str] = ()) -> str:
    """Name who could act; None: no answer came. `without_file`: who may, if there is no access file; empty: anybody."""
    if names is None:
        return UNKNOWN
    return some_of(names, _COULD) if names else f"{some_of(without_file, _COULD) or 'anybody'}, {_UNLESS}"


async def _or_unknown(names: Awaitable[Sequence[str]]) -> Sequence[str] | None:
    try:
        return await names
    except BackstopError:
        return None


def list_unacknowledged(status: RolloutStatus) -> list[str]:
    """Return the teams whose acknowledgement the gate waits for."""
    if not any(condition.name == "acks" for condition in status.waiting_for):
        return []
    cut = (t for t in status.teams if t.leaf and t.planned_gpus is not None and t.planned_gpus < t.baseline_gpus)
    return [t.team for t in cut if not t.acknowledged]


async def _in_time(answer: Awaitable[Any]) -> Any:
    """Return the answer; None if it does not come in time."""
    try:
        return await asyncio.wait_for(answer, _SECONDS)
    except (BackstopError, TimeoutError):
        return None
