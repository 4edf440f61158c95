"""Commands, options and their values, as plain data: completion reads it in place of typer's objects."""

from __future__ import annotations

from typing import Any

import typer

from models.cluster.policy import Tier
from models.rollout.stages import Stage

_KINDS = {"CLUSTER": "clusters", "TEAM": "teams"}
"""The kind of names to complete, by the placeholder of the value in the help."""
_OPTIONS = {"--cluster": "clusters", "--pilot": "clusters", "--team": "teams", "--hold": "holds"}
_WORDS = {
    "STAGE": [stage.value for stage in Stage],
    "TIER": [tier.value for tier in Tier],
    "N|TIER": [tier.value for tier in Tier],
}


def make_tree() -> dict[str, Any]:
    """Return the tree of all commands."""
    from cli.app import app

    return _node(typer.main.get_command(app), ())


def _node(command: Any, path: tuple[str, ...]) -> dict[str, Any]:
    node: dict[str, Any] = {"help": _first_line(command.help), "options": {"--help": {}}, "arguments": []}
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            node["arguments"].append({**_takes(parameter, path), "many": parameter.nargs != 1 or parameter.multiple})
        else:
            for name in (*parameter.opts, *parameter.secondary_opts):
                takes = {} if parameter.is_flag else {"takes": True, **_takes(parameter, path)}
                node["options"][name] = {"help": _first_line(parameter.help), **takes}
    if hasattr(command, "list_commands"):
        commands = {name: command.commands[name] for name in command.list_commands(None)}  # a lazy one is imported here
        node["commands"] = {name: _node(one, (*path, name)) for name, one in commands.items()}
        node["otherwise"] = getattr(command, "otherwise", None)
    return node


def _takes(parameter: Any, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the words that an option or argument takes, or the kind of names."""
    metavar = (parameter.metavar or "").strip("[].")
    words = [item.value for item in parameter.shell_complete(None, "") if item.type == "plain"]
    if words:
        return {"words": words}
    if metavar in _WORDS:
        return {"words": _WORDS[metavar]}
    kind = _KINDS.get(metavar) or next((_OPTIONS[o] for o in parameter.opts if o in _OPTIONS), "")
    if metavar == "ID" and path[:1] == ("request",):
        kind = "requests"
    if metavar == "ID" and path == ("calendar", "end"):
        kind = "windows"
    return {"kind": kind} if kind else {}


def _first_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines() or [""]
    return lines[0]
