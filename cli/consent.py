"""Shows the impact of a command that undoes something or touches many clusters, and asks a person to agree."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import flag
from models.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

Yes = Annotated[bool, flag("--yes", "Do not ask for confirmation (for scripts).", "-y")]


def can_ask(*, as_json: bool = False) -> bool:
    """Return whether a person reads the screen and can answer. Nothing else may be printed beside JSON."""
    return not as_json and sys.stdin.isatty() and sys.stdout.isatty()


def consent(
    question: str, consequence: Callable[[], Sequence[RenderableType]], *, yes: bool, as_json: bool = False
) -> None:
    """Ask, and return if the person agrees. `consequence` is called only where somebody is asked.

    Errors: BadInput if nobody can be asked and --yes was not given; typer.Exit(1) for a no. Nothing has changed
    then.
    """
    if not yes:
        needs_somebody(question, as_json=as_json)
        show_and_ask(question, consequence())


def needs_somebody(question: str, *, as_json: bool = False) -> None:
    """Check that a person can be asked. Errors: BadInput if nobody can."""
    if not can_ask(as_json=as_json):
        raise BadInput(f"{question} There is no terminal to ask on, so nothing was changed: give --yes if you mean it")


def show_and_ask(question: str, parts: Sequence[RenderableType]) -> None:
    """Show the parts and ask. Errors: typer.Exit(1) for a no."""
    from cli.output import show
    from views.words import line

    show(*parts, line())
    if not typer.confirm(question):
        show(line("Nothing was changed."))
        raise typer.Exit(1)
