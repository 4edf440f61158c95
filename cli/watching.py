"""Following one rollout: a live picture in a terminal, one line for each change in a pipe."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from cli.output import console, line, show, show_json_line
from cli.status_view import status_line, status_parts
from models.errors import BackstopError, Refusal
from models.messages import RolloutStatus

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
    if as_json or not sys.stdout.isatty():
        await _lines(door, seen, every, as_json)
    else:
        await _picture(door, seen, every)


async def _lines(door: Backstop, seen: RolloutStatus, every: float, as_json: bool) -> None:
    said = ""
    while True:
        now = status_line(seen)
        if now != said:
            if as_json:
                show_json_line(seen.model_dump(mode="json", by_alias=True))
            else:
                show(line(f"{seen.at:%H:%M:%SZ}  {now}"))
                sys.stdout.flush()
        said = now
        if seen.stage.ended:
            return
        await asyncio.sleep(every)
        try:
            seen = await door.status(seen.cluster)
        except Refusal as ended:
            show(line(ended.message))
            return
        except BackstopError as away:
            if said != away.message and not as_json:
                show(line(f"no answer: {away.message}"))
            said = away.message


async def _picture(door: Backstop, seen: RolloutStatus, every: float) -> None:
    note = Text()
    with Live(console=console(), auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            live.update(Group(*status_parts(seen), note), refresh=True)
            if seen.stage.ended:
                return
            await asyncio.sleep(every)
            try:
                seen = await door.status(seen.cluster)
                note = Text()
            except Refusal as ended:
                live.update(Group(*status_parts(seen), line(ended.message)), refresh=True)
                return
            except BackstopError as away:
                note = line((f"No answer, as of {seen.at:%H:%M:%SZ}: {away.message}", "yellow"))
