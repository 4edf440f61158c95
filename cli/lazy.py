"""A group of commands whose modules are imported when one of them is run, and not before.

To import all commands took half a second, which `--version`, `--help` and each Tab would wait for. So what their lists
say stands in a table (cli/app.py), and a test holds the table against the modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Listed(NamedTuple):
    """What lists say of a command or a group, and the module of cli/commands that has it."""

    module: str
    panel: str
    help: str


class LazyGroup(TyperGroup):
    """Lists, completion and "did you mean" go by the table; what is run is taken from its module."""

    table: ClassVar[Mapping[str, Listed]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Loading(self.table)  # type: ignore[assignment]  # nobody adds to it

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """As it is listed; `resolve_command` has the real one."""
        listed = self.table.get(cmd_name)
        return listed and TyperCommand(cmd_name, help=listed.help, rich_help_panel=listed.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if listed is None else self.commands[str(name)], rest


class _Loading(Mapping[str, Any]):
    """Each command by its name, imported when it is taken out."""

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


@cache
def commands_of(module: str) -> dict[str, Any]:
    """The commands and groups that a module of cli/commands adds, by name."""
    one = typer.Typer(add_completion=False)
    import_module(f"cli.commands.{module}").add_to(one)
    commands = dict(typer.main.get_group(one).commands)
    for command in commands.values():
        _flow(command)
    return commands


def _flow(command: Any) -> None:
    """Its help and that of its own commands has no line breaks but between paragraphs.

    The help keeps those of the source after the first paragraph, and breaks what is longer than a terminal once more.
    """
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n")) or None
    for own in getattr(command, "commands", {}).values():
        _flow(own)
