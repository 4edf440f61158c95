"""`backstop bringup`: clusters from an order to production."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands_from_rows import TypedOrder, add_orders
from cli.consent import Yes, consent
from cli.list_options import Listing, listed, tell
from cli.options import (
    ROLL_OUT,
    Actor,
    Alone,
    AsJson,
    Cluster,
    ClusterOrAll,
    EverySeconds,
    NeededReason,
    Once,
    ReasonOption,
    actor_of,
    arg,
    check_model,
    examples,
    flag,
    number,
    opt,
)
from cli.session import ask, or_nobody
from models.bringup.command_rows import BRINGUP_ROWS
from models.errors import BadInput, Refusal
from models.lifecycle.command_rows import Asks

if TYPE_CHECKING:
    from rich.console import RenderableType

    from client.backstop import Backstop
    from models.bringup.messages import BringupAnswer, BringupRow, BringupStart
    from models.bringup.status import BringupStatus

RecipesFile = Annotated[str, arg("FILE", "A file of recipes (-: stdin).", show_default=False)]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Bring clusters from an order to production.")
    for name, command, lines in (
        (
            "add",
            add,
            (
                "backstop bringup add entries.yaml --recipes recipes.yaml --reason 'order 17'",
                "backstop bringup add bringups.csv quotas.csv --recipes recipes.yaml --dry-run",
            ),
        ),
        ("status", status, ("backstop bringup status",)),
        ("watch", watch, ("backstop bringup watch h100-new",)),
        ("give-up", give_up, ("backstop bringup give-up h100-new --reason 'Temporal was lost; torn down by hand'",)),
        ("audit", audit, ("backstop bringup audit h100-new",)),
        ("template", template_, ("backstop bringup template bringups > bringups.csv",)),
    ):
        if name == "give-up":
            add_orders(group, BRINGUP_ROWS, _give, Cluster)
        group.command(name, epilog=examples(*lines))(command)
    recipes = typer.Typer(no_args_is_help=True, help="Recipes: how clusters of one kind are built and validated.")
    recipes.command(
        "check", epilog=examples("backstop bringup recipe check recipes.yaml --entry entries.csv --entry quotas.csv")
    )(check)
    group.add_typer(recipes, name="recipe")
    app.add_typer(group, name="bringup", rich_help_panel=ROLL_OUT)


# --- recipes -----------------------------------------------------------------------------------


def check(
    file: RecipesFile,
    entries: Annotated[
        list[str] | None,
        opt("FILE", "Entries to check against the recipes: YAML, or tables as CSV.", "--entry", show_default="none"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a file of recipes and show what each would do. It starts nothing and asks no server.

    It shows the steps in order, what each waits for, what undoes it, and what the worker must allow.
    """
    from cli.json_answers_bringup import RecipesAnswer
    from client.inputs.bringups import read_entries, read_recipes
    from views.recipe import entries_parts, recipe_parts

    recipes = read_recipes(file)
    clusters = read_entries(entries, recipes) if entries else ()
    shown = [part for recipe in recipes.recipes for part in recipe_parts(recipe)]
    answer = RecipesAnswer(recipes=tuple(recipes.recipes), entries=clusters)
    tell(answer, lambda: [*shown, *entries_parts(clusters, recipes.recipes)], as_json=as_json)


def template_(
    what: Annotated[str, arg("TABLE", "The template: bringups or quotas (CSV), or recipe (YAML).", show_default=False)],
) -> None:
    """Print a table or a recipe to fill in."""
    from client.inputs.bringups import BRINGUP_TEMPLATES

    if what == "recipe":
        typer.echo((Path(__file__).parent.parent / "templates" / "recipe.yaml").read_text(), nl=False)
        return
    if what not in BRINGUP_TEMPLATES:
        raise BadInput(f"TABLE must be {', '.join(BRINGUP_TEMPLATES)} or recipe, not {what!r}")
    typer.echo(BRINGUP_TEMPLATES[what], nl=False)


# --- entry -------------------------------------------------------------------------------------


