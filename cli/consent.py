"""Before what touches many or undoes: its consequence on the screen, and a person who says yes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from models.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: for scripts.")]


def can_ask(*, as_json: bool = False) -> bool:
    """A person reads what is shown, and can answer. JSON is for programs: nothing else may stand beside it."""
    return not as_json and sys.stdin.isatty() and sys.stdout.isatty()


def consent(
    question: str, consequence: Callable[[], Sequence[RenderableType]], *, yes: bool, as_json: bool = False
) -> None:
    """Returns where it may be done. `consequence` is found out only where somebody is asked.

    Errors: BadInput where nobody can be asked and nobody said --yes; typer.Exit(1) for a no. Nothing has changed then.
    """
    if not yes:
        needs_somebody(question, as_json=as_json)
        shown_and_asked(question, consequence())


def needs_somebody(question: str, *, as_json: bool = False) -> None:
    """Errors: BadInput where nobody can be asked."""
    if not can_ask(as_json=as_json):
        raise BadInput(f"{question} There is no terminal to ask on, so nothing was changed: give --yes if you mean it")


def shown_and_asked(question: str, parts: Sequence[RenderableType]) -> None:
    """Errors: typer.Exit(1) for a no."""
    from cli.output import show
    from views.words import line

    show(*parts, line())
    if not typer.confirm(question):
        show(line("Nothing was changed."))
        raise typer.Exit(1)
