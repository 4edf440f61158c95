"""`backstop bringup`: clusters from an order to production."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import SET_UP, AsJson, examples
from models.errors import BadInput

RecipesFile = Annotated[
    str, typer.Argument(metavar="FILE", help='A file of recipes; "-": standard input.', show_default=False)
]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Clusters from an order to production.")
    recipes = typer.Typer(no_args_is_help=True, help="Recipes: how clusters of one kind are made and validated.")
    recipes.command(
        "check",
        epilog=examples(
            "backstop bringup recipe check recipes.yaml",
            "backstop bringup recipe check recipes.yaml --entry entries.csv --entry quotas.csv",
        ),
    )(check)
    group.add_typer(recipes, name="recipe")
    group.command("template", epilog=examples("backstop bringup template bringups > bringups.csv"))(template_)
    app.add_typer(group, name="bringup", rich_help_panel=SET_UP)


def check(
    file: RecipesFile,
    entries: Annotated[
        list[str] | None,
        typer.Option(
            "--entry",
            metavar="FILE",
            help="Entries to check against the recipes: one YAML file, or tables of bringups and quotas as CSV.",
            show_default="none",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a file of recipes, and show what each would do. Nothing is started, and no server is asked.

    All faults are told at once, with their lines. What is shown: the steps in an order that they may take, what each
    waits for, what unmakes it, and what the worker's own settings must allow.
    """
    from client.inputs.bringups import read_entries, read_recipes

    recipes = read_recipes(file)
    clusters = read_entries(entries, recipes) if entries else ()
    if as_json:
        from cli.answers import RecipesAnswer
        from cli.output import show_json

        show_json(RecipesAnswer(recipes=tuple(recipes.recipes), entries=clusters).as_json())
        return
    from cli.output import show
    from cli.views.recipe import entries_parts, recipe_parts

    for recipe in recipes.recipes:
        show(*recipe_parts(recipe))
    show(*entries_parts(clusters))


def template_(
    what: Annotated[
        str, typer.Argument(metavar="TABLE", help="bringups, quotas (as CSV), or recipe (as YAML).", show_default=False)
    ],
) -> None:
    """Print a table or a recipe to fill in."""
    from client.inputs.bringups import TEMPLATES, template

    if what == "recipe":
        typer.echo((Path(__file__).parent.parent / "templates" / "recipe.yaml").read_text(), nl=False)
        return
    if what not in TEMPLATES:
        raise BadInput(f"TABLE must be {', '.join(TEMPLATES)} or recipe, not {what!r}")
    typer.echo(template(what), nl=False)
