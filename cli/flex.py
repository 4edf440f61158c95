"""`backstop flex`: what is healthy and not promised, and how it is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import LOOK, AsJson, examples

if TYPE_CHECKING:
    from models.flex import Division, FlexDemand


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="What is healthy and not promised, and how it is shared.")
    group.command(
        "divide",
        epilog=examples(
            "backstop flex divide --file examples/flex.yaml",
            "backstop flex divide --file examples/flex.yaml --mode quota --json",
        ),
    )(divide)
    group.command(
        "simulate",
        epilog=examples(
            "backstop flex simulate examples/flex-story.yaml", "backstop flex simulate examples/flex-story.yaml --json"
        ),
    )(simulate)
    app.add_typer(group, name="flex", rich_help_panel=LOOK)


def divide(
    file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="What is divided among whom, as YAML or JSON (- is standard input).",
            show_default=False,
        ),
    ],
    mode: Annotated[
        str,
        typer.Option(metavar="MODE", help="equal, quota or weight: what flex is shared by, in place of the file's."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Divide GPUs fairly: what quotas promise first, then the rest.

    Nobody gets more than its demand or its limit, and nothing is left while somebody could use it. Nothing is changed.
    """
    from client.files import read_flex_demand
    from models.errors import BadInput
    from models.flex import Mode, division

    asked = read_flex_demand(file)
    if mode:
        if mode not in set(Mode):
            raise BadInput(f"--mode must be one of {', '.join(Mode)}, not {mode!r}")
        asked = asked.model_copy(update={"mode": Mode(mode)})
    _answer(asked, division(asked), as_json=as_json)


def simulate(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A cluster, its teams and what happens: YAML or JSON (- is standard input)."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Play jobs through on a cluster's quotas and flex: who runs, who waits, who gives back, after each step.

    Nothing is changed: it is a story, to see what a division comes to for jobs.
    """
    from cli.answers import FlexScenes
    from cli.flex_view import story_parts
    from cli.output import show, show_json
    from client.files import read_flex_story
    from models.flex_jobs import told

    scenes = told(read_flex_story(file))
    if as_json:
        show_json(FlexScenes(steps=scenes).model_dump(mode="json"))
    else:
        show(*story_parts(scenes))


def _answer(asked: FlexDemand, found: Division, *, as_json: bool) -> None:
    from cli.answers import FlexShares
    from cli.flex_view import parts
    from cli.output import show, show_json

    if as_json:
        show_json(FlexShares.of(found).model_dump(mode="json"))
    else:
        show(*parts(asked, found))
