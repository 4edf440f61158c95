"""`backstop burndown`: phantom, promised and healthy GPUs over time, of the fleet or of one cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from cli.lazy import command
from cli.list_options import Listing, listed
from cli.options import LOOK, Actor, actor_of, opt, optional_cluster
from cli.session import ask
from cli.time_options import beginning_of
from models.errors import BadInput

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.questions import Curve

_STEPS = (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 28 * 86400)
"""Possible times between two points, in seconds."""
_MOST = 40
"""The most points of one curve that fit on a screen."""
CARRIED = timedelta(hours=3)
"""How long a cluster whose tally is late counts with its last tally, so that the curve does not dip."""


@command(
    LOOK,
    "backstop burndown",
    "backstop burndown --cluster h100-worked --since 7d",
    "backstop burndown --since 2026-11-01 --csv burndown.csv",
)
@listed
def burndown(
    cluster: Annotated[str, opt("NAME", "Only this cluster.", callback=optional_cluster)] = "",
    since: Annotated[str, opt("TIME", "From this time on: an age such as 28d, or a day such as 2026-11-01.")] = "28d",
    csv: Annotated[str, opt("FILE", "Write the curve as CSV (-: stdout).")] = "",
    *,
    how: Listing,
    actor: Actor = "",
) -> None:
    """Show promised, healthy and phantom GPUs over time.

    Backstop records each cluster once an hour. The sums leave out a cluster whose health was unknown, and say so.
    """
    from cli.json_answers import BurndownAnswer
    from cli.output import write
    from models.reports.tallies import Point
    from views.burndown import as_csv, burndown_parts

    if csv == "-" and not how.for_people:
        raise BadInput(f"--csv - and {how.form_text} both write to standard output: give one of them")
    now = datetime.now(UTC)
    begin = beginning_of("--since", since, now)

    async def question(door: Backstop) -> Curve:
        times, step = points_between(begin, now, (await door.tallies(cluster, [now], CARRIED)).began)
        return await door.tallies(cluster, times, max(step, CARRIED))

    curve = ask(actor_of(actor), question)
    points, began = how.rows(curve.points, Point), curve.began
    if csv:
        write(csv, "--csv", as_csv(points))
    if csv != "-":
        how.tell(
            lambda: BurndownAnswer(
                cluster=cluster, since=begin, began=began, points=tuple(points), arrived=curve.arrived
            ),
            lambda: burndown_parts(points, cluster, began, begin, of=len(curve.points), arrived=curve.arrived),
            None,
        )


def points_between(
    begin: datetime, end: datetime, began: datetime | None = None, most: int = _MOST
) -> tuple[list[datetime], timedelta]:
    """Return times up to `end` at round steps that fit a screen, and the step. `began`: the first tally."""
    if began is not None and begin < began <= end:
        times, step = points_between(began, end, most=most)
        return ([began] if times[0] > began else []) + times, step
    length = (end - begin).total_seconds()
    seconds = next((step for step in _STEPS if length / step <= most), _STEPS[-1])
    step = timedelta(seconds=seconds)
    many = min(int(length // seconds), 10 * _MOST)
    return [end - n * step for n in range(many, -1, -1)], step
