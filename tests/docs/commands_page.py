"""docs/commands.md: the command line's own description, below an introduction that people write.

`python -m tests.docs.commands_page docs/commands.md` (`make docs`) writes it again; a test fails when that is needed.
The text comes from the commands' own objects and nothing from a terminal, so the page is the same on every machine.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from models.bringup.command_rows import BRINGUP_ROWS
from models.fleet.command_rows import FLEET_ROWS
from models.requests.command_rows import REQUEST_ROWS
from models.rollout.command_rows import ROLLOUT_ROWS

_MANY = 3
"""An argument or option that so many commands take, in the same words, is explained once."""
_ROLLOUT = ", ".join(row.command_words for row in ROLLOUT_ROWS.values())
_BRINGUP = ", ".join(row.command_words for row in BRINGUP_ROWS.values())
_REQUEST = ", ".join(row.command_words for row in REQUEST_ROWS.values())
_FLEET = ", ".join(row.command_words for row in FLEET_ROWS.values())
ANSWERED_BY = {
    "access": "access show",
    "access-can": "access can",
    "access-import": "access import",
    "access-recovered": "access recover",
    "access-seen": "access seen",
    "access-token": "access token new, access token revoke",
    "access-tokens": "access token list",
    "access-who-can": "access who-can",
    "adopted": "launch",
    "archive": "audit, bringup audit",
    "audit": "audit",
    "backtest": "backtest",
    "bringup-command": _BRINGUP,
    "bringup-status": "bringup status, bringup watch",
    "bringups": "bringup status, bringup give-up",
    "bringups-entered": "bringup add",
    "buffer": "buffer",
    "builds": "builds show",
    "burndown": "burndown",
    "calendar": "hold, calendar show, calendar import, calendar end",
    "chain": "audit",
    "chains": "audit",
    "clusters": "fleet show",
    "command": _ROLLOUT,
    "commands": _ROLLOUT,
    "confirm": "confirm",
    "countersign": "countersign give",
    "countersign-list": "countersign list",
    "countersign-withdrawn": "countersign withdraw",
    "detach": "detach",
    "doctor": "doctor",
    "fleet-command": _FLEET,
    "fleet-diff": "fleet diff",
    "fleet-plan": "launch",
    "fleet-plan-file": "fleet plan",
    "fleet-status": "fleet status, fleet watch",
    "fleet-undone": "fleet remove, fleet rename",
    "flex": "flex show",
    "flex-scenes": "flex simulate",
    "flex-shares": "flex divide",
    "haircut": "haircut",
    "import": "fleet import",
    "keys": "keys show",
    "launch": "launch",
    "launches": "launch",
    "milestones": "milestones set, milestones note, milestones show",
    "payload-keys": "keys payload show",
    "plan": "plan",
    "plans": "plan",
    "recipes": "bringup recipe check",
    "report": "report",
    "request": f"request new, request show, {_REQUEST}",
    "requests": "request list",
    "rollouts": "status",
    "status": "status, watch",
    "whoami": "whoami",
    "why": "why",
}
"""By the name of a schema: the commands that answer with it, given --json."""


def commands_by_panel() -> dict[str, dict[str, Any]]:
    """Return every command by its whole name, under the headings of `backstop --help` and in its order."""
    from cli.app import app

    group: Any = typer.main.get_command(app)
    panels: dict[str, dict[str, Any]] = {}
    for name in group.list_commands(None):
        command = group.commands[name]
        panels.setdefault(command.rich_help_panel, {}).update(_leaves(name, command))
    return panels


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner in command.list_commands(None):
        yield from _leaves(f"{name} {inner}", command.commands[inner])


def generate_page() -> str:
    """Return the index, the options that many commands take, and each command."""
    panels = commands_by_panel()
    counts = Counter(_explain(p) for commands in panels.values() for c in commands.values() for p in c.params)
    shared = {line: None for line, count in counts.items() if count >= _MANY}
    parts = ["## Index", *(f"**{panel}**: {_index(commands)}." for panel, commands in panels.items())]
    parts += ["## What many commands take", _list(shared)]
    for panel, commands in panels.items():
        parts.append(f"## {panel}")
        for name, command in commands.items():
            parts += _section(name, command, shared)
    return "\n\n".join(parts)


def _index(names: Iterable[str]) -> str:
    """Return links, those of one group in brackets: `up, fleet (import, show)`."""
    entries = []
    for group, members in groupby(names, lambda name: name.rpartition(" ")[0]):
        links = ", ".join(f"[{name.rpartition(' ')[2]}](#{name.replace(' ', '-')})" for name in members)
        entries.append(f"{group} ({links})" if group else links)
    return ", ".join(entries)


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _section(name: str, command: Any, shared: Container[str]) -> Iterator[str]:
    arguments = [_spelling(p) for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join(["backstop", name, *arguments, *(_spelling(p) for p in options if p.required)])
    yield f"### {name}"
    examples = [line for line in command.epilog.split("\n\n")[1:] if line != usage]
    if usage != f"backstop {name}" or not examples:
        yield f"`{usage}`"
    yield command.help.split("\n\n")[0]
    if examples:
        yield "\n".join(f"    {line}" for line in examples)  # not below a list, which would take them in
    schemas = ", ".join(f"`backstop.{schema}/1`" for schema, names in ANSWERED_BY.items() if name in names.split(", "))
    also = [p.opts[0] for p in options if _explain(p) in shared and not p.required and p.opts[0] != "--actor"]
    named = [f"`--json` ({schemas})" if option == "--json" else f"`{option}`" for option in also]
    explained = [line for line in map(_explain, command.params) if line not in shared]
    if explained or named:
        yield _list([*explained, *([", ".join(named)] if named else [])])


def _explain(parameter: Any) -> str:
    """Return an argument or option and its help, in one line."""
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    shown = f" Default: {getattr(default, 'value', default)}." if default and default not in (True, "-") else ""
    return f"`{_spelling(parameter)}`: {parameter.help}{shown}"


def _spelling(parameter: Any) -> str:
    """Return the usage of a parameter: `[CLUSTER]...`, `-o, --output FORM`, `--yes`."""
    if parameter.param_type_name == "argument":
        many = "..." if parameter.nargs != 1 else ""
        name = parameter.metavar.removesuffix("...")
        return f"{name if parameter.required else f'[{name}]'}{many}"
    names = "|".join(sorted((*parameter.opts, *parameter.secondary_opts), key=len))
    if parameter.is_flag:
        return names
    return f"{names} {parameter.metavar or '|'.join(word.value for word in parameter.shell_complete(None, ''))}"


def with_commands(text: str) -> str:
    """Return the page with the part between `<!-- commands -->` and `<!-- end -->` made again."""
    return re.sub(
        r"(<!-- commands -->\n).*(<!-- end -->)",
        lambda m: f"{m[1]}\n{generate_page()}\n\n{m[2]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_commands(path.read_text(encoding="utf-8")), encoding="utf-8")
