"""A table of commands as a workflow's updates: one handler and one validator for all of them.

Called in the workflow's `__init__`, which runs before any message is delivered (`@workflow.init`):

    take_commands(Command, CommandRequest, check=self._check, obey=self._obey)

Each update has its command's name and takes one request. `check` is the validator: what it raises refuses the command,
and nothing of it stands in history. `obey` answers, at once or as a coroutine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import isawaitable
from typing import TypeVar

from temporalio import workflow

_Command = TypeVar("_Command", bound=str)
_Request = TypeVar("_Request")


def take_commands(
    commands: Iterable[_Command],
    request: type[_Request],
    *,
    check: Callable[[_Command, _Request], None],
    obey: Callable[[_Command, _Request], object],
) -> None:
    """Every command is an update of this workflow from now on."""

    def take(command: _Command) -> None:
        async def handler(given: _Request) -> object:
            answer = obey(command, given)
            return await answer if isawaitable(answer) else answer

        def validator(given: _Request) -> None:
            check(command, given)

        handler.__annotations__ = {"given": request}  # by it Temporal knows what to read, and the converter to refuse
        workflow.set_update_handler(str(command), handler, validator=validator)

    for command in commands:
        take(command)
