"""Which commands there are, in the order of the help."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar

import typer

from cli.lazy import LazyGroup, Listed
from cli.options import DECIDE, HALT, LOOK, ROLL_OUT, SET_UP


class Commands(LazyGroup):
    """What each list says is the first paragraph of the command's own help: tests/unit/test_cli_lazy.py."""

    table: ClassVar[Mapping[str, Listed]] = {
        "up": Listed(
            "processes",
            SET_UP,
            "Run everything on this machine: Temporal with its UI, the ledger and a worker, until Ctrl-C.",
        ),
        "worker": Listed("processes", SET_UP, "Run a worker for the configured Temporal, until Ctrl-C."),
        "serve": Listed("processes", SET_UP, "Run a front: the HTTP API, which knows who commands, until Ctrl-C."),
        "login": Listed(
            "login", SET_UP, "Log in to the front that BACKSTOP_URL names: say yes in a browser, on any machine."
        ),
        "open": Listed("login", SET_UP, "Open the console in a browser, by a link that knows who you are."),
        "logout": Listed("login", SET_UP, "Forget the login: nothing of it is kept on this machine any more."),
        "whoami": Listed("login", SET_UP, "Say who one is, to whom, and how that is proven."),
        "migrate": Listed(
            "processes", SET_UP, "Bring the ledger's schema up to date, or copy a whole ledger to PostgreSQL."
        ),
        "backup": Listed(
            "processes",
            SET_UP,
            "Copy what `backstop up` keeps, while it runs: Temporal's database, the ledger, notices and public keys.",
        ),
        "demo": Listed(
            "processes", SET_UP, "Show a whole rollout in about two minutes: failure, rollback, recovery, retry, audit."
        ),
        "doctor": Listed(
            "doctor",
            SET_UP,
            "Check the installation: Temporal, its namespace and search attributes, workers, the watch, the ledger.",
        ),
        "detach": Listed(
            "detach",
            SET_UP,
            "Take Backstop out of a cluster's Slurm. "
            "What bounds others there goes; limits of teams stay, or are restored.",
        ),
        "plan": Listed(
            "plan", LOOK, "Show what a rollout would do: who gives how many GPUs, from which tier, and why."
        ),
        "haircut": Listed(
            "haircut",
            LOOK,
            "Show what a buffer would really cost: how many GPUs are cut at 5, 10, 15 and 20 %, and what they were.",
        ),
        "buffer": Listed(
            "buffer", LOOK, "Show what can honestly be promised of a cluster for the coming weeks, and what it costs."
        ),
        "backtest": Listed(
            "backtest",
            LOOK,
            "Show what each buffer policy would have promised and kept on a health history, decided week by week.",
        ),
        "simulate-health": Listed(
            "simulate_health",
            LOOK,
            "Write a made-up health history: failures, repairs with a heavy tail, bursts, waves, lemons and racks.",
        ),
        "why": Listed(
            "why",
            LOOK,
            "Say why a team cannot use its quota: what could start now, and what keeps the rest; "
            "with --all every reason.",
        ),
        "mcp": Listed(
            "mcp",
            LOOK,
            "Serve agents over the Model Context Protocol: they read, and ask for quota; they approve nothing.",
        ),
        "launch": Listed(
            "launch",
            ROLL_OUT,
            "Open a rollout, or with --fleet, --wave or --pilot that of a fleet: plan it and wait for an approval.",
        ),
        "status": Listed("status", LOOK, "Show where rollouts stand: the fleet on one screen, or one in full."),
        "watch": Listed("watch", LOOK, "Follow a rollout live until it ends; in a pipe, one line for each change."),
        "burndown": Listed(
            "burndown", LOOK, "Show how phantom GPUs burn down: promised, healthy and phantom over time."
        ),
        "report": Listed(
            "report",
            LOOK,
            "Write the weekly status: done, next, at risk, blocked and by whom, milestones, and whether it helped.",
        ),
        "hold": Listed(
            "calendar",
            HALT,
            "Declare a maintenance window, an incident (SEV) or a freeze: gates stay shut while it lasts.",
        ),
        "audit": Listed("audit", LOOK, "Tell what happened to a cluster: who did what, when, and why."),
        "docs": Listed("docs", LOOK, "Print a page of the documentation, as help texts and errors name it."),
        "schema": Listed("schemas", LOOK, "Print the JSON Schema of the fleet file or of a JSON answer."),
        "approve": Listed(
            "rollout_commands", DECIDE, "Approve a plan. Teams are told, and the rollout goes on by itself."
        ),
        "ack": Listed("rollout_commands", DECIDE, "Acknowledge the notice for a team."),
        "object": Listed(
            "rollout_commands",
            DECIDE,
            "Object for a team. Until the rollout is enforced this holds it; later it is recorded and answered.",
        ),
        "resolve": Listed(
            "rollout_commands",
            DECIDE,
            "Lift an objection or another hold.",
        ),
        "promote": Listed(
            "rollout_commands",
            DECIDE,
            "Waive what is left of this gate's notice, soak and acknowledgements. Nothing else is waived.",
        ),
        "pause": Listed(
            "rollout_commands", HALT, "Keep gates shut. Effects under way finish, and rollbacks still run."
        ),
        "resume": Listed("rollout_commands", HALT, "Lift a pause."),
        "rollback": Listed(
            "rollout_commands", HALT, "Undo every effect, back to the baseline. The rollout stays open for a retry."
        ),
        "retry": Listed(
            "rollout_commands", HALT, "Start the next attempt after a rollback, or run what is left of a stuck one."
        ),
        "abort": Listed("rollout_commands", HALT, "Undo every effect and end the rollout."),
        "close": Listed(
            "rollout_commands",
            HALT,
            "End a rollout and its promise, and leave the values as they are. At risk or stuck it needs a reason.",
        ),
        "confirm": Listed(
            "confirm",
            DECIDE,
            "Confirm what a health source says of all its clusters, which fell together and are not believed.",
        ),
        "fleet": Listed("fleet", SET_UP, "Import the fleet, show it, and say how its rollout goes on."),
        "builds": Listed("builds", SET_UP, "Bring another build of the worker into service."),
        "keys": Listed("keys", SET_UP, "Keys of tickets, and of what Temporal keeps."),
        "access": Listed("access", SET_UP, "Who may do what: roles, second persons and tokens."),
        "flex": Listed("flex", LOOK, "What is healthy and not promised, and how it is shared."),
        "milestones": Listed("milestones", LOOK, "Milestones of the plan."),
        "calendar": Listed("calendar", LOOK, "Maintenance windows, incidents and freezes."),
        "bringup": Listed("bringup", SET_UP, "Clusters from an order to production."),
        "countersign": Listed("countersign", DECIDE, "Give, as the second person, what somebody else has given."),
        "request": Listed("request", DECIDE, "Ask for more quota, and decide on what is asked for."),
    }


app = typer.Typer(
    name="backstop",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the operation failed, 2 bad input, 3 not allowed now. docs/commands.md has it all.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

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