def add(
    files: Annotated[
        list[str], arg("FILE", "Entries: YAML, or CSV tables of bring-ups and quotas.", show_default=False)
    ],
    recipes: Annotated[
        str, opt("FILE", "The recipes that the entries name. A cluster keeps the recipe that it begins with.")
    ],
    dry_run: Annotated[bool, flag("--dry-run", "Check the entries and show them; enter nothing.")] = False,
    reason: ReasonOption = "",
    emergency: Alone = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Enter clusters to build. Each then goes on by itself until a step that people do by hand is due.

    An entry describes one cluster to build; a recipe has the steps that build it and the checks that validate it
    (docs/bringup.md). All of the files are checked first. A cluster that is in the fleet or being built already is
    refused (unless Temporal has lost its bring-up, which then goes on); the others are entered, and the exit code
    is 3.
    """
    from cli.json_answers_bringup import BringupsEnteredAnswer
    from client.inputs.bringups import read_entries, read_recipes
    from models.bringup.messages import BringupStart

    recipe_file = read_recipes(recipes)
    entries = read_entries(files, recipe_file)
    if dry_run:
        from cli.output import show
        from views.recipe import entries_parts
        from views.words import line

        parts = entries_parts(entries, recipe_file.recipes)
        show(*parts, line("Nothing was entered. To enter these clusters, leave --dry-run out."))
        return
    person = actor_of(actor)
    by_name = {recipe.name: recipe for recipe in recipe_file.recipes}
    starts = [
        check_model(BringupStart, entry=e, recipe=by_name[e.recipe], actor=person, reason=reason) for e in entries
    ]
    answers = ask(person, lambda door: _enter_each(door, starts))
    begun = {answer.cluster for answer in answers if answer.begun}

    def parts_shown() -> list[RenderableType]:
        from views.recipe import unanswered_checks
        from views.words import line

        entered = [entry for entry in entries if entry.cluster in begun]
        return [*_entered_parts(answers), *map(line, unanswered_checks(entered, recipe_file.recipes))]

    tell(BringupsEnteredAnswer(entered=tuple(answers)), parts_shown, as_json=as_json)
    if any(not answer.begun for answer in answers):
        raise typer.Exit(3)


async def _enter_each(door: Backstop, starts: list[BringupStart]) -> list[BringupAnswer]:
    """Enter each bring-up, one after the other; a refused one does not stop the others."""
    from cli.output import progress
    from models.bringup.messages import BringupAnswer

    answers = []
    with progress("entered", len(starts)) as at:
        for done, start in enumerate(starts, start=1):
            try:
                answers.append(await door.bring_up(start))
            except Refusal as refused:
                answers.append(BringupAnswer(begun=False, cluster=start.entry.cluster, reason=refused.message))
            at(done, len(starts))
    return answers


def _entered_parts(answers: list[BringupAnswer]) -> list[RenderableType]:
    """Return what was entered. Errors: Refusal if the only one was refused."""
    import shlex

    from models.bringup.undo_lines import undo_of_entry
    from views.words import count, line, row, table

    if len(answers) == 1:
        (one,) = answers
        if not one.begun:
            raise Refusal(one.reason)
        status_of = f"backstop bringup status {shlex.quote(one.cluster)}"
        entered = f"The bring-up of {one.cluster} has begun and goes on by itself: {status_of}"
        return [line(entered), line(undo_of_entry(one.cluster))]
    rows = table("CLUSTER", "~RESULT")
    for one in answers:
        row(rows, one.cluster, "entered" if one.begun else f"refused: {one.reason}")
    begun = [one.cluster for one in answers if one.begun]
    parts: list[RenderableType] = [
        rows,
        line(f"{len(begun)} of {count(len(answers), 'bring-up')} entered: backstop bringup status"),
    ]
    if begun:
        parts.append(line(undo_of_entry("CLUSTER") + ", for each"))
    return parts


# --- looking -----------------------------------------------------------------------------------


@listed
def status(
    cluster: ClusterOrAll = "",
    ended: Annotated[bool, flag("--all", "Show ended bring-ups too.")] = False,
    *,
    how: Listing,
    actor: Actor = "",
) -> None:
    """Show all bring-ups by state, or one as a graph with each step's log, duration and runs."""
    if cluster:
        from views.bringup import status_parts

        how.of_one("CLUSTER")

        async def of_one(door: Backstop) -> tuple[BringupStatus, list[str]]:
            status = await door.bringup_status(cluster)
            return status, await or_nobody(door.who_could(status.needs, cluster)) if status.needs else []

        graph, could = ask(actor_of(actor), of_one)
        how.tell(lambda: graph, lambda: status_parts(graph, could), None)
        return
    from cli.json_answers_bringup import BringupsAnswer
    from models.bringup.messages import BringupRow
    from views.bringup import board_parts

    async def question(door: Backstop) -> tuple[BringupRow, ...]:
        from models.questions import BringupsOf

        return await door.ask(BringupsOf(ended=ended))

    rows = ask(actor_of(actor), question)
    chosen = how.rows(rows, BringupRow)
    how.tell(
        lambda: BringupsAnswer(bringups=tuple(chosen)),
        lambda: board_parts(chosen, datetime.now(UTC)),
        [one.cluster for one in chosen],
        (len(rows), "bring-up"),
    )


def watch(
    cluster: Cluster, once: Once = False, every: EverySeconds = "2", as_json: AsJson = False, actor: Actor = ""
) -> None:
    """Follow a bring-up until it is in production or has ended; in a pipe, one line for each change."""
    from cli.watching import follow_bringup

    seconds = number("--every", every, 0.1, 3600)
    ask(actor_of(actor), lambda door: follow_bringup(door, cluster, every=seconds, once=once, as_json=as_json))


def audit(cluster: Cluster, as_json: AsJson = False, actor: Actor = "") -> None:
    """Show what happened in a cluster's bring-ups: who did what, when, and why. It reads the ledger's archive."""
    from cli.commands.audit import tell_bringups

    tell_bringups(cluster, actor_of(actor), as_json=as_json)


# --- commands ----------------------------------------------------------------------------------


def give_up(
    cluster: Cluster,
    reason: NeededReason,
    yes: Yes = False,
    emergency: Alone = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """End a bring-up that Temporal has lost, in the ledger only. What it built stays.

    `backstop doctor` names such bring-ups. To continue one instead, with all that it built, add the same entry again.
    """
    from cli.json_answers_bringup import BringupsAnswer
    from views.words import line

    stands = (
        "Backstop does not undo what the bring-up built. To continue the bring-up instead, add "
        f"{cluster} again, with the same entry."
    )
    consent(f"Give up the bring-up of {cluster}?", lambda: (line(stands),), yes=yes, as_json=as_json)
    row = ask(actor_of(actor), lambda door: door.give_up_bringup(cluster, reason))
    shown = [
        line(f"{cluster}: its bring-up has ended in the ledger. What it built stays; Backstop does not manage it."),
        line(f"It cannot be undone. To bring {cluster} up again: backstop bringup add"),
    ]
    tell(BringupsAnswer(bringups=(row,)), lambda: shown, as_json=as_json)


def _give(order: TypedOrder) -> None:
    """Give a command; one that asks shows the bring-up's status first."""
    from cli.json_answers_bringup import BringupCommandedAnswer
    from cli.time_options import instant
    from models.bringup.commands import BringupOrder
    from models.bringup.stages import BringupCommand
    from views.bringup import status_parts
    from views.words import line

    person, cluster, fields = actor_of(order.actor), order.of, dict(order.fields)
    if "deadline" in fields:
        fields["deadline"] = (
            instant("--deadline", fields["deadline"], datetime.now(UTC)) if fields["deadline"] else None
        )
    if order.row.asks is Asks.STATUS:
        question = order.row.question_text(cluster=cluster, step=fields.get("step") or "what runs")
        consent(
            question,
            lambda: status_parts(ask(person, lambda door: door.bringup_status(cluster))),
            yes=order.yes,
            as_json=order.as_json,
        )
    request = check_model(BringupOrder, actor=person, reason=order.reason, **fields)
    answer = ask(person, lambda door: door.bringup_command(cluster, BringupCommand(order.row.name), request))
    shown = [line(f"{cluster}: {answer.said}."), line(answer.undo)]
    tell(BringupCommandedAnswer(cluster=cluster, **dict(answer)), lambda: shown, as_json=order.as_json)
