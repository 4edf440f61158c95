"""Commands to one rollout or several, from the rows of models/rollout/command_rows.py."""

from __future__ import annotations

import typer

from cli.commands_from_rows import add_orders
from cli.selection import Selection
from cli.send_command import give
from models.rollout.command_rows import ROLLOUT_ROWS


def add_to(app: typer.Typer) -> None:
    add_orders(app, ROLLOUT_ROWS, give, Selection)
