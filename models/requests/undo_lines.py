"""The undo of a request and of each command to it: one line, as people type it, or the reason there is none."""

from __future__ import annotations

from collections.abc import Callable

from models.lifecycle.command_rows import NEVER, REASON
from models.requests.command_rows import REQUEST_ROWS
from models.requests.commands import FOR_GOOD, RequestCommand
from models.requests.state import RequestStage, RequestState


def request_undo_line(state: RequestState, command: RequestCommand) -> str:
    """Return the line that undoes the command just obeyed."""
    return REQUEST_ROWS[command].undo_line(REQUEST_UNDO, state, request=state.ask.request)


def undo_of_ask(state: RequestState) -> str:
    """Return the line that undoes the request in its present stage; empty if nothing came of it."""
    ask = state.ask
    match state.stage:
        case RequestStage.REFUSED:
            return ""
        case RequestStage.GRANTED if state.has_ended:
            return f"{NEVER}: {FOR_GOOD}."
        case RequestStage.ASKED | RequestStage.APPROVED | RequestStage.GRANTED:
            return f"Undo: backstop request withdraw {ask.request} {REASON}"
        case _:
            again = ask.line(ask.gpus, "'...'")
            return f"{NEVER}; to ask anew: {again} {REASON}"


REQUEST_UNDO: dict[RequestCommand, Callable[[RequestState], str]] = dict.fromkeys(
    (RequestCommand.APPROVE, RequestCommand.DECLINE, RequestCommand.WITHDRAW), undo_of_ask
)
