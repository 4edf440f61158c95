"""Follows a rollout: a live picture in a terminal, one line for each change in a pipe."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import RenderableType

from cli.output import Picture, is_live, show, show_json_line
from models.bringup.stages import BringupStage
from models.bringup.status import BringupStatus
from models.errors import BackstopError, Refusal
from models.fleet.status import to_ask, with_own_words
from models.rollout.status_models import RolloutStatus
from views.bringup import status_parts as bringup_parts
from views.bringup import step_changes
from views.fleet_rollout_tree import FleetSeen, fleet_changes, tree_parts
from views.status import status_line, status_parts
from views.words import line

if TYPE_CHECKING:
    from client.backstop import Backstop

_T = TypeVar("_T")
_StatusT = TypeVar("_StatusT", RolloutStatus, BringupStatus)
_ASKED_SECONDS = 5.0
"""How long each look waits for the answers of a fleet's rollouts."""


@dataclass(frozen=True)
class Watched(Generic[_T]):
    """The functions that read and show something that is followed."""

    look: Callable[[], Awaitable[_T]]
    parts: Callable[[_T, tuple[int, int] | None], Sequence[RenderableType]]
    """What to show on a screen of so many columns and rows; None: everything."""
    changes: Callable[[_T | None, _T], Sequence[str]]
    """A line for each change since the previous look."""
    ended: Callable[[_T], bool]
    document: Callable[[_T], Any]


async def follow(door: Backstop, cluster: str, *, every: float, once: bool, as_json: bool) -> None:
    """Follow a rollout until it has ended. Errors: as `watch`."""
    rollout = Watched[RolloutStatus](
        look=lambda: _await_status(door.status(cluster)),
        parts=lambda seen, _: status_parts(seen),
        changes=_change,
        ended=lambda seen: seen.stage.has_ended,
        document=lambda seen: seen.model_dump(mode="json", by_alias=True),
    )
    await watch(rollout, every=every, once=once, as_json=as_json)


async def _await_status(status: Awaitable[_StatusT]) -> _StatusT:
    """Return the status. Errors: Refusal if Temporal stopped the workflow, which still answers with its last state."""
    seen = await status
    if seen.lost:
        raise Refusal(seen.lost)
    return seen


def _change(before: RolloutStatus | None, now: RolloutStatus) -> list[str]:
    text = status_line(now)
    return [] if before is not None and status_line(before) == text else [f"{now.at:%H:%M:%SZ}  {text}"]


async def follow_bringup(door: Backstop, cluster: str, *, every: float, once: bool, as_json: bool) -> None:
    """Follow a bring-up until it is in production or has ended. Errors: as `watch`."""
    bringup = Watched[BringupStatus](
        look=lambda: _await_status(door.bringup_status(cluster)),
        parts=lambda seen, _: bringup_parts(seen),
        changes=step_changes,
        ended=lambda seen: seen.stage.has_ended or seen.stage is BringupStage.IN_PRODUCTION,
        document=lambda seen: seen.model_dump(mode="json", by_alias=True),
    )
    await watch(bringup, every=every, once=once, as_json=as_json)


async def follow_fleet(door: Backstop, *, every: float, once: bool, as_json: bool) -> None:
    """Follow the fleet rollout until it has ended. Errors: as `watch`."""

    async def look() -> FleetSeen:
        seen = await look_at_fleet(door)
        if seen.status.lost:
            raise Refusal(seen.status.lost)
        return seen

    fleet = Watched[FleetSeen](
        look=look,
        parts=lambda seen, screen: tree_parts(seen, datetime.now(UTC), screen),
        changes=lambda before, now: fleet_changes(before, now, datetime.now(UTC)),
        ended=lambda seen: seen.status.stage.has_ended,
        document=lambda seen: seen.status.model_dump(mode="json", by_alias=True),
    )
    await watch(fleet, every=every, once=once, as_json=as_json)


async def look_at_fleet(door: Backstop) -> FleetSeen:
    """Return the fleet rollout with the status of its members' rollouts, and the calendar. Errors: `fleet_status`'s."""
    status = await door.fleet_status()
    if status.stage.has_ended or status.lost:
        return FleetSeen(status)
    asked = await door.ask_rollouts(to_ask(status), _ASKED_SECONDS)
    own = {
        m.cluster: rollout
        for m in status.members
        if (rollout := asked.get(m.cluster)) is not None and rollout.rollout == m.rollout
    }
    return FleetSeen(with_own_words(status, asked, await door.calendar()), own)


async def watch(watched: Watched[_T], *, every: float, once: bool, as_json: bool) -> None:
    """Show the state until it has ended, or once.

    Errors: the first look's; later ones are shown and waited out, except a refusal, which ends it.
    """
    seen = await watched.look()
    if once:
        if as_json:
            show_json_line(watched.document(seen))
        else:
            show(*watched.parts(seen, None))
        return
    try:
        if as_json or not is_live():
            await _lines(watched, seen, every, as_json)
        else:
            await _picture(watched, seen, every)
    except Refusal as ended:
        if not as_json:
            show(line(ended.message))


async def _next(watched: Watched[_T], every: float, tell: Callable[[str], None]) -> _T:
    """Return the next answer, however long a server or worker is away; `tell` gets each reason once."""
    complaint = ""
    while True:
        await asyncio.sleep(every)
        try:
            return await watched.look()
        except Refusal:
            raise
        except BackstopError as away:
            if away.message != complaint:
                tell(away.message)
            complaint = away.message


async def _lines(watched: Watched[_T], seen: _T, every: float, as_json: bool) -> None:
    def tell(reason: str) -> None:
        if not as_json:
            show(line(f"no answer: {reason}"))

    before: _T | None = None
    while True:
        changes = watched.changes(before, seen)
        if changes and as_json:
            show_json_line(watched.document(seen))
        elif changes:
            show(*map(line, changes))
        before = seen
        if watched.ended(seen):
            return
        seen = await _next(watched, every, tell)


async def _picture(watched: Watched[_T], seen: _T, every: float) -> None:
    with Picture() as picture:
        while True:
            parts = watched.parts(seen, picture.size)
            picture.draw(*parts)
            if watched.ended(seen):
                return

            def tell(reason: str, parts: Sequence[RenderableType] = parts) -> None:
                picture.draw(*parts, line((f"No answer: {reason}", "yellow")))

            seen = await _next(watched, every, tell)
