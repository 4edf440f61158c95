"""Every command of a lifecycle has one row, and every row a command, a right, an undo and a place in the docs."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

import pytest
import typer

from cli.app import app
from models.access.rights import RIGHTS
from models.base import Model
from models.bringup.command_rows import BRINGUP_ROWS
from models.bringup.commands import BringupOrder
from models.bringup.stages import BRINGUP_ANSWERS
from models.bringup.undo_lines import BRINGUP_UNDO
from models.fleet.command_rows import FLEET_ROWS
from models.fleet.commands import FLEET_COMMANDS, FleetCommandRequest
from models.fleet.undo_lines import FLEET_UNDO
from models.lifecycle.command_rows import Asks, CommandRow
from models.requests.command_rows import REQUEST_ROWS
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.undo_lines import REQUEST_UNDO
from models.rollout.command_rows import ROLLOUT_ROWS
from models.rollout.commands import CommandRequest
from models.rollout.stages import ANSWERS
from models.rollout.undo_lines import UNDO
from tests.docs.commands_page import ANSWERED_BY

COMMANDS_MD = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


class Core(NamedTuple):
    """One lifecycle: what its grid, or its type of commands, has beside the rows."""

    group: str
    rows: dict[str, CommandRow]
    commands: set[str]
    request: type[Model]
    undo: set[str]
    """Commands whose line is made of the state."""
    schema: str
    without_reason: set[str]


CORES = [
    Core(
        "",
        ROLLOUT_ROWS,
        {command.value for _, command in ANSWERS},
        CommandRequest,
        set(UNDO),
        "command",
        {"approve", "ack", "resume", "retry", "close"},
    ),
    Core(
        "bringup",
        BRINGUP_ROWS,
        {command.value for _, command in BRINGUP_ANSWERS},
        BringupOrder,
        set(BRINGUP_UNDO),
        "bringup-command",
        {"check-in", "release", "revalidate"},
    ),
    Core("request", REQUEST_ROWS, set(RequestCommand), RequestOrder, set(REQUEST_UNDO), "request", set()),
    Core("fleet", FLEET_ROWS, set(FLEET_COMMANDS), FleetCommandRequest, set(FLEET_UNDO), "fleet-command", {"approve"}),
]
FILE = "file"
"""`fleet approve FILE` reads the hash of a plan from it."""
ROWS = [pytest.param(core, row, id=row.key) for core in CORES for row in core.rows.values()]


def typed(words: str) -> Any:
    found: Any = typer.main.get_command(app)
    for word in words.split():
        found = found.commands[word]
    return found


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.schema)
def test_the_rows_are_the_commands_that_there_are(core: Core) -> None:
    assert set(core.rows) == core.commands
    assert {name for name, row in core.rows.items() if not row.undo} == core.undo
    assert {name for name, row in core.rows.items() if not row.needs_reason} == core.without_reason
    assert ANSWERED_BY[core.schema].split(", ")[-len(core.rows) :] == [row.command_words for row in core.rows.values()]


@pytest.mark.parametrize(("core", "row"), ROWS)
def test_each_row_is_a_command_with_a_right_and_a_place_in_the_docs(core: Core, row: CommandRow) -> None:
    words = f"{core.group} {row.name}".strip()
    assert row.command_words == words
    command = typed(words)
    assert command.help == row.help
    assert RIGHTS[row.key].to
    assert all(example.startswith(f"backstop {words}") for example in row.examples.splitlines())
    assert re.search(rf"^### {words}\n\n`backstop {words}.*\n\n{re.escape(row.summary)}$", COMMANDS_MD, re.MULTILINE)
    options = {option for parameter in command.params for option in parameter.opts}
    assert ("--yes" in options) is (row.asks is not Asks.NEVER)
    assert [p.required for p in command.params if p.name == "reason"] == [row.needs_reason]


@pytest.mark.parametrize(("core", "row"), ROWS)
def test_what_a_row_names_is_a_field_of_the_request(core: Core, row: CommandRow) -> None:
    names = {field.name for field in row.fields}
    assert names - {FILE} <= set(core.request.model_fields)
    for text, beside in (
        (row.question, {"label", "of", "cluster", "plan", "size", "also"}),
        (row.undo, {"cluster", "request"}),
    ):
        assert {name for _, name, _, _ in Formatter().parse(text) if name} <= names | beside


def test_a_second_person_is_offered_where_the_table_of_rights_wants_one() -> None:
    """`--emergency` acts without one: this is the table's own list, written out."""
    assert {core_row.key for core in CORES for core_row in core.rows.values() if core_row.by_two} == {
        *("rollout.approve", "rollout.resolve", "rollout.promote", "rollout.close"),
        *("bringup.skip", "bringup.retire"),
        *("request.approve", "request.decline", "request.extend"),
        *("fleet.approve", "fleet.skip", "fleet.move", "fleet.promote", "fleet.pace", "fleet.abort"),
    }
    for core in CORES:
        for row in core.rows.values():
            options = {option for parameter in typed(row.command_words).params for option in parameter.opts}
            assert ("--emergency" in options) is row.by_two
