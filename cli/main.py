"""The command line: which commands there are, and how each of them ends.

Exit codes: 0 done, 1 the operation failed, 2 bad input, 3 not allowed now. An error is one sentence on
standard error. Ctrl-C ends with 130, a closed pipe with 141, and neither says a word.

A command that is done flushes and leaves at once: Python's own way out may trip over Temporal's threads
(TEMPORAL.md, "Bites"), and there is nothing left to tidy up.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, NoReturn

import typer

from cli import audit, decide, doctor, fleet, planning, processes, rollouts, schemas
from cli.output import PipeClosed, complain
from models.errors import BackstopError, BadInput, Refusal

FAILED, BAD_INPUT, NOT_ALLOWED, INTERRUPTED, PIPE_CLOSED = 1, 2, 3, 130, 141

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
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="Show it.")] = False,
) -> None:
    """Make GPU quota a promise that hardware keeps: durable, reversible rollouts of backed quotas."""


for module in (processes, doctor, fleet, planning, rollouts, audit, schemas, decide):
    module.add_to(app)


def run(arguments: Sequence[str]) -> int:
    """The exit code of one command, everything said."""
    try:
        ended = typer.main.get_command(app).main(args=list(arguments), prog_name="backstop", standalone_mode=False)
        sys.stdout.flush()
    except BackstopError as error:
        complain(error.message)
        return _code(error)
    except typer.TyperException as error:
        return _misused(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (PipeClosed, BrokenPipeError):
        return PIPE_CLOSED
    except Exception as error:  # a person gets a sentence, never a traceback
        complain(f"this should not have happened, and is a fault of Backstop's own: {type(error).__name__}: {error}")
        return FAILED
    return ended if isinstance(ended, int) else 0


def _code(error: BackstopError) -> int:
    if isinstance(error, BadInput):
        return BAD_INPUT
    return NOT_ALLOWED if isinstance(error, Refusal) else FAILED


def _misused(error: typer.TyperException) -> int:
    """Wrong options: one sentence, and where to read more. Without any argument: the help itself."""
    said = error.format_message()
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{said}\n" if said else "")
        return BAD_INPUT
    path = "backstop" if context is None else context.command_path
    complain(f"{said.rstrip('.')} (see: {path} --help)")
    return BAD_INPUT


def main() -> NoReturn:
    """The console entry."""
    logging.getLogger().addHandler(logging.NullHandler())  # what went wrong is said once, by `run`
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = PIPE_CLOSED
    os._exit(code)


if __name__ == "__main__":
    main()
