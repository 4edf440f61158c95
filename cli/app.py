"""All commands, in the order of the help."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from cli.lazy import LazyGroup, Listed
from cli.options import flag


class Commands(LazyGroup):
    """The commands and groups. `make docs` writes commands.json from their modules."""

    table: ClassVar[Mapping[str, Listed]] = {
        name: Listed(*listed)
        for name, listed in json.loads(Path(__file__).with_name("commands.json").read_text(encoding="utf-8")).items()
    }


app = typer.Typer(
    name="backstop",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the operation failed, 2 bad input, 3 not allowed now. See docs/commands.md.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"backstop {metadata.version('backstop')}")
        raise typer.Exit


@app.callback()
def backstop(
    version: Annotated[bool, flag("--version", "Show the version and end.", is_eager=True, callback=_version)] = False,
    trace: Annotated[bool, flag("--trace", "Print this command's OpenTelemetry spans.")] = False,
) -> None:
    """Make GPU quota a promise that hardware keeps: durable, reversible rollouts of backed quotas."""
    if trace:  # read by client.telemetry; `up` and `worker` inherit it
        os.environ["BACKSTOP_TRACE"] = "console"
