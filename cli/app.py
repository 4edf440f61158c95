"""All commands, in the order of the help."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar

import typer

from cli.lazy import LazyGroup, Listed
from cli.options import LOOK, ROLL_OUT, SET_UP, flag
from models.lifecycle.command_rows import DECIDE, HALT
from models.rollout.command_rows import ROLLOUT_ROWS


class Commands(LazyGroup):
    """The table of commands. Each text is the first paragraph of the command's help: tests/unit/test_cli_lazy.py."""

    table: ClassVar[Mapping[str, Listed]] = {
        "up": Listed(
            "processes",
            SET_UP,
            "Run all of Backstop on this machine until Ctrl-C: Temporal with its UI, the ledger, a worker and a front.",
        ),
        "worker": Listed("processes", SET_UP, "Run a worker for the configured Temporal, until Ctrl-C."),
        "serve": Listed("processes", SET_UP, "Run a front, the HTTP API that checks who calls, until Ctrl-C."),
        "login": Listed("login", SET_UP, "Log in to the front that BACKSTOP_URL names, in a browser on any machine."),
        "open": Listed("login", SET_UP, "Open the console in a browser, already logged in."),
        "logout": Listed("login", SET_UP, "Forget the login on this machine."),
        "whoami": Listed("login", SET_UP, "Show your name, your front, and how the front knows who you are."),
        "migrate": Listed(
            "processes", SET_UP, "Bring the ledger's schema up to date, or copy a whole ledger to PostgreSQL."
        ),
        "backup": Listed(
            "processes",
            SET_UP,
            "Copy what `backstop up` keeps, while it runs: Temporal's database, the ledger, notices and public keys.",
        ),
        "demo": Listed(
            "processes", SET_UP, "Show a whole rollout in about a minute: failure, rollback, recovery, retry, audit."
        ),
        "doctor": Listed(
            "doctor",
            SET_UP,
            "Check the installation: Temporal, its namespace and search attributes, workers, the watch (the "
            "workflow for which a worker reads all clusters' health) and the ledger.",
        ),
        "detach": Listed(
            "detach",
            SET_UP,
            "Take Backstop out of a cluster's Slurm, Git or Kueue. Teams' limits stay, or are restored with --restore.",
        ),
        "plan": Listed(
            "plan", LOOK, "Show what a rollout would do: who gives how many GPUs, from which tier, and why."
        ),
        "haircut": Listed(
            "haircut",
            LOOK,
            "Show what a buffer costs: how many GPUs are cut at 5, 10, 15 and 20 %, and how many of them are phantom.",
        ),
        "buffer": Listed(
            "buffer", LOOK, "Show how much of a cluster can be promised for the coming weeks, and what that costs."
        ),
        "backtest": Listed(
            "backtest",
            LOOK,
            "Show what each buffer policy would have promised and kept on a health history, week by week.",
        ),
        "simulate-health": Listed(
            "simulate_health",
            LOOK,
            "Write a made-up health history: failures, short and long repairs, failures in bursts and by rack, "
            "and nodes that fail again and again.",
        ),
        "why": Listed(
            "why",
            LOOK,
            "Show why a team cannot use its quota: what could start now, and what keeps the rest from starting.",
        ),
        "mcp": Listed(
            "mcp",
            LOOK,
            "Serve agents over the Model Context Protocol: they read, and ask for quota; they approve nothing.",
        ),
        "launch": Listed(
            "launch",
            ROLL_OUT,
            "Open a rollout, or with --fleet, --wave or --pilot a fleet rollout: plan it and wait for an approval.",
        ),
        "status": Listed("status", LOOK, "Show where rollouts are: the fleet on one screen, or one rollout in full."),
        "watch": Listed("watch", LOOK, "Follow a rollout live until it ends; in a pipe, one line for each change."),
        "burndown": Listed("burndown", LOOK, "Show promised, healthy and phantom GPUs over time."),
        "report": Listed(
            "report",
            LOOK,
            "Write the weekly status: done, next, at risk, blocked and by whom, milestones, and how much "
            "phantom quota has gone.",
        ),
        "hold": Listed(
            "calendar",
            HALT,
            "Declare a maintenance window, an incident (SEV) or a freeze: gates stay shut while it lasts.",
        ),
        "audit": Listed("audit", LOOK, "Show what happened to a cluster: who did what, when, and why."),
        "docs": Listed(
            "docs",
            LOOK,
            "Print a page of the documentation. NAME is what help texts and errors call it, such as docs/reading.md.",
        ),
        "schema": Listed("schemas", LOOK, "Print the JSON Schema of a file that people write, or of a JSON answer."),
        **{row.name: Listed("rollout_commands", row.panel, row.summary) for row in ROLLOUT_ROWS.values()},
        "confirm": Listed(
            "confirm", DECIDE, "Confirm that a health source is right about clusters whose health fell together."
        ),
        "fleet": Listed("fleet", ROLL_OUT, "Import the fleet, show it, and roll it out in waves."),
        "builds": Listed("builds", SET_UP, "Bring another build of the worker into service."),
        "keys": Listed("keys", SET_UP, "Keys that sign tickets and encrypt what Temporal keeps."),
        "access": Listed("access", SET_UP, "Say who may do what: roles, second persons and tokens."),
        "flex": Listed("flex", LOOK, "Healthy GPUs that quotas do not hold or do not use, and how teams share them."),
        "milestones": Listed("milestones", LOOK, "Milestones of the plan."),
        "calendar": Listed("calendar", LOOK, "Maintenance windows, incidents and freezes."),
        "bringup": Listed("bringup", ROLL_OUT, "Bring clusters from an order to production."),
        "countersign": Listed("countersign", DECIDE, "Countersign, as the second person, a command of somebody else."),
        "request": Listed("request", DECIDE, "Ask for more quota, and decide on requests."),
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
