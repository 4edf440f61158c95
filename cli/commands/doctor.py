"""`backstop doctor`: what is well, what is not, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cli.options import SET_UP, Actor, AsJson, examples, who
from cli.session import ask
from models.errors import Unavailable

if TYPE_CHECKING:
    from cli.answers import CheckLine


def add_to(app: typer.Typer) -> None:
    app.command(epilog=examples("backstop doctor", "backstop doctor --json"), rich_help_panel=SET_UP)(doctor)


def doctor(as_json: AsJson = False, actor: Actor = "") -> None:
    """Check the installation: Temporal, its namespace and search attributes, workers, the watch, the ledger.

    Ends with 1 when something is not well.
    """
    from cli.answers import DoctorAnswer
    from cli.output import row, show, show_json, table

    checks = _checks(who(actor))
    well = all(check.ok for check in checks)
    if as_json:
        show_json(DoctorAnswer(well=well, checks=tuple(checks)).as_json())
    else:
        rows = table("=CHECK", "=", "~FOUND", "~WHAT TO DO")
        for check in checks:
            row(
                rows,
                check.name,
                "ok" if check.ok else "NOT OK",
                check.text,
                check.remedy or None,
                style="" if check.ok else "red",
            )
        show(rows)
    if not well:
        raise typer.Exit(1)


def _checks(actor: str) -> list[CheckLine]:
    from cli.answers import CheckLine

    try:
        checks = ask(actor, lambda door: door.doctor())
    except Unavailable as error:
        what, _, remedy = error.message.partition(": ")
        return [CheckLine(name="temporal", ok=False, text=what, remedy=remedy)]
    return [CheckLine.model_validate(check.model_dump()) for check in checks]
