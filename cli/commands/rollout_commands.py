"""Commands to a rollout, or to several: models/rollout/command_rows.py has them."""

from __future__ import annotations

import typer

from cli.commands_from_rows import add_orders
from cli.selection import Selection
from cli.send_command import give
from models.rollout.command_rows import ROLLOUT_ROWS


def add_to(app: typer.Typer) -> None:
    add_orders(app, ROLLOUT_ROWS, give, Selection)
