"""The page of one command: its help, its impact, and a form with an input for each field of its row."""

from __future__ import annotations

from typing import Any, NamedTuple

from models.lifecycle.command_rows import CommandRow, NeedsReason
from views.fleet_rollout import PACE_WORDS
from web.console.visit import Page


class Button(NamedTuple):
    """A command's button. `why_not`: why it is disabled, in a sentence; empty: it can be given."""

    command: str
    label: str
    does: str
    why_not: str


def button_of(row: CommandRow, why_not: str) -> Button:
    return Button(row.name, row.label, row.summary, why_not)


def command_page(
    row: CommandRow, of: str, back: tuple[str, str], action: str, *, failed: str = "", **values: Any
) -> Page:
    """Return the page. `of`: the command's target. `back`: path and name of the page before.

    `values`: the inputs' values. `typed` among them: the content of the inputs; `fixed`: a field that has no input
    here.
    """
    shown: dict[str, Any] = {
        "of": of,
        "back": back,
        "action": action,
        "failed": failed,
        "label": row.label,
        "does": row.summary,
        "pace_words": PACE_WORDS,
        "fields": [field.name for field in row.fields if field.name != values.get("fixed")],
        "needs_reason": row.reason is not NeedsReason.NEVER,
    }
    beside = {"consequence": [], "own": None, "typed": {}, **values}
    return Page("command.html", f"{row.label}: {of}", shown | beside, 409 if failed else 200)
