"""`backstop flex`: healthy GPUs outside the promises, and how they are shared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.list_options import Listing, listed, tell
from cli.options import LOOK, Actor, AsJson, ClusterOrAll, Otherwise, actor_of, arg, examples, opt
from models.errors import BadInput

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.flex.division import Division, FlexDemand, FlexMode
    from models.flex.flex_now import FlexNow
    from models.reports.tallies import Point

_MOST_TIMES = 490
"""The most points in time in one question to the ledger."""


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        cls=_Flex, help="Healthy GPUs that no quota promises or that a quota leaves unused, and how teams share them."
    )
    group.command(
        "show",
        epilog=examples(
            "backstop flex",
            "backstop flex h100-worked",
            "backstop flex show h100-worked --since 14d --mode quota --json",
        ),
    )(show_flex)
    group.command("divide", epilog=examples("backstop flex divide --file examples/flex.yaml"))(divide)
    group.command("simulate", epilog=examples("backstop flex simulate examples/flex-story.yaml"))(simulate)
    app.add_typer(group, name="flex", rich_help_panel=LOOK)


class _Flex(Otherwise):
    """The group whose default is `show`: `backstop flex CLUSTER` is `backstop flex show CLUSTER`."""

    otherwise = "show"


@listed
def show_flex(
    cluster: ClusterOrAll = "",
    mode: Annotated[str, opt("MODE", "How flex is shared: equal, quota or weight.")] = "equal",
    since: Annotated[str, opt("TIME", "From this time on: an age such as 7d, or a day such as 2026-11-01.")] = "7d",
    *,
    how: Listing,
    actor: Actor = "",
) -> None:
    """Show quotas and flex apart: how much flex there is, who uses it, and how much there was over time.
    `backstop flex [CLUSTER]` is short for this.

    Flex is the healthy GPUs outside any quota (surplus) and what quotas leave unused (docs/flex.md).
    """
    from cli.commands.burndown import CARRIED
    from cli.output import report_left_out
    from cli.session import ask
    from cli.time_options import beginning_of

    wanted = mode_of(mode)
    if cluster:
        how.of_one(f"CLUSTER {cluster!r}")
    now = datetime.now(UTC)
    begin = beginning_of("--since", since, now)
    times = hours_between(begin, now)

    async def question(door: Backstop) -> tuple[list[FlexNow], list[Point]]:
        offers = await door.flex(cluster, wanted)
        if not cluster:
            there = {one.cluster for one in offers}
            wrong = {name: "; ".join(why) for name, why in (await door.senseless()).items() if name not in there}
            report_left_out(wrong)
        curve = await door.tallies(cluster, times, min(CARRIED, times[-1] - times[-2]))
        return offers, list(curve.points)

    _tell(*ask(actor_of(actor), question), single=bool(cluster), begin=begin, how=how)


def mode_of(text: str) -> FlexMode:
    """Parse a mode. Errors: BadInput naming the option and the value."""
    from models.flex.division import FlexMode

    if text not in set(FlexMode):
        raise BadInput(f"--mode must be one of {', '.join(FlexMode)}, not {text!r}")
    return FlexMode(text)


def hours_between(begin: datetime, end: datetime) -> list[datetime]:
    """Return `end` and the whole hours before it, or every second, third and so on where those are too many."""
    step, last = timedelta(hours=1), end.replace(minute=0, second=0, microsecond=0)
    while (last - begin) / step > _MOST_TIMES:
        step += timedelta(hours=1)
    many = max(1, int((last - begin) / step))
    return [*(last - n * step for n in range(many, -1, -1)), end]


def _tell(offers: list[FlexNow], points: list[Point], *, single: bool, begin: datetime, how: Listing) -> None:
    from cli.json_answers import FlexAnswer
    from models.flex.flex_now import FlexNow
    from views.flex import by_free_flex, cluster_parts, fleet_parts
    from views.row_models import FlexOffered

    record = [FlexOffered(at=p.at, flex_gpus=p.flex_gpus, healthy_gpus=p.healthy_gpus) for p in points if p.known]
    chosen = how.rows(offers, FlexNow)
    shown = chosen if how.sort else by_free_flex(chosen)
    how.tell(
        lambda: FlexAnswer(clusters=tuple(chosen), since=begin, record=tuple(record)),
        lambda: cluster_parts(chosen[0], record) if single else fleet_parts(shown, record, len(offers)),
        [one.cluster for one in chosen],
        (len(offers), "cluster"),
    )


@listed
def divide(
    file: Annotated[
        str, opt("FILE", "The GPUs to divide and each team's demand: YAML or JSON (-: stdin).", show_default=False)
    ],
    mode: Annotated[str, opt("MODE", "How flex is shared: equal, quota or weight. Default: the file's mode.")] = "",
    *,
    how: Listing,
) -> None:
    """Divide GPUs fairly: first what quotas promise, then the rest.

    No team gets more than its demand or its limit (docs/flex.md). Changes nothing.
    """
    from client.inputs.documents import read_flex_demand
    from models.flex.division import division

    asked = read_flex_demand(file)
    if mode:
        asked = asked.model_copy(update={"mode": mode_of(mode)})
    _answer(asked, division(asked), how)


def simulate(
    file: Annotated[str, arg("FILE", "A cluster, its teams and the events: YAML or JSON (-: stdin).")],
    as_json: AsJson = False,
) -> None:
    """Simulate jobs on a cluster's quotas and flex: after each step, who runs, who waits and who gives back GPUs.

    Changes nothing. docs/flex.md has the file's format.
    """
    from cli.json_answers import FlexScenes
    from client.inputs.documents import read_flex_story
    from models.flex.simulation import tell_story
    from views.flex import story_parts

    scenes = tell_story(read_flex_story(file))
    tell(FlexScenes(steps=scenes), lambda: story_parts(scenes), as_json=as_json)


def _answer(asked: FlexDemand, offers: Division, how: Listing) -> None:
    from cli.json_answers import FlexShare, FlexShares
    from views.flex import parts

    whole = FlexShares.of(offers)
    shares = how.rows(whole.shares, FlexShare)
    portions = {p.team: p for p in offers.portions}
    chosen = offers.model_copy(update={"portions": tuple(portions[share.team] for share in shares)})
    how.tell(
        lambda: whole.model_copy(update={"shares": tuple(shares)}),
        lambda: parts(asked, chosen),
        [share.team for share in shares],
        (len(whole.shares), "team"),
    )
