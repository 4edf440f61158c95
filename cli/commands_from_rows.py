"""Makes a typer command of each row of models/lifecycle/command_rows.py: arguments, options, help and examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from cli.consent import Yes
from cli.options import Actor, Alone, AsJson, NeededReason, ReasonOption, examples
from cli.selection import Selection, on_selected
from models.lifecycle.command_rows import Asks, CommandField, CommandRow

_NEEDED = inspect.Parameter.empty


class TypedOrder(NamedTuple):
    """A command as a person typed it."""

    row: CommandRow
    of: Any
    """The command's target: clusters or a request; None: the fleet rollout."""
    fields: Mapping[str, Any]
    """The fields of the request, besides the actor and the reason."""
    actor: str
    reason: str
    yes: bool
    as_json: bool


def command_of(row: CommandRow, give: Callable[[TypedOrder], None], of: Any = None) -> Callable[..., None]:
    """Return a function that typer makes a command of."""

    def run(*, of: Any = None, emergency: bool = False, yes: bool = False, **typed: Any) -> None:
        reason, as_json, actor = (typed.pop(name) for name in ("reason", "as_json", "actor"))
        give(TypedOrder(row, of, typed, actor, reason, yes, as_json))

    parameters = [
        *([_parameter("of", of)] if of is not None else []),
        *(_parameter(field.name, *_type_of(field)) for field in row.fields),
        _parameter("reason", NeededReason) if row.needs_reason else _parameter("reason", ReasonOption, ""),
        *([_parameter("yes", Yes, False)] if row.asks is not Asks.NEVER else []),
        *([_parameter("emergency", Alone, False)] if row.by_two else []),
        _parameter("as_json", AsJson, False),
        _parameter("actor", Actor, ""),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Typer reads it
    run.__doc__ = row.help
    return run


def add_orders(
    group: typer.Typer, rows: Mapping[str, CommandRow], give: Callable[[TypedOrder], None], of: Any = None
) -> None:
    """Add a command for each row. `of`: the type of the argument that names the rollouts or the request."""
    for row in rows.values():
        command = command_of(row, give, of)
        add = group.command(row.name, epilog=examples(*row.examples.splitlines()), rich_help_panel=row.panel or None)
        add(on_selected(command) if of is Selection else command)


def _parameter(name: str, annotation: Any, default: Any = _NEEDED) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _type_of(field: CommandField) -> tuple[Any, Any]:
    shown: Any = field.otherwise or not field.needed
    option = f"--{field.option or field.name}"
    if not field.metavar:
        return Annotated[bool, typer.Option(option, help=field.help)], False
    about = {"metavar": field.metavar, "help": field.help, "show_default": shown}
    info = typer.Argument(**about) if field.argument else typer.Option(option, **about)
    return Annotated[list[str] if field.many else str, info], _NEEDED if field.needed else ""
