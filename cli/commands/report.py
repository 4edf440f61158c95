"""`backstop report`: the weekly status for everybody, as Markdown, as one page with plots, as JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cli.commands.burndown import CARRIED, points_between
from cli.lazy import command
from cli.options import LOOK, Actor, AsJson, actor_of, flag, opt
from cli.session import ask
from cli.time_options import moment_of, shift_time
from models.errors import BadInput

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.reports.weekly import Week

_CURVE = timedelta(days=56)
"""The longest time that the report's curve shows."""


@command(LOOK, "backstop report --weekly", "backstop report --weekly --out status")
def report(
    weekly: Annotated[bool, flag("--weekly", "Write the report of one week, the only report so far.")] = False,
    at: Annotated[str, opt("DATE", "The week that ends with this day or time; default: now.", show_default=False)] = "",
    out: Annotated[
        str, opt("DIR", "Write status-DATE.md and status-DATE.html into this folder.", show_default=False)
    ] = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Write the weekly status: done, next, at risk, blocked and by whom, milestones, and how much phantom quota
    has gone.

    Without --out the Markdown goes to standard output. A report of an earlier week has no `next` and no `blocked`:
    Backstop knows these only for the present.
    """
    from cli.json_answers import WeekAnswer
    from cli.output import show, show_json, write
    from views.report import markdown
    from views.words import line

    if not weekly:
        raise BadInput("--weekly is missing: give it, because there is no other report")
    now = datetime.now(UTC)
    until = _end(at, now)
    week = _week(until, live=until == now, actor=actor_of(actor))
    written = _write_files(week, out) if out else ""
    if as_json:
        show_json(WeekAnswer.build_from(week).as_json())
    elif out:
        show(line(("Written", "bold"), f": {written}.md and {written}.html"))
    else:
        write("-", "", markdown(week))


def _write_files(week: Week, out: str) -> str:
    """Write both files; return their path without its ending. Errors: BadInput."""
    from cli.output import write
    from cli.pages.report import page
    from views.report import markdown

    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {out}: cannot be made: {error.strerror}") from None
    name = str(folder / f"status-{week.until:%Y-%m-%d}")
    write(f"{name}.md", "--out", markdown(week))
    write(f"{name}.html", "--out", page(week))
    return name


def _end(at: str, now: datetime) -> datetime:
    """Return the end of the week: a day's last moment, but no later than now. Errors: BadInput."""
    if not at:
        return now
    end = moment_of("--at", at, now)
    shift_time("--at", at, end, -2 * _CURVE)  # what the report looks back to
    if end > now:
        raise BadInput(f"--at {at} is in the future: the time is {now:%Y-%m-%d %H:%MZ}")
    return min(end + timedelta(days=1), now) if len(at) == 10 else end


def _week(until: datetime, *, live: bool, actor: str) -> Week:
    from client.weekly_report import weekly
    from models.reports.weekly import WEEK

    async def question(door: Backstop) -> Week:
        times, step = points_between(
            until - _CURVE, until, (await door.tallies("", [until], CARRIED)).began, most=_CURVE.days
        )
        return await weekly(door, until - WEEK, until, times, max(step, CARRIED), live=live)

    return ask(actor, question)
