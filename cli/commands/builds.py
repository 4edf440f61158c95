"""`backstop builds`: which build of the worker serves, and which still hold rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.list_options import Listing, listed
from cli.options import SET_UP, Actor, actor_of, arg, examples
from cli.session import ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from client.answer_models import Build


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Bring another build of the worker into service.")
    group.command("show", epilog=examples("backstop builds show"))(show_)
    group.command("use", epilog=examples("backstop builds use 2026-11-21.1"))(use)
    app.add_typer(group, name="builds", rich_help_panel=SET_UP)


@listed
def show_(*, how: Listing, actor: Actor = "") -> None:
    """Show the builds of versioned workers: which one is current, which have workers, and how many open rollouts
    still run on each.

    Stop a build's workers only when it is not current and no rollout runs on it.
    """
    from cli.json_answers import BuildsAnswer
    from client.answer_models import Build

    builds = ask(actor_of(actor), lambda door: door.builds())
    lines = how.rows(builds, Build)
    names = [one.build for one in lines]
    how.tell(lambda: BuildsAnswer(builds=tuple(lines)), lambda: _parts(lines), names, (len(builds), "build"))


def _parts(builds: Sequence[Build]) -> list[RenderableType]:
    from views.words import line, moment, row, table

    if not builds:
        return [line("No worker has a build name (BACKSTOP_BUILD_ID): rollouts run on the code of any running worker.")]
    rows = table("BUILD", "=STATUS", ">WORKERS", ">ROLLOUTS", "=SINCE", "~", least=["SINCE"])
    for build in builds:
        note, style = _note(build)
        row(rows, build.build, build.status, build.workers, build.rollouts, moment(build.created), note, style=style)
    return [rows]


def use(
    build: Annotated[str, arg("BUILD", "The build's name: its workers' BACKSTOP_BUILD_ID.")], actor: Actor = ""
) -> None:
    """Make this build the current one. Each open rollout moves to it by itself, when it next does anything; see
    `builds show`.

    A worker of the build must be running. To go back, use the earlier build.
    """
    from cli.output import show
    from views.words import line

    before = ask(actor_of(actor), lambda door: door.use_build(build))
    show(
        line(
            ("Serving", "bold"),
            f" build {build}; until now: {before or 'none'}. Keep the workers of other builds running until",
        )
    )
    show(line("`backstop builds show` lists no rollout for them."))


def _note(build: Build) -> tuple[str, str]:
    if build.is_stranded:
        return "its rollouts wait for a worker: start one of this build", "red"
    if build.status != "current" and build.workers and not build.rollouts:
        return "its workers may be stopped", ""
    return "", ""
