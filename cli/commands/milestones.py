"""`backstop milestones`: the plan's milestones, notes of people's work, and progress."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.list_options import Listing, listed, plain_listing
from cli.options import LOOK, Actor, AsJson, NeededReason, actor_of, arg, examples
from cli.session import ask
from models.errors import BadInput

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.reports.milestones import PlanNow


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Milestones of your project plan.")
    group.command("set", epilog=examples("backstop milestones set examples/milestones.yaml"))(set_milestones)
    group.command(
        "note", epilog=examples("backstop milestones note 'users trained' 12 --reason 'second class, 24 November'")
    )(note)
    group.command("show", epilog=examples("backstop milestones show"))(show_all)
    app.add_typer(group, name="milestones", rich_help_panel=LOOK)


def set_milestones(
    file: Annotated[str, arg("FILE", "The milestones: YAML or JSON (-: stdin).")],
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Set the milestones of your project plan; they replace the earlier ones.

    Backstop measures monitored_clusters, rolled_out_waves and phantom_gpus. For any other `measure`, people enter
    the number with `backstop milestones note`.
    """
    from client.inputs.documents import read_milestones

    milestones = read_milestones(file)

    async def question(door: Backstop) -> PlanNow:
        from models.questions import PlanMilestones

        return await door.ask(PlanMilestones(**dict(milestones)))

    undo = "To undo this, set the previous file again. A milestone that the new file leaves out then begins anew."
    _answer(ask(actor_of(actor), question), plain_listing(as_json), undo)


def note(
    name: Annotated[str, arg("NAME", "The milestone.", show_default=False)],
    number: Annotated[int, arg("NUMBER", "The milestone's new total.", min=0, max=10**7, show_default=False)],
    reason: NeededReason,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Enter the new total of a milestone that Backstop cannot measure, such as users trained.

    The audit keeps the notes: backstop audit '(milestones)'.
    """
    if not reason.strip():
        raise BadInput("--reason must say why")
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise BadInput("NAME must be a milestone's name: one line of at most 200 characters")

    async def question(door: Backstop) -> PlanNow:
        from models.questions import NoteMilestone

        return await door.ask(NoteMilestone(milestone=name, number=number, reason=reason))

    undo = (
        "It cannot be undone: the audit keeps every note, and the latest counts. To correct it, note the right number."
    )
    _answer(ask(actor_of(actor), question), plain_listing(as_json), undo)


@listed
def show_all(*, how: Listing, actor: Actor = "") -> None:
    """Show where each milestone is: done, on track or behind.

    On track means: at or ahead of a straight line that begins at the number on the day the milestone was set, and
    ends at the target on the last day.
    """

    async def question(door: Backstop) -> PlanNow:
        from models.questions import MilestonesNow

        return await door.ask(MilestonesNow())

    _answer(ask(actor_of(actor), question), how)


def _answer(present: PlanNow, how: Listing, undo: str = "") -> None:
    from cli.json_answers import MilestonesAnswer
    from models.reports.milestones import MilestoneStanding, standings
    from views.milestones import milestones_parts
    from views.words import line

    now = datetime.now(UTC)
    all_standings = standings(present.plan, present.measured, now, present.read_at)
    stand = how.rows(all_standings, MilestoneStanding)
    how.tell(
        lambda: MilestonesAnswer(at=now, milestones=tuple(stand)),
        lambda: [*milestones_parts(stand), *([line(undo)] if undo else [])],
        [standing.milestone.name for standing in stand],
        (len(all_standings), "milestone"),
    )
