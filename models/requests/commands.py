"""Commands from people to a request: the reasons to refuse each, and the state after it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from models.access.principals import is_one_of
from models.access.tickets import warrant_in
from models.audit_chain import AuditKind
from models.base import Time
from models.lifecycle.command_base import Order
from models.lifecycle.state_machine import STAY as _STAY
from models.lifecycle.state_machine import Refused, answers_by_cell
from models.requests.command_rows import REQUEST_ROWS
from models.requests.state import RequestStage, RequestState, any_of

FOR_GOOD = (
    "a grant without an end is part of the quota: to lower the quota, use `backstop fleet import` once no rollout of "
    "the cluster is open"
)


class RequestCommand(StrEnum):
    APPROVE = "approve"
    DECLINE = "decline"
    WITHDRAW = "withdraw"
    EXTEND = "extend"


_ASKED, _APPROVED, _GRANTED = RequestStage.ASKED, RequestStage.APPROVED, RequestStage.GRANTED
_RETURNING, _DECLINED, _WITHDRAWN = RequestStage.RETURNING, RequestStage.DECLINED, RequestStage.WITHDRAWN
_DO = RequestCommand
_OVER = Refused("request {request} is {stage}: {said}")
_DECIDED = Refused("request {request} is {stage} already: {said}")
_NO_GRANT = Refused("request {request} is {stage}: only a grant can be extended")

# fmt: off
_COLUMNS =           (_ASKED,     _APPROVED,  _GRANTED,   _RETURNING)
_GRID: dict[tuple[RequestCommand, ...], tuple[RequestStage | Refused | None, ...]] = {
    (_DO.APPROVE,):  (_APPROVED,  _DECIDED,   _DECIDED,   _OVER),
    (_DO.DECLINE,):  (_DECLINED,  _DECIDED,   _DECIDED,   _OVER),
    (_DO.WITHDRAW,): (_WITHDRAWN, _WITHDRAWN, _RETURNING, _OVER),
    (_DO.EXTEND,):   (_NO_GRANT,  _NO_GRANT,  _STAY,      _OVER),
}
# fmt: on

REQUEST_ANSWERS: dict[tuple[RequestStage, RequestCommand], RequestStage | Refused] = answers_by_cell(
    _COLUMNS, RequestCommand, _GRID, _OVER
)


class RequestOrder(Order):
    """A command from one person to a request."""

    until: Time | None = Field(default=None, exclude_if=lambda day: day is None)
    """For extend: the new end of the grant."""


def refusal(
    state: RequestState,
    command: RequestCommand,
    request: RequestOrder,
    owners: tuple[str, ...] | None = None,
    *,
    by_roles: bool | None = None,
) -> str | None:
    """Explain in one sentence why the command cannot be taken now; None if it can.

    `owners`: those of the cluster today; None: not looked up yet, so the actor is not checked. `by_roles`: whether an
    access file assigns the right to give it, in place of the owners. None: it does if the request came with a ticket.
    """
    if state.stage is RequestStage.GRANTED and state.has_ended:
        return f"request {state.ask.request} is {state.stage}: {state.said}: {FOR_GOOD}"
    cell = REQUEST_ANSWERS[state.stage, command]
    if isinstance(cell, Refused):
        return cell.reason.format(request=state.ask.request, stage=state.stage, said=state.said)
    if REQUEST_ROWS[command].needs_reason and not request.reason.strip():
        return f"{command} needs a reason"
    ends = state.ends_on
    if command is RequestCommand.EXTEND and ends and (request.until is None or request.until <= ends):
        return f"extend needs a day after {ends:%Y-%m-%d %H:%MZ}, when the grant ends"
    if owners is None or (state.ticketed if by_roles is None else by_roles):
        return None
    return _refuse_actor(state, command, request.actor, owners)


def _refuse_actor(state: RequestState, command: RequestCommand, actor: str, owners: tuple[str, ...]) -> str | None:
    if command is RequestCommand.WITHDRAW:
        if is_one_of(actor, (state.ask.actor, *owners)):
            return None
        return f"{actor} may not withdraw request {state.ask.request}: ask {any_of((state.ask.actor, *owners))}"
    if not is_one_of(actor, owners):
        whom = any_of(owners) or "for an owner to be named in its policy"
        return f"{actor} does not own {state.ask.cluster}: ask {whom}"
    return None


def obey(state: RequestState, command: RequestCommand, request: RequestOrder, now: datetime) -> RequestState:
    """Return the request after a command that is not refused."""
    by, reason = request.actor, request.reason

    def record(changed: RequestState, text: str) -> RequestState:
        return changed.record(AuditKind.COMMAND, text, now, actor=by, reason=reason, **warrant_in(request))

    match command:
        case RequestCommand.APPROVE:
            approved = state.enter_stage(
                RequestStage.APPROVED, now, "Backstop is writing it", decided_by=by, decision=reason
            )
            return record(approved, "approved")
        case RequestCommand.DECLINE:
            declined = state.enter_stage(
                RequestStage.DECLINED, now, f"declined by {by}: {reason}", decided_by=by, decision=reason
            )
            text = f"{by} declines your request for {state.wanted_text}: {reason}"
            return record(declined, "declined").notify(state.askers, text)
        case RequestCommand.WITHDRAW:
            withdrawn = f"withdrawn by {by}: {reason}"
            if state.stage is RequestStage.GRANTED:
                back = state.enter_stage(RequestStage.RETURNING, now, withdrawn, returned_by=by)
                return record(back, "withdrawn: it is given back")
            return record(state.enter_stage(RequestStage.WITHDRAWN, now, withdrawn), "withdrawn")
        case RequestCommand.EXTEND:
            until = f"{request.until:%Y-%m-%d %H:%MZ}"
            text = f"{by} extends your grant of {state.wanted_text}: it now ends at {until}. Why: {reason}"
            sentence = f"granted until {until}, extended by {by}"
            longer = state.enter_stage(RequestStage.GRANTED, now, sentence, ask=state.ask.but(until=request.until))
            return record(longer, f"extended until {until}").notify(state.askers, text)
