"""A table of commands as a workflow's updates: one handler and one validator for all of them.

    @workflow.defn(...)
    @takes_commands(Command, CommandRequest)
    class ClusterRollout(...): it has `_check`, `_obey` and `_tickets`

Each update has its command's name and takes one request. `_check` is the validator: an error that it raises refuses the
command, and history has nothing of it. `_obey` answers, at once or as a coroutine. A command with a ticket is first
admitted into the ledger, and checked again after that. A client takes back a command that no worker has taken up by a
signal, which reaches the workflow before the command does. The class has the handlers: made for each run, they would
cost it 10 kB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import isawaitable
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from models.base import Model
    from models.temporal_names import TAKE_BACK_SIGNAL
    from workflows.ticket_admission import is_signed, update_id

_Workflow = TypeVar("_Workflow")


def takes_commands(commands: Iterable[str], request: type[Model]) -> Callable[[type[_Workflow]], type[_Workflow]]:
    """Make every command an update of the workflow that is decorated."""

    def decorate(taker: type[_Workflow]) -> type[_Workflow]:
        handlers = {f"_take_{command}": _update(command, request) for command in commands}
        for name, handler in {"_take_back": _take_back, **handlers}.items():
            setattr(taker, name, handler)
        return taker

    return decorate


@workflow.signal(name=TAKE_BACK_SIGNAL)
def _take_back(self: Any, update: str = "") -> None:
    self._tickets.taken_back.append(update)


def _update(command: str, request: type[Model]) -> Callable[..., object]:
    async def run(self: Any, message: Model) -> object:
        answer = self._obey(command, message)
        return await answer if isawaitable(answer) else answer

    async def handler(self: Any, message: Model) -> object:
        if not is_signed(message):
            return await run(self, message)
        return await self._tickets.admit_and_obey(
            command, message, lambda: self._check(command, message), lambda: run(self, message)
        )

    def validator(self: Any, message: Model) -> None:
        if update_id() in self._tickets.taken_back:
            why = f"{command} was taken back before a worker took it up"
            raise ApplicationError(why, type="Refusal", non_retryable=True)
        self._tickets.check(message)
        self._check(command, message)

    # The type that Temporal reads, and that the converter checks.
    handler.__annotations__ = validator.__annotations__ = {"message": request}
    update = workflow.update(name=str(command))(handler)
    update.validator(validator)
    return update
