"""Which commands there are."""

from __future__ import annotations

import os
from importlib import metadata
from typing import Annotated

import typer

from cli.commands import (
    audit,
    backtest,
    buffer,
    builds,
    burndown,
    calendar,
    confirm,
    detach,
    doctor,
    fleet,
    flex,
    haircut,
    launch,
    milestones,
    plan,
    processes,
    report,
    request,
    rollout_commands,
    schemas,
    simulate_health,
    status,
    watch,
    why,
)

app = typer.Typer(
    name="backstop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the operation failed, 2 bad input, 3 not allowed now. docs/commands.md has it all.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"backstop {metadata.version('backstop')}")
        raise typer.Exit


@app.callback()
def backstop(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version and end.")
    ] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print this command's OpenTelemetry spans.")] = False,
) -> None:
    """Make GPU quota a promise that hardware keeps: durable, reversible rollouts of backed quotas."""
    if trace:  # read by client.telemetry; `up` and `worker` inherit it
        os.environ["BACKSTOP_TRACE"] = "console"


# In the order of the help.
for module in (
    processes,
    doctor,
    fleet,
    detach,
    builds,
    plan,
    haircut,
    buffer,
    backtest,
    simulate_health,
    flex,
    why,
    launch,
    status,
    watch,
    burndown,
    report,
    milestones,
    calendar,
    audit,
    schemas,
    rollout_commands,
    confirm,
    request,
):
    module.add_to(app)
