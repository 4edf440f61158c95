"""`backstop doctor`: checks of the installation, and what to do about those that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cli.lazy import command
from cli.list_options import Listing, listed
from cli.options import SET_UP, Actor, actor_of
from cli.session import ask
from models.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from client.answer_models import Check


@command(SET_UP, "backstop doctor", "backstop doctor --filter ok=false")
@listed
def doctor(*, how: Listing, actor: Actor = "") -> None:
    """Check the installation: Temporal, its namespace and search attributes, workers, the watch (the workflow
    for which a worker reads all clusters' health) and the ledger.

    Ends with 1 if something is wrong. docs/reading.md explains each check.
    """
    from cli.json_answers import DoctorAnswer
    from client.answer_models import Check

    all_checks = _checks(actor_of(actor))
    well = all(check.ok for check in all_checks)
    checks = how.rows(all_checks, Check)
    how.tell(
        lambda: DoctorAnswer(well=well, checks=tuple(checks)),
        lambda: _parts(checks),
        [check.name for check in checks],
        (len(all_checks), "check"),
    )
    if not well:
        raise typer.Exit(1)


def _parts(checks: Sequence[Check]) -> list[RenderableType]:
    from views.words import row, table

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
    return [rows]


def _checks(actor: str) -> list[Check]:
    from client.answer_models import Check

    try:
        return ask(actor, lambda door: door.doctor())
    except Unavailable as error:
        what, _, remedy = error.message.partition(": ")
        return [Check.bad("temporal", what, remedy)]
