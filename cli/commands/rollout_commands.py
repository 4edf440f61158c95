"""Commands to a rollout, or to several: models/rollout/command_rows.py has them."""

from __future__ import annotations

import typer

from cli.giving import approve, give
from cli.orders import add_order, command_of
from cli.selection import Selection, on_selected
from models.rollout.command_rows import ROLLOUT_ROWS


def add_to(app: typer.Typer) -> None:
    for row in ROLLOUT_ROWS.values():
        command = command_of(row, approve if row.name == "approve" else give, Selection)
        add_order(app, row, on_selected(command))
