"""A group of commands that imports each command's module only when that command runs.

Importing all commands took half a second, for which `--version`, `--help` and each Tab would wait. So the texts of
their lists are in a file (cli/commands.json), which `make docs` writes from the modules; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from cli.options import examples


class Listed(NamedTuple):
    """The text of a command or group in lists, and its module in cli/commands."""

    module: str
    panel: str
    help: str


class LazyGroup(TyperGroup):
    """A group whose lists, completion and "did you mean" use the table; a command that runs comes from its module."""

    table: ClassVar[Mapping[str, Listed]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Loading(self.table)  # type: ignore[assignment]  # nobody adds to it

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return the command as lists show it; `resolve_command` returns the real one."""
        listed = self.table.get(cmd_name)
        return listed and TyperCommand(cmd_name, help=listed.help, rich_help_panel=listed.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if listed is None else self.commands[str(name)], rest


class _Loading(Mapping[str, Any]):
    """A mapping of commands by name that imports each one when it is read."""

    def __init__(self, table: Mapping[str, Listed]) -> None:
        self._table = table

    def __getitem__(self, name: str) -> Any:
        return commands_of(self._table[name].module)[name]

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


_FunctionT = TypeVar("_FunctionT", bound=Callable[..., None])
_DECORATED: dict[str, list[tuple[Callable[..., None], dict[str, Any]]]] = {}
"""The commands outside groups, by the full name of their module, each with Typer's settings for it."""


def command(panel: str, *lines: str, **more: Any) -> Callable[[_FunctionT], _FunctionT]:
    """Return a decorator for a command. `panel`: in the list of commands; `lines`: examples of it."""

    def note(function: _FunctionT) -> _FunctionT:
        about = {"epilog": examples(*lines), "rich_help_panel": panel, **more}
        _DECORATED.setdefault(function.__module__, []).append((function, about))
        return function

    return note


@cache
def commands_of(module: str) -> dict[str, Any]:
    """Return the commands and groups that a module of cli/commands has, by name."""
    one = typer.Typer(add_completion=False)
    its = import_module(f"cli.commands.{module}")
    for function, about in _DECORATED.get(its.__name__, ()):
        one.command(**about)(function)
    if hasattr(its, "add_to"):
        its.add_to(one)
    commands = dict(typer.main.get_group(one).commands)
    for command in commands.values():
        _flow(command)
    return commands


def _flow(command: Any) -> None:
    """Join the lines of each paragraph of the command's help, and of its own commands'.

    Typer keeps the source's line breaks after the first paragraph, and breaks lines longer than the terminal again.
    """
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n")) or None
    for own in getattr(command, "commands", {}).values():
        _flow(own)
