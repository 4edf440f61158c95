"""Following one rollout: a live picture in a terminal, one line for each change in a pipe."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.live import Live

from cli.output import console, line, show, show_json_line
from cli.views.status import status_line, status_parts
from models.errors import BackstopError, Refusal
from models.rollout.messages import RolloutStatus

if TYPE_CHECKING:
    from client.backstop import Backstop


async def follow(door: Backstop, cluster: str, *, every: float, once: bool, as_json: bool) -> None:
    """Returns when the rollout has ended, or after one look.

    Errors: the first look's; later ones are shown and waited out, but for a refusal, which is an end.
    """
    seen = await door.status(cluster)
    if once:
        if as_json:
            show_json_line(seen.model_dump(mode="json", by_alias=True))
        else:
            show(*status_parts(seen))
        return
    try:
        if as_json or not sys.stdout.isatty():
            await _lines(door, seen, every, as_json)
        else:
            await _picture(door, seen, every)
    except Refusal as ended:
        if not as_json:
            show(line(ended.message))


async def _next(door: Backstop, cluster: str, every: float, tell: Callable[[str], None]) -> RolloutStatus:
    """The next answer, however long a server or worker is away; `tell` hears once of each reason."""
    complaint = ""
    while True:
        await asyncio.sleep(every)
        try:
            return await door.status(cluster)
        except Refusal:
            raise
        except BackstopError as away:
            if away.message != complaint:
                tell(away.message)
            complaint = away.message


async def _lines(door: Backstop, seen: RolloutStatus, every: float, as_json: bool) -> None:
    def tell(reason: str) -> None:
        if not as_json:
            show(line(f"no answer: {reason}"))

    shown = ""
    while True:
        now = status_line(seen)
        if now != shown and as_json:
            show_json_line(seen.model_dump(mode="json", by_alias=True))
        elif now != shown:
            show(line(f"{seen.at:%H:%M:%SZ}  {now}"))
        shown = now
        if seen.stage.ended:
            return
        seen = await _next(door, seen.cluster, every, tell)


async def _picture(door: Backstop, seen: RolloutStatus, every: float) -> None:
    with Live(console=console(), auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            parts = status_parts(seen)
            live.update(Group(*parts), refresh=True)
            if seen.stage.ended:
                return

            def tell(reason: str, parts: list[RenderableType] = parts) -> None:
                live.update(Group(*parts, line((f"No answer: {reason}", "yellow"))), refresh=True)

            seen = await _next(door, seen.cluster, every, tell)
