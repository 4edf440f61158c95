"""Runs a command and ends the process.

Exit codes: 0 done, 1 the operation failed, 2 bad input, 3 not allowed now. An error is one sentence on
standard error. Ctrl-C ends with 130, a closed pipe with 141, both without a word.

A command that is done flushes and leaves at once: Python's own way out may trip over Temporal's threads
(docs/temporal.md, "What bites"), and there is nothing left to tidy up. Slow imports are inside `run`, so that Ctrl-C is
quiet from the start.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from models.errors import BackstopError, BadFile, BadInput

if TYPE_CHECKING:
    import typer

FAILED, BAD_INPUT, NOT_ALLOWED, INTERRUPTED, PIPE_CLOSED = 1, 2, 3, 130, 141


def run(arguments: Sequence[str]) -> int:
    """Run one command, print everything, and return its exit code."""
    try:
        return _run_command(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run_command(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--version"]:  # shells and probes ask for it all day: nothing else is imported
        from importlib import metadata

        print(f"backstop {metadata.version('backstop')}")
        return 0
    import typer

    from cli.app import app

    try:
        _refuse_empty(arguments)
        ended = typer.main.get_command(app).main(args=list(arguments), prog_name="backstop", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        return _report_misuse(error)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        return _report_failure(error)
    return ended if isinstance(ended, int) else 0


def _report_failure(error: Exception) -> int:
    """Print one sentence for an error, never a traceback."""
    from cli.output import PipeClosed, complain

    if isinstance(error, PipeClosed | BrokenPipeError):
        return PIPE_CLOSED
    if isinstance(error, BackstopError):
        for sentence in error.sentences if isinstance(error, BadFile) else (error.message,):
            complain(sentence)
        from client.problems import exit_code

        return exit_code(error)
    complain(f"this should not have happened, and is a bug in Backstop: {type(error).__name__}: {error}")
    return FAILED


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse an empty value: a shell's unset variable must not read as an omitted option. Errors: BadInput."""
    for before, word in pairwise(("", *arguments)):
        option, sign, value = word.partition("=")
        name = before if not word else option if sign and not value else ""
        if name.startswith("--"):
            raise BadInput(f"{name} is empty: give it a value, or leave it out")


def _report_misuse(error: typer.TyperException) -> int:
    """Report wrong options in one sentence that names the help; without any argument print the help itself."""
    from cli.output import complain

    sentence = error.format_message().replace("Value error, ", "")  # of an option that takes one of some words
    sentence = re.sub(r"\s*\n\s*", " ", sentence)  # and of the words, which stand one below the other
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{sentence}\n" if sentence else "")
        return BAD_INPUT
    context = getattr(error, "ctx", None)
    path = "backstop" if context is None else context.command_path
    complain(f"{sentence.rstrip('.')} (see: {path} --help)")
    return BAD_INPUT


def main() -> NoReturn:
    """Run the console entry point."""
    gc.set_threshold(100_000)  # what is imported stays: to look it through again and again takes a tenth of a command
    if any(name.endswith("_COMPLETE") for name in os.environ):
        from cli import completion

        if completion.is_shell_asking():
            os._exit(completion.answer())
    import logging

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
