"""A table of commands as a workflow's updates: one handler and one validator for all of them.

Called in the workflow's `__init__`, which runs before any message is delivered (`@workflow.init`):

    take_commands(Command, CommandRequest, check=self._check, obey=self._obey, tickets=self._tickets)

Each update has its command's name and takes one request. `check` is the validator: an error that it raises refuses the
command, and history has nothing of it. `obey` answers, at once or as a coroutine. With a book of `tickets` a command
that has one is first admitted into the ledger, and checked again after that. A client takes back a command that no
worker has taken up by a signal, which reaches the workflow before the command does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from inspect import isawaitable
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from models.base import Model
    from models.temporal_names import TAKE_BACK_SIGNAL
    from workflows.ticket_admission import TicketBook, is_signed, update_id

_Command = TypeVar("_Command", bound=str)
_Request = TypeVar("_Request", bound=Model)


def take_commands(
    commands: Iterable[_Command],
    request: type[_Request],
    *,
    check: Callable[[_Command, _Request], None],
    obey: Callable[[_Command, _Request], object],
    tickets: TicketBook,
) -> None:
    """Make every command an update of this workflow."""
    taken_back: deque[str] = deque(maxlen=100)

    def take_back(update: str = "") -> None:
        taken_back.append(update)

    workflow.set_signal_handler(TAKE_BACK_SIGNAL, take_back)

    def take(command: _Command) -> None:
        async def run(message: _Request) -> object:
            answer = obey(command, message)
            return await answer if isawaitable(answer) else answer

        async def handler(message: _Request) -> object:
            if not is_signed(message):
                return await run(message)
            return await tickets.admit_and_obey(command, message, lambda: check(command, message), lambda: run(message))

        def validator(message: _Request) -> None:
            if update_id() in taken_back:
                why = f"{command} was taken back before a worker took it up"
                raise ApplicationError(why, type="Refusal", non_retryable=True)
            tickets.check(message)
            check(command, message)

        handler.__annotations__ = {"message": request}  # the type that Temporal reads, and that the converter checks
        workflow.set_update_handler(str(command), handler, validator=validator)

    for command in commands:
        take(command)
