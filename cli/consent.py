"""Before what touches many or undoes: its consequence on the screen, and a person who says yes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from models.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: for scripts.")]


def consent(question: str, *consequence: RenderableType, yes: bool) -> None:
    """Returns where it may be done.

    Errors: BadInput where nobody can be asked and nobody said --yes; typer.Exit(1) for a no. Nothing has changed then.
    """
    from cli.output import line, show

    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput(f"{question} Nobody can be asked here, and nothing was changed: say --yes if that is meant")
    show(*consequence)
    if not typer.confirm(question):
        show(line("Nothing was changed."))
        raise typer.Exit(1)
