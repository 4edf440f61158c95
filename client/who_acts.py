"""Who could give the command that a rollout waits for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from models.access.access_file import AccessFile
from models.access.decision import Target, who_could
from models.access.principals import is_one_of
from models.access.rights import RIGHTS, Case
from models.base import some_of
from models.errors import BackstopError
from models.questions import AccessNow
from models.rollout.messages import LaunchAnswer
from models.rollout.shown import RolloutStatus
from models.rollout.stages import Stage

_TYPED = re.compile(r"backstop ([a-z-]+) ")
_DOOR = {"confirm": "desk.confirm_source"}
_NAMED = 5
_SECONDS = 5
"""What is only shown beside something else is not waited for longer."""


def could_act(access: AccessFile, status: RolloutStatus) -> tuple[str, ...]:
    """As the access file names them: people and groups who could give the first command that it needs; none: nothing
    is needed, or nobody could."""
    choices = status.undoing.choices if status.undoing is not None else ()
    lines = [choice.line for choice in choices] or [status.needs]
    words = (match[1] for text in lines for match in _TYPED.finditer(f"{text} "))
    key = next((key for word in words if (key := _DOOR.get(word, f"rollout.{word}")) in RIGHTS), "")
    risky = status.stage is Stage.STUCK or status.at_risk or status.breach_of
    cases = frozenset({Case.AT_RISK}) if risky else frozenset[Case]()
    return who_could(access, key, Target(cluster=status.cluster, cases=cases))


async def could_act_now(ask: Callable[[AccessNow], Awaitable[Any]], status: RolloutStatus) -> tuple[str, ...]:
    """By the file in force; without one, whom the policy lets resolve. Nobody where it does not come in time."""
    stands = await _in_time(ask) if status.needs else None
    if stands is None:
        return ()
    return status.lifters if stands.version is None else could_act(stands.version.file, status)


async def lifted_by_others(ask: Callable[[AccessNow], Awaitable[Any]], answer: LaunchAnswer, launcher: str) -> str:
    """That whoever launched it may not resolve what holds it, and who may; empty where they may, or roles say it."""
    if not answer.lifters or is_one_of(launcher, answer.lifters):
        return ""
    stands = await _in_time(ask)
    if stands is None or stands.version is not None:
        return ""
    may = some_of(answer.lifters, _NAMED)
    if is_one_of(launcher, answer.deciders):
        return f"An objection to it is resolved by {may}, and not by {launcher}, who may resolve other holds."
    others = [name for name in answer.deciders if name not in answer.lifters]
    more = f" (other holds: {some_of(others, _NAMED)} too)" if others else ""
    return f"Its holds can be resolved by {may}{more}, not by {launcher}, who launched it."


async def _in_time(ask: Callable[[AccessNow], Awaitable[Any]]) -> Any:
    """What stands of access; None where it does not come in time."""
    try:
        return await asyncio.wait_for(ask(AccessNow()), _SECONDS)
    except (BackstopError, TimeoutError):
        return None
